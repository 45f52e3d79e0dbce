"""bench.py - makes one run: starts gpt2 or a peer, and keeps its figures as one JSON file.

gates.py judges the results of a run and report.py draws them; here they are only collected.
"""
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import time

from dpcompare.peers import find
from dpcompare.studies import EACH, LINKS
from measuring import link as links
from measuring.process import Failed, Late, rank_environments, run_all
from measuring.process import run as run_program

FORMAT = 1  # of gpt2's --summary
RECORD = 2  # of our own files
SHARED = "/dev/shm"
WORK = "dpcompare-"  # and the process id: what a run leaves until it is read


def file_hash(path):
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


def load_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise Failed(f"{path}: not JSON: {error}") from error


def save_json(path, value, indent=None):
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=indent)
    os.replace(path + ".new", path)


def learning_rate(study, step):
    """gpt2's: a linear rise, then a cosine to a tenth. Steps count from 0."""
    low = study.lr * 0.1
    if step < study.warmup:
        return study.lr * (step + 1) / study.warmup
    if step >= study.steps or study.steps <= study.warmup:
        return low
    progress = (step - study.warmup) / (study.steps - study.warmup)
    return low + (study.lr - low) * 0.5 * (1.0 + math.cos(math.pi * progress))


def work_folder(base):
    """A folder for what a run leaves until it is read, and its lock, which is held as long as we
    are. Folders whose lock nobody holds were left by a run that was killed, and are removed."""
    for name in os.listdir(base):
        if re.fullmatch(WORK + r"\d+", name):
            _remove_unless_locked(os.path.join(base, name))
    path = os.path.join(base, f"{WORK}{os.getpid()}")
    while True:
        os.makedirs(path, exist_ok=True)
        lock = open(os.path.join(path, "lock"), "w", encoding="ascii")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(os.path.join(path, "lock")):
            return path, lock
        lock.close()  # somebody tidied up between the two lines above


def _remove_unless_locked(path):
    try:
        with open(os.path.join(path, "lock"), "r+", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass  # in use, being made, or somebody else's


def lock_results(out):
    """Two comparisons would write into each other's folder. The lock goes with the process."""
    lock = open(os.path.join(out, "lock"), "w", encoding="ascii")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise Failed(f"--out {out}: another dpcompare writes there; wait for it, or take another "
                     "--out") from None
    return lock


# ---- The timeline -------------------------------------------------------------------------------

WAITS = {"skew": "late ranks", "pack_unpack": "packing", "negotiation": "agreeing",
         "unattributed": "waking up"}


def timeline_of(report):
    """What rank 0 waited for, mean ms of the steps, of dptrace report --json: exposed wire by
    collective, and the rest by its cause."""
    cells = [step for step in report["steps"] if step["rank_index"] == 0]
    if not cells or not report["has_steps"]:
        return None
    waits = {}
    for cell in cells:
        for name, ms in cell["exposed_by_collective_ms"].items():
            name = name.replace("_", "-")
            waits[name] = waits.get(name, 0.0) + ms / len(cells)
        for part, name in WAITS.items():
            waits[name] = waits.get(name, 0.0) + cell["parts_ms"][part] / len(cells)
    return {"waits_ms": waits, "steps": len(cells), "dropped": report["dropped"],
            "hidden": report["hidden"], "communication_ms": report["communication_ms"]}


class Bench:
    """Knows the programs, the data and the folders of one comparison."""

    def __init__(self, options, data, peers, say):
        """data: {study's name: path}; peers: as peers/find.py found them."""
        self.options, self.data, self.peers, self.say = options, data, peers, say
        self.build = options.build
        self.folder = os.path.join(options.out, "runs")
        self.made = os.path.join(options.out, "made")  # initial weights, orders of samples
        base = SHARED if os.access(SHARED, os.W_OK) else options.out
        for folder in (self.folder, self.made):
            os.makedirs(folder, exist_ok=True)
        self.held = lock_results(options.out)
        self.work, self.lock = work_folder(base)
        self.link = None  # the one that is up
        self.lines = {}  # {link: {"shape", "gbit_per_s"}}

    def close(self):
        self.lower_link()
        shutil.rmtree(self.work, ignore_errors=True)
        self.lock.close()
        self.held.close()

    def path(self, run):
        return os.path.join(self.folder, run.name + ".json")

    def done(self, run):
        """The record of a run that was made before and did not fail; None: it is to be made."""
        if not os.path.exists(self.path(run)):
            return None
        record = load_json(self.path(run))
        return record if record.get("record") == RECORD and record.get("ok") else None

    # ---- What rows of a study share ----

    def initial(self, study, seed):
        """Weights to start from, the same file for ours and for peers."""
        folder = os.path.join(self.made, f"{study.preset}-{study.vocab}.s{seed}")
        path = os.path.join(folder, "model.safetensors")
        if not os.path.exists(path):
            os.makedirs(folder, exist_ok=True)
            fresh = os.path.join(folder, "fresh.safetensors")
            run_all([[self.program("gpt2"), "--strategy", "single", "--preset", study.preset,
                      "--vocab", study.vocab, "--data", self.data[study.name], "--seed", seed,
                      "--seq", study.seq, "--batch", 1, "--steps", 0, "--eval-batches", 1,
                      "--threads", os.cpu_count() or 1, "--device", "cpu", "--export", fresh]], 300)
            os.replace(fresh, path)
        return path

    def samples(self, study, seed):
        """Where each training sequence begins, as gpt2 takes them."""
        path = os.path.join(self.made, f"{study.name}.s{seed}.samples")
        if not os.path.exists(path):
            run_all([[self.program("gpt2"), "--strategy", "single", "--plan", "--preset",
                      study.preset, "--vocab", study.vocab, "--data", self.data[study.name],
                      "--seed", seed, "--seq", study.seq, "--batch", study.batch, "--steps",
                      study.steps, "--samples", path + ".new"]], 300)
            os.replace(path + ".new", path)
        return path

    def program(self, name):
        return os.path.join(self.build, name)

    # ---- Links ----

    def raise_link(self, name):
        """Joins two namespaces, unless they are joined so already, and measures the line."""
        if self.link and self.link[0] == name:
            return self.link[1]
        self.lower_link()
        made = links.Link(os.path.join(self.build, "tests", "link_relay"), LINKS[name])
        self.link = (name, made)
        made.open()
        size = 16 << 20
        self.lines[name] = {"shape": made.shape,
                            "gbit_per_s": size * 8 / made.line_ms(size, 60) / 1e6}
        return made

    def lower_link(self):
        if self.link:
            self.link[1].close()
            self.link = None

    def link_is_dead(self, name):
        """Whether a link could not be made, or broke: then no run over it will do better."""
        if name == "none":
            return False
        try:
            if name not in self.lines:
                return True
            self.link[1].check()
            return False
        except Failed:
            return True

    # ---- One run ----

    def make(self, run, limit):
        """Makes the run and keeps its record, also where it fails."""
        begin = time.monotonic()
        record = {"record": RECORD, "key": run.key(), "ok": False, "why": ""}
        try:
            self._fill(run, record, limit)
            record["ok"] = True
        except Late:
            raise
        except (Failed, OSError) as error:
            record["why"] = str(getattr(error, "reason", error))[:400]
        record["seconds"] = time.monotonic() - begin
        save_json(self.path(run), record)
        return record

    def _fill(self, run, record, limit):
        out = os.path.join(self.work, "run")
        summary = os.path.join(self.work, "summary.json")
        for left in (out, summary, self.recorded()):
            shutil.rmtree(left, ignore_errors=True)
            if os.path.exists(left):
                os.unlink(left)
        if run.row.mode:
            commands, environments = self._peer(run, summary)
        else:
            commands, environments = self._ours(run, summary, out)
        record["command"] = [self._without_folders(word) for word in commands[0]]
        if run.link != "none":
            made = self.raise_link(run.link)
            record["line"] = self.lines[run.link]
            environments = [dict(environments[0], **each, DP_UCX_DEVICES="link0")
                            for each in made.environments({})]
            if self._wants_timeline(run):
                os.makedirs(self.recorded())
                environments = [dict(each, DP_RUN_DIR=self.recorded()) for each in environments]
            commands = [made.commands(commands[-1])[side] for side in range(2)]
        text = run_all(commands, limit, environments)[0]
        record["summary"] = load_json(summary)
        if record["summary"].get("format") != FORMAT:
            raise Failed(f"this gpt2 writes summaries of format {record['summary'].get('format')}, "
                         f"this dpcompare reads {FORMAT}")
        found = re.search(r"replicas bit-equal (\d+)/(\d+)", text)
        record["replicas"] = [int(found.group(1)), int(found.group(2))] if found else None
        record["checkpoint"] = self._checkpoint(out)
        record["timeline"] = self._timeline(run)
        shutil.rmtree(out, ignore_errors=True)

    def recorded(self):
        """Where a run's recorders lie, or the timeline merged from them."""
        return os.path.join(self.work, "timeline.pftrace")

    @staticmethod
    def _wants_timeline(run):
        return run.study.timed and run.ranks > 1 and not run.row.mode

    def _timeline(self, run):
        if not self._wants_timeline(run) or not os.path.exists(self.recorded()):
            return None
        study = run.study
        first = study.untimed(run.row)
        if first >= study.steps:
            return None
        text = run_program([self.program("dptrace"), "report", self.recorded(), "--json", "--steps",
                            f"{first}-{study.steps - 1}"], 60)
        return timeline_of(json.loads(text))

    def _without_folders(self, word):
        word = str(word)
        return ".../" + os.path.basename(word) if os.path.isabs(word) else word

    @staticmethod
    def _checkpoint(out):
        """{file: hash} of the newest one."""
        folder = os.path.join(out, "checkpoint")
        if not os.path.isdir(folder):
            return {}
        newest = max((name for name in os.listdir(folder) if name.isdigit()), key=int, default=None)
        if newest is None:
            return {}
        folder = os.path.join(folder, newest)
        return {name: file_hash(os.path.join(folder, name)) for name in sorted(os.listdir(folder))
                if name in ("weights.bin", "adam_m.bin", "adam_v.bin")}

    def flags(self, run, summary, out):
        """Of gpt2: first what all rows of the study share, then the row's."""
        study = run.study
        shared = ["--data", self.data[study.name], "--init", self.initial(study, run.seed),
                  "--seq", study.seq, "--batch", study.batch, "--steps", study.steps, "--warmup",
                  study.warmup, "--seed", run.seed, "--threads", self.options.threads,
                  "--device", "cpu", "--wire", "none", "--log-every", 1,
                  # Evaluation between steps gathers weights, which would count as a step's bytes.
                  "--eval-batches", 2 if study.curves else 1,
                  "--eval-every", max(1, study.steps // 5) if study.curves else 0, "--check",
                  study.steps if not study.checkpoint else max(1, study.steps // 4),
                  "--summary", summary]
        if study.vocab > 256:
            shared += ["--vocab", study.vocab]
        if study.checkpoint:
            shared += ["--out", out, "--overwrite"]
        precision = [] if "--precision" in run.row.flags else ["--precision", "fp32"]
        return [*shared, *precision, *run.row.flags, *study.flags(run.row)]

    def _ours(self, run, summary, out):
        gpt2 = [self.program("gpt2"), *self.flags(run, summary, out)]
        if run.row.single:
            return [gpt2], [{}]
        if run.link != "none":
            return [gpt2], [{}]
        each = run.study.nodes == EACH or run.row.by_wire
        nodes = run.ranks if each else max(run.study.nodes, run.row.nodes)
        pretend = ["--pretend-nodes", nodes] if nodes > 1 else []
        timeline = ["--timeline", self.recorded()] if self._wants_timeline(run) else []
        return [[self.program("dprun"), "--no-prefix", "-np", run.ranks, *pretend, *timeline,
                 *gpt2]], [{}]

    def _peer(self, run, summary):
        study = run.study
        torch = self.peers.torch_of(run.row.mode)
        job = os.path.join(self.work, "job.json")
        save_json(job, {
            "init": self.initial(study, run.seed), "data": self.data[study.name],
            "samples": self.samples(study, run.seed), "batch": study.batch, "seq": study.seq,
            "vocab": study.vocab, "steps": study.steps, "clip": 1.0, "decay": 0.1,
            "betas": [0.9, 0.95], "seed": run.seed, "threads": self.options.threads,
            "rates": [learning_rate(study, step) for step in range(study.steps)],
            "summary": summary, "format": FORMAT})
        command = find.command(torch, run.row.mode, job, run.ranks)
        environment = dict(torch.environment, OMP_NUM_THREADS=str(self.options.threads),
                           GLOO_SOCKET_IFNAME="lo")
        ranks = 1 if run.row.single else run.ranks
        if run.link != "none" or run.row.mode == "horovod":
            return [command], [environment]
        return [command] * ranks, rank_environments(ranks, environment)
