#!/usr/bin/env python3
"""tokens_peers.py - `gpt2 tokenize` against tiktoken, and Hugging Face's tokenizers where it is there.

    tests/gpt2/tokens_peers.py GPT2 FOLDER [MEGABYTES]

FOLDER has a vocabulary, GPT-2's own or another; the text is drawn, with every character that Unicode
has, contractions and all kinds of white space, and then again with a fiftieth of its bytes replaced,
which leaves no valid UTF-8. tiktoken takes text alone, so there the text is cut into pieces by the
module regex, in which each byte that is no text is a character of its own, and tiktoken merges each
piece. A Python that has tiktoken can be named by TORCH_PYTHON.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
WORDS = ("the of and in Lord God it's we'll I've you're don't they'd I'm 'sx 'llama 1234 3.14 x² ½ Ⅷ naïve Straße "
         "你好世界 日本語テキスト Привет мир 안녕하세요 مرحبا हिन्दी ไทย 😀👩‍👩‍👧 \u200b").split(" ")
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\t", " \n", "\r\n", "\u00a0", "\u2003 ", "\u3000", "\x85", "\x1c", "\x1f "]


def find_python():
    """The first interpreter that has the peer."""
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    made = [os.path.join(top, name, "bin", "python") for name in ("build-torch", "build-python")]
    for python in filter(None, [os.environ.get("TORCH_PYTHON"), *filter(os.path.exists, made), sys.executable]):
        if subprocess.run([python, "-c", "import tiktoken, regex"], capture_output=True).returncode == 0:
            return python
    print("tokens_peers.py: no tiktoken: skipped (pip install tiktoken regex)")
    sys.exit(77)


def load(folder):
    """The files' paths, and each token's bytes with its number."""
    for names in ("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"):
        paths = [os.path.join(folder, name) for name in names]
        if os.path.exists(paths[0]):
            break
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    bytes_of = {chr(b): b for b in plain}
    bytes_of |= {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)}
    with open(paths[0], encoding="utf-8") as file:
        numbers = json.load(file)
    end = numbers.pop("<|endoftext|>")
    return paths, {bytes(bytes_of[c] for c in token): number for token, number in numbers.items()}, end


def draw(rng, size):
    assigned = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]

    def piece():
        kind = rng.random()
        if kind < 0.45:
            return rng.choice(WORDS)
        if kind < 0.65:
            return rng.choice(SPACES)
        if kind < 0.75:
            return "".join(rng.choice(assigned) for _ in range(rng.randint(1, 6)))
        if kind < 0.85:
            return "".join(chr(rng.randint(32, 126)) for _ in range(rng.randint(1, 12)))
        if kind < 0.90:
            return "".join(rng.choice("aeioubcdr") for _ in range(rng.randint(1, 40)))
        if kind < 0.95:
            return str(rng.randint(0, 10**9))
        return "'" + rng.choice(["s", "t", "re", "ve", "m", "ll", "d", "S", "x", "r", "l", ""])

    pieces, bytes_so_far = [], 0
    while bytes_so_far < size:
        pieces.append(rng.choice(["", " "]) + piece())
        bytes_so_far += len(pieces[-1].encode())
    return "".join(pieces)


def ours(gpt2, folder, data):
    with tempfile.TemporaryDirectory() as work:
        text, out = os.path.join(work, "text"), os.path.join(work, "out.bin")
        with open(text, "wb") as file:
            file.write(data)
        subprocess.run([gpt2, "tokenize", text, "--tokenizer", folder, "-o", out], check=True)
        with open(out, "rb") as file:
            body = file.read()[1024:]
    return list(memoryview(body).cast("H"))


def expect(what, got, wanted):
    if got == wanted:
        print(f"tokens_peers.py: {what}: {len(got)} tokens are equal")
        return
    at = next((i for i, pair in enumerate(zip(got, wanted)) if pair[0] != pair[1]), min(len(got), len(wanted)))
    sys.exit(f"tokens_peers.py: {what}: token {at}: ours {got[at:at + 5]}, wanted {wanted[at:at + 5]}")


def without_new(raw, ranks):
    """Leaves out characters that are letters or numbers to a newer regex alone; as bytes and as text."""
    import regex
    import tiktoken

    every = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    plain = {token: number for token, number in ranks.items() if len(token) == 1}
    either = tiktoken.Encoding("either", pat_str=r"[\p{L}\p{N}]", mergeable_ranks=plain, special_tokens={})
    known = set(b"".join(map(either.decode_single_token_bytes, either.encode_ordinary(every))).decode())
    new = set(regex.findall(r"[\p{L}\p{N}]", every)) - known
    while True:
        loose = bytes(raw).decode("utf-8", "surrogateescape")
        if new.isdisjoint(loose):
            return bytes(raw), loose
        raw = "".join(c for c in loose if c not in new).encode("utf-8", "surrogateescape")


def main(gpt2, folder, megabytes):
    import regex
    import tiktoken

    paths, ranks, end = load(folder)
    encoding = tiktoken.Encoding("peer", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": end})
    rng = random.Random(2)
    text = draw(rng, megabytes * 1e6)
    expect("tiktoken", ours(gpt2, folder, text.encode()), [end] + encoding.encode_ordinary(text))

    raw = bytearray(text.encode()[:int(megabytes * 5e5)])
    for _ in range(len(raw) // 50):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    raw, loose = without_new(raw, ranks)
    pieces = [piece.encode("utf-8", "surrogateescape") for piece in regex.findall(PATTERN, loose)]
    wanted = [end] + [token for piece in pieces for token in encoding._encode_single_piece(piece)]
    got = ours(gpt2, folder, raw)
    expect("invalid UTF-8", got, wanted)
    if b"".join(map(encoding.decode_single_token_bytes, got[1:])) != raw:
        sys.exit("tokens_peers.py: invalid UTF-8: the tokens do not give the bytes back")
    try:
        import tokenizers
    except ImportError:
        return
    some = text[:50000]
    expect("tokenizers", ours(gpt2, folder, some.encode()), [end] + tokenizers.ByteLevelBPETokenizer(*paths).encode(some).ids)


if __name__ == "__main__":
    if "--here" not in sys.argv:
        sys.exit(subprocess.run([find_python(), *sys.argv, "--here"]).returncode)
    sys.argv.remove("--here")
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 1.0)
