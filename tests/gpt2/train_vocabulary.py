#!/usr/bin/env python3
"""train_vocabulary.py - learns a small vocabulary of byte pairs from texts, for tests and examples.

    python3 tests/gpt2/train_vocabulary.py TOKENS FOLDER FILE...

writes FOLDER/vocab.json and FOLDER/merges.txt in Hugging Face's form: the 256 bytes, TOKENS - 257
merges and <|endoftext|>. Pieces are cut as GPT-2 cuts them, but for ASCII letters and digits alone,
so no merge joins what GPT-2 keeps apart. tests/gpt2/fixtures/tokens was made with 512 tokens from
docs/design.md.
"""
import collections
import json
import os
import re
import sys

PATTERN = re.compile(
    rb"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9\x80-\xff]+|\s+(?!\S)|\s+|[\x80-\xff]+")


def alphabet():
    """The character by which the files write each byte."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def train(texts, count):
    """The list of merges, best first: always the most frequent pair, of equals the smallest."""
    words = collections.Counter(piece for text in texts for piece in PATTERN.findall(text))
    words = [([bytes([b]) for b in word], times) for word, times in words.items()]
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for word, times in words:
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        if not pairs:
            sys.exit(f"train_vocabulary.py: the texts have only {len(merges)} merges")
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word, _ in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == best:
                    word[at:at + 2] = [best[0] + best[1]]
                at += 1
    return merges


def main():
    count, folder, files = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    letters = alphabet()

    def text(token):
        return "".join(letters[b] for b in token)

    merges = train([open(path, "rb").read() for path in files], count - 257)
    # In the order of OpenAI's files: bytes by their characters, then merges.
    tokens = [bytes([b]) for b in sorted(letters, key=letters.get)]
    tokens += [left + right for left, right in merges]
    vocabulary = {text(token): i for i, token in enumerate(tokens)} | {"<|endoftext|>": count - 1}
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "vocab.json"), "w", encoding="ascii") as file:
        json.dump(vocabulary, file)
        file.write("\n")
    with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as file:
        file.write("#version: 0.2\n")
        file.writelines(f"{text(left)} {text(right)}\n" for left, right in merges)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main()
