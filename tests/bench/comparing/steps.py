"""steps.py - whole training steps of GPT-2 on the CPU: examples/gpt2 and PyTorch in turn.

One rank with all cores, and two ranks with one thread each, with and without the exchange.
"""
import csv
import os
import random
import re
import struct

from comparing.process import Failed, json_lines, rank_environments, run_all
from comparing.ways import median_of

PEER = "tests/bench/peers/gpt2_torch_cpu.py"


def write_tokens(path, vocabulary, count=200000):
    """A file of random tokens as llm.c writes them."""
    numbers = random.Random(1)
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, count, *([0] * 253)))
        file.write(struct.pack(f"<{count}H", *(numbers.randrange(vocabulary)
                                               for _ in range(count))))


class Steps:
    """Milliseconds per step by label, a figure from each turn."""

    def __init__(self, lab, preset, length, steps):
        self.lab, self.preset, self.length, self.steps = lab, preset, length, steps
        self.ms = {}
        self.batches = {}
        self.about = ""
        self.vocabulary = 50257 if preset == "124M" else 256
        self.tokens = lab.path("tokens.bin")
        write_tokens(self.tokens, self.vocabulary)

    def _note(self, label, ms, batch):
        self.ms.setdefault(label, []).append(ms)
        self.batches[label] = batch

    def median(self, label):
        return median_of(self.ms.get(label))

    def tokens_per_s(self, label):
        ms = self.median(label)
        return None if ms is None else self.batches[label] * self.length / ms * 1e3

    def _ours(self, label, batch, threads, ranks, exchange=True, extra=(), precision=()):
        """exchange False: as many trainers side by side as there were ranks, each by itself."""
        lab, processes = self.lab, 1 if exchange else ranks
        logs = [lab.path(f"step.{i}.csv") for i in range(processes)]
        shared = ["--preset", self.preset, "--vocab", self.vocabulary, "--data", self.tokens,
                  "--seq", self.length, "--steps", self.steps + 2, "--threads", threads,
                  "--eval-batches", 1, "--log-every", 1, "--check", 0, *precision]
        start = [os.path.join(lab.build, "dprun"), "--no-prefix", *extra, "-np", ranks]
        commands = [[*(start if exchange and ranks > 1 else []), os.path.join(lab.build, "gpt2"),
                     *shared, "--batch", batch if exchange else batch // ranks,
                     *([] if exchange and ranks > 1 else ["--strategy", "single"]), "--csv", log]
                    for log in logs]
        texts = run_all(commands, 400)
        self.about = self.about or _products(texts[0])
        self._note(label, max(_csv_median(log) for log in logs), batch)

    def _torch(self, label, torch, batch, threads, ranks, arguments=()):
        command = [torch.python, os.path.join(self.lab.root, PEER), "--preset", self.preset,
                   "--batch", batch // ranks, "--length", self.length, "--steps", self.steps,
                   "--threads", threads, *arguments]
        environment = dict(torch.environment, OMP_NUM_THREADS=str(threads),
                           GLOO_SOCKET_IFNAME="lo")
        texts = run_all([command] * ranks, 400, rank_environments(ranks, environment))
        self._note(label, json_lines(texts[0])[0]["ms"], batch)

    def turn(self, say, quick, bf16):
        """Each way once."""
        lab, jobs = self.lab, []
        cores = min(2, os.cpu_count() or 1)
        jobs.append(("libdp 1 rank", lambda label: self._ours(label, 4, cores, 1)))
        jobs.append(("libdp 2 ranks", lambda label: self._ours(label, 4, 1, 2)))
        jobs.append(("libdp 2 alone", lambda label: self._ours(label, 4, 1, 2, exchange=False)))
        if bf16:
            jobs.append(("libdp 1 rank bf16", lambda label: self._ours(
                label, 4, cores, 1, precision=("--gemm", "dnnl-bf16"))))
        torches = lab.peers.torches[:1] if quick else lab.peers.torches[:3]
        for torch in torches:
            jobs.append((f"1 rank, {torch.name}", lambda label, torch=torch: self._torch(
                label, torch, 4, cores, 1)))
        if lab.peers.torches:
            best = lab.peers.torches[0]
            hook = ("--hook", os.path.join(lab.build, "libdp.so"))
            jobs.append(("DDP gloo", lambda label: self._torch(label, best, 4, 1, 2)))
            jobs.append(("DDP alone", lambda label: self._torch(label, best, 4, 1, 2,
                                                                ("--no-exchange",))))
            jobs.append(("DDP libdp", lambda label: self._torch(label, best, 4, 1, 2, hook)))
        if not quick:
            jobs.append(("recorder off", lambda label: self._ours(label, 4, 1, 2,
                                                                  extra=("--trace=no",))))
        for label, job in jobs:
            try:
                job(label)
                say(f"  {label}: {self.ms[label][-1]:.0f} ms")
            except (Failed, OSError, IndexError, ValueError) as error:
                lab.failures.append(f"{label}: {error}")

    def best_single(self):
        """The fastest PyTorch with one rank: (label, tokens per second)."""
        rates = [(self.tokens_per_s(label), label) for label in self.ms
                 if label.startswith("1 rank, ")]
        return (max(rates)[1], max(rates)[0]) if rates else None


def _csv_median(path):
    with open(path, encoding="ascii") as file:
        rows = list(csv.DictReader(file))
    os.unlink(path)
    return median_of([float(row["step_ms"]) for row in rows[2:]])


def _products(text):
    found = re.search(r"products by (.*)", text)
    return found.group(1).strip() if found else ""
