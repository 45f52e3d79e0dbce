"""licenses.py - the licences of the libraries that a wheel carries. Called by backend.py.

Debian's packages say theirs in /usr/share/doc/PACKAGE/copyright, and point at the text of common ones; Fedora's in
/usr/share/licenses/PACKAGE. LGPL and BSD both want their text to go with the files.
"""
from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess

COMMON = "/usr/share/common-licenses"


def _package(path: str) -> str | None:
    """The package that owns a library of this machine."""
    real = os.path.realpath(path)
    # A package may own the file by its path before /usr was merged.
    places = [real, real.removeprefix("/usr")] if real.startswith("/usr/lib") else [real, "/usr" + real]
    for tool, place in ((tool, place) for place in places for tool in (["dpkg", "-S"], ["rpm", "-qf", "--qf", "%{NAME}: "])):
        if shutil.which(tool[0]) is None:
            continue
        done = subprocess.run([*tool, place], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        if done.returncode == 0 and ":" in done.stdout:
            return done.stdout.split(":")[0].strip()
    return None


def _texts(package: str) -> list[str]:
    copyright_ = f"/usr/share/doc/{package}/copyright"
    if not os.path.exists(copyright_):
        return sorted(glob.glob(f"/usr/share/licenses/{package}/*"))
    with open(copyright_, encoding="utf-8", errors="replace") as file:
        named = set(re.findall(COMMON + r"/([A-Za-z0-9.+-]*[A-Za-z0-9])", file.read()))
    return [copyright_, *(path for path in (os.path.join(COMMON, name) for name in sorted(named)) if os.path.exists(path))]


def gather(libraries: dict[str, str], folder: str) -> None:
    """Writes the licences of `libraries` (name in the wheel: where this machine has it) below `folder`, and LIBRARIES,
    which says for each library the package and the folder of its licence. RuntimeError: a licence is not to be found."""
    lines, missing = [], []
    for name, place in sorted(libraries.items()):
        package = _package(place)
        texts = _texts(package) if package else []
        if package is None or not texts:
            missing.append(f"{name} ({place})")
            continue
        lines.append(f"{name}: {package}")
        os.makedirs(os.path.join(folder, package), exist_ok=True)
        for text in texts:
            shutil.copy(os.path.realpath(text), os.path.join(folder, package, os.path.basename(text)))
    if missing:
        raise RuntimeError("the wheel would carry libraries without their licences: " + ", ".join(missing) +
                           "; on this machine use PYTHONPATH=python, or pip install -e ./python, which carries none")
    with open(os.path.join(folder, "LIBRARIES"), "w", encoding="utf-8") as file:
        file.write("\n".join(["Libraries in dp/lib that are not libdp's, and the folder here with the licence of each:",
                              *lines]) + "\n")
