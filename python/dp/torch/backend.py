"""torch.distributed.init_process_group("dp"): the backend's name, and how a process group gets its world.

torch 2.14 and later find register() through the entry point of the wheel; `import dp.torch.backend`
does the same. The default group's world meets through torch's own store, so any launcher of torch will do; and
srun, whose variables register() gives the names of torchrun's.

The backend itself is C++, compiled for one PyTorch and one Python (native.py).
"""
from __future__ import annotations

import datetime
import os
from typing import Any

import torch
import torch.distributed as dist

import dp

from . import backend_slurm, native
from .backend_world import World

_default: dp.Context | None = None
_worlds: dict[dp.Context, World] = {}


def _create(options: Any, pg_options: Any) -> Any:
    """Called by torch on the members of a new group. The first one is the world; others are groups of it
    where it is ours, and else worlds of their own."""
    global _default
    ranks = list(options.global_ranks_in_group)
    timeout = options.timeout or datetime.timedelta(minutes=30)
    if ranks and _default is not None and _default.is_alive:
        return _worlds[_default].new_group(f"torch {options.group_id}", ranks, timeout, options.store)
    if not ranks and _default is not None:
        _end(_default)
    for context in [one for one in _worlds if not one.is_alive]:  # of a group that was destroyed
        del _worlds[context]
    try:
        module = native.load()
        context = dp.init(dist.PrefixStore("dp", options.store), options.group_rank, options.group_size,
                          timeout=timeout.total_seconds())
        _worlds[context] = world = World(module, context, timeout, options.store)
    except native.Unavailable as reason:
        raise dist.DistBackendError(native.refusal(reason)) from reason
    except dp.Error as error:
        raise dist.DistBackendError(str(error)) from error
    if not ranks:  # as torch says it of the default group
        _default = context
    return world.backend


def _end(context: dp.Context) -> None:
    """Ends the world of a default group that was destroyed: torch before 2.7 tells no backend, so the next
    default group does."""
    _worlds.pop(context, None)
    if context.is_alive:
        context.finalize(force=True)


def _accept_bound_devices() -> None:
    """Where init_process_group(device_id=) named a GPU, torch calls this on the ranks outside of a new group of any
    backend that can split, and only NCCL's has it. Our groups need nothing of those ranks."""
    kind: Any = torch._C._distributed_c10d.Backend
    if not hasattr(kind, "perform_nocolor_split"):
        kind.perform_nocolor_split = lambda backend, device: None


def register() -> None:
    """Makes the name "dp" known to torch.distributed, for tensors on CPUs and GPUs; and a task of srun to torch.
    RuntimeError: this PyTorch is too old, or there is neither a compiled backend for it nor a compiler."""
    if native.version() < native.MINIMUM:
        least = ".".join(map(str, native.MINIMUM))
        raise RuntimeError(f"the backend dp wants torch {least} or later, this is {torch.__version__}; "
                           "dp.torch, Horovod's API, works with it")
    if "dp" not in dist.Backend.backend_list:
        try:
            native.check()
        except native.Unavailable as reason:
            raise RuntimeError(native.refusal(reason)) from None
        for name, value in backend_slurm.variables(os.environ).items():
            os.environ.setdefault(name, value)
        _accept_bound_devices()
        dist.Backend.register_backend("dp", _create, extended_api=True, devices=["cpu", "cuda"])


register()
