"""peers.py - finds the peers, installs what is missing where that is allowed, names versions."""
import os
import re
import shutil
import subprocess
import sys

from measuring.process import Failed, run

PACKAGES = {"mpiexec.openmpi": "openmpi-bin", "mpicc.openmpi": "libopenmpi-dev",
            "mpiexec.mpich": "mpich", "mpicc.mpich": "libmpich-dev"}
TORCH_PACKAGES = ["python3-torch", "libopenblas0-pthread", "libopenblas0-openmp",
                  "libblis4-openmp"]
HOROVOD = "horovod==0.28.1"
HOROVOD_PACKAGES = ["python3-venv", "python3-dev", "libtorch-dev", "pybind11-dev", "libopenmpi-dev",
                    "cmake", "make", "g++"]
HOROVOD_BUILD_S = 1800  # it takes 8 minutes of a core
HOROVOD_LOADS = """
import horovod, horovod.torch as hvd
print(horovod.__version__, *(["mpi"] if hvd.mpi_built() else []),
      *(["gloo"] if hvd.gloo_built() else []))
"""
BLAS_FOLDERS = ["openblas-pthread", "openblas-openmp", "blis-openmp"]
GEMM = """
import time, torch
torch.set_num_threads(int({threads}))
a, b = torch.randn(256, 768), torch.randn(3072, 768)
best = 1e9
for _ in range(30):
    begin = time.monotonic(); a @ b.t(); best = min(best, time.monotonic() - begin)
print(2 * 256 * 768 * 3072 / best / 1e9)
"""


class Torch:
    """One way to run PyTorch: an interpreter and the environment that picks its BLAS."""

    def __init__(self, python, environment, name, version):
        self.python, self.environment = python, environment
        self.name, self.version = name, version
        self.gflops = 0.0


class Peers:
    """What was found. Missing peers are None or empty, with a reason in .missing."""

    def __init__(self):
        self.openmpi = self.mpich = False
        self.torches = []  # best BLAS first
        self.horovod = None  # a Torch, too: its interpreter has Horovod
        self.horovod_by = []  # "mpi", "gloo": what it was built to exchange by
        self.missing, self.versions = {}, {}

    def best_of_versions(self):
        """Of each version of PyTorch the way with the best BLAS."""
        found = {}
        for torch in self.torches:
            found.setdefault(torch.version, torch)
        return list(found.values())


def _apt(packages):
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get") is None or (root and shutil.which("sudo") is None):
        return "this is no Debian, or there is no root"
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(root + ["apt-get", "update"], 300, environment)
        run(root + ["apt-get", "install", "-y", "--no-install-recommends", *packages], 1200,
            environment)
    except Failed as error:
        return str(error)
    return ""


def _first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return (done.stdout or done.stderr).strip().splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return ""


def _torch_version(python):
    return _first_line([python, "-c", "import torch; print(torch.__version__)"])


def _is_version(text):
    return re.match(r"\d+\.\d+", text) is not None


def _install(say):
    wanted = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if not _is_version(_torch_version("/usr/bin/python3")):
        wanted += TORCH_PACKAGES
    if wanted:
        say(f"installing {' '.join(wanted)}")
        problem = _apt(wanted)
        if problem:
            say(f"not installed: {problem}")


def install_pypi(folder, say):
    """PyTorch of PyPI, which brings MKL and its own gloo, in a virtual environment below the build
    folder. Returns its interpreter."""
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(python):
        run([sys.executable, "-m", "venv", folder], 120)
    if not _is_version(_torch_version(python)):
        say("installing PyTorch from PyPI (some 5 GB with what it depends on)")
        run([python, "-m", "pip", "install", "--no-cache-dir", "torch", "numpy"], 1800)
    return python


def _horovod_of(folder):
    """What Horovod in this virtual environment says of itself: ["0.28.1", "mpi", "gloo"]; or []."""
    words = _first_line([os.path.join(folder, "bin", "python"), "-c", HOROVOD_LOADS]).split()
    return words if words and _is_version(words[0]) else []


def _cause(output):
    """The first line of a build's output that says why it failed; "" without one."""
    for line in map(str.strip, output.splitlines()):
        if (re.search(r"\berror: |CMake Error|^ERROR: |Error: ", line)
                and "subprocess-exited-with-error" not in line):
            return line[:200]
    return ""


def _pip_install(python, words, limit, environment=None):
    """Raises Failed with the line that says why: pip's last ones do not."""
    try:
        run(["sh", "-c", 'exec "$@" 2>&1', "sh", python, "-m", "pip", "install", "--no-cache-dir",
             *words], limit, environment)
    except Failed as error:
        raise Failed(": ".join(filter(None, [error.reason, _cause(error.output)])),
                     f"pip install {words[-1]}") from error


def install_horovod(folder, say):
    """Horovod with MPI and gloo in a virtual environment, on Debian's PyTorch 1.13: PyPI's of today
    want a newer C++ than Horovod asks its compiler for. Raises Failed."""
    python = os.path.join(folder, "bin", "python")
    problem = _apt(HOROVOD_PACKAGES + TORCH_PACKAGES[:1])
    if problem:
        raise Failed(problem)
    say("building Horovod (8 minutes of a core)")
    run(["/usr/bin/python3", "-m", "venv", "--clear", "--system-site-packages", folder], 120)
    # A newer setuptools lacks what this PyTorch's own build helpers import.
    _pip_install(python, ["wheel", "packaging", "setuptools<70"], 300)
    _pip_install(python, ["--no-build-isolation", HOROVOD], HOROVOD_BUILD_S,
                 {"HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITHOUT_TENSORFLOW": "1",
                  "HOROVOD_WITHOUT_MXNET": "1", "HOROVOD_WITH_MPI": "1", "HOROVOD_WITH_GLOO": "1",
                  "MAKEFLAGS": f"-j{os.cpu_count() or 1}"})


def _has_avx512():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return "avx512f" in file.read()


def _debian_torches(python, version):
    """Debian's torch calls the BLAS of the library path, so each library is a way of its own."""
    machine = _first_line(["gcc", "-print-multiarch"]) or "x86_64-linux-gnu"
    found = []
    for folder in BLAS_FOLDERS:
        path = f"/usr/lib/{machine}/{folder}"
        if not os.path.isdir(path):
            continue
        environment, name = {"LD_LIBRARY_PATH": path}, f"torch {version}, {folder}"
        # OpenBLAS 0.3.21 takes newer Xeons for a Prescott unless it is told: help the peer.
        if "openblas" in folder and _has_avx512():
            environment["OPENBLAS_CORETYPE"] = "SkylakeX"
            name += " as SkylakeX"
        found.append(Torch(python, environment, name, version))
    return found or [Torch(python, {}, f"torch {version}", version)]


def _rate(torch, threads):
    environment = dict(torch.environment, OMP_NUM_THREADS=str(threads))
    try:
        return float(run([torch.python, "-c", GEMM.format(threads=threads)], 60, environment))
    except (Failed, ValueError):
        return 0.0


def _find_horovod(peers, arguments, folder, say):
    """What is there already is used; it is built only where that was asked for."""
    found, why = _horovod_of(folder), "not asked for (--horovod)"
    if not found and arguments.horovod:
        try:
            if arguments.no_install:
                raise Failed("--no-install")
            install_horovod(folder, say)
            found, why = _horovod_of(folder), "it was built, but does not load"
        except Failed as error:
            why = f"not installed: {str(error)[:300]}"
    if not found:
        peers.missing["Horovod"] = why
        return
    python = os.path.join(folder, "bin", "python")
    peers.horovod = Torch(python, {}, f"Horovod {found[0]}", found[0])
    peers.horovod_by = found[1:]
    peers.versions["Horovod"] = (f"{found[0]} by {' and '.join(found[1:])}, on torch "
                                 f"{_torch_version(python)}")


def find(arguments, build, say):
    """All peers, as the command line allows."""
    peers = Peers()
    if not arguments.no_install:
        _install(say)
    for name in ("openmpi", "mpich"):
        there = shutil.which(f"mpiexec.{name}") and shutil.which(f"mpicc.{name}")
        setattr(peers, name, bool(there))
        if there:
            flag = "--version"
            line = _first_line([f"mpiexec.{name}", flag])
            if name == "mpich":
                found = re.search(r"Version:\s*(\S+)",
                                  subprocess.run(["mpiexec.mpich", flag], capture_output=True,
                                                 text=True, check=False).stdout)
                line = f"MPICH {found.group(1)}" if found else "MPICH"
            peers.versions[name] = "Open MPI " + line.split()[-1] if name == "openmpi" else line
        else:
            peers.missing[name] = "not installed"
    pythons = ["/usr/bin/python3", *arguments.torch_python]
    folder = os.path.join(build, "peers-venv")
    if arguments.pypi or os.path.exists(os.path.join(folder, "bin/python")):
        try:
            pythons.append(install_pypi(folder, say))
        except Failed as error:
            peers.missing["PyTorch of PyPI"] = str(error)[-200:]
    for python in pythons:
        version = _torch_version(python)
        if not _is_version(version):
            continue
        if python == "/usr/bin/python3":
            peers.torches += _debian_torches(python, version)
        else:
            peers.torches.append(Torch(python, {}, f"torch {version} (MKL)", version))
    _find_horovod(peers, arguments, os.path.join(build, "horovod-venv"), say)
    for torch in peers.torches:
        torch.gflops = _rate(torch, min(2, os.cpu_count() or 1))
    peers.torches.sort(key=lambda torch: -torch.gflops)
    if peers.torches:
        peers.versions["torch"] = "; ".join(
            f"{torch.name} {torch.gflops:.0f} GFLOP/s" for torch in peers.torches)
    else:
        peers.missing["PyTorch"] = "not installed"
    return peers
