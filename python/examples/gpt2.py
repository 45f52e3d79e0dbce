"""What gpt2_*.py have in common: the model, weights and samples of the trainer in C (examples/gpt2), in PyTorch.
With equal flags the losses are those of build/gpt2.

Random numbers are functions of a seed and a place, so a rank draws its samples without asking the others,
and the samples of a step do not depend on how many ranks share them.
"""
from __future__ import annotations

import argparse
import glob
import math
import os
import sys
import time
from typing import Any, Callable

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path.append(os.path.join(HERE, "..", "dpcompare", "peers"))

import model as definition  # noqa: E402

# name: layers, heads, width, context; batch, seq, steps, highest learning rate, steps of warm-up
PRESETS = {"tiny": (2, 2, 64, 64, 8, 64, 100, 3e-3, 10),
           "quick": (4, 4, 128, 64, 16, 64, 3000, 5e-3, 100),
           "small": (6, 6, 384, 256, 32, 256, 2000, 1e-3, 100)}
BYTES = 256  # the vocabulary: a text's bytes
VALIDATION = 0.1  # of the text, its end, which the trainer in C validates with
CLIP = 1.0


# ---- The command line ----------------------------------------------------------------------------

BACKEND: dict = {"default": "dp", "help": "of torch.distributed: dp or gloo [dp]"}


def options_of(about: str, **flags: dict) -> argparse.Namespace:
    """The flags that all scripts take, and those of this one by name, as add_argument() takes them."""
    parser = argparse.ArgumentParser(description=about,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="tiny", help="the model's size [tiny]")
    parser.add_argument("--data", nargs="+", help="texts, one behind the other; their bytes are the tokens "
                                                  "[docs/*.md of this checkout]")
    parser.add_argument("--batch", type=int, help="sequences per step over all ranks [preset]")
    parser.add_argument("--steps", type=int, help="steps of the whole run [preset]")
    parser.add_argument("--seed", type=int, default=1, help="of weights and samples [1]")
    parser.add_argument("--threads", type=int, default=1, help="threads of a rank [1]")
    parser.add_argument("--log-every", type=int, default=10, help="steps per line [10]")
    parser.add_argument("--csv", help="writes step and loss of every step there")
    for name, settings in flags.items():
        parser.add_argument("--" + name.replace("_", "-"), **settings)
    options = parser.parse_args()
    _, _, _, _, batch, options.seq, steps, options.rate, warmup = PRESETS[options.preset]
    options.batch = options.batch or batch
    options.steps = options.steps or steps
    options.warmup = min(warmup, options.steps // 10)
    torch.set_num_threads(options.threads)
    return options


# ---- Random numbers, as examples/gpt2/base/random.c has them -------------------------------------

MASK = (1 << 64) - 1
ROUNDS = 6  # of the Feistel network


def mixed(x: Any) -> Any:
    """splitmix64 of a uint64 array, or of a number."""
    if isinstance(x, int):
        x = (x + 0x9e3779b97f4a7c15) & MASK
        x = ((x ^ (x >> 30)) * 0xbf58476d1ce4e5b9) & MASK
        x = ((x ^ (x >> 27)) * 0x94d049bb133111eb) & MASK
        return x ^ (x >> 31)
    x = x + np.uint64(0x9e3779b97f4a7c15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return x ^ (x >> np.uint64(31))


def normal(seed: int, stream: int, count: int) -> np.ndarray:
    """Standard normal numbers [count] in fp64 (Box and Muller)."""
    key = mixed(mixed(seed) ^ stream)
    bits = mixed(np.arange(2 * count, dtype=np.uint64) ^ np.uint64(key))
    uniform = (bits >> np.uint64(11)).astype(np.float64) * 2.0 ** -53
    return np.sqrt(-2.0 * np.log(1.0 - uniform[::2])) * np.cos(6.283185307179586 * uniform[1::2])


def permuted(seed: int, stream: int, index: int, count: int) -> int:
    """Where index lands in a permutation of 0 .. count-1."""
    half = 1
    while half < 32 and 1 << (2 * half) < count:
        half += 1
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(ROUNDS):
            bits = mixed(mixed(mixed(seed) ^ (stream * ROUNDS + turn)) ^ right)
            left, right = right, left ^ (bits & mask)
        index = left << half | right
        if index < count:
            return index


# ---- Model and data ------------------------------------------------------------------------------

def model_of(options: argparse.Namespace) -> torch.nn.Module:
    """The model with the weights that the trainer in C begins with: a tensor's number is the stream."""
    layers, heads, width, context = PRESETS[options.preset][:4]
    model = definition.GPT2(layers, heads, width, BYTES, context)
    names = ["ln_f.weight", "ln_f.bias"]
    for layer in reversed(range(layers)):
        names += [f"blocks.{layer}.{module}.{kind}"
                  for module in ("fcproj", "fc", "ln_2", "proj", "qkv", "ln_1")
                  for kind in ("weight", "bias")]
    parameters = dict(model.named_parameters())
    for stream, name in enumerate([*names, "wpe.weight", "wte.weight"]):
        parameter = parameters[name]
        if parameter.dim() == 1:
            parameter.data.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
            continue
        deviation = 0.02 / math.sqrt(2.0 * layers) if "proj.weight" in name else 0.02
        drawn = deviation * normal(options.seed, stream, parameter.numel())
        parameter.data.copy_(torch.from_numpy(drawn.astype(np.float32)).view_as(parameter))
    return model


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    """AdamW with the trainer's settings; gpt2.train() sets the learning rate."""
    return torch.optim.AdamW(definition.groups_of(model), lr=1e-4, betas=(0.9, 0.95), eps=1e-8)


def rate_of(options: argparse.Namespace, step: int) -> float:
    """A linear rise, then a cosine to a tenth. Steps count from 0."""
    low = 0.1 * options.rate
    if step < options.warmup:
        return options.rate * (step + 1) / options.warmup
    progress = (step - options.warmup) / (options.steps - options.warmup)
    return low + (options.rate - low) * 0.5 * (1.0 + math.cos(math.pi * progress))


class Samples:
    """Sequences of a text: epoch after epoch a permutation of all, each epoch at another offset."""

    def __init__(self, options: argparse.Namespace) -> None:
        paths = options.data or sorted(glob.glob(os.path.join(TOP, "docs", "*.md")))
        text = bytearray()
        for path in paths:
            with open(path, "rb") as file:
                text += file.read()
        self.tokens = torch.frombuffer(text, dtype=torch.uint8).to(torch.int64)
        count = len(text) - int(len(text) * VALIDATION)
        self.seed, self.length = options.seed, options.seq
        self.sequences = max((count - 1) // self.length - 1, 1)
        self.slack = count - 1 - self.sequences * self.length

    def place(self, index: int) -> int:
        """Where sequence `index` of the run begins, in tokens."""
        epoch = index // self.sequences
        offset = mixed(mixed(mixed(~self.seed & MASK) ^ epoch)) % (self.slack + 1)
        return offset + permuted(self.seed, epoch, index % self.sequences, self.sequences) * self.length

    def take(self, first: int, count: int) -> "tuple[torch.Tensor, torch.Tensor]":
        """Inputs and targets [count][length] of the sequences from `first` on."""
        places = torch.tensor([self.place(first + i) for i in range(count)])
        at = places[:, None] + torch.arange(self.length)
        return self.tokens[at], self.tokens[at + 1]


def join_group(backend: str) -> "tuple[int, int]":
    """Rank and size of the default process group: of torchrun, dprun or srun, or of this process alone."""
    import torch.distributed as dist
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return dist.get_rank(), dist.get_world_size()


# ---- The loop ------------------------------------------------------------------------------------

def train(options: argparse.Namespace, rank: int, size: int, optimizer: torch.optim.Optimizer,
          step: Callable[[torch.Tensor, torch.Tensor], Any], has_all: bool = False) -> None:
    """Trains. step(inputs, targets) makes a step and returns the loss over all ranks. Each rank gets its share of
    a step's sequences, or all of them (has_all)."""
    if options.batch % size != 0 and not has_all:
        raise SystemExit(f"--batch {options.batch} is not a multiple of {size} ranks")
    samples = Samples(options)
    local = options.batch if has_all else options.batch // size
    losses = []
    began = time.monotonic()
    for i in range(options.steps):
        inputs, targets = samples.take(i * options.batch + (0 if has_all else rank * local), local)
        for group in optimizer.param_groups:
            group["lr"] = rate_of(options, i)
        losses.append(float(step(inputs, targets)))
        if rank == 0 and (i + 1) % options.log_every == 0:
            speed = (i + 1) * options.batch * options.seq / (time.monotonic() - began)
            print(f"step {i + 1:5}/{options.steps}  loss {losses[-1]:.4f}  {speed / 1e3:.1f}k tok/s",
                  flush=True)
    if rank == 0:
        print(f"learned  {losses[0]:.4f} -> {losses[-1]:.4f} nats per byte on {size} ranks")
        if options.csv:
            with open(options.csv, "w", encoding="utf-8") as file:
                file.writelines(f"{i + 1},{loss!r}\n" for i, loss in enumerate(losses))
