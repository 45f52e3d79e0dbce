"""ddp_torch.py - what DistributedDataParallel takes for the gradients of GPT-2 124M.

    RANK= WORLD_SIZE= ... ddp_torch.py exchange=gloo|fp16|libdp [libdp=PATH] [wire=none|fp16]
        [set=gpt2|MEGABYTES] [steps=8] [warmup=2]

Backward is as short as it can be (each gradient is a constant), so that the exchange is all there
is to see; it is also timed alone, without the exchange. Prints one JSON line; times are those of
the slowest rank.
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from slices import argument

WIDTH = 768


def shapes(which):
    if which != "gpt2":
        return [1 << 18] * int(which)  # tensors of 1 MiB
    block = [3 * WIDTH, 3 * WIDTH * WIDTH, WIDTH, WIDTH * WIDTH, WIDTH, WIDTH, 4 * WIDTH,
             4 * WIDTH * WIDTH, WIDTH, 4 * WIDTH * WIDTH, WIDTH, WIDTH]
    return [50257 * WIDTH, 1024 * WIDTH] + block * 12 + [WIDTH, WIDTH]


class Gradient(torch.autograd.Function):
    """Passes a number through; the gradient of the weight is the number everywhere."""

    @staticmethod
    def forward(ctx, weight, number):
        ctx.size = weight.numel()
        return number

    @staticmethod
    def backward(ctx, number):
        return torch.full((ctx.size,), float(number)), number


class Set(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(n)) for n in sizes)

    def forward(self, number):
        for weight in self.weights:
            number = Gradient.apply(weight, number)
        return number


def main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    exchange, steps = argument("exchange", "gloo"), int(argument("steps", "8"))
    warmup = int(argument("warmup", "2"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = Set(shapes(argument("set", "gpt2")))
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    state = None
    if exchange == "fp16":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif exchange == "libdp":
        import dp_hook

        state = dp_hook.Runtime(argument("libdp", "libdp.so"), argument("wire", "none"))
        wrapped.register_comm_hook(state, dp_hook.allreduce)

    def backward():
        model.zero_grad(set_to_none=False)
        loss = wrapped(torch.tensor(float(rank + 1), requires_grad=True)) * (rank + 1.0)
        dist.barrier()
        begin = time.monotonic()
        loss.backward()
        return time.monotonic() - begin

    times, alone = [], []
    for step in range(-warmup, steps):
        taken = backward()
        found = {float(w.grad[at]) for w in model.weights for at in (0, w.numel() // 2, -1)}
        if found != {sum(range(1, ranks + 1)) / ranks}:
            raise SystemExit(f"rank {rank}: gradients are {sorted(found)[:4]}")
        if step >= 0:
            times.append(taken)
    for _ in range(3):
        with wrapped.no_sync():
            alone.append(backward())
    figures = torch.tensor([statistics.median(times), min(times), statistics.median(alone)],
                           dtype=torch.float64)
    dist.all_reduce(figures, op=dist.ReduceOp.MAX)
    if state is not None:
        state.close()
    if rank == 0:
        median, least, backward_alone = (1e3 * float(value) for value in figures)
        print(json.dumps({"way": f"ddp {exchange}", "ms": median, "min_ms": least,
                          "backward_ms": backward_alone}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # gloo's threads need no farewell


if __name__ == "__main__":
    main()
