"""process.py - runs programs: whole process groups under a time limit, nothing left behind."""
import ctypes
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import tempfile
import time

GRACE_S = 3.0  # what a program gets to end its own programs
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
FIRST_PORT = 15000  # services with a number of their own are mostly below
LIBC = ctypes.CDLL(None)


class Failed(Exception):
    """A program that failed; `reason` is how, and the last it said; `output`: of the first one,
    as far as it came."""

    def __init__(self, reason, command=""):
        super().__init__(f"{command}: {reason}" if command else reason)
        self.reason, self.output = reason, ""


class Late(Failed):
    """Nothing was run: the time was over."""


class Beside:
    """A program that goes on beside those that run() and run_all() run: they leave it alone, and
    fail by its name when it ends. It is to end when its standard input does."""

    going = []  # all of them

    def __init__(self, command, name):
        self.name, self.errors = name, tempfile.TemporaryFile("w+")
        try:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self.errors, text=True, start_new_session=True,
                preexec_fn=_die_with_parent)
        except OSError as error:
            self.errors.close()
            raise Failed(str(error), name) from error
        Beside.going.append(self)

    def line(self, timeout):
        """The next line it prints."""
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        text = self.process.stdout.readline() if ready else ""
        if not text:
            raise Failed(self._end() if ready else f"no word in {timeout:.0f} s", self.name)
        return text

    def check(self):
        """Raises Failed when it is gone."""
        if self.process.poll() is not None:
            raise Failed(f"ended before its time: {self._end()}", self.name)

    def _end(self):
        return f"exit {self.process.wait()}: {_last_words(self.errors)}".rstrip(": ")

    def stop(self):
        """Ends it; what it still printed."""
        Beside.going.remove(self)
        try:
            return self.process.communicate(timeout=GRACE_S)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.communicate()[0]
        finally:
            self.errors.close()


def adopt_orphans():
    """What our programs started and left becomes our child, which _end() then finds. MPI's starters
    put their ranks into groups of their own."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with_parent():
    """In a program about to start: it ends even where we are killed and can end nothing."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def free_port():
    """A port where nobody listens, and its neighbour. The kernel has none of the two in the range from which it serves
    connections, so that they are still free when a program that was told of them listens there, seconds later."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        low, high = map(int, file.read().split())
    ports = [*range(FIRST_PORT, low - 1), *range(high + 1, 65535)]
    random.shuffle(ports)
    for port in ports:
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise Failed(f"no port outside {low} to {high} is free")


def children():
    """The process ids whose parent we are."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                    found.append(int(name))
        except (OSError, IndexError, ValueError):
            pass  # it has just ended
    return found


def _signal(processes, number):
    for process in processes:
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def _end(processes):
    running = [process for process in processes if process.poll() is None]
    _signal(running, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    while any(process.poll() is None for process in running) and time.monotonic() < until:
        time.sleep(0.005)
    _signal(processes, signal.SIGKILL)
    for process in processes:
        process.wait()
    _end_orphans()


def _end_orphans():
    """What is a child and was not started by us; it may be at its own tidying up."""
    until = time.monotonic() + GRACE_S
    ours = {beside.process.pid for beside in Beside.going}
    while pids := set(children()) - ours:
        for pid in pids:
            try:
                if time.monotonic() > until:
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                pass
        time.sleep(0.005)


def _await(started, commands, errors, timeout):
    begin, waiting = time.monotonic(), list(started)
    while waiting:
        for process in list(waiting):
            if process.poll() is None:
                continue
            waiting.remove(process)
            if process.returncode != 0:
                raise _failure(started.index(process), commands, errors,
                               f"exit {process.returncode}")
        for beside in Beside.going:
            beside.check()
        if waiting and time.monotonic() - begin > timeout:
            raise _failure(0, commands, errors, f"no end after {timeout:.0f} s")
        time.sleep(0.005)


def _text(file):
    """What programs have written so far. Read without the file's offset: they share it, and one that still
    writes would move it between a seek and a read."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def run_all(commands, timeout, environments=None, cwd=None):
    """Runs the commands side by side; their standard outputs. Raises Failed when one fails."""
    started = []
    outputs = [tempfile.TemporaryFile("w+") for _ in commands]
    errors = [tempfile.TemporaryFile("w+") for _ in commands]
    try:
        for i, command in enumerate(commands):
            environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
            environment.update(environments[i] if environments else {})
            try:
                started.append(subprocess.Popen(
                    [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=outputs[i],
                    stderr=errors[i], env=environment, cwd=cwd, start_new_session=True,
                    preexec_fn=_die_with_parent))
            except OSError as error:
                raise Failed(str(error), str(command[0])) from error
        _await(started, commands, errors, timeout)
        return [_text(output) for output in outputs]
    except Failed as error:
        error.output = _text(outputs[0])
        raise
    finally:
        _end(started)
        for file in outputs + errors:
            file.close()


def _last_words(file):
    return " | ".join(line[:300] for line in _text(file).strip().splitlines()[-3:])


def _failure(index, commands, errors, what):
    return Failed(": ".join(filter(None, [what, _last_words(errors[index])])),
                  " ".join(str(word) for word in commands[index])[:160])


def run(command, timeout, environment=None, cwd=None):
    """Runs one command; its standard output."""
    return run_all([command], timeout, [environment or {}], cwd)[0]


def json_lines(text):
    """The JSON objects among a program's lines; one that was cut off counts for nothing. horovodrun
    puts a rank before each line."""
    found = []
    for line in text.splitlines():
        line = re.sub(r"^\[\d+\]<stdout>:", "", line)
        try:
            found += [json.loads(line)] if line.startswith("{") else []
        except ValueError:
            pass
    return found


def only_row(text):
    """The first of them."""
    rows = json_lines(text)
    if not rows:
        raise Failed("it printed no figures")
    return rows[0]


def rank_environments(ranks, extra=None, address="127.0.0.1", local=True):
    """What torchrun would set for each rank."""
    port = free_port()
    return [dict({"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": address,
                  "MASTER_PORT": str(port), "LOCAL_RANK": str(rank if local else 0),
                  "LOCAL_WORLD_SIZE": str(ranks if local else 1)}, **(extra or {}))
            for rank in range(ranks)]
