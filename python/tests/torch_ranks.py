"""Ranks of torch.distributed as processes, for tests of the backend: each runs a text as its program."""
import atexit
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

try:
    import torch
    VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
except ImportError:
    torch, VERSION = None, (0, 0)

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT = 240
MINIMUM = (2, 4)
ENVIRONMENT = {"PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1"}
# Every rank; `here` is its number, `ranks` how many there are.
PRELUDE = """
import datetime, os, signal, sys, time, warnings, torch, torch.distributed as dist
import dp.torch.backend
backend, here, ranks, place = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group(backend, init_method="file://" + place, rank=here, world_size=ranks,
                        timeout=datetime.timedelta(seconds=float(sys.argv[5])))
version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
store = dist.distributed_c10d._get_default_store()
own = dist.group.WORLD._get_backend(torch.device("cpu")) if hasattr(dist.group.WORLD, "_get_backend") else None
def fails(call, *words):
    try:
        call()
    except RuntimeError as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError("nothing was told")
"""


def has_backend():
    return VERSION >= MINIMUM


class Forker:
    """A process that has imported torch, and forks into the ranks: an import takes seconds of a processor, in each.

    It has not imported dp, nor started a thread. A rank is a fork of a fork that ended, which makes it a child of
    this process: what is no child's of its parent becomes a child of PR_SET_CHILD_SUBREAPER's nearest.
    """
    PROGRAM = """
import json, os, socket, sys, torch, torch.distributed, torch.nn.parallel, torch.utils.data
try:
    import torch.distributed.fsdp, torch.distributed.device_mesh, torch.distributed.checkpoint, torch.distributed.tensor
    import torch.distributed._functional_collectives, torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook
except ImportError:
    pass  # an early torch
channel = socket.socket(fileno=int(sys.argv[1]))
assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose threads"
while True:
    text, files, _, _ = socket.recv_fds(channel, 1 << 20, 1)
    if not text:
        sys.exit(0)
    job = json.loads(text)
    between = os.fork()
    if between == 0:
        rank = os.fork()
        if rank == 0:
            break
        channel.send(str(rank).encode())
        os._exit(0)
    os.waitpid(between, 0)
    os.close(files[0])
    channel.send(b"it has our parent")
os.dup2(files[0], 1)
os.dup2(files[0], 2)
os.close(files[0])
channel.close()
os.environ.clear()
os.environ.update(job["environment"])
sys.argv = job["arguments"]
body = compile(job["program"], "<string>", "exec")
for name in ("json", "socket", "channel", "text", "files", "job", "between", "rank", "name"):
    globals().pop(name, None)
exec(body)
"""
    _only = None

    def __init__(self):
        if ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0):  # PR_SET_CHILD_SUBREAPER
            raise OSError(ctypes.get_errno(), "prctl")
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen([sys.executable, "-c", self.PROGRAM, str(theirs.fileno())],
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
        """A rank that runs the text `program`."""
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
        self.processes = [
            Forker.only().fork(PRELUDE + body, ["-c", backend, str(rank), str(ranks), store, str(seconds)],
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
