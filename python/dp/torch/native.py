"""The backend of torch.distributed, as it is compiled: cxx/backend.cc for the installed torch, once.

    python3 -m dp.torch.native           compiles it, with the compiler $CXX, c++, g++ or clang++, and says where it is
    python3 -m dp.torch.native FOLDER    compiles it into this folder

A compiled backend is for one version of torch, one Python and one ABI: the name of the file says which.
A wheel may bring some (python/wheel/backend.py), in the package's folder `compiled`. Another one is made when it is first
wanted, in the user's cache ($XDG_CACHE_HOME or ~/.cache, folder libdp), next to those of other versions.
"""
from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from typing import Any

import torch

from dp import _c

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(HERE, "cxx")
COMPILED = os.path.join(HERE, "compiled")
MINIMUM = (2, 4)
MODULE = "dp_torch_backend"  # as in PYBIND11_MODULE
CXX_20 = (2, 12)  # the first torch whose headers want C++20
LIMIT_S = 1800

_module: Any = None


class Unavailable(Exception):
    """Why there is none here, in a sentence."""


def version() -> tuple[int, ...]:
    """torch's major and minor number."""
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def load() -> Any:
    """The compiled module, which has World and make_backend."""
    global _module
    if _module is None:
        _module = _import(_find())
    return _module


def _import(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None and spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise Unavailable(f"{path} cannot be loaded: {error}") from error
    return module


def _header() -> str:
    """The folder of dp.h: in the wheel, or in the sources."""
    top = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
    for folder in (os.path.join(os.path.dirname(HERE), "include"), os.path.join(top, "include")):
        if os.path.exists(os.path.join(folder, "dp.h")):
            return folder
    raise Unavailable("dp.h is not beside the package")


def _folder() -> str:
    """The user's cache, which nobody else may write."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(cache, "libdp")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
    except OSError as error:
        raise Unavailable(f"there is no cache for it: {error}") from error
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise Unavailable(f"{folder} can be written by others")
    return folder


def _command(header: str, output: str) -> list[str]:
    """It gets no path to its libraries, which this process has loaded before."""
    if version() < MINIMUM:
        raise Unavailable(f"it wants torch {'.'.join(map(str, MINIMUM))}, this is {torch.__version__}")
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or \
        shutil.which("clang++")
    if not compiler:
        raise Unavailable("there is no C++ compiler (Debian: g++)")
    python = sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(python, "Python.h")):
        raise Unavailable(f"there is no Python.h in {python} (Debian: python3-dev)")
    root = os.path.dirname(os.path.abspath(torch.__file__))
    includes = [os.path.join(root, "include"),
                os.path.join(root, "include", "torch", "csrc", "api", "include"), python]
    standard = "c++20" if version() >= CXX_20 else "c++17"
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    # pybind11 shares types between modules that were built alike, and these say how torch was.
    alike = [f'-DPYBIND11_{name}="{value}"' for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
             if (value := getattr(torch._C, f"_PYBIND11_{name}", None)) is not None]
    lib = os.path.join(root, "lib")
    return [*compiler.split(), f"-std={standard}", "-O2", "-fPIC", "-shared", "-fvisibility=hidden",
            "-Wall", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", *alike,
            *(part for include in includes for part in ("-isystem", include)), "-I", header,
            os.path.join(SOURCES, "backend.cc"),
            _c.PATH, f"-L{lib}", "-lc10", "-ltorch_cpu", "-ltorch",
            "-ltorch_python", "-o", output]


def check() -> None:
    """Unavailable: there is no compiled file, and none can be made. Compiles nothing."""
    name = _name()
    if not os.path.exists(os.path.join(COMPILED, name)) and not os.path.exists(os.path.join(_folder(), name)):
        _command(_header(), "")


def refusal(reason: Unavailable) -> str:
    """What to tell the program."""
    return (f"the backend dp is compiled once for each PyTorch, and for {torch.__version__} that is not possible: {reason}; "
            "install it, or a wheel of libdp that was made beside this PyTorch (pip wheel ./python). dp.torch, Horovod's API, "
            "works without")


def _find() -> str:
    """The compiled file. One process of a machine compiles that of the cache, the others wait."""
    header, name = _header(), _name()
    path = os.path.join(COMPILED, name)
    if os.path.exists(path):
        return path
    folder = _folder()
    path = os.path.join(folder, name)
    if os.path.exists(path):
        return path
    with open(os.path.join(folder, "lock"), "a", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel gives it back when this process ends
        if not os.path.exists(path):
            _compile(header, path)
    return path


def _name() -> str:
    """Of the file for this torch, this Python, these sources and libdp's ABI."""
    sources = [os.path.join(SOURCES, name) for name in sorted(os.listdir(SOURCES))]
    digest = hashlib.sha256(_c.NAME.encode())  # which it is linked to
    for path in (*sources, os.path.join(_header(), "dp.h")):
        with open(path, "rb") as file:
            digest.update(file.read())
    return "-".join(["backend", f"torch{torch.__version__}", str(sys.implementation.cache_tag),
                     digest.hexdigest()[:12]]) + ".so"


def _compile(header: str, path: str) -> None:
    scratch = f"{path}.{os.getpid()}"
    command = _command(header, scratch)
    print(f"dp: compiling the backend for torch {torch.__version__}, once; it takes a minute",
          file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the compiler failed: {error}") from error
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise Unavailable(f"{command[0]} failed: {said[0]}")
    os.rename(scratch, path)


if __name__ == "__main__":
    try:
        if len(sys.argv) > 1:
            _compile(_header(), os.path.join(sys.argv[1], _name()))
        else:
            print(_find())
    except Unavailable as why:
        sys.exit(f"dp: {why}")
