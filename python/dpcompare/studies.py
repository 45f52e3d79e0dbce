"""studies.py - which model is trained on which data for how long, and the runs that follow.

A study holds all that its rows share, so that two rows of it differ in their strategy alone. Pure,
but for write_data().
"""
import os
import random
import struct
from dataclasses import asdict, dataclass

from dpcompare import rows as all_rows
from measuring.process import Failed

LINKS = {"none": 0, "1g": 1000, "10g": 10000, "25g": 25000, "100g": 100000}  # Mb/s; none: one node
REAL_MBIT = 1000  # what a kernel or a relay carries on a small machine; faster is labelled EMULATED


@dataclass(frozen=True)
class Study:
    name: str
    preset: str
    vocab: int
    batch: int  # sequences over all ranks
    seq: int
    steps: int
    left_out: int  # steps at the start that no median counts
    lr: float
    warmup: int
    checkpoint: bool  # bytes of the last one are compared
    ranks: tuple
    seeds: int
    links: tuple = ("none",)
    pretend: bool = False  # every rank a node of its own, to count bytes
    peers: bool = True
    estimate_s: float = 4.0  # of a run, before one was made

    @property
    def is_text(self):
        return self.vocab <= 256

    def tokens(self):
        return self.batch * self.seq


@dataclass(frozen=True)
class Run:
    study: Study
    row: all_rows.Row
    ranks: int
    seed: int
    link: str

    @property
    def name(self):
        return f"{self.study.name}.{self.row.name}.n{self.ranks}.s{self.seed}.{self.link}"

    def key(self):
        return {"study": self.study.name, "row": self.row.name, "ranks": self.ranks,
                "seed": self.seed, "link": self.link}


# Learning rates and lengths were found by trying: the loss falls, and no step overflows.
PRESETS = {
    "tiny": {"vocab": 256, "batch": 8, "seq": 32, "lr": 3e-3},
    "quick": {"vocab": 256, "batch": 16, "seq": 64, "lr": 1e-3},
    "small": {"vocab": 256, "batch": 8, "seq": 128, "lr": 1e-3},
    "124M": {"vocab": 50257, "batch": 4, "seq": 64, "lr": 6e-4},
    "350M": {"vocab": 50257, "batch": 4, "seq": 64, "lr": 3e-4},
}


def _study(name, preset, steps, **more):
    found = dict(PRESETS[preset], name=name, preset=preset, steps=steps, left_out=min(3, steps // 3),
                 warmup=max(1, steps // 10), checkpoint=False)
    found.update(more)
    return Study(**found)


def make(options):
    """The studies of a command line. Refuses what cannot be shared out evenly."""
    ranks, seeds, links = tuple(options.ranks), options.seeds, tuple(options.links)
    batch = {"batch": options.batch} if options.batch else {}
    wire = _study("bytes", "small", 3, seq=16, ranks=tuple(n for n in ranks if n > 1), seeds=1, pretend=True,
                  left_out=1, peers=False, estimate_s=2.0, **batch)
    if options.quick:
        steps = options.steps or 60
        found = [_study("run", options.preset or "quick", steps, ranks=ranks, seeds=seeds,
                        links=links, checkpoint=True, **batch), wire]
    else:
        cores = os.cpu_count() or 1
        timed = tuple(n for n in ranks if n <= cores) or ranks[:1]
        large = options.preset or "124M"
        found = [_study("curve", "quick", options.curve_steps, ranks=ranks, seeds=seeds,
                        checkpoint=True, estimate_s=9.0, **batch), wire,
                 _study("speed", large, options.steps or 8, ranks=timed, seeds=seeds, links=links,
                        left_out=2, estimate_s=22.0 if large == "124M" else 6.0, **batch)]
    for study in found:
        for n in study.ranks:
            if study.batch % n != 0:
                raise Failed(f"--ranks {n}: the global batch of {study.batch} sequences (study "
                             f"{study.name}) does not divide by {n}; take another --batch or --ranks")
    return [study for study in found if study.ranks]


def runs(studies, rows):
    """All runs in their order: turn by turn, so that what is compared is measured within minutes.
    Odd turns go backwards, which evens a steady drift out. Runs that cannot be are left out."""
    found = []
    for study in studies:
        for seed in range(1, study.seeds + 1):
            for link in study.links:
                turn = [Run(study, row, ranks, seed, link) for ranks in study.ranks for row in rows
                        if not why_not(study, row, ranks, link)]
                found += turn if seed % 2 else turn[::-1]
    return found


def why_not(study, row, ranks, link):
    """Why a run is not part of a study; "" where it is."""
    if row.mode and not study.peers:
        return "bytes of peers are not counted"
    if link != "none" and ranks != 2:
        return "a link has two ends"
    if link != "none" and row.mode == "horovod":
        return "its starter runs on one node here"
    if link != "none" and row.nodes > 1:
        return "a link has one rank on each side"
    if study.pretend and row.nodes > 1:
        return "a node of one rank has nothing to share out"
    if row.mode and ranks == 1 and not row.single:
        return "one rank of a peer is its single row"
    if study.pretend and (row.single or ranks < 2):
        return "one process sends nothing"
    return all_rows.fits(row, ranks)


def describe(study):
    """For config.json: what has to be equal for results to lie side by side."""
    return {key: value for key, value in asdict(study).items()
            if key not in ("ranks", "seeds", "links", "estimate_s")}


# ---- Data ---------------------------------------------------------------------------------------

def _word(numbers):
    return "".join(numbers.choice("bdfgklmnprst") + numbers.choice("aeiou")
                   for _ in range(numbers.randrange(1, 4)))


def text_of(size, seed=11):
    """Sentences of made-up words, of which each has a few likely successors: something to learn
    that is the same everywhere. Fewer bytes are its beginning."""
    numbers = random.Random(seed)
    words = sorted({_word(numbers) for _ in range(900)})
    numbers.shuffle(words)
    likely = [10.0 / (rank + 1) for rank in range(8)]
    follow = [numbers.choices(range(len(words)), [1 / (k + 5) for k in range(len(words))], k=8)
              for _ in words]
    parts, length, at = [], 0, 0
    while length < size:
        sentence = []
        for _ in range(numbers.randrange(5, 13)):
            at = numbers.choices(follow[at], likely)[0]
            sentence.append(words[at])
        line = " ".join(sentence).capitalize() + numbers.choice(".\n.\n?\n")
        parts.append(line)
        length += len(line)
    return "".join(parts)[:size]


def tokens_of(vocabulary, count, seed=11):
    """A file as llm.c writes them, of tokens that follow Zipf's law."""
    numbers = random.Random(seed)
    total, sums = 0.0, []
    for rank in range(vocabulary):
        total += 1 / (rank + 2.7)
        sums.append(total)
    order = list(range(vocabulary))
    numbers.shuffle(order)
    drawn = numbers.choices(order, cum_weights=sums, k=count)
    return struct.pack("<256i", 20240520, 1, count, *([0] * 253)) + struct.pack(f"<{count}H", *drawn)


def write_data(folder, study):
    """The study's data in that folder, made where they are not there yet; their path."""
    path = os.path.join(folder, "text.txt" if study.is_text else f"tokens-{study.vocab}.bin")
    if not os.path.exists(path):
        data = text_of(1 << 20).encode() if study.is_text else tokens_of(study.vocab, 400000)
        with open(path + ".new", "wb") as file:
            file.write(data)
        os.replace(path + ".new", path)
    return path
