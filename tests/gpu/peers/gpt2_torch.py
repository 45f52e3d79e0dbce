#!/usr/bin/env python3
"""gpt2_torch.py - GPT-2 in PyTorch, as quick as its own means make it: the peer of examples/gpt2.

    gpt2_torch.py [--preset 124M] [--batch 64] [--seq 1024] [--steps 60] [--mode MODE]
    torchrun --nproc-per-node N gpt2_torch.py ...    DistributedDataParallel over NCCL
    gpt2_torch.py --attention                        scaled_dot_product_attention alone, at our shapes
    gpt2_torch.py --tokens FILE COUNT                llm.c tokens to train on, random

The same work as the trainer's: bf16 with fp32 masters, the residual stream in bf16, causal attention
without a mask, tied embedding of 50304 rows, AdamW (fused) with clipping. Nothing waits for the GPU
between the first timed step and the last, and all data is there before the first.

--mode says what prepares the step: eager, default (torch.compile), max-autotune (all kernels timed
beforehand) or graphs (torch.compile with CUDA graphs).

Prints the versions, cuDNN's as it was loaded, and the attention kernels that a step ran. Then one
line: tokens per second, median and the 5th and 95th percentile of the steps, and the peak of memory.
The first third of the steps warms up. --device cpu runs a tiny shape anywhere, for a test. Exits
with 77 without torch, or without a GPU where one is wanted.
"""
import argparse
import math
import os
import random
import struct
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    torch = None

PRESETS = {"tiny": (2, 2, 32), "124M": (12, 12, 768), "350M": (24, 16, 1024), "774M": (36, 20, 1280),
           "1558M": (48, 25, 1600)}
MODES = {"eager": None, "default": {}, "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
         "graphs": {"mode": "reduce-overhead"}}
VOCAB = 50304  # 50257 padded to a multiple of 128, as the trainer does
TOKENS = 50257
BATCHES = 4  # made ahead, used in turn
SHAPES = {"cuda": [(64, 1024, 12, 64), (16, 1024, 25, 64), (4, 8192, 12, 64)], "cpu": [(1, 64, 2, 16)]}
ATTENTION = ("flash", "fmha", "cudnn", "sdpa", "attention", "efficient")  # in the names of its kernels


def write_tokens(path, count):
    """llm.c's token file: 256 words of header, then 16 bits per token."""
    generator = random.Random(1)
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, count, *([0] * 253)))
        file.write(struct.pack(f"<{count}H", *(generator.randrange(TOKENS) for _ in range(count))))


if torch is not None:

    class Block(nn.Module):
        def __init__(self, heads, width):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, seq, width = x.shape
            q, k, v = (part.view(batch, seq, self.heads, width // self.heads).transpose(1, 2)
                       for part in self.qkv(self.norm1(x)).split(width, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, seq, width))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self, layers, heads, width, context):
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCAB, width), nn.Embedding(context, width)
            self.blocks = nn.ModuleList(Block(heads, width) for _ in range(layers))
            self.norm = nn.LayerNorm(width)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def stream(self, tokens):
            """The residual stream behind the last block."""
            # Embeddings are not autocast: without the cast x and its gradient would be fp32 everywhere.
            x = (self.tokens(tokens) + self.places.weight[:tokens.shape[1]]).to(torch.bfloat16)
            for block in self.blocks:
                x = block(x)
            return x

        def forward(self, tokens, targets):
            x = self.stream(tokens)
            logits = F.linear(self.norm(x), self.tokens.weight)  # tied
            return F.cross_entropy(logits.view(-1, VOCAB).float(), targets.reshape(-1))


class Marks:
    """Points in time on the device's stream, read when all is over; on a CPU simply the time."""

    def __init__(self, device, count):
        self.events = None
        self.times = []
        if device.type == "cuda":
            self.events = [torch.cuda.Event(enable_timing=True) for _ in range(count)]

    def set(self):
        if self.events is not None:
            self.events[len(self.times)].record()
        self.times.append(time.perf_counter())

    def intervals(self):
        """Milliseconds between neighbours."""
        if self.events is None:
            return [1e3 * (b - a) for a, b in zip(self.times, self.times[1:])]
        self.events[-1].synchronize()
        return [a.elapsed_time(b) for a, b in zip(self.events, self.events[1:])]


def describe(device):
    """What of the machine's libraries decides a step's speed."""
    cudnn = torch.backends.cudnn.version() if device.type == "cuda" else None
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn}")


def attention_kernels(run, device):
    """The names of the attention kernels that run() starts."""
    activity = torch.profiler.ProfilerActivity
    kinds = [activity.CUDA] if device.type == "cuda" else [activity.CPU]
    with torch.profiler.profile(activities=kinds) as profile:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages()}
    return sorted(name for name in names if any(part in name.lower() for part in ATTENTION))


def make_step(arguments, device, size):
    """One training step as a function of tokens and targets, and the model."""
    layers, heads, width = PRESETS[arguments.preset]
    model = Model(layers, heads, width, arguments.seq).to(device)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    loss_of = model
    if size > 1:
        loss_of = nn.parallel.DistributedDataParallel(model, device_ids=[device.index],
                                                      gradient_as_bucket_view=True)
    if MODES[arguments.mode] is not None:
        loss_of = torch.compile(loss_of, **MODES[arguments.mode])
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                   {"params": others, "weight_decay": 0.0}],
                                  lr=6e-4, betas=(0.9, 0.95), fused=True)

    def step(tokens, targets):
        if arguments.mode == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_of(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach().clone()  # clone: a graph writes the next step's loss to the same place

    return step, model


def train(arguments, device):
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    if size > 1:
        torch.distributed.init_process_group("nccl")
    step, model = make_step(arguments, device, size)
    batch = max(1, arguments.batch // size)
    data = [torch.randint(0, TOKENS, (batch, arguments.seq + 1), device=device) for _ in range(BATCHES)]
    warm = arguments.steps // 3
    marks = Marks(device, arguments.steps - warm + 1)
    losses = []
    for number in range(arguments.steps):
        tokens = data[number % BATCHES]
        if number == warm:
            marks.set()
        losses.append(step(tokens[:, :-1], tokens[:, 1:]))
        if number >= warm:
            marks.set()
    times = sorted(marks.intervals())
    losses = [loss.item() for loss in losses]
    if not all(math.isfinite(loss) for loss in losses):
        sys.exit("gpt2_torch: a loss is not finite")
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    names = attention_kernels(lambda: step(data[0][:, :-1], data[0][:, 1:]), device)
    if rank == 0:
        describe(device)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            stream = model.stream(data[0][:1, :-1]).dtype
        print(f"stream {stream}, losses {losses[0]:.4f} to {losses[-1]:.4f}")
        for name in names:
            print(f"attention kernel {name}")
        median = times[len(times) // 2]
        print(f"torch {torch.__version__} {arguments.preset} batch {arguments.batch} seq {arguments.seq} "
              f"ranks {size} mode {arguments.mode}: {arguments.batch * arguments.seq / median * 1e3:.0f} tok/s, "
              f"step {median:.2f} ms (p5 {times[len(times) // 20]:.2f}, p95 {times[-1 - len(times) // 20]:.2f}), "
              f"{memory / 2**20:.0f} MiB")
    if size > 1:
        torch.distributed.destroy_process_group()


def time_calls(run, device, repeats):
    """The median of one call in ms."""
    for _ in range(3):
        run()
    marks = Marks(device, repeats + 1)
    marks.set()
    for _ in range(repeats):
        run()
        marks.set()
    times = sorted(marks.intervals())
    return times[len(times) // 2]


def attention(device, repeats):
    """Rates of PyTorch's own attention kernels, counted as ours are: the pairs that the mask leaves, in two
    products forward and five backward. Q, K and V lie interleaved, as the projection writes them."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    describe(device)
    backends = {"flash": SDPBackend.FLASH_ATTENTION}
    if device.type == "cuda":
        backends["cudnn"] = SDPBackend.CUDNN_ATTENTION
    for batch, seq, heads, width in SHAPES[device.type]:
        shape = f"[{batch}][{seq}][{heads}][{width}]"
        qkv = torch.randn(batch, seq, 3, heads, width, device=device, dtype=torch.bfloat16, requires_grad=True)
        d_out = torch.randn(batch, heads, seq, width, device=device, dtype=torch.bfloat16)
        pairs = batch * heads * seq * (seq + 1) / 2
        for name, backend in backends.items():
            for exact in (False, True):  # True: the backward pass has to repeat its bits, as ours does
                torch.use_deterministic_algorithms(exact, warn_only=True)

                def forward():
                    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
                    with sdpa_kernel(backend):
                        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

                what = f"torch attention {name}{' deterministic' if exact else ''} {shape}"
                try:
                    out = forward()
                    there = time_calls(forward, device, repeats)
                    back = time_calls(lambda: torch.autograd.grad(out, qkv, d_out, retain_graph=True), device, repeats)
                except RuntimeError as why:
                    print(f"{what}: {str(why).splitlines()[0]}")
                    continue
                kernels = attention_kernels(lambda: torch.autograd.grad(forward(), qkv, d_out), device)
                for kernel in kernels:
                    print(f"attention kernel {kernel}")
                for direction, ms, products in (("forward", there, 2), ("backward", back, 5)):
                    print(f"{what} {direction} {products * 2 * pairs * width / ms / 1e9:.3g} TFLOP/s")
    torch.use_deterministic_algorithms(False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="124M")
    parser.add_argument("--batch", type=int, default=64, help="sequences per step over all ranks")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--mode", choices=MODES, default="default")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--attention", action="store_true")
    parser.add_argument("--tokens", nargs=2, metavar=("FILE", "COUNT"))
    arguments = parser.parse_args()
    if arguments.tokens:
        write_tokens(arguments.tokens[0], int(arguments.tokens[1]))
        return
    if torch is None or (arguments.device == "cuda" and not torch.cuda.is_available()):
        print("skipped: no torch, or it finds no GPU")
        sys.exit(77)
    device = torch.device("cpu")
    if arguments.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if arguments.attention:
        attention(device, 20)
    else:
        train(arguments, device)


if __name__ == "__main__":
    main()
