"""machine.py - what a figure was measured on: processor, memory, system, versions, revision."""
import os
import platform
import re
import subprocess

BF16 = {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"}  # as the kernel calls them


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _output(command, cwd=None):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False,
                              cwd=cwd).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def has_bf16(cpuinfo=None):
    """Whether the processor has instructions that multiply bf16; cpuinfo: as /proc/cpuinfo."""
    text = _read("/proc/cpuinfo") if cpuinfo is None else cpuinfo
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)  # of x86, of ARM
    return bool(flags) and not BF16.isdisjoint(flags.group(1).split())


def describe(root, versions):
    """{"processor": ..., ...}, in the order in which it is printed; the versions of peers last."""
    model = re.search(r"model name\s*:\s*(.*)", _read("/proc/cpuinfo"))
    memory = re.search(r"MemTotal:\s*(\d+)", _read("/proc/meminfo"))
    system = re.search(r'PRETTY_NAME="(.*)"', _read("/etc/os-release"))
    found = {
        "processor": f"{model.group(1) if model else platform.machine()}, {os.cpu_count()} CPUs",
        "memory": f"{int(memory.group(1)) / 2**20:.1f} GiB" if memory else "?",
        "system": f"{system.group(1) if system else platform.system()}, "
                  f"kernel {platform.release()}",
        "compiler": _output(["gcc", "--version"]).split("\n")[0],
        "UCX": _output(["pkg-config", "--modversion", "ucx"]),
        "revision": _output(["git", "rev-parse", "--short", "HEAD"], root)
                    + ("+" if _output(["git", "status", "--porcelain", "-uno"], root) else ""),
        "load at the start": f"{os.getloadavg()[0]:.2f}",
    }
    found.update(versions)
    return found
