"""The process groups of a world in the C++ form of the backend (cxx/backend.cc).

backend.py asks find() which form it is to be. The form of C++ is taken where it has been compiled for this
torch, by `python3 -m dp.torch.native`, and where torch takes no other; LIBDP_TORCH=native or =python asks
for one of them.
"""
from __future__ import annotations

import datetime
import os
from typing import Any, Sequence

import torch
import torch.distributed as dist

import dp

from . import backend_end, native
from .backend_memory import Pool

MINIMUM = (2, 4)
PYTHON_MINIMUM = (2, 14)  # the first torch that takes a backend written in Python
_FORMS = ("", "native", "python")


def find() -> Any:
    """The compiled module, or None: the form of Python. DistBackendError: neither can be had, or not the
    one that was asked for."""
    form = os.environ.get("LIBDP_TORCH", "")
    has_python_form = native.version() >= PYTHON_MINIMUM
    least = ".".join(map(str, PYTHON_MINIMUM))
    if form not in _FORMS:
        raise dist.DistBackendError(f"LIBDP_TORCH={form}: it is native or python")
    if form == "python":
        if not has_python_form:
            raise dist.DistBackendError(f"LIBDP_TORCH=python: torch {torch.__version__} takes no backend "
                                        f"written in Python, {least} and later do")
        return None
    if form == "native" or not has_python_form:
        return _compiled()
    try:
        return native.load(may_compile=False)
    except native.Unavailable:
        return None


def _compiled() -> Any:
    try:
        return native.load(may_compile=True)
    except native.Unavailable as reason:
        raise dist.DistBackendError(
            f"the backend dp for torch {torch.__version__} is compiled, and that failed: {reason}. torch "
            f"{'.'.join(map(str, PYTHON_MINIMUM))} and later need no compiler") from reason


def agree(store: Any, rank: int) -> Any:
    """The module, or None, for a world that meets in this store. Rank 0 finds, and the others follow, as
    one machine may have compiled it and another not."""
    if rank == 0:
        module = find()
        store.set("torch.form", "python" if module is None else "native")
        return module
    return None if store.get("torch.form") == b"python" else _compiled()


class World:
    """A dp.Context with process groups of the C++ form. The first one is `backend`, which ends it."""

    title = "dp"  # of its spans in torch's profiler

    def __init__(self, module: Any, context: dp.Context, timeout: datetime.timedelta, store: Any) -> None:
        """store: of the ranks of the world."""
        self.context = context
        self.pool = Pool(context)
        self._module = module
        self._timeout = timeout
        self._splits = 0
        self._world = module.World(context.pointer, self._finalize, self.pool.tensor, self._split)
        context.add_owner(self._world)
        self.backend = self._make(context.world, list(range(context.size)), timeout, store, True)

    def _make(self, group: dp.Group, members: Sequence[int], timeout: datetime.timedelta, store: Any,
              owns_world: bool) -> Any:
        order = sorted(members)
        numbers = [order.index(member) for member in members]
        return self._module.make_backend(self._world, group.pointer, numbers.index(group.rank), numbers,
                                         _milliseconds(timeout), owns_world, self.title, store)

    def new_group(self, name: str, members: Sequence[int], timeout: datetime.timedelta, store: Any) -> Any:
        """A process group of ranks of the world, in this order; store: of these."""
        try:
            group = self.context.group(name[:63], list(members))
        except dp.Error as error:
            raise dist.DistBackendError(str(error)) from error
        assert group is not None, "torch calls this on members only"
        return self._make(group, members, timeout, store, False)

    # ---- Called by cxx/backend.cc -------------------------------------------------------------

    def _split(self, store: Any, members: Sequence[int], timeout_ms: int) -> Any:
        """The first member names the group, as torch gives its name to the store alone."""
        if members[0] == self.context.rank:
            self._splits += 1
            store.set("dp.name", f"torch split {self._splits} of {self.context.rank}")
        name = store.get("dp.name").decode()
        return self.new_group(name, members, datetime.timedelta(milliseconds=timeout_ms), store)

    def _finalize(self) -> None:
        """In destroy_process_group(). finalize() stops the threads of the world, its owner."""
        backend_end.finalize(self.context, self._timeout, self._world.has_late, self._world.await_groups,
                             lambda: None)


def _milliseconds(timeout: datetime.timedelta) -> int:
    return max(1, int(timeout / datetime.timedelta(milliseconds=1)))
