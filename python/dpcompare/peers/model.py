"""model.py - the GPT-2 that examples/gpt2 trains, in PyTorch: pre-norm blocks, GELU in its tanh
form, tied head. Imported by scripts that run under a peer's interpreter; needs torch alone.
"""
import json
import math
import struct

import torch
import torch.nn.functional as F
from torch import nn

FUSED = hasattr(F, "scaled_dot_product_attention")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.head = width // heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.fcproj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        parts = self.qkv(x).chunk(3, dim=2)  # of all heads, or of this rank's
        q, k, v = (part.view(*part.shape[:2], -1, self.head).transpose(1, 2) for part in parts)
        if FUSED:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            length = x.shape[1]
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(self.head))
            hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
            y = F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ v
        return self.proj(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.fcproj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, heads, width, vocabulary, context):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                scale = 0.02 / math.sqrt(2 * layers) if "proj.weight" in name else 0.02
                nn.init.normal_(weight, 0.0, scale)

    def forward(self, tokens, targets, positions=None):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]) if positions is None else positions)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def groups_of(model, decay=0.1):
    """Parameters for an optimizer: weight decay on matrices alone."""
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


# HF's names of a block's tensors, ours, and whether HF has the matrix transposed.
NAMES = {"ln_1": ("ln_1", False), "ln_2": ("ln_2", False), "attn.c_attn": ("qkv", True),
         "attn.c_proj": ("proj", True), "mlp.c_fc": ("fc", True), "mlp.c_proj": ("fcproj", True)}


def read_safetensors(path):
    """{name: tensor} of a file of fp32 tensors, and its metadata."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = bytearray(file.read())
    about = header.pop("__metadata__", {})
    found = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        if entry["dtype"] != "F32":
            raise SystemExit(f"{path}: {name} is {entry['dtype']}, F32 expected")
        found[name.removeprefix("transformer.")] = torch.frombuffer(
            data, dtype=torch.float32, offset=first, count=(last - first) // 4).view(entry["shape"])
    return found, about


def load(path, heads):
    """The model of a safetensors file in HF's layout, with those weights."""
    tensors, _ = read_safetensors(path)
    layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("h."))
    vocabulary, width = tensors["wte.weight"].shape
    model = GPT2(layers, heads, width, vocabulary, tensors["wpe.weight"].shape[0])
    state = {}
    for name, tensor in tensors.items():
        if not name.startswith("h."):
            state[name] = tensor
            continue
        _, layer, rest = name.split(".", 2)
        module, _, kind = rest.rpartition(".")
        ours, transposed = NAMES[module]
        turned = tensor.t().contiguous() if transposed and kind == "weight" else tensor
        state[f"blocks.{layer}.{ours}.{kind}"] = turned
    model.load_state_dict(state)
    return model
