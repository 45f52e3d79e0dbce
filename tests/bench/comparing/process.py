"""process.py - runs programs: whole process groups under a time limit, nothing left behind."""
import json
import os
import signal
import socket
import subprocess
import tempfile
import time


class Failed(Exception):
    """A program that failed, and the last it said."""


def free_port():
    """A port that was free a moment ago, with room for a neighbour."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return min(probe.getsockname()[1], 65000)


def _end(processes):
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def run_all(commands, timeout, environments=None, cwd=None):
    """Runs the commands side by side; their standard outputs. Raises Failed when one fails."""
    started, begin = [], time.monotonic()
    outputs = [tempfile.TemporaryFile("w+") for _ in commands]
    errors = [tempfile.TemporaryFile("w+") for _ in commands]
    try:
        for i, command in enumerate(commands):
            environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
            environment.update(environments[i] if environments else {})
            started.append(subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=outputs[i],
                stderr=errors[i], env=environment, cwd=cwd, start_new_session=True))
        waiting = list(started)
        while waiting:
            for process in list(waiting):
                if process.poll() is None:
                    continue
                waiting.remove(process)
                if process.returncode != 0:
                    raise Failed(_why(started.index(process), commands, errors,
                                      f"exit {process.returncode}"))
            if waiting and time.monotonic() - begin > timeout:
                raise Failed(_why(0, commands, errors, f"no end after {timeout:.0f} s"))
            time.sleep(0.005)
        texts = []
        for output in outputs:
            output.seek(0)
            texts.append(output.read())
        return texts
    finally:
        _end(started)
        for file in outputs + errors:
            file.close()


def _why(index, commands, errors, what):
    errors[index].seek(0)
    said = errors[index].read().strip().splitlines()[-4:]
    return f"{' '.join(str(word) for word in commands[index])[:160]}: {what}: {' | '.join(said)}"


def run(command, timeout, environment=None, cwd=None):
    """Runs one command; its standard output."""
    return run_all([command], timeout, [environment or {}], cwd)[0]


def json_lines(text):
    """The JSON objects among a program's lines."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            found.append(json.loads(line))
    return found


def rank_environments(ranks, extra=None, address="127.0.0.1", local=True):
    """What torchrun would set for each rank."""
    port = free_port()
    return [dict({"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": address,
                  "MASTER_PORT": str(port), "LOCAL_RANK": str(rank if local else 0),
                  "LOCAL_WORLD_SIZE": str(ranks if local else 1)}, **(extra or {}))
            for rank in range(ranks)]
