"""The process groups of a world: between torch, which asks backend.py for them, and cxx/backend.cc, which they are."""
from __future__ import annotations

import datetime
import os
import time
import warnings
from typing import Any, Sequence

import torch.distributed as dist

import dp

from .backend_memory import Pool
from .reduction import blocks_host

NAME_BYTES = 8


class World:
    """A dp.Context and its process groups. The first one is `backend`, which ends it."""

    title = "dp"  # of its spans in torch's profiler

    def __init__(self, module: Any, context: dp.Context, timeout: datetime.timedelta, store: Any) -> None:
        """store: of the ranks of the world."""
        self.context = context
        self.pool = Pool(context)
        self._module = module
        self._timeout = timeout
        self._splits = 0
        name = bytearray(os.urandom(NAME_BYTES))
        context.world.broadcast(name, root=0, name="dp.torch.world").wait(timeout.total_seconds())
        self._prefix = f"dp/{name.hex()}"
        self._world = module.World(context.pointer, blocks_host(), self._finalize, self.pool.tensor, self._split)
        context.add_owner(self._world)
        self.backend = self._make(context.world, list(range(context.size)), timeout, store, True)

    def _own(self, store: Any) -> Any:
        """The store, with keys of this world alone: an earlier one may have had the same store, and left keys."""
        return dist.PrefixStore(self._prefix, store)

    def _make(self, group: dp.Group, members: Sequence[int], timeout: datetime.timedelta, store: Any,
              owns_world: bool) -> Any:
        order = sorted(members)
        numbers = [order.index(member) for member in members]
        return self._module.make_backend(self._world, group.pointer, numbers.index(group.rank), numbers,
                                         _milliseconds(timeout), owns_world, self.title, self._own(store))

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
        own = self._own(store)
        if members[0] == self.context.rank:
            self._splits += 1
            own.set("name", f"torch split {self._splits} of {self.context.rank}")
        name = own.get("name").decode()
        return self.new_group(name, members, datetime.timedelta(milliseconds=timeout_ms), store)

    def _finalize(self) -> None:
        """In destroy_process_group(), on the program's thread: waits for what is under way, and ends the context; with
        a reason where something stays. context.finalize() stops the threads of the world, its owner."""
        reason = self._wait_for_all()
        if reason is not None:
            self.context.abort(f"destroy_process_group: {reason}")
        try:
            self.context.finalize(force=True)
        except dp.Error as error:  # the program is through; what failed before has been raised there
            warnings.warn(f"destroy_process_group: {error}", stacklevel=2)

    def _wait_for_all(self) -> str | None:
        """Says what the end found unfinished when the time was over; None: nothing."""
        end = time.monotonic() + self._timeout.total_seconds()
        if self._world.has_late():
            return "operations have timed out"
        try:
            self.context.wait_all(max(end - time.monotonic(), 0))
        except dp.PendingError:
            return f"operations are under way after {self._timeout} that other ranks have not called"
        except dp.Error:  # raised where they were waited for, or about to be told by finalize()
            pass
        if not self._world.await_groups(max(end - time.monotonic(), 0)):
            return f"other ranks have not destroyed a group after {self._timeout}"
        return None


def _milliseconds(timeout: datetime.timedelta) -> int:
    return max(1, int(timeout / datetime.timedelta(milliseconds=1)))
