#!/usr/bin/env python3
"""eval_reference.py - `gpt2 eval` against PyTorch: the same random weights, the same questions.

Where transformers is installed, its GPT-2 reads the same file, and the file that `gpt2 --export` makes
of it: logits are equal to 1e-4, tensors to the bit.

    tests/gpt2/eval_reference.py GPT2 FIXTURES [DPRUN]

FIXTURES/tokens is a vocabulary of 512 tokens. The reference is written from HellaSwag's and LAMBADA's
descriptions: logits by the model of make_fixtures.py in double precision, byte pairs by a plain loop.
With DPRUN two ranks share the questions. Runs in the first Python that has PyTorch:
TORCH_PYTHON, build-torch (./test.sh), build-python (./quickstart.sh --python), or this one.
"""
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
VOCAB, CONTEXT, LAYERS, HEADS, WIDTH = 512, 48, 2, 2, 32
WORDS = "the rank waits for a tensor and then it goes on to send what others have not seen yet of it's gradients".split()


def find_python():
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    made = [os.path.join(top, name, "bin", "python") for name in ("build-torch", "build-python")]
    for python in filter(None, [os.environ.get("TORCH_PYTHON"), *filter(os.path.exists, made), sys.executable]):
        if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
            return python
    print("eval_reference.py: no PyTorch: skipped")
    sys.exit(77)


class Encoder:
    """OpenAI's loop: the best pair, all its occurrences, and again."""

    def __init__(self, folder):
        from train_vocabulary import PATTERN, alphabet
        with open(os.path.join(folder, "vocab.json"), encoding="utf-8") as file:
            self.numbers = json.load(file)
        with open(os.path.join(folder, "merges.txt"), encoding="utf-8") as file:
            merges = [tuple(line.split()) for line in file.read().splitlines()[1:]]
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.pattern, self.letters = PATTERN, alphabet()

    def encode(self, text):
        tokens = []
        for piece in self.pattern.findall(text.encode()):
            word = [self.letters[b] for b in piece]
            while len(word) > 1:
                best = min(zip(word, word[1:]), key=lambda pair: self.ranks.get(pair, 1 << 30))
                if best not in self.ranks:
                    break
                merged, at = [], 0
                while at < len(word):
                    both = tuple(word[at:at + 2]) == best
                    merged.append("".join(best) if both else word[at])
                    at += 2 if both else 1
                word = merged
            tokens += [self.numbers[part] for part in word]
        return tokens


def make_weights(torch):
    """Random weights under make_fixtures.py's names."""
    from make_fixtures import names, shape_of
    torch.manual_seed(5)
    return {name: (0.1 * torch.randn(shape_of(name, VOCAB, CONTEXT, WIDTH)) + (1.0 if ".ln_" in "." + name and
            name.endswith("weight") else 0.0)).float() for name in names(LAYERS)}


def write_safetensors(path, weights):
    """As Hugging Face has them: matrices of a block [in][out]."""
    new = {"mlp.fcproj": "mlp.c_proj", "mlp.fc": "mlp.c_fc", "attn.proj": "attn.c_proj", "attn.qkv": "attn.c_attn"}
    header, body = {}, b""
    for name, tensor in weights.items():
        for old, theirs in new.items():
            if old in name:
                name = name.replace(old + ".", theirs + ".")
                tensor = tensor.t() if tensor.dim() == 2 else tensor
                break
        data = struct.pack(f"<{tensor.numel()}f", *tensor.flatten().tolist())
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    header["__metadata__"] = {"format": "pt"}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)
    with open(os.path.join(os.path.dirname(path), "config.json"), "w", encoding="utf-8") as file:
        json.dump({"model_type": "gpt2", "n_head": HEADS, "n_layer": LAYERS, "n_embd": WIDTH, "n_positions": CONTEXT,
                   "vocab_size": VOCAB, "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"]}, file)


def write_questions(folder, likeliest):
    """likeliest(context): what the model holds for the next word, or None."""
    rng = random.Random(3)

    def words(low, high):
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, high)))

    swag = [{"ind": i, "ctx": words(3, 30), "endings": [words(1, 9) + "." for _ in range(4)],
             "label": rng.choice([0, "3", 1, 2]), "more": {"x": [None]}} for i in range(24)]
    last = []
    for i in range(24):
        context = words(4, 30)
        word = likeliest(context) if i % 2 else None
        last.append({"text": context + " " + (word or rng.choice(["tensor", "gradients", "na\u00efve\u201d", "it"]))})
    for name, rows in (("swag.jsonl", swag), ("last.jsonl", last)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return swag, last


def losses(torch, weights, context, ending):
    """The losses of the ending's tokens, and whether each of these was the likeliest."""
    from make_fixtures import forward
    tokens = context + ending
    tokens = tokens[-(CONTEXT + 1):]
    logits = forward(weights, torch.tensor([tokens[:-1]]), LAYERS, HEADS)[0, -len(ending):]
    asked = torch.tensor(ending)
    loss = torch.nn.functional.cross_entropy(logits, asked, reduction="none")
    return loss.tolist(), bool((logits.argmax(dim=-1) == asked).all())


def next_word(torch, weights, encoder, context):
    from make_fixtures import forward
    with torch.no_grad():
        logits = forward(weights, torch.tensor([encoder.encode(context)[-CONTEXT:]]), LAYERS, HEADS)[0, -1]
    letters = {number: token for token, number in encoder.numbers.items()}
    number = int(logits.argmax())
    token = letters[number]
    is_word = re.fullmatch("\u0120[a-z]+", token) and encoder.encode(" " + token[1:]) == [number]
    return token[1:] if is_word else None


def reference(torch, weights, encoder, swag, last):
    weights = {name: tensor.double() for name, tensor in weights.items()}
    norm = plain = loss = found = nats = 0.0
    with torch.no_grad():
        for row in swag:
            rows = [losses(torch, weights, encoder.encode(row["ctx"]), encoder.encode(" " + text))[0] for text in row["endings"]]
            label = int(row["label"])
            norm += min(range(4), key=lambda i: sum(rows[i]) / len(rows[i])) == label
            plain += min(range(4), key=lambda i: sum(rows[i])) == label
            loss += sum(rows[label])
        for row in last:
            context, word = row["text"].rsplit(" ", 1)
            row, is_best = losses(torch, weights, encoder.encode(context), encoder.encode(" " + word))
            found += is_best
            nats += sum(row)
    return {"acc_norm": norm / len(swag), "acc": plain / len(swag), "loss": loss / len(swag)}, \
           {"acc": found / len(last), "perplexity": pow(2.718281828459045, nats / len(last))}


def compare(line, wanted):
    for name, value in wanted.items():
        got = float(re.search(rf" {name} ([0-9.e+]+)", line).group(1))
        if abs(got - value) > 1e-4 * max(1.0, value):
            sys.exit(f"eval_reference.py: {name}: ours {got}, PyTorch {value}: {line}")


def check_hugging_face(torch, gpt2, folder, work, model, weights):
    """Theirs reads our form of the weights; ours reads and writes it without a change."""
    try:
        from transformers import GPT2LMHeadModel
    except ImportError:
        print("eval_reference.py: no transformers: Hugging Face's GPT-2 is not tried")
        return
    from make_fixtures import forward
    theirs = GPT2LMHeadModel.from_pretrained(os.path.dirname(model)).eval()
    tokens = torch.randint(0, VOCAB, (2, CONTEXT), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        off = (theirs(tokens).logits - forward(weights, tokens, LAYERS, HEADS)).abs().max().item()
    if not off < 1e-4:
        sys.exit(f"eval_reference.py: logits are off by {off} from Hugging Face's")
    data, again = os.path.join(work, "data.bin"), os.path.join(work, "again", "model.safetensors")
    os.mkdir(os.path.dirname(again))
    with open(data, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, 2000, *[0] * 253) + bytes(4000))
    subprocess.run([gpt2, "--strategy", "single", "--device", "cpu", "--data", data, "--tokenizer", folder, "--init", model,
                    "--steps", "0", "--seq", "8", "--batch", "1", "--eval-batches", "1", "--export", again],
                   check=True, capture_output=True, timeout=120)
    back = GPT2LMHeadModel.from_pretrained(os.path.dirname(again)).state_dict()
    for name, tensor in theirs.state_dict().items():
        if not torch.equal(tensor, back[name]):
            sys.exit(f"eval_reference.py: {name} has changed on its way through gpt2")
    print(f"eval_reference.py: Hugging Face's logits are off by {off:.1e}, and its tensors come back")


def main(gpt2, fixtures, launcher):
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        folder = os.path.join(fixtures, "tokens")
        model = os.path.join(work, "model.safetensors")
        weights = make_weights(torch)
        write_safetensors(model, weights)
        check_hugging_face(torch, gpt2, folder, work, model, weights)
        encoder = Encoder(folder)
        swag, last = write_questions(work, lambda context: next_word(torch, weights, encoder, context))
        wanted = reference(torch, weights, encoder, swag, last)
        if not 0.1 < wanted[1]["acc"] < 0.9:
            sys.exit(f"eval_reference.py: the questions do not tell models apart: {wanted}")
        command = [gpt2, "eval", "--init", model, "--tokenizer", folder, "--hellaswag", os.path.join(work, "swag.jsonl"),
                   "--lambada", os.path.join(work, "last.jsonl")]
        for start in [[]] + [launcher] if launcher else [[]]:
            out = subprocess.run(start + command, capture_output=True, text=True, timeout=120)
            lines = [line[line.find("hellaswag"):] if "hellaswag" in line else line for line in out.stdout.splitlines()]
            if out.returncode != 0 or len(lines) != 2:
                sys.exit(f"eval_reference.py: {start + command}: {out.stdout}{out.stderr}")
            for line, figures in zip(lines, wanted):
                compare(line, figures)
            print(f"eval_reference.py: {'two ranks' if start else 'one process'}: as PyTorch: {wanted}")


if __name__ == "__main__":
    if "--here" not in sys.argv:
        sys.exit(subprocess.run([find_python(), *sys.argv, "--here"]).returncode)
    sys.argv.remove("--here")
    main(sys.argv[1], sys.argv[2], [sys.argv[3], "-np", "2"] if len(sys.argv) > 3 else [])
