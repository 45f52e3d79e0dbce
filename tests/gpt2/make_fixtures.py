#!/usr/bin/env python3
"""make_fixtures.py - writes fixtures/*.bin: what PyTorch computes for a few small GPT-2s.

Needs PyTorch (any version; Debian's python3-torch will do). Everything is computed in float64 and
stored as float32, so a fixture is the rounded truth, not one library's rounding order. The files
are read by tests/gpt2/fixture.c; run this again only when the format changes:

    python3 tests/gpt2/make_fixtures.py tests/gpt2/fixtures
"""
import struct
import sys

import torch
import torch.nn.functional as F

STEPS = 5
LEARNING_RATE = 1e-3
BETAS = (0.9, 0.95)
DECAY = 0.1
CLIP = 1.0


def names(layers):
    """Completion order of the arena: the same list as examples/gpt2/model/shape.c."""
    yield from ("ln_f.weight", "ln_f.bias")
    for layer in reversed(range(layers)):
        for name in ("mlp.fcproj", "mlp.fc", "ln_2", "attn.proj", "attn.qkv", "ln_1"):
            yield f"h.{layer}.{name}.weight"
            yield f"h.{layer}.{name}.bias"
    yield from ("wpe.weight", "wte.weight")


def shape_of(name, vocab, context, width):
    part, kind = name.rsplit(".", 2)[-2:]
    rows = {"fcproj": width, "fc": 4 * width, "proj": width, "qkv": 3 * width}
    columns = {"fcproj": 4 * width}
    if part == "wte":
        return (vocab, width)
    if part == "wpe":
        return (context, width)
    if kind == "bias" or part.startswith("ln_"):
        return (rows.get(part, width),)
    return (rows[part], columns.get(part, width))


def forward(p, x, layers, heads):
    batch, length = x.shape
    stream = p["wte.weight"][x] + p["wpe.weight"][:length]
    width = stream.shape[-1]

    def norm(value, name):
        return F.layer_norm(value, (width,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    def linear(value, name):
        return F.linear(value, p[name + ".weight"], p[name + ".bias"])

    for layer in range(layers):
        h = f"h.{layer}."
        qkv = linear(norm(stream, h + "ln_1"), h + "attn.qkv")
        q, k, v = (
            part.view(batch, length, heads, width // heads).transpose(1, 2)
            for part in qkv.split(width, dim=2)
        )
        scores = q @ k.transpose(2, 3) / (width // heads) ** 0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        attended = (scores @ v).transpose(1, 2).reshape(batch, length, width)
        stream = stream + linear(attended, h + "attn.proj")
        fc = F.gelu(linear(norm(stream, h + "ln_2"), h + "mlp.fc"), approximate="tanh")
        stream = stream + linear(fc, h + "mlp.fcproj")
    return norm(stream, "ln_f") @ p["wte.weight"].t()


def floats(tensors):
    for tensor in tensors:
        values = tensor.detach().to(torch.float32).flatten().tolist()
        yield struct.pack(f"<{len(values)}f", *values)


def write(path, seed, vocab, context, layers, heads, width, batch, length):
    torch.manual_seed(seed)
    order = list(names(layers))
    p = {}
    for name in order:
        shape = shape_of(name, vocab, context, width)
        value = 0.15 * torch.randn(shape, dtype=torch.float64)
        if ".ln_" in "." + name and name.endswith("weight"):
            value = value + 1.0
        # The stored weights are float32; the truth starts from exactly those.
        p[name] = value.to(torch.float32).to(torch.float64).requires_grad_()
    x = torch.randint(0, vocab, (batch, length))
    y = torch.randint(0, vocab, (batch, length))
    start = list(floats(p[name] for name in order))

    logits = forward(p, x, layers, heads)
    loss = F.cross_entropy(logits.view(-1, vocab), y.view(-1))
    loss.backward()
    gradients = list(floats(p[name].grad for name in order))

    optimizer = torch.optim.AdamW(
        [
            {"params": [p[n] for n in order if p[n].dim() == 2], "weight_decay": DECAY},
            {"params": [p[n] for n in order if p[n].dim() != 2], "weight_decay": 0.0},
        ],
        lr=LEARNING_RATE, betas=BETAS, eps=1e-8,
    )
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        step_loss = F.cross_entropy(forward(p, x, layers, heads).view(-1, vocab), y.view(-1))
        step_loss.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), CLIP)
        optimizer.step()
        losses.append(step_loss.item())

    with open(path, "wb") as file:
        file.write(b"gpt2fix1")
        file.write(struct.pack("<8i", vocab, context, layers, heads, width, batch, length, STEPS))
        file.write(struct.pack("<4d", LEARNING_RATE, BETAS[0], BETAS[1], DECAY))
        file.write(struct.pack(f"<{1 + STEPS}d", loss.item(), *losses))
        file.write(struct.pack(f"<{batch * length}i", *x.flatten().tolist()))
        file.write(struct.pack(f"<{batch * length}i", *y.flatten().tolist()))
        file.writelines(start)
        file.writelines(floats([logits]))
        file.writelines(gradients)
        file.writelines(floats(p[name] for name in order))


def main():
    folder = sys.argv[1]
    # Ragged on purpose: a width that is no multiple of a vector, a shorter sequence than the
    # context, and a case longer than one block of attention rows.
    write(f"{folder}/ragged.bin", 1, vocab=61, context=20, layers=2, heads=3, width=24, batch=3,
          length=17)
    write(f"{folder}/long.bin", 2, vocab=50, context=80, layers=1, heads=2, width=32, batch=2,
          length=80)
    write(f"{folder}/deep.bin", 3, vocab=97, context=32, layers=4, heads=2, width=32, batch=2,
          length=32)


if __name__ == "__main__":
    main()
