#!/usr/bin/env python3
"""libraries.py - finds the CUDA driver, libcudart, libcublasLt and libnccl of this machine for the programs of a package.

    libraries.py [ROOT]     ROOT: the package, or a build folder; default: where this file lies

Prints a line for each: name, version, path, where it was found; or MISSING and why. The last line is what our programs, and
these only, want at the head of LD_LIBRARY_PATH: PyTorch brings its own. Exit code 1 where one is missing.

Looks, in this order, in the folders of DP_GPU_LIBRARY_PATH (colons between them), in the toolkit's, where the loader looks, in
the driver's usual folders, and in Python's packages. A library is opened and asked for its version: its file's name proves
nothing, and another major version, or an NCCL older than 2.26.2, is passed over.
"""
import ctypes
import glob
import os
import shutil
import subprocess
import sys

# Name: soname, oldest version, function that tells it, weights of major and minor in its answer.
WANTED = {
    "libcuda": ("libcuda.so.1", (13, 0), "cuDriverGetVersion", (1000, 10)),
    "libcudart": ("libcudart.so.13", (13, 0), "cudaRuntimeGetVersion", (1000, 10)),
    "libcublasLt": ("libcublasLt.so.13", (13, 0), "cublasLtGetVersion", (10000, 100, 1)),
    "libnccl": ("libnccl.so.2", (2, 26, 2), "ncclGetVersion", (10000, 100, 1)),  # runtime/engine/nccl/comm.c: OLDEST
}


def folders():
    """(how, folder), best first; None: where the loader looks."""
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"),
             nvcc and os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "/usr/local/cuda",
             *sorted(glob.glob("/usr/local/cuda-[0-9]*")), "/opt/cuda"]
    sites = sys.path + glob.glob("/opt/*/.venv/lib/python3*/site-packages") + \
        glob.glob(os.environ.get("VIRTUAL_ENV", "/none") + "/lib/python3*/site-packages")
    yield from (("DP_GPU_LIBRARY_PATH", os.path.abspath(folder))
                for folder in os.environ.get("DP_GPU_LIBRARY_PATH", "").split(":") if folder)
    yield from (("toolkit", os.path.join(home, end)) for home in homes if home
                for end in ("lib64", "lib", f"targets/{os.uname().machine}-linux/lib"))
    yield "loader", None
    yield from (("driver", folder) for folder in ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib64-nvidia",
                                                  "/usr/lib/wsl/lib"))
    yield from (("python", folder) for site in sites
                for folder in sorted(glob.glob(site + "/nvidia/*/lib")) + [site + "/torch/lib"])


def probe(name, path):
    """In a process of its own, which may crash: opens a library, and prints its version and its file."""
    _, _, function, weights = WANTED[name]
    ask = getattr(ctypes.CDLL(path), function)
    number = ctypes.c_int()
    if name == "libcublasLt":
        ask.restype = ctypes.c_size_t
        number.value = ask()
    elif ask(ctypes.byref(number)) != 0:
        sys.exit(f"{function} fails")
    parts = [number.value // weights[0]] + [number.value % above // unit for above, unit in zip(weights, weights[1:])]
    stem = WANTED[name][0].split(".so")[0] + ".so"
    with open("/proc/self/maps", encoding="utf-8") as maps:
        opened = [line.split(None, 5)[5].strip() for line in maps if os.path.basename(line.rstrip()).startswith(stem)]
    print(".".join(map(str, parts)), path if path.startswith("/") else opened[0])


def find(name):
    """(version, path, how), or (None, None, reason)."""
    soname, oldest, _, _ = WANTED[name]
    reasons = []
    for how, folder in folders():
        for path in [soname] if folder is None else sorted(glob.glob(f"{folder}/{soname.split('.so')[0]}.so.[0-9]*"),
                                                           key=lambda file: not file.endswith("/" + soname)):
            try:
                found = subprocess.run([sys.executable, __file__, "--probe", name, path], timeout=60, capture_output=True,
                                       text=True, check=False)
            except subprocess.TimeoutExpired:
                reasons.append(f"{path} does not open in 60 s")
                continue
            if found.returncode != 0:
                if folder is not None:
                    reasons.append(f"{path} does not open as {name}: {(found.stderr.strip().splitlines() or ['?'])[-1]}")
                continue
            version, opened = found.stdout.split(None, 1)
            numbers = tuple(map(int, version.split(".")))
            if numbers >= oldest and (numbers[0] == oldest[0] or name == "libcuda"):  # a driver serves older majors
                return version, opened.strip(), how
            reasons.append(f"{opened.strip()} is version {version}, wanted is {oldest[0]}, at least {'.'.join(map(str, oldest))}")
    return None, None, "refused: " + "; ".join(reasons) if reasons else \
        "not found in any folder where libraries.py looks; DP_GPU_LIBRARY_PATH names more"


def main(root):
    # The loader takes the first file of a name, so what was chosen comes first, as links in a folder of their own: another
    # version of one may lie beside the chosen one of another. A driver comes with more libraries, found where it was.
    links = os.path.join(os.path.abspath(root), "cuda-libraries")
    os.makedirs(links, exist_ok=True)
    path, failed = [links], 0
    for name, (soname, *_) in WANTED.items():
        version, file, how = find(name)
        link = os.path.join(links, soname)
        if os.path.lexists(link):
            os.remove(link)
        if file is None:
            failed = 1
            print(f"{name:12} {'MISSING':10} {how}")
            continue
        print(f"{name:12} {version:10} {file}  ({how})")
        if name != "libcuda":
            os.symlink(file, link)
        if how != "loader" and os.path.dirname(file) not in path:
            path.append(os.path.dirname(file))
    print("LD_LIBRARY_PATH=" + ":".join(path))
    return failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["--probe"]:
        probe(*sys.argv[2:])
    elif sys.argv[1:] in (["--help"], ["-h"]):
        print(__doc__)
    else:
        sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))))
