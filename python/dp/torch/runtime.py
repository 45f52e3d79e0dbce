"""The world that Horovod's functions work on: one for the process, as their signatures have no place for
it. init() joins it, shutdown() leaves it to be joined again.

Under a launcher a process meets the others once; so shutdown() keeps the connections, and a later
init() takes them up again.
"""
from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from typing import Any, Callable, Sequence

import dp

from .errors import HorovodInternalError

DYNAMIC_SETS = "HOROVOD_DYNAMIC_PROCESS_SETS"
# Names made for operations without one take turns: libdp keeps names for ever, and is quick with those
# that it has seen.
NAMES = 256
KEPT = 4096  # names of which something is kept from one use to the next
PAUSE_S = 20e-6  # between two looks whether a name is free again


class ProcessSet:
    """Ranks that work together. Of ranks of the world, in any order; after add_process_set() it has an
    id."""

    def __init__(self, ranks: "Any") -> None:
        self.ranks: list[int] | None = sorted(ranks) if ranks is not None else None
        self.process_set_id: int | None = None
        self.group: dp.Group | None = None
        self.names = Names()

    def size(self) -> int | None:
        """How many ranks it has; None before it is registered."""
        return None if self.process_set_id is None else len(self.ranks or ())

    def rank(self) -> int | None:
        """This rank's number in it, -1: not in it; None before it is registered."""
        if self.process_set_id is None:
            return None
        return -1 if self.group is None else self.group.rank

    def included(self) -> bool | None:
        """Whether this rank is in it; None before it is registered."""
        return None if self.process_set_id is None else self.group is not None

    def member_group(self, operation: str) -> dp.Group:
        """Its group. ValueError: not registered; HorovodInternalError: this rank is outside."""
        if self.group is not None and world.is_initialized:
            return self.group
        world.context  # init() first
        if self.process_set_id is None:
            raise ValueError(f"{operation}: the process set {self.ranks} is not registered: "
                             "add_process_set() or init(process_sets=...)")
        if self.group is None:
            raise HorovodInternalError(f"{operation}: rank {world.context.rank} is not in the "
                                       f"process set {self.process_set_id} of ranks {self.ranks}")
        return self.group

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessSet) and self is other or (
            isinstance(other, ProcessSet) and self.process_set_id is not None and
            self.process_set_id == other.process_set_id)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class Submitted:
    """A handle of libdp under a name. The name keeps this object, perhaps for ever, so wait() drops the handle,
    which holds the output. Of one thread at a time."""

    __slots__ = ("_handle",)

    def __init__(self, handle: dp.Handle) -> None:
        self._handle: dp.Handle | None = handle

    @property
    def _pointer(self) -> int | None:
        """As a Reduction's: None where it is over, which saves asking libdp."""
        return None if self._handle is None else self._handle._pointer

    def done(self) -> bool:
        """Whether it is over, failed or not. Never waits."""
        handle = self._handle
        return handle is None or handle.done()

    def join(self, join: Callable[[dp.Context, int, Sequence[Any]], bool], tensors: Sequence[Any]) -> bool:
        """Whether a stream waits for it now: reduction.join() has seen to that, and taken the handle of libdp."""
        handle = self._handle
        if handle is None or handle._pointer is None or not join(handle.context, handle._pointer, tensors):
            return False
        handle._pointer = self._handle = None
        return True

    def wait(self) -> dp.Result:
        """What it found. Once; dp.Error: it failed."""
        handle = self._handle
        assert handle is not None
        try:
            return handle.wait()
        finally:
            if handle.done():  # not behind a signal's exception
                self._handle = None


class Operation:
    """One or several operations of libdp behind a handle, and how their results become the caller's. join: makes a stream
    wait for the one operation, where finish() does not need its result."""

    def __init__(self, handles: Sequence[Submitted], finish: Callable[[list[dp.Result]], Any],
                 join: Callable[[Submitted], bool] | None = None) -> None:
        self.handles = list(handles)
        self._finish = finish
        self._join = join

    def done(self) -> bool:
        """Whether all are over, failed or not. Never waits."""
        return all(handle.done() for handle in self.handles)

    def wait(self) -> Any:
        """What finish() makes of the results. HorovodInternalError: one failed."""
        if self._join is not None and self._join(self.handles[0]):
            return self._finish([])
        results, failure = [], None
        for handle in self.handles:  # all of them, also behind one that failed
            try:
                results.append(handle.wait())
            except dp.Error as error:
                failure = failure or error
        if failure is not None:
            raise HorovodInternalError(str(failure)) from failure
        return self._finish(results)


class Names:
    """The names of a process set's operations: those that are in flight, and those made up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}  # guarded by _lock
        # Both without a lock: their users take and put single entries.
        self.pending: dict[str, Any] = {}  # what was submitted last under a name: it has done()
        self.submissions: dict[Any, Any] = {}  # reduction.py's, by the program's name or the number

    def forget_old(self) -> None:
        """Drops what is kept of the names that were used first, where nothing of them is in flight: a program may make a
        new name in every step."""
        for kept in (self.submissions, self.pending):
            for key in list(kept)[:max(len(kept) - KEPT // 2, 0)]:
                one = kept.get(key)
                if kept is self.submissions or one is not None and one.done():
                    kept.pop(key, None)

    def make(self, kind: str, name: str | None) -> str:
        """`kind.name`, or a numbered one: the same on all ranks that call in the same order."""
        if name:
            return f"{kind}.{name}"
        return f"{kind}.noname.{self.next(kind)}"

    def next(self, kind: str) -> int:
        """The number of an operation without a name."""
        with self._lock:
            number = self._counts.get(kind, 0)
            self._counts[kind] = number + 1
        return number % NAMES

    def submit(self, name: str, submit: Callable[[], dp.Handle], is_given: bool) -> Submitted:
        """ValueError: an operation of this name is in flight. One that was made up here is waited for:
        all ranks come to its operation before this one."""
        with self._lock:
            self.check_free(name, is_given)
            submitted = self.pending[name] = Submitted(submit())
        if len(self.pending) > KEPT:
            self.forget_old()
        return submitted

    def check_free(self, name: str, is_given: bool) -> None:
        """The check of submit(), for a caller that notes the handle in `pending` itself."""
        before = self.pending.get(name)
        while before is not None and not before.done():
            if is_given:
                raise ValueError(f"an operation with the name {name} is in flight already: give "
                                 "each its own, or synchronize() first")
            time.sleep(PAUSE_S)


class World:
    """What init() makes."""

    def __init__(self) -> None:
        self._context: dp.Context | None = None
        self.is_initialized = False  # between init() and shutdown()
        self._sets: dict[int, ProcessSet] = {}
        self._next_set = 1
        self.is_dynamic = False
        self._optimizers = 0
        # By a parameter's id, in the DistributedOptimizer that has it.
        self.gradient_of: Any = weakref.WeakValueDictionary()

    def count_optimizer(self) -> int:
        """A number for a new DistributedOptimizer: equal on all ranks, as they make the same ones."""
        self._optimizers += 1
        return self._optimizers - 1

    @property
    def context(self) -> dp.Context:
        """ValueError before init()."""
        if not self.is_initialized:
            raise ValueError("Horovod has not been initialized; use hvd.init().")
        assert self._context is not None
        return self._context

    def init(self, comm: Any, process_sets: Any) -> None:
        """Joins the world; once more is fine."""
        if comm is not None and not isinstance(comm, (list, tuple)):
            raise ValueError("init: comm is a communicator of MPI, and libdp has none; start with "
                             "dprun, torchrun, mpirun or srun and call init()")
        self.is_dynamic = process_sets == "dynamic" or os.environ.get(DYNAMIC_SETS) == "1"
        if self.is_initialized:
            return
        if self._context is None or not self._context.is_alive:
            self._context = dp.init()
        if comm and sorted(comm) != list(range(self._context.size)):
            raise ValueError(f"init: comm lists ranks {comm}; the world has {self._context.size}, "
                             "and smaller ones are process sets")
        self.is_initialized = True
        global_process_set.process_set_id = 0
        global_process_set.ranks = list(range(self._context.size))
        global_process_set.group = self._context.world
        self._sets = {0: global_process_set}
        for one in process_sets if isinstance(process_sets, (list, tuple)) else ():
            self.register(one)

    def shutdown(self) -> None:
        """Waits for all ranks and forgets what belongs to this init()."""
        if not self.is_initialized:
            return
        context = self.context
        for number, one in list(self._sets.items()):
            if number != 0:
                one.process_set_id = one.group = None
        self._sets = {}
        self.is_initialized = False
        try:
            context.wait_all()
            context.barrier("horovod.shutdown").wait()
        except dp.Error:  # the world has ended: there is nobody to wait for
            pass

    def register(self, given: Any) -> ProcessSet:
        """Makes the group of a process set. Called by all ranks, in the same order."""
        one = given if isinstance(given, ProcessSet) else ProcessSet(given)
        ranks = one.ranks or []
        if one.process_set_id is not None:
            raise ValueError(f"{one} is registered already")
        if not ranks or len(set(ranks)) != len(ranks) or ranks[0] < 0 or \
                ranks[-1] >= self.context.size:
            raise ValueError(f"a process set of ranks {ranks}: ranks of 0 .. "
                             f"{self.context.size - 1}, each once")
        for other in self._sets.values():
            if other.ranks == ranks:
                raise ValueError(f"ranks {ranks} are those of process set {other.process_set_id}")
        number = self._next_set
        self._next_set += 1
        name = f"process set {number}"
        if len(ranks) == self.context.size:
            one.group = self.context.world.split(name, 0)
        else:
            one.group = self.context.group(name, ranks)
        # Those outside come on when it is there, as Horovod's do.
        self.context.barrier(f"horovod.set.{number % NAMES}").wait()
        one.process_set_id = number
        one.names = Names()
        self._sets[number] = one
        return one

    def remove(self, one: ProcessSet) -> bool:
        """False: not registered, or the global one."""
        if one.process_set_id in (None, 0) or one.process_set_id not in self._sets:
            return False
        number = one.process_set_id
        self.context.barrier(f"horovod.unset.{number % NAMES}").wait()
        if one.group is not None:
            one.group.destroy()
        del self._sets[number]
        one.process_set_id = one.group = None
        return True

    def find(self, number: int) -> ProcessSet | None:
        """The process set of an id."""
        return self._sets.get(number)

    def ids_and_ranks(self) -> dict[int, list[int]]:
        """The ranks of every registered process set, by id."""
        return {number: list(one.ranks or ()) for number, one in self._sets.items()}


global_process_set = ProcessSet([])
world = World()


# ---- The functions of the world ------------------------------------------------------------------

def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the world that a launcher describes; a world of one without. Once more is fine.

    process_sets: a list of ProcessSet to register, or "dynamic" to allow add_process_set() later.
    """
    world.init(comm, process_sets)


def shutdown() -> None:
    """Waits for all ranks, then leaves. init() may follow."""
    world.shutdown()


def is_initialized() -> bool:
    """Between init() and shutdown()."""
    return world.is_initialized


def rank() -> int:
    """This rank in the world."""
    return world.context.rank


def size() -> int:
    """Ranks in the world."""
    return world.context.size


def local_rank() -> int:
    """This rank among those of its node."""
    return world.context.local_rank


def local_size() -> int:
    """Ranks of this node."""
    return world.context.local_size


def cross_rank() -> int:
    """The number of this node."""
    return world.context.node_rank


def cross_size() -> int:
    """Nodes in the world."""
    return world.context.node_count


def is_homogeneous() -> bool:
    """Whether each node has as many ranks."""
    return world.context.local_size * world.context.node_count == world.context.size


def add_process_set(process_set: Any) -> ProcessSet:
    """Registers a process set, or a list of ranks. All ranks call it, in the same order.

    ValueError: there is one of these ranks, or init() was not told that sets change
    (process_sets="dynamic", or HOROVOD_DYNAMIC_PROCESS_SETS=1).
    """
    world.context
    if not world.is_dynamic:
        raise ValueError(f"process sets change only where {DYNAMIC_SETS}=1 is set or init() was "
                         "called with process_sets='dynamic'")
    return world.register(process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends a process set; False: it was not registered, or is the global one. All ranks call it."""
    world.context
    if not world.is_dynamic:
        raise ValueError(f"process sets change only where {DYNAMIC_SETS}=1 is set or init() was "
                         "called with process_sets='dynamic'")
    return world.remove(process_set)


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of every registered process set, by id."""
    return world.ids_and_ranks()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Warns: libdp records all ranks from the start of the job, with dprun --timeline FILE."""
    world.context
    warnings.warn(f"start_timeline({file_path!r}) writes nothing: dprun --timeline FILE records the "
                  "timeline of all ranks", stacklevel=2)


def stop_timeline() -> None:
    """Nothing to stop; see start_timeline()."""
    world.context


def _no(*_: Any) -> bool:
    return False


mpi_threads_supported = mpi_enabled = mpi_built = gloo_enabled = ddl_built = ccl_built = _no
rocm_built = _no


def gloo_built() -> bool:
    """True: collectives of tensors in host memory need no MPI."""
    return True


def nccl_built() -> int:
    """NCCL's version where libdp has its engine for GPUs, else 0."""
    text = dp.BUILD.split()
    return int("cuda" in text and text[text.index("cuda") + 1] != "no")


def cuda_built() -> bool:
    """Whether libdp was built with CUDA."""
    return bool(nccl_built())
