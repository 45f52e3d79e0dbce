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
EACH = 0  # of Study.nodes
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)  # of the grid: the same for each optimizer
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
    nodes: int = 1  # that dprun pretends; EACH: every rank is one, so that its bytes are counted
    only: tuple = ()  # names of its rows; (): all
    peers: bool = True
    timed: bool = False  # speeds are taken from it
    curves: bool = False  # losses of its rows are judged: it is long enough
    grid: bool = False  # one of several that differ in their rate alone
    emulated: bool = True  # rows whose arithmetic is emulated are part of it
    estimate_s: float = 1.5  # of a run, before one was made
    peer_s: float = 8.0  # of a peer's

    @property
    def is_text(self):
        return self.vocab <= 256

    def tokens(self):
        return self.batch * self.seq

    def estimate(self, row):
        """Seconds of a run, before one was made."""
        return self.peer_s if row.mode else self.estimate_s

    def dense_steps(self):
        """Steps after which rows that compress gradients begin to: once the rate has risen, not
        before a tenth of the run (what PyTorch advises for PowerSGD), and when AdamW's second
        moments have forgotten the first gradients, 1 / (1 - beta2) steps later."""
        return max(self.warmup, self.steps // 10) + 20 if self.curves else 0

    def sparse_stages(self):
        """Steps in which topk goes from 25 % down to 1 %, as Deep Gradient Compression does in the
        first twentieth of its runs; four stages."""
        return max(4, self.steps // 20) if self.curves else 0

    def untimed(self, row):
        """Steps of a row that no median counts."""
        if not row.compresses:
            return self.left_out
        stages = self.sparse_stages() if row.compresses == "topk" else 0
        return max(self.left_out, self.dense_steps() + stages)

    def too_few(self, row):
        """Why the study says nothing of where a row that compresses gradients ends: it has hardly
        begun to; "" where it does. It has to compress for half of the run, and until what it keeps
        back has travelled once."""
        if not row.compresses:
            return ""
        begun, needed = self.untimed(row), max(row.waits, (self.steps + 1) // 2)
        if self.steps - begun >= needed:
            return ""
        why = "as an element waits so many in the mean" if needed == row.waits else "half of the run"
        return (f"{max(0, self.steps - begun)} of {self.steps} steps compress as the row says; a "
                f"verdict needs {needed}, {why}")

    def flags(self, row):
        """Of gpt2, for a row of this study: what follows from both."""
        rate = self.lr if self.grid else self.lr * row.rate
        found = ["--lr", f"{rate:g}"]
        if row.compresses and self.dense_steps():
            found += ["--compress-start", self.dense_steps()]
            if row.compresses == "topk":
                found += ["--compress-warmup", self.sparse_stages()]
        return found


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


def _gates(ranks, batch):
    """Short studies that only gates ask: other numbers of ranks than those that are timed, and two
    nodes, which change the order of sums, so hybrid has a dps of its own there."""
    exact = tuple(row.name for row in all_rows.OURS if row.judged == all_rows.EXACT)
    others = tuple(n for n in (1, 3, 4) if n not in ranks and (not batch or batch % n == 0))
    size = {"batch": batch or 12, "seeds": 1, "checkpoint": True, "peers": False,
            "estimate_s": 0.7}
    return [_study("ranks", "tiny", 8, ranks=others, only=("single", *exact), **size),
            _study("nodes", "tiny", 8, ranks=(4,) if size["batch"] % 4 == 0 else (), nodes=2,
                   only=("dps", "zero3", "hybrid"), **size)]


def _grid(preset, batch, steps, ranks, seeds, estimate_s):
    """Two optimizers at a large batch, each with every rate of the grid."""
    return [_study(f"large-{rate:g}", preset, steps, ranks=ranks, seeds=seeds, batch=batch, lr=rate,
                   only=("dps", "lamb"), peers=False, grid=True, estimate_s=estimate_s)
            for rate in RATES]


def make(options):
    """The studies of a command line. Refuses what cannot be shared out evenly."""
    ranks, seeds, links = tuple(options.ranks), options.seeds, tuple(options.links)
    batch = {"batch": options.batch} if options.batch else {}
    most = (ranks[-1],)
    found = _gates(ranks, options.batch)
    # Of a model so large that padding of tensors does not show. A gather may end in the next step,
    # and the first step has none before it.
    found.append(_study("bytes", "small", 5, seq=16, ranks=tuple(n for n in ranks if n > 1), seeds=1,
                        nodes=EACH, left_out=1, peers=False, emulated=False, estimate_s=1.5,
                        **batch))
    if options.quick:
        found += _grid("tiny", 8 * (options.batch or 8), 60, most, seeds, 1.0)
        found.append(_study("run", options.preset or "quick", options.steps or 60, ranks=ranks,
                            seeds=seeds, links=links, checkpoint=True, timed=True, curves=True,
                            estimate_s=2.0, **batch))
    else:
        cores = os.cpu_count() or 1
        timed = tuple(n for n in ranks if n <= cores) or ranks[:1]
        large = options.preset or "124M"
        is_large = PRESETS[large]["vocab"] > 256
        found += _grid("quick", 8 * (options.batch or 16), 100, most, seeds, 13.0)
        found += [_study("curve", "quick", options.curve_steps, ranks=ranks, seeds=seeds,
                         checkpoint=True, curves=True, estimate_s=5.0, peer_s=14.0, **batch),
                  _study("speed", large, options.steps or 8, ranks=timed, seeds=seeds, links=links,
                         left_out=2, timed=True, emulated=not is_large,
                         estimate_s=20.0 if is_large else 6.0, peer_s=40.0, **batch)]
    for study in reversed(found):  # the study that is timed comes last, and speaks first
        for n in study.ranks:
            if study.batch % n != 0:
                raise Failed(f"--ranks {n}: the global batch of {study.batch} sequences (study "
                             f"{study.name}) does not divide by {n}; take another --batch or --ranks")
    return [study for study in found if study.ranks]


def runs(studies, rows):
    """All runs in their order: turn by turn, so that what is compared is measured within minutes,
    and a first turn of all studies before a second one. Even turns go backwards, which evens a
    steady drift out. Runs that cannot be are left out."""
    names = {row.name for row in rows}
    # Of others only those rows are left that somebody is compared with.
    asked = [study for study in studies
             if not study.only or names & set(study.only) - {"single", all_rows.REFERENCE}]
    found = []
    for seed in range(1, max((study.seeds for study in asked), default=0) + 1):
        for study in asked:
            for link in study.links if seed <= study.seeds else ():
                turn = [Run(study, row, 1 if row.single else ranks, seed, link)
                        for ranks in study.ranks for row in rows
                        if not why_not(study, row, ranks, link)]
                found += turn if seed % 2 else turn[::-1]
    return found


def why_not(study, row, ranks, link):
    """Why a run is not part of a study; "" where it is."""
    if study.only and row.name not in study.only:
        return "another study has it"
    if row.mode and not study.peers:
        return "peers are no part of this study"
    if row.emulated and not study.emulated:
        return "emulated arithmetic has no speed"
    if row.by_wire and link == "none" and study.timed:
        return "it differs from dps between nodes only; --links times it"
    if link != "none" and ranks != 2:
        return "a link has two ends"
    if link != "none" and row.mode == "horovod":
        return "its starter runs on one node here"
    if link != "none" and row.nodes > 1:
        return "a link has one rank on each side"
    if study.nodes == EACH and row.nodes > 1:
        return "a node of one rank has nothing to share out"
    if row.single:
        # One process is a row beside those of any number of ranks: it is run once a turn.
        least = ranks == min(study.ranks) and link == "none"
        return "" if least and study.nodes == 1 else "it is run once"
    if row.mode and ranks == 1:
        return "one rank of a peer is its single row"
    if study.nodes == EACH and ranks < 2:
        return "one process sends nothing"
    return all_rows.fits(row, ranks)


def describe(study):
    """For config.json: what has to be equal for results to lie side by side."""
    return {key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(study).items()
            if key not in ("ranks", "seeds", "links", "estimate_s", "peer_s")}


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
