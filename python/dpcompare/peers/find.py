"""find.py - which interpreters of this machine have PyTorch and what builds on it, asked of them.

Nothing is installed. A peer that is not there is a reason, which its row shows.
"""
import json
import os
import subprocess
import sys

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_gpt2.py")
PROBE = """
import json
found = {}
import torch
found["torch"] = torch.__version__
def has(name, load):
    try:
        found[name] = str(load() or "yes")
    except Exception as error:
        found["no " + name] = f"{type(error).__name__}: {error}"[:160]
def fsdp2():
    from torch.distributed.fsdp import fully_shard
def zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer
def scaler():
    torch.amp.GradScaler("cpu")
def horovod():
    import horovod, horovod.torch
    return horovod.__version__
def deepspeed():
    import deepspeed
    return deepspeed.__version__
has("fsdp2", fsdp2), has("zero1", zero), has("ddp-fp16", scaler)
has("horovod", horovod), has("deepspeed", deepspeed)
print("FOUND" + json.dumps(found))
"""
ASKED = {"fsdp2", "zero1", "ddp-fp16", "horovod", "deepspeed"}  # modes with a probe of their own


class Torch:
    """An interpreter with PyTorch, and what it has."""

    def __init__(self, python, found):
        self.python, self.found = python, found
        self.environment = {}

    @property
    def version(self):
        return self.found["torch"]


def _probe(python):
    """What the interpreter has; None without torch."""
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=120,
                              check=False, env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
    except (OSError, subprocess.TimeoutExpired):
        return None
    for line in done.stdout.splitlines():
        if line.startswith("FOUND"):
            return json.loads(line[5:])
    return None


def candidates(options):
    """Interpreters to ask, each once: named ones, those that tests/bench/compare made, the usual."""
    names = [*options.torch_python, os.path.join(options.build, "peers-venv/bin/python"),
             os.path.join(options.build, "horovod-venv/bin/python"), sys.executable,
             "/usr/bin/python3"]
    found = []
    for name in names:
        if os.path.exists(name) and name not in found:
            found.append(name)
    return found


def _order(torch):
    return [int(part) for part in torch.version.split("+")[0].split(".")[:2]]


class Peers:
    """For each mode the newest PyTorch that has it, or why there is none."""

    def __init__(self, torches):
        self.torches = sorted(torches, key=_order, reverse=True)

    def torch_of(self, mode):
        return next((torch for torch in self.torches
                     if mode not in ASKED or mode in torch.found), None)

    def lacking(self, mode):
        """Why a mode cannot run; "" where it can."""
        if self.torch_of(mode) is not None:
            return ""
        if not self.torches:
            return "no interpreter here has PyTorch (--torch-python names others)"
        why = self.torches[0].found.get("no " + mode, "not there")
        return f"torch {self.torches[0].version}: {why}"

    def versions(self, modes):
        """{mode: versions}, of those that can run."""
        found = {}
        for mode in modes:
            torch = self.torch_of(mode)
            if torch is not None:
                of = torch.found.get(mode, "yes") if mode in ASKED else "yes"
                found[mode] = f"torch {torch.version}" + ("" if of == "yes" else f", {mode} {of}")
        return found


def find(options, modes):
    """Asks all candidates, where a mode is wanted at all."""
    if not modes:
        return Peers([])
    answers = ((python, _probe(python)) for python in candidates(options))
    return Peers([Torch(python, found) for python, found in answers if found])


def command(torch, mode, job, ranks):
    """What starts a peer's rank; Horovod's starter starts all of them."""
    script = [torch.python, SCRIPT, mode, job]
    if mode != "horovod":
        return script
    starter = os.path.join(os.path.dirname(torch.python), "horovodrun")
    return [starter, "--gloo", "-np", ranks, *script]
