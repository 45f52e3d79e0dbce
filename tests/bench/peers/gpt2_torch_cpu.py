#!/usr/bin/python3
"""gpt2_torch_cpu.py - a training step of GPT-2 in PyTorch, the peer's side of step.sh.

The model is the one examples/gpt2 trains: pre-norm blocks, GELU in its tanh form, tied head, AdamW
over two groups. Attention is matrix products and a softmax, or PyTorch's fused one where it has it.
Tokens are random; the loss is checked to start at the logarithm of the vocabulary. With WORLD_SIZE
above 1 the model is wrapped in DistributedDataParallel over gloo (or exchanged by libdp: --hook,
or not at all: --no-exchange). Prints one JSON line.
"""
import argparse
import json
import math
import os
import statistics
import sys
import time

import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "python", "dpcompare", "peers"))

from model import FUSED, GPT2, groups_of  # noqa: E402

PRESETS = {"tiny": (2, 2, 64, 256, 64), "124M": (12, 12, 768, 50257, 1024)}


def optimizer_of(model, rate):
    return torch.optim.AdamW(groups_of(model), lr=rate, betas=(0.9, 0.95), eps=1e-8)


def wrap(model, arguments):
    """The model as its ranks exchange it, and what must be closed at the end."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return model, None
    torch.distributed.init_process_group("gloo")
    if arguments.no_exchange:
        return model, None
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if not arguments.hook:
        return wrapped, None
    import dp_hook

    state = dp_hook.Runtime(arguments.hook, arguments.wire)
    wrapped.register_comm_hook(state, dp_hook.allreduce)
    return wrapped, state


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="124M", choices=sorted(PRESETS))
    parser.add_argument("--batch", type=int, default=4, help="sequences of this rank")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="autocast")
    parser.add_argument("--no-exchange", action="store_true")
    parser.add_argument("--hook", metavar="LIBDP", help="path of libdp.so: exchange through it")
    parser.add_argument("--wire", default="none", choices=["none", "fp16", "bf16"])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    layers, heads, width, vocabulary, context = PRESETS[arguments.preset]
    model = GPT2(layers, heads, width, vocabulary, context)
    trained, runtime = wrap(model, arguments)
    optimizer = optimizer_of(model, 1e-4)
    torch.manual_seed(2 + int(os.environ.get("RANK", "0")))
    shape = (arguments.batch, arguments.length)
    times, first_loss = [], None
    for step in range(-arguments.warmup, arguments.steps):
        tokens, targets = torch.randint(vocabulary, shape), torch.randint(vocabulary, shape)
        begin = time.monotonic()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.bf16):
            loss = trained(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if first_loss is None:
            first_loss = float(loss.detach())
        if step >= 0:
            times.append(time.monotonic() - begin)
    if not abs(first_loss - math.log(vocabulary)) < 0.5:
        raise SystemExit(f"loss {first_loss:.3f} at the start, {math.log(vocabulary):.3f} expected")
    if runtime is not None:
        runtime.close()
    if os.environ.get("RANK", "0") == "0":
        median = statistics.median(times)
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        tokens = arguments.batch * arguments.length * ranks
        print(json.dumps({"ms": median * 1e3, "min_ms": min(times) * 1e3,
                          "tokens_per_s": tokens / median, "loss": first_loss,
                          "torch": torch.__version__, "fused_attention": FUSED}), flush=True)


if __name__ == "__main__":
    main()
