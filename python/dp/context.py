"""A rank of a world: dp.init(), waiting, memory, the timeline.

A Context may be used by several threads. Waits end within a second of Ctrl-C. In a forked child every
call raises InvalidError, and nothing has to be given back there.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import mmap
import os
import sys
import threading
import weakref
from typing import Any, Callable, Iterator, Mapping

from . import _c, arrays, errors
from ._c import lib
from .current_gpu import CurrentGpu
from .group import Group, group_options
from .handles import Completions, slices
from .stores import StoreCallbacks
from .waits import Caller

ERROR_ROOM = 1024

_contexts: "set[Context]" = set()  # until finalize(), also those that nothing else refers to


class Stats(dict):
    """Counters since init(), by the names of dp_stats_t."""

    __getattr__ = dict.__getitem__


class _Block:
    """Memory of alloc(): goes back when the last array on it has gone."""

    def __init__(self, context: "Context", address: int) -> None:
        self.context = context
        self.address = address

    def __del__(self) -> None:
        self.context._free(self.address)


class _Registered:
    """Private memory of empty(), which libdp shares with the ranks of the node until the last array on it has gone or the
    world has ended. So its contents outlive the world."""

    def __init__(self, context: "Context", nbytes: int) -> None:
        pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.context = context
        self.memory = mmap.mmap(-1, pages, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        # Where libdp takes it not, as on a GPU's context, it is ordinary memory, which works as well.
        self.is_registered = lib.register(context.pointer, self.address, pages) == 0

    def __del__(self) -> None:
        if self.is_registered and self.context.is_alive and \
                lib.deregister(self.context.pointer, self.address) != 0:
            self.context.keep(self.memory)  # an operation still uses it


class Context:
    """One rank of a world. Make it with dp.init(); give it back with finalize() or `with`."""

    def __init__(self, store: Any = None, rank: int = -1, size: int = 0,
                 order: str = "default", timeout: float = 0,
                 settings: "Mapping[str, Any] | None" = None) -> None:
        text = ctypes.create_string_buffer(ERROR_ROOM)
        options = _c.InitOptions(error=ctypes.addressof(text), error_bytes=ERROR_ROOM,
                                 order=group_options(order).order)
        if settings:
            options.settings = ";".join(f"{name}={value}" for name, value in settings.items()).encode()
        callbacks = None
        if store is not None:
            callbacks = StoreCallbacks(store)
            options.store_put, options.store_get = callbacks.put, callbacks.get
            options.store_rank, options.store_ranks, options.store_seconds = rank, size, timeout
        self._pointer: int | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._blocks: weakref.WeakSet[_Block] = weakref.WeakSet()
        self._kept: list[Any] = []  # memory that was still in use when nothing else referred to it
        self._groups: dict[int, Group] = {}
        self._owners: list[Any] = []
        self._caller = Caller()
        pointer = _join(self._caller, options, text, callbacks)
        self._pointer = pointer.value
        self._completions = Completions(self)
        self.rank: int = lib.rank(pointer)
        self.size: int = lib.size(pointer)
        self.local_rank: int = lib.local_rank(pointer)
        self.local_size: int = lib.local_size(pointer)
        self.node_rank: int = lib.node_rank(pointer)
        self.node_count: int = lib.node_count(pointer)
        self.is_on_gpu = self.setting("DEVICE") == "cuda"  # tensors lie on a GPU, those in host memory are copied there
        self.world = Group(self, lib.world(pointer))
        _contexts.add(self)

    # ---- Life ---------------------------------------------------------------------------------

    @property
    def pointer(self) -> int:
        """The dp_context_t, for other bindings. OrderError after finalize()."""
        if self._pointer is None:
            raise errors.OrderError("the context was finalized")
        return self._pointer

    @property
    def is_alive(self) -> bool:
        """False after finalize(), and in a forked child."""
        return self._pointer is not None and self._pid == os.getpid()

    def finalize(self, force: bool = False) -> None:
        """Leaves the world: waits for this rank's operations, then for every rank to finalize.

        BusyError: memory of alloc() is in use by arrays; delete them first. With `force` they are
        left pointing at nothing.
        """
        if self._pointer is None:
            return
        if self._pid == os.getpid() and len(self._blocks) > 0 and not force:
            raise errors.BusyError(f"{len(self._blocks)} arrays of alloc() are still in use, and "
                                   "finalize() would take their memory: delete them first")
        _contexts.discard(self)
        if self._pid != os.getpid():
            self._pointer = None
            return
        if self._completions.is_running:
            with contextlib.suppress(errors.Error):  # finalize() reports how the world ended
                self.wait_all()
            self._completions.stop()
        owners, self._owners = self._owners, []
        for owner in owners:
            owner.close()
        pointer, self._pointer = self._pointer, None
        text = (lib.error_text(pointer) or b"").decode(errors="replace")

        def clear(_: int) -> None:
            for owner in owners:
                owner.clear()

        # After Ctrl-C it goes on: until the other ranks have finalized, or the process ends.
        status = self._caller.call(lib.finalize, pointer, late=clear)
        self._caller.close()
        clear(status)
        if status != 0:
            raise errors.make(status, text)

    def add_owner(self, owner: Any) -> None:
        """For other bindings that hold handles of this context: finalize() calls owner.close() before they
        are freed, and owner.clear() after."""
        self._owners.append(owner)

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.finalize()
            return
        self.abort(f"{kind.__name__}: {value}")
        with contextlib.suppress(errors.Error):
            self.finalize(force=True)

    def abort(self, reason: str) -> None:
        """Fails every operation on every rank with this reason. Does not wait."""
        if self.is_alive:
            lib.abort(self.pointer, reason.encode())

    def call(self, function: Callable, *arguments: Any) -> Any:
        """Calls a function of libdp that may wait for other ranks. Ctrl-C ends the wait, and with it the world, as
        nothing can take the call back."""
        return self._caller.call(function, *arguments, stop=lambda reason: self.abort(
            f"{type(reason).__name__} in {function.__name__}()"))

    def check(self, status: int) -> None:
        """Raises the error of a status, with the context's last text."""
        if status != 0:
            raise errors.make(status, self.error_text())

    def error_text(self) -> str:
        """The last error in words."""
        return (lib.error_text(self.pointer) or b"").decode(errors="replace")

    def setting(self, name: str) -> str | None:
        """The value of a setting in force, by its name without DP_."""
        value = lib.setting(self.pointer, name.encode())
        return None if value is None else value.decode()

    def stats(self) -> Stats:
        """Counters since init()."""
        stats = _c.Stats()
        self.check(lib.stats_get(self.pointer, stats))
        return Stats((field[0], getattr(stats, field[0])) for field in _c.Stats._fields_[1:])

    # ---- Waiting ------------------------------------------------------------------------------

    def wait_all(self, timeout: float | None = None) -> None:
        """Waits until every operation submitted before is over. PendingError, a TimeoutError: they go on."""
        for seconds in slices(timeout):
            status = lib.wait_all(self.pointer, seconds)
            if status != errors.PendingError.status:
                break
        self.check(status)

    # ---- Memory -------------------------------------------------------------------------------

    def alloc(self, nbytes: int) -> memoryview:
        """Zeroed memory that the ranks of a node reduce where it lies, as writable bytes. It goes back
        when nothing refers to it any more. On a context with a GPU it is ordinary memory."""
        if self.is_on_gpu:  # dp_alloc() gives the GPU's, which no processor can read
            return memoryview(bytearray(nbytes))
        memory = ctypes.c_void_p()
        self.check(lib.alloc(self.pointer, nbytes, memory))
        if not memory.value:
            return memoryview(b"")
        block = _Block(self, memory.value)
        kind: Any = type("Memory", (ctypes.c_char * nbytes,), {})  # a subclass can hold its owner
        array = kind.from_address(memory.value)
        array.owner = block
        self._blocks.add(block)
        return memoryview(array).cast("B")

    def empty(self, shape: int | tuple[int, ...], dtype: Any = "float32") -> Any:
        """A NumPy array of zeros, in memory that the ranks of a node reduce where it lies. It may outlive the world."""
        import numpy
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = numpy.dtype(dtype)
        count = int(numpy.prod(shape, dtype=numpy.int64))
        if count == 0:
            return numpy.empty(shape, dtype)
        nbytes = count * dtype.itemsize
        block = _Registered(self, nbytes)
        kind: Any = type("Memory", (ctypes.c_char * nbytes,), {})  # a subclass can hold its owner
        array = kind.from_buffer(block.memory)
        array.owner = block
        return numpy.frombuffer(array, dtype).reshape(shape)

    def keep(self, memory: Any) -> None:
        """Keeps memory until finalize(): called by the garbage collector."""
        self._kept.append(memory)

    def _free(self, address: int) -> None:
        """Called by the garbage collector, so failures have nobody to go to: memory that an operation
        still uses stays until finalize()."""
        if self.is_alive:
            lib.free(self._pointer, address)

    # ---- Groups -------------------------------------------------------------------------------

    def group(self, name: str, ranks: "list[int] | tuple[int, ...]", *,
              order: str = "default") -> Group | None:
        """Makes a group of some ranks of the world; None on ranks that are not listed. Collective
        over the ranks listed. order: of its operations, by default the world's."""
        members = (ctypes.c_int32 * len(ranks))(*ranks)
        pointer = ctypes.c_void_p()
        self.check(self.call(lib.group_create, self.pointer, name.encode(), members, len(ranks),
                             group_options(order), pointer))
        return None if not pointer.value else Group(self, pointer.value)

    def mesh(self, **axes: int) -> "dict[str, Group]":
        """The world as a box of named axes, the last one fastest: mesh(data=8, tensor=4). Gives this
        rank's group along each axis. Collective over the world."""
        names = (ctypes.c_char_p * len(axes))(*(name.encode() for name in axes))
        dims = (ctypes.c_int32 * len(axes))(*axes.values())
        pointers = (ctypes.c_void_p * len(axes))()
        self.check(self.call(lib.mesh_create, self.pointer, dims, len(axes), names, None, pointers))
        return {name: Group(self, pointer) for name, pointer in zip(axes, pointers)}

    @property
    def error(self) -> "errors.Error | None":
        """Why the world has ended, without waiting for anything; None while it stands."""
        status = lib.async_error(self.pointer)
        return None if status == 0 else errors.make(status, self.error_text())

    # ---- Timeline -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """A step of the timeline; also tells the coordinator where a round begins."""
        lib.step_begin(self.pointer, number)
        try:
            yield
        finally:
            if self._pointer is not None:
                lib.step_end(self._pointer)

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """A span of the timeline on this thread."""
        lib.span_begin(self.pointer, name.encode())
        try:
            yield
        finally:
            if self._pointer is not None:
                lib.span_end(self._pointer)

    # ---- Of the world -------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Operations on the world: context.allreduce is context.world.allreduce."""
        if name in Group.OPERATIONS:
            return getattr(self.world, name)
        raise AttributeError(f"a Context has no '{name}'")

    def __repr__(self) -> str:
        if self._pointer is None:
            return "<dp.Context, finalized>"
        return f"<dp.Context rank {self.rank} of {self.size}>"


def _join(caller: Caller, options: _c.InitOptions, text: Any, callbacks: StoreCallbacks | None) -> ctypes.c_void_p:
    """dp_init(). Where Ctrl-C ends the wait for the other ranks, a world that forms later is left at once."""
    gpu = CurrentGpu()
    before = gpu.get()
    pointer = ctypes.c_void_p()
    after: list[int | None] = []

    def join(*kept: Any) -> int:  # what libdp writes to and calls, also when nobody waits any more
        gpu.set(before)
        status = lib.init(options, pointer)
        after.append(gpu.get())
        return status

    def leave(status: int) -> None:
        if status == 0:
            lib.abort(pointer, b"a signal ended the wait in dp.init()")
            lib.finalize(pointer)

    status = caller.call(join, text, callbacks, late=leave)
    if after[0] != before:  # libdp has given the thread a GPU
        gpu.set(after[0])
    if status != 0:
        caller.close()
        error = errors.make(status, text.value.decode(errors="replace"))
        raise error from (callbacks.failure if callbacks is not None else None)
    return pointer


def init(store: Any = None, rank: int = -1, size: int = 0, order: str = "default", timeout: float = 0) -> Context:
    """Joins the world that a launcher describes: dprun, torchrun, mpirun, srun; else a world of one.

    store: a key-value store that the ranks share, such as a torch.distributed.Store (anything with
    set(key, bytes), get(key) and wait([key], timedelta), or a pair of functions put(key, bytes) and
    get(key, seconds)). Then `rank` and `size` say who this is, and no launcher is asked. Worlds may use
    a store one after the other; worlds side by side want keys of their own: torch.distributed.PrefixStore.
    timeout: seconds for all ranks to come to the store; 0: DP_START_TIMEOUT.
    """
    return Context(store, rank, size, order, timeout)


# ---- The end of the process ----------------------------------------------------------------------

def _finalize_all() -> None:
    for context in list(_contexts):
        with contextlib.suppress(errors.Error):
            context.finalize(force=True)


def _abort_all(kind: type[BaseException], value: BaseException) -> None:
    for context in list(_contexts):
        if context.is_alive:
            context.abort(f"{kind.__name__}: {value}")


def _chain_excepthook(before: Callable) -> Callable:
    def hook(kind: type[BaseException], value: BaseException, trace: Any) -> None:
        _abort_all(kind, value)  # so that no rank waits for one that has ended
        before(kind, value, trace)
    return hook


atexit.register(_finalize_all)
sys.excepthook = _chain_excepthook(sys.excepthook)
