"""bundle.py - puts beside libdp and dprun the libraries that they stand on, and sets where each looks for
the others. Called by backend.py.

The C library and its kin are left to the machine, and so are libibverbs and its drivers, which belong
to the kernel's, and the CUDA libraries, which PyTorch or the toolkit brings. UCX opens its transports at
run time, from the folder ucx/ beside libucs, so those come along too.
"""
from __future__ import annotations

import glob
import os
import re
import struct
import shutil
import subprocess
import sysconfig

# Of the machine that installs the wheel.
SYSTEM = re.compile(r"^(ld-linux.*|linux-vdso|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|"
                    r"libibverbs|librdmacm|libmlx5|libnl-3|libnl-route-3|libcuda|libcudart|libnccl)\.so")
# Where wheels of NVIDIA and the toolkit have what the plug-in needs, seen from dp/lib.
CUDA_PLACES = ["$ORIGIN/../../nvidia/nccl/lib", "$ORIGIN/../../nvidia/cu13/lib",
               "$ORIGIN/../../nvidia/cuda_runtime/lib", "/usr/local/cuda/lib64", "/usr/local/cuda/lib"]
LOCAL_PLATFORM = sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "LC_ALL": "C"}).stdout


def _needs(path: str) -> dict[str, str]:
    """Names and places of the libraries that a file needs, and those need in turn."""
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", _output("ldd", path), re.MULTILINE))
    return {name: place for name, place in found.items() if not SYSTEM.match(name)}


def _missing(path: str) -> list[str]:
    return [name for name in re.findall(r"^\s*(\S+) => not found", _output("ldd", path), re.MULTILINE)
            if not SYSTEM.match(name)]


def _transports(ucs: str) -> list[str]:
    """UCX's modules: in ucx/ beside libucs, opened by the name with the version."""
    folder = os.path.join(os.path.dirname(os.path.realpath(ucs)), "ucx")
    return sorted(glob.glob(os.path.join(folder, "libuc*.so.0")))


def _copy_libraries(sources: list[str], folder: str) -> dict[str, str]:
    """Copies what `sources` need; returns where this machine has each, by name."""
    for source in sources:
        if _missing(source):
            raise RuntimeError(f"{source} needs {', '.join(_missing(source))}, which this machine lacks")
    needed: dict[str, str] = {}
    for source in sources:
        needed.update(_needs(source))
    modules = _transports(needed["libucs.so.0"])
    for module in modules:
        needed.update(_needs(module))
    for name, place in needed.items():
        if not os.path.exists(os.path.join(folder, name)):
            shutil.copy(os.path.realpath(place), os.path.join(folder, name))
    os.makedirs(os.path.join(folder, "ucx"))
    for module in modules:
        shutil.copy(os.path.realpath(module), os.path.join(folder, "ucx", os.path.basename(module)))
        stray = os.path.join(folder, os.path.basename(module))
        if os.path.exists(stray):  # a module that another one links lies in ucx/ alone
            os.remove(stray)
    return {**needed, **{os.path.join("ucx", os.path.basename(module)): module for module in modules}}


# Functions of newer C libraries, and the file here that stands in for them.
STAND_INS = {"arc4random": "arc4random.c", "arc4random_buf": "arc4random.c"}
LIBC = (2, 34)  # of Ubuntu 22.04's and RHEL 9's time: no newer one shall be needed for STAND_INS alone


def _needed_versions(path: str) -> list[tuple[tuple[int, int], int]]:
    """Versions of the C library that a file asks for, and where in the file its flags for each stand."""
    text = _output("readelf", "-W", "-V", path)
    _, _, needs = text.partition(".gnu.version_r")
    if not needs:
        return []
    start = int(re.search(r"Offset: 0x([0-9a-f]+)", needs).group(1), 16)  # type: ignore[union-attr]
    return [((int(major), int(minor)), start + int(at, 16) + 4)  # struct Elf64_Vernaux: hash, flags
            for at, major, minor in re.findall(r"(0x[0-9a-f]+): +Name: GLIBC_(\d+)\.(\d+) ", needs)]


def _stand_in_for_newer_libc(path: str) -> None:
    """Where a library needs a C library newer than LIBC for functions of STAND_INS alone: those of ours come along, and
    the version is no longer asked for."""
    newer = [(version, at) for version, at in _needed_versions(path) if version > LIBC]
    symbols = _output("readelf", "-W", "--dyn-syms", path)
    names = {name for version, _ in newer for name in re.findall(r" (\w+)@+GLIBC_%d\.%d\b" % version, symbols)}
    compiler = next((one for one in ("cc", "gcc", "clang") if shutil.which(one)), None)
    if not names or not names <= STAND_INS.keys() or compiler is None:
        return
    for source in {STAND_INS[name] for name in names}:
        library = f"libdp-{source[:-2]}.so"
        _output(compiler, "-O2", "-fPIC", "-shared", f"-Wl,-soname,{library}", "-o", os.path.join(os.path.dirname(path), library),
                os.path.join(os.path.dirname(os.path.abspath(__file__)), source))
        _output("patchelf", "--add-needed", library, path)
    for name in names:
        _output("patchelf", "--clear-symbol-version", name, path)
    with open(path, "r+b") as file:
        for version, at in _needed_versions(path):
            if version > LIBC:
                file.seek(at)
                file.write(struct.pack("<H", 2))  # VER_FLG_WEAK: the loader accepts that it is missing


def _set_places(folder: str, programs: str) -> None:
    """RPATH, not RUNPATH: it comes before LD_LIBRARY_PATH, so no other UCX of the machine is taken, and
    it also serves what the libraries open in turn."""
    places = {path: "$ORIGIN" for path in glob.glob(os.path.join(folder, "*.so*"))}
    places.update({path: "$ORIGIN:$ORIGIN/.." for path in glob.glob(os.path.join(folder, "ucx", "*"))})
    places.update({path: "$ORIGIN/../lib" for path in glob.glob(os.path.join(programs, "*"))})
    for path, place in places.items():
        if os.path.basename(path) == "libdp-cuda.so":
            place = ":".join([place, *CUDA_PLACES])
        os.chmod(path, 0o755)
        _output("patchelf", "--force-rpath", "--set-rpath", place, path)


def _platform(paths: list[str]) -> str:
    """manylinux_2_N: the oldest C library that has every symbol version the files ask for."""
    newest = (2, 17)
    for path in paths:
        versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+) +Flags: none", _output("readelf", "-W", "-V", path))
        newest = max([newest, *((int(major), int(minor)) for major, minor in versions)])
    machine = LOCAL_PLATFORM.split("_", 1)[1]
    return f"manylinux_{newest[0]}_{newest[1]}_{machine}"


def complete(built: str, folder: str, programs: str, beside: list[str]) -> tuple[str, dict[str, str]]:
    """Fills `folder` with what its libraries and the programs need. Returns the platform's tag, and where this machine
    has each library that is not libdp's, by its name in `folder`.

    built: the build folder, whose files still say where this machine has the libraries.
    beside: files of the wheel that are loaded beside those.
    """
    names = [*os.listdir(folder), *os.listdir(programs)]
    others = _copy_libraries([os.path.join(built, name) for name in names if name != "libdp-cuda.so"], folder)
    for path in glob.glob(os.path.join(folder, "**", "*.so*"), recursive=True):
        _stand_in_for_newer_libc(path)
    _set_places(folder, programs)
    return _platform([*beside, *glob.glob(os.path.join(folder, "**", "*.so*"), recursive=True),
                      *glob.glob(os.path.join(programs, "*"))]), others
