"""steps.py - whole training steps of GPT-2 on the CPU: examples/gpt2 and PyTorch in turn.

One rank with all cores, and two ranks with one thread each, with and without the exchange.
"""
import csv
import os
import random
import re
import struct

from measuring.process import Failed, Late, only_row, rank_environments, run, run_all
from comparing.ways import median_of, shared_folder

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

    def __init__(self, preset):
        self.preset, self.length = preset, 64
        self.ms = {}
        self.batches = {}
        self.about = ""
        self.recorder = {"yes": [], "no": []}  # ms of the small preset's step

    def note(self, label, ms, batch):
        self.ms.setdefault(label, []).append(ms)
        self.batches[label] = batch

    def median(self, label):
        return median_of(self.ms.get(label))

    def tokens_per_s(self, label):
        ms = self.median(label)
        return None if ms is None else self.batches[label] * self.length / ms * 1e3

    def best_single(self):
        """The fastest PyTorch with one rank: (label, tokens per second)."""
        rates = [(self.tokens_per_s(label), label) for label in self.ms
                 if label.startswith("1 rank, ")]
        return (max(rates)[1], max(rates)[0]) if rates else None

    def best_ddp(self):
        """The label of the fastest DDP over gloo; None without one."""
        found = [(self.median(label), label) for label in self.ms if label.startswith("DDP gloo")]
        return min(found)[1] if found else None


class Runs:
    """Runs the programs and fills Steps."""

    def __init__(self, lab, steps, count):
        self.lab, self.steps, self.count = lab, steps, count
        self.tokens, self.text = lab.path("tokens.bin"), lab.path("text.txt")
        self.vocabulary = 50257 if steps.preset == "124M" else 256
        self.model = None  # initial weights, once there are some: to make them takes seconds
        write_tokens(self.tokens, self.vocabulary)
        with open(self.text, "wb") as file:
            file.write(random.Random(2).randbytes(400000).translate(bytes(range(32, 96)) * 4))

    def ours(self, label, batch, threads, ranks, exchange=True, extra=()):
        """exchange False: as many trainers side by side as there were ranks, each by itself."""
        lab, steps, processes = self.lab, self.steps, 1 if exchange else ranks
        logs = [lab.path(f"step.{i}.csv") for i in range(processes)]
        made = os.path.join(shared_folder() or lab.folder, f"compare-model.{os.getpid()}.bin")
        shared = ["--vocab", self.vocabulary, "--data", self.tokens, "--seq", steps.length,
                  "--steps", self.count + 2, "--threads", threads, "--eval-batches", 1,
                  "--log-every", 1, "--check", 0, *extra]
        shared += ["--init", self.model] if self.model else ["--preset", steps.preset]
        shared += ["--export", made] if self.model is None and ranks == 1 else []
        start = [os.path.join(lab.build, "dprun"), "--no-prefix", "-np", ranks]
        commands = [[*(start if exchange and ranks > 1 else []), os.path.join(lab.build, "gpt2"),
                     *shared, "--batch", batch if exchange else batch // ranks,
                     *([] if exchange and ranks > 1 else ["--strategy", "single"]), "--csv", log]
                    for log in logs]
        texts = run_all(commands, lab.limit(400))
        if made in shared:
            self.model = made
        steps.about = steps.about or _products(texts[0])
        steps.note(label, max(_csv_median(log) for log in logs), batch)

    def torch(self, label, torch, batch, threads, ranks, arguments=()):
        steps = self.steps
        command = [torch.python, os.path.join(self.lab.root, PEER), "--preset", steps.preset,
                   "--batch", batch // ranks, "--length", steps.length, "--steps", self.count,
                   "--threads", threads, *arguments]
        environment = dict(torch.environment, OMP_NUM_THREADS=str(threads),
                           GLOO_SOCKET_IFNAME="lo")
        texts = run_all([command] * ranks, self.lab.limit(400),
                        rank_environments(ranks, environment))
        steps.note(label, only_row(texts[0])["ms"], batch)

    def recorder(self, count):
        """Some 30 ms a step, so that a record weighs more in it than in a large model's. Runs of
        one mode differ by 2 %: hence several short ones, in an order that evens out drift."""
        lab, log = self.lab, self.lab.path("recorder.csv")
        for mode in ("no", "yes", "yes", "no", "yes", "no", "no", "yes"):
            run_all([[os.path.join(lab.build, "dprun"), "--no-prefix", "-np", 2, f"--trace={mode}",
                      os.path.join(lab.build, "gpt2"), "--preset", "quick", "--data", self.text,
                      "--steps", count, "--eval-batches", 1, "--check", 0, "--log-every", 1,
                      "--csv", log]], lab.limit(120))
            self.steps.recorder[mode].append(_csv_median(log))

    def close(self):
        if self.model:
            os.unlink(self.model)


def _jobs(runs, quick, bf16):
    """(label, what to call), those that rows need first. Each job is over when the next is asked
    for, so that DDP is run, if in a hurry, only by the PyTorch that was fastest alone."""
    lab, steps = runs.lab, runs.steps
    cores = min(2, os.cpu_count() or 1)
    yield "libdp 1 rank", lambda label: runs.ours(label, 4, cores, 1)
    yield "libdp 2 ranks", lambda label: runs.ours(label, 4, 1, 2)
    yield "libdp 2 alone", lambda label: runs.ours(label, 4, 1, 2, exchange=False)
    versions = lab.peers.best_of_versions()
    for torch in versions if quick else lab.peers.torches:
        yield f"1 rank, {torch.name}", lambda label, torch=torch: runs.torch(
            label, torch, 4, cores, 1)
    if quick:
        versions = sorted(versions, key=lambda torch: -(
            steps.tokens_per_s(f"1 rank, {torch.name}") or 0))[:1]
    for torch in versions:
        yield f"DDP gloo, torch {torch.version}", lambda label, torch=torch: runs.torch(
            label, torch, 4, 1, 2)
        yield f"DDP alone, torch {torch.version}", lambda label, torch=torch: runs.torch(
            label, torch, 4, 1, 2, ("--no-exchange",))
    yield "recorder", lambda _: runs.recorder(60 if quick else 200)
    if bf16:
        yield "libdp 1 rank bf16", lambda label: runs.ours(
            label, 4, cores, 1, extra=("--gemm", "dnnl-bf16"))
    hook = ("--hook", os.path.join(lab.build, "libdp.so"))
    for torch in versions[:1]:
        yield f"DDP libdp, torch {torch.version}", lambda label, torch=torch: runs.torch(
            label, torch, 4, 1, 2, hook)


def measure(lab, options, steps):
    """Each way once in each turn."""
    bf16 = "dnnl-bf16" in run([os.path.join(lab.build, "gpt2"), "--help"], 20)
    runs = Runs(lab, steps, 4 if options.quick else 6)
    try:
        for turn in range(options.turns):
            for label, job in _jobs(runs, options.quick, bf16):
                try:
                    job(label)
                    lab.say(f"  {label}: " + (f"{steps.ms[label][-1]:.0f} ms" if label in steps.ms
                                               else "measured"))
                except Late:
                    raise
                except (Failed, OSError, IndexError, KeyError, ValueError) as error:
                    lab.note(label, error)
            lab.say(f"  turn {turn + 1} of {options.turns}; our products by {steps.about}")
    finally:
        runs.close()


def _csv_median(path):
    with open(path, encoding="ascii") as file:
        rows = list(csv.DictReader(file))
    os.unlink(path)
    return median_of([float(row["step_ms"]) for row in rows[2:]])


def _products(text):
    found = re.search(r"products by (.*)", text)
    return found.group(1).strip() if found else ""
