"""Ranks of torch.distributed as processes, for tests of the backend: each calls a function of the test's file.

The function's parameters are some of enter()'s names: here (the rank's number), ranks (how many), store, ...
"""
import atexit
import ctypes
import datetime
import importlib.util
import inspect
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time


def _version():
    """(major, minor) of the torch that is installed, (0, 0) without; an import of it takes seconds of a processor."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return 0, 0
    with open(os.path.join(os.path.dirname(found.origin), "version.py")) as file:
        return tuple(map(int, re.search(r"__version__ = '(\d+)\.(\d+)", file.read()).groups()))


VERSION = _version()
# A rank has it from forker.py, and a test's process does without.
torch = sys.modules.get("torch")
dist = torch.distributed if torch else None
FOLDER = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(FOLDER)
LIMIT = 240
MINIMUM = (2, 4)
ENVIRONMENT = {"PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1"}


def fails(call, *words):
    try:
        call()
    except RuntimeError as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError("nothing was told")


def enter(backend, here, ranks, place, seconds):
    """Joins the default group as rank `here`. Returns what a program may ask for, by the names of its parameters."""
    import dp.torch.backend
    dist.init_process_group(backend, init_method="file://" + place, rank=int(here), world_size=int(ranks),
                            timeout=datetime.timedelta(seconds=float(seconds)))
    world = dist.group.WORLD
    return {"backend": backend, "here": int(here), "ranks": int(ranks), "place": place,
            "store": dist.distributed_c10d._get_default_store(),
            "own": world._get_backend(torch.device("cpu")) if hasattr(world, "_get_backend") else None}


def run(folder, module, name, joins):
    """In a rank: calls the function of a test's file. joins: in the group that sys.argv describes."""
    function = getattr(importlib.import_module(module), name)
    given = enter(*sys.argv[1:6]) if joins else {}
    function(**{parameter: given[parameter] for parameter in inspect.signature(function).parameters})


def program_of(function, joins):
    path = inspect.getsourcefile(function)
    return {"folder": os.path.dirname(os.path.abspath(path)), "module": os.path.basename(path)[:-len(".py")],
            "name": function.__name__, "joins": joins}


# In front of a program that is a text.
PRELUDE = f"""
import datetime, os, signal, sys, time, warnings
sys.path.insert(0, {FOLDER!r})
from torch_ranks import VERSION as version, dist, enter, fails, torch
globals().update(enter(*sys.argv[1:6]))
"""


def has_backend():
    return VERSION >= MINIMUM


class Forker:
    """A process of forker.py, which has imported torch and forks into the ranks: an import takes seconds of a processor.

    It has neither imported dp nor started a thread. Its ranks are children of this process.
    """
    _only = None

    def __init__(self):
        if ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0):  # PR_SET_CHILD_SUBREAPER
            raise OSError(ctypes.get_errno(), "prctl")
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen([sys.executable, os.path.join(FOLDER, "forker.py"), str(theirs.fileno())],
                                         pass_fds=[theirs.fileno()], env={**os.environ, **ENVIRONMENT})
        self._lock = threading.Lock()
        theirs.close()

    @classmethod
    def only(cls):
        if cls._only is None:
            cls._only = cls()
            atexit.register(cls._only.close)
        return cls._only

    def close(self):
        self._channel.close()
        self._process.wait()

    def fork(self, program, arguments, environment):
        """A rank that runs `program`: a function, or a text."""
        if callable(program):
            program = program_of(program, joins=False)
        read, write = os.pipe()
        job = {"program": program, "arguments": arguments, "environment": environment}
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(job).encode()], [write])
            pid, after = self._channel.recv(100), self._channel.recv(100)
        os.close(write)
        assert after, "the process that forks ended"
        return Rank(int(pid), read)


class Rank:
    """Like a subprocess.Popen whose output is one pipe of bytes."""

    def __init__(self, pid, output):
        self.pid, self.returncode = pid, None
        self.stdout = os.fdopen(output, "rb", buffering=0)

    def wait(self):
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def send_signal(self, number):
        if self.returncode is None:  # until wait(), the number is its own
            os.kill(self.pid, number)

    def communicate(self, end):
        """What it prints until it and its children are over; raises TimeoutError where time.monotonic() is `end` before."""
        pieces = []
        while select.select([self.stdout], [], [], max(end - time.monotonic(), 0.1))[0]:
            pieces.append(self.stdout.read(1 << 16))
            if not pieces[-1]:
                self.wait()
                return b"".join(pieces).decode()
        raise TimeoutError(b"".join(pieces).decode())


class Job:
    """Ranks that run; a context manager that leaves none behind."""

    def __init__(self, body, backend="dp", ranks=2, seconds=120, **variables):
        """seconds: the timeout of the default group."""
        self._folder = tempfile.TemporaryDirectory(prefix="dp-torch-")
        store = os.path.join(self._folder.name, "store")
        program = program_of(body, joins=True) if callable(body) else PRELUDE + body
        self.processes = [
            Forker.only().fork(program, ["-c", backend, str(rank), str(ranks), store, str(seconds)],
                               {**os.environ, **ENVIRONMENT, **variables})
            for rank in range(ranks)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        self._folder.cleanup()

    def finish(self):
        """Waits for all ranks: their exit codes, and what they printed."""
        end = time.monotonic() + LIMIT
        outputs = []
        for rank, process in enumerate(self.processes):
            try:
                outputs.append(process.communicate(end))
            except TimeoutError as printed:
                raise AssertionError(f"rank {rank} is not over after {LIMIT} s:\n{printed}") from None
        return [process.returncode for process in self.processes], outputs


def world(body, backend="dp", ranks=2, **variables):
    """What rank 0 prints; each rank must end with 0."""
    with Job(body, backend, ranks, **variables) as job:
        codes, outputs = job.finish()
    assert not any(codes), "".join(f"rank {rank} ended with {code}:\n{output}" for rank, (code, output)
                                   in enumerate(zip(codes, outputs)))
    return [line for line in outputs[0].splitlines() if "Warning" not in line]
