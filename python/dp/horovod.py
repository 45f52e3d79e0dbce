"""Runs a program that imports horovod, unchanged, over libdp:

    dprun -np 4 python3 -m dp.horovod train.py ARGUMENTS...

or, in a program or a conftest, before horovod is imported: `import dp.horovod; dp.horovod.install()`.
"""
from __future__ import annotations

import os
import runpy
import sys
import types
from typing import Any


def _module(name: str, **members: Any) -> types.ModuleType:
    module = types.ModuleType(name, "of dp.horovod")
    module.__path__ = []  # type: ignore[attr-defined]  # it may have submodules
    vars(module).update(members)
    return module


def install() -> None:
    """Puts dp.torch where `import horovod.torch` and its neighbours look. ImportError: no PyTorch."""
    import dp.torch as torch
    from dp.torch import compression, elastic, errors, functions, ops, optimizer, runtime

    from . import __version__

    def gpu_available(framework: str | None = None) -> bool:
        import torch as real
        return real.cuda.is_available()

    class in_thread:  # of horovod.runner.util.threads
        """Runs a function in a thread of its own."""

        def __new__(cls, target: Any, args: Any = (), name: Any = None, daemon: bool = True,
                    silent: bool = False) -> Any:
            import threading
            thread = threading.Thread(target=target, args=args, name=name, daemon=daemon)
            thread.start()
            return thread

    known = {name: getattr(torch, name) for name in torch.__all__}
    modules = {
        "horovod": _module("horovod", __version__=__version__),
        "horovod.torch": torch,
        "horovod.torch.mpi_ops": _module("horovod.torch.mpi_ops", **{**vars(ops), **known}),
        "horovod.torch.compression": compression,
        "horovod.torch.elastic": elastic,
        "horovod.torch.elastic.sampler": elastic,
        "horovod.torch.elastic.state": elastic,
        "horovod.torch.functions": functions,
        "horovod.torch.optimizer": optimizer,
        "horovod.torch.sync_batch_norm": _module("horovod.torch.sync_batch_norm",
                                                 SyncBatchNorm=torch.SyncBatchNorm),
        "horovod.common": _module("horovod.common"),
        "horovod.common.exceptions": errors,
        "horovod.common.process_sets": runtime,
        "horovod.common.elastic": elastic,
        "horovod.common.util": _module("horovod.common.util", gpu_available=gpu_available,
                                       gloo_built=runtime.gloo_built, nccl_built=runtime.nccl_built,
                                       mpi_built=runtime.mpi_built),
        "horovod.runner": _module("horovod.runner"),
        "horovod.runner.util": _module("horovod.runner.util"),
        "horovod.runner.util.threads": _module("horovod.runner.util.threads", in_thread=in_thread),
    }
    sys.modules.update(modules)
    for name, module in modules.items():  # import a.b finds b in a too
        parent, _, child = name.rpartition(".")
        if parent and not hasattr(modules[parent], child):
            setattr(modules[parent], child, module)


def main(arguments: list[str]) -> int:
    """`python -m dp.horovod SCRIPT ...`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    install()
    sys.argv = arguments
    if not getattr(sys.flags, "safe_path", False):  # as Python itself: the script's folder, not the current one
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
