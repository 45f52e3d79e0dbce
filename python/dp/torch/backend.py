"""torch.distributed.init_process_group("dp"): the backend's name, and how a process group gets its world.

torch 2.14 and later find register() through the entry point of the wheel; `import dp.torch.backend`
does the same. The default group's world meets through torch's own store, so any launcher of torch will do.
"""
from __future__ import annotations

import datetime
from typing import Any

import torch
import torch.distributed as dist

import dp

_MINIMUM = (2, 14)
_default: dp.Context | None = None


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def _create(options: Any, pg_options: Any) -> Any:
    """Called by torch on the members of a new group. The first one is the world; others are groups of it
    where it is ours, and else worlds of their own."""
    global _default
    from .backend_python import DpBackend
    ranks = list(options.global_ranks_in_group)
    timeout = options.timeout or datetime.timedelta(minutes=30)
    try:
        if ranks and _default is not None and _default.is_alive:
            group = _default.group(f"torch {options.group_id}"[:63], ranks)
            assert group is not None, "torch calls this on members only"
            return DpBackend(_default, group, ranks, timeout, owns=False)
        context = dp.init(dist.PrefixStore("dp", options.store), options.group_rank,
                          options.group_size)
    except dp.Error as error:
        raise dist.DistBackendError(str(error)) from error
    if not ranks or len(ranks) == options.group_size:
        _default = _default if _default is not None and _default.is_alive else context
    return DpBackend(context, context.world, list(range(options.group_size)), timeout, owns=True)


def register() -> None:
    """Makes the name "dp" known to torch.distributed, for tensors on CPUs and GPUs."""
    if _version() < _MINIMUM:
        raise RuntimeError(f"the backend dp wants torch {'.'.join(map(str, _MINIMUM))} or later, this is "
                           f"{torch.__version__}; dp.torch, Horovod's API, works with it")
    if "dp" not in dist.Backend.backend_list:
        dist.Backend.register_backend("dp", _create, extended_api=True, devices=["cpu", "cuda"])


register()
