"""Ranks of torch.distributed as processes, for tests of the backend: each runs a text as its program.

LIBDP_TORCH in the environment says which form of the backend is tested: python (the default here) or native.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

try:
    import torch
    VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
except ImportError:
    VERSION = (0, 0)

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT = 240
FORM = os.environ.get("LIBDP_TORCH") or "python"
MINIMUM = (2, 14) if FORM == "python" else (2, 4)
# Every rank; `here` is its number, `ranks` how many there are.
PRELUDE = """
import datetime, os, signal, sys, time, warnings, torch, torch.distributed as dist
import dp.torch.backend
backend, here, ranks, place = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group(backend, init_method="file://" + place, rank=here, world_size=ranks,
                        timeout=datetime.timedelta(seconds=120))
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


class Job:
    """Ranks that run; a context manager that leaves none behind."""

    def __init__(self, body, backend="dp", ranks=2, forms=(), **variables):
        """forms: those of ranks that do not take FORM."""
        self._folder = tempfile.TemporaryDirectory(prefix="dp-torch-")
        command = [sys.executable, "-c", PRELUDE + body, backend]
        self.processes = [
            subprocess.Popen([*command, str(rank), str(ranks), os.path.join(self._folder.name, "store")],
                             env={**os.environ, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1",
                                  "LIBDP_TORCH": dict(forms).get(rank, FORM), **variables},
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank in range(ranks)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()
        self._folder.cleanup()

    def finish(self):
        """Waits for all ranks: their exit codes, and what they printed."""
        end = time.monotonic() + LIMIT
        outputs = []
        for rank, process in enumerate(self.processes):
            try:
                outputs.append(process.communicate(timeout=max(end - time.monotonic(), 1))[0])
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                raise AssertionError(f"rank {rank} is not over after {LIMIT} s:\n{process.communicate()[0]}") from None
        return [process.returncode for process in self.processes], outputs


def world(body, backend="dp", ranks=2, forms=(), **variables):
    """What rank 0 prints; each rank must end with 0."""
    with Job(body, backend, ranks, forms, **variables) as job:
        codes, outputs = job.finish()
    assert not any(codes), "".join(f"rank {rank} ended with {code}:\n{output}" for rank, (code, output)
                                   in enumerate(zip(codes, outputs)))
    return [line for line in outputs[0].splitlines() if "Warning" not in line]
