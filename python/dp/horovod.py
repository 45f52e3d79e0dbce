"""Runs a program that imports horovod, unchanged, over libdp:

    dprun -np 4 python3 -m dp.horovod train.py ARGUMENTS...
    dprun -np 4 python3 -m dp.horovod -m package.train ARGUMENTS...

or, in a program or a conftest, before horovod is imported: `import dp.horovod; dp.horovod.install()`.
"""
from __future__ import annotations

import ast
import importlib.util
import sys
import types
from typing import Any

from . import _program

_OTHERS = ("tensorflow", "keras", "mxnet", "spark", "ray", "_keras")
_RUN = ("start the program by `dprun -np N python3 -m dp.horovod train.py`, or by torchrun, mpirun or srun in dprun's "
        "place")


def _module(name: str, **members: Any) -> types.ModuleType:
    module = types.ModuleType(name, "of dp.horovod")
    module.__path__ = []  # type: ignore[attr-defined]  # it may have submodules
    vars(module).update(members)
    return module


class _Absent:
    """Of sys.meta_path: a part of Horovod that libdp lacks is an ImportError with a sentence."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        parent, _, child = name.partition(".")
        if parent != "horovod" or not child:
            return
        framework = child.partition(".")[0]
        sentence = (f"libdp has Horovod's API for PyTorch (horovod.torch), and none for {framework}"
                    if framework in _OTHERS else _RUN if framework == "runner" else "libdp has no such part of Horovod")
        raise ModuleNotFoundError(f"No module named '{name}': {sentence}", name=name)


def _launch(*args: Any, **kwargs: Any) -> Any:
    """horovod.run(): refused."""
    raise NotImplementedError(f"horovod.run() is not part of libdp: {_RUN}")


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
        "horovod": _module("horovod", __version__=__version__, run=_launch),
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
        "horovod.runner": _module("horovod.runner", run=_launch),
        "horovod.runner.util": _module("horovod.runner.util"),
        "horovod.runner.util.threads": _module("horovod.runner.util.threads", in_thread=in_thread),
    }
    sys.modules.update(modules)
    for name, module in modules.items():  # import a.b finds b in a too
        parent, _, child = name.rpartition(".")
        if parent and not hasattr(modules[parent], child):
            setattr(modules[parent], child, module)
    if _Absent not in sys.meta_path:
        sys.meta_path.append(_Absent)  # type: ignore[arg-type]  # a class with find_spec() is a finder


def _is_elastic(node: ast.AST) -> bool:
    """Is this a function decorated by hvd.elastic.run, or does it hold one that is sure to be made?"""
    for child in ast.iter_child_nodes(node):
        decorators = getattr(child, "decorator_list", [])
        if any(ast.unparse(one).endswith("elastic.run") for one in decorators):
            return True
        is_choice = isinstance(child, ast.If) and "__name__" not in ast.unparse(child.test)
        if not is_choice and _is_elastic(child):
            return True
    return False


def _refuse_elastic(arguments: list[str]) -> None:
    """Ends a program that is elastic in any case, before it has loaded its data and made its model."""
    from dp.torch import elastic
    try:
        path = arguments[0]
        if path == "-m":
            spec = importlib.util.find_spec(arguments[1])
            path = (spec.origin if spec else None) or ""
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, ImportError):
        return  # told where it is run
    if _is_elastic(tree):
        raise SystemExit(f"dp.horovod: {path}: {elastic.SENTENCE}")


def main(arguments: list[str]) -> int:
    """`python3 -m dp.horovod SCRIPT | -m MODULE ...`."""
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        print(__doc__)
        return 0 if arguments and arguments != ["-m"] else 2
    install()
    _refuse_elastic(arguments)
    _program.run(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
