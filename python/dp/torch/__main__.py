"""Runs a program of torch.distributed, unchanged, over libdp:

    dprun -np 4 python3 -m dp.torch [--as NAME,...] train.py ARGUMENTS...
    dprun -np 4 python3 -m dp.torch [--as NAME,...] -m package.train ARGUMENTS...
    torchrun --nproc-per-node 4 -m dp.torch train.py ARGUMENTS...

A program that names no backend gets "dp", for tensors on CPUs and GPUs, and init_process_group("dp") works.
--as gloo,nccl  "dp" also answers where the program asks for gloo or nccl by name, and get_backend() says the name that
                was asked for. For libraries that know these names alone, such as accelerate and transformers.Trainer on CPUs.
"""
from __future__ import annotations

import sys
import weakref
from typing import Any

from .. import _program

_NAMES = ("gloo", "nccl", "mpi", "ucc")
_AS_MINIMUM = (2, 14)


def install(names: list[str]) -> None:
    """Makes "dp" the backend of programs that name none, and of those that name one of `names`. RuntimeError: this
    PyTorch is too old. Call it before init_process_group()."""
    import torch.distributed as dist

    from . import backend, native

    kind = dist.Backend
    for device, default in kind.default_device_backend_map.items():
        if default in _NAMES:
            kind.default_device_backend_map[device] = "dp"
    if not names:
        return
    if native.version() < _AS_MINIMUM:  # earlier ones look for their own backends of these names first
        raise RuntimeError(f"--as wants torch {'.'.join(map(str, _AS_MINIMUM))} or later, this is {dist.torch.__version__}")
    made: Any = weakref.WeakKeyDictionary()

    def create(options: Any, pg_options: Any) -> Any:
        """For "cpu:gloo,cuda:nccl" torch asks once for each device, with stores on top of the group's: one backend
        serves both."""
        of_group = options.store.underlying_store
        if of_group not in made:
            made[of_group] = backend._create(options, pg_options)
        return made[of_group]

    for name in names:
        kind.register_backend(name, create, extended_api=True, devices=["cpu", "cuda"])
    # In spans of torch's profiler, where tools look for these names.
    backend.World.title = names[0]


def main(arguments: list[str]) -> int:
    """`python3 -m dp.torch [--as NAME,...] SCRIPT | -m MODULE ...`."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    names: list[str] = []
    if arguments and arguments[0].partition("=")[0] == "--as":
        _, is_joined, text = arguments.pop(0).partition("=")
        text = text if is_joined else arguments.pop(0) if arguments else ""
        names = text.split(",")
        for name in names:
            if name not in _NAMES:
                print(f"dp.torch: --as {text}: '{name}' is none of {', '.join(_NAMES)}", file=sys.stderr)
                return 2
    if not arguments or (arguments[0].startswith("-") and arguments[0] != "-m") or arguments == ["-m"]:
        wrong = f"{' '.join(arguments)}: unknown; " if arguments and arguments != ["-m"] else ""
        print(f"dp.torch: {wrong}python3 -m dp.torch [--as NAME,...] SCRIPT | -m MODULE [ARGUMENTS...]", file=sys.stderr)
        return 2
    try:
        install(names)
    except RuntimeError as error:
        print(f"dp.torch: {error}", file=sys.stderr)
        return 2
    _program.run(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
