#!/usr/bin/env python3
"""gpt2_torch.py - GPT-2 in PyTorch, as quick as its own means make it: the peer of examples/gpt2.

    gpt2_torch.py [--preset 124M] [--batch 8] [--seq 1024] [--steps 60] [--no-compile]
    torchrun --nproc-per-node N gpt2_torch.py ...          DistributedDataParallel over NCCL
    gpt2_torch.py --tokens FILE COUNT                      llm.c tokens to train on, random

The same work as the trainer's: bf16 with fp32 masters, flash attention, tied embedding, AdamW with
clipping. Warms up for a third of the steps; prints one line: tokens per second, median and the
5th and 95th percentile of the steps, and the peak of memory. Exits with 77 without a GPU or torch.
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

PRESETS = {"124M": (12, 12, 768), "350M": (24, 16, 1024), "774M": (36, 20, 1280),
           "1558M": (48, 25, 1600)}
VOCAB = 50304  # 50257 padded to a multiple of 128, as the trainer does


def write_tokens(path, count):
    """llm.c's token file: 256 words of header, then 16 bits per token."""
    generator = random.Random(1)
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, count, *([0] * 253)))
        file.write(struct.pack(f"<{count}H", *(generator.randrange(50257) for _ in range(count))))


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

        def forward(self, tokens, targets):
            x = self.tokens(tokens) + self.places.weight[:tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.norm(x), self.tokens.weight)  # tied
            return F.cross_entropy(logits.view(-1, VOCAB).float(), targets.reshape(-1))


def train(arguments):
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local = int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count()
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    layers, heads, width = PRESETS[arguments.preset]
    model = Model(layers, heads, width, arguments.seq).to(device)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    step = model
    if size > 1:
        torch.distributed.init_process_group("nccl")
        step = nn.parallel.DistributedDataParallel(model, device_ids=[local],
                                                   gradient_as_bucket_view=True)
    if arguments.compile:
        step = torch.compile(step)
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                   {"params": others, "weight_decay": 0.0}],
                                  lr=6e-4, betas=(0.9, 0.95), fused=True)
    batch = arguments.batch // size
    times, loss = [], None
    for number in range(arguments.steps):
        tokens = torch.randint(0, 50257, (batch, arguments.seq + 1), device=device)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = step(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if number >= arguments.steps // 3:
            times.append(time.perf_counter() - begin)
    times.sort()
    median = times[len(times) // 2]
    if not math.isfinite(loss.item()):
        sys.exit("gpt2_torch: the loss is not finite")
    if rank == 0:
        print(f"torch {torch.__version__} {arguments.preset} batch {arguments.batch} seq "
              f"{arguments.seq} ranks {size} compile {int(arguments.compile)}: "
              f"{arguments.batch * arguments.seq / median:.0f} tok/s, step {1e3 * median:.2f} ms "
              f"(p5 {1e3 * times[len(times) // 20]:.2f}, p95 {1e3 * times[-1 - len(times) // 20]:.2f}), "
              f"{torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
    if size > 1:
        torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", choices=PRESETS, default="124M")
    parser.add_argument("--batch", type=int, default=8, help="sequences per step over all ranks")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--tokens", nargs=2, metavar=("FILE", "COUNT"))
    arguments = parser.parse_args()
    if arguments.tokens:
        write_tokens(arguments.tokens[0], int(arguments.tokens[1]))
    elif torch is None or not torch.cuda.is_available():
        print("skipped: no torch, or it finds no GPU")
        sys.exit(77)
    else:
        train(arguments)


if __name__ == "__main__":
    main()
