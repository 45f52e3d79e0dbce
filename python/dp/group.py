"""Collectives of a group of ranks: the world, or some of it.

Memory is anything that arrays.view() accepts. Operations return a Handle at once and complete in the
background; `.wait()` gives a Result. Memory must not be touched until then.
"""
from __future__ import annotations

import ctypes
import functools
import itertools
import time
from typing import TYPE_CHECKING, Any, Callable, Sequence

from . import _c, arrays, errors
from ._c import lib
from .handles import Handle
from .parts import Following, Output, Together

if TYPE_CHECKING:
    from .context import Context

SUM, AVERAGE, MIN, MAX, PRODUCT = range(5)
WIRES = {"default": 0, "none": 1, "fp16": 2, "bf16": 3}
ORDERS = {"default": 0, "negotiated": 1, "program": 2}
# Names without one: a signature's uses take turns, so that libdp, which keeps names for ever, knows
# few, and a loop repeats them.
TURNS = 8
PAUSE_S = 20e-6  # between two looks whether a name is free again


@functools.lru_cache(maxsize=1024)
def make_options(op: int = SUM, prescale: float = 1.0, postscale: float = 1.0, wire: str = "default",
             priority: int = 0, launch_now: bool = False, count_joined: bool = False,
             stream: int | None = None, tag: int = 0, more_follow: bool = False) -> _c.Options:
    """Options that calls share: libdp copies them. A field for one call goes into a _copy()."""
    if wire not in WIRES:
        raise errors.InvalidError(f"there is no wire '{wire}'; {', '.join(WIRES)}")
    return _c.Options(reduce=op, wire=WIRES[wire], prescale=prescale, postscale=postscale,
                      stream=stream, count_joined=count_joined, priority=priority,
                      launch_now=launch_now, tag=tag, more_follow=more_follow)


def group_options(order: str) -> _c.GroupOptions:
    if order not in ORDERS:
        raise errors.InvalidError(f"there is no order '{order}'; {', '.join(ORDERS)}")
    return _c.GroupOptions(order=ORDERS[order])


def _copy(options: _c.Options) -> _c.Options:
    return _c.Options.from_buffer_copy(options)


class Group:
    """Ranks that work together, numbered from 0.

    Keywords that operations share:
        name        the same on every rank, unique among those in flight; None: made from the kind,
                    the type and the count, by their order on this rank
        op          SUM, AVERAGE, MIN, MAX, PRODUCT                              (reductions)
        prescale, postscale   factors before and after a reduction of floats     (reductions)
        wire        "none", "fp16", "bf16": how fp32 sums travel between nodes   (reductions)
        count_joined  an average divides by all ranks, also those that joined    (reductions)
        priority    higher ones are launched first
        launch_now  not held back so that others can join it
        stream      the device stream that produces the data, as an integer; None: host memory
        tag         compared between ranks; by default a digest of the shape
        on_done     called with the Handle on a thread of the context when the operation is over
    """

    OPERATIONS = frozenset((
        "allreduce", "grouped_allreduce", "broadcast", "allgather", "reduce_scatter", "reduce",
        "reduce_scatterv", "gather", "scatter", "alltoall", "allgatherv", "gatherv", "alltoallv", "send", "recv",
        "barrier", "join"))

    def __init__(self, context: "Context", pointer: int) -> None:
        self.context = context
        self._pointer: int | None = pointer
        self.rank: int = lib.group_rank(pointer)
        self.size: int = lib.group_size(pointer)
        self.name: str = lib.group_name(pointer).decode()
        self._turns: dict[tuple, tuple[list[bytes], Any]] = {}

    def _view(self, value: Any, writes: bool = False) -> arrays.Array:
        """The memory of value. UnsupportedError: it is a GPU's, and the context has none."""
        data = arrays.view(value, writes)
        if not data.is_host and not self.context.is_on_gpu:
            raise errors.UnsupportedError("the data is in a GPU's memory, and dp_init() has chosen the host: with DP_DEVICE=cuda "
                                          "it says why, or takes the GPU where CUDA was not loaded yet")
        return data

    @property
    def pointer(self) -> int:
        """The dp_group_t, for other bindings. OrderError once it or its context is gone."""
        self.context.pointer
        if self._pointer is None:
            raise errors.OrderError(f"the group {self.name} was destroyed")
        return self._pointer

    def world_rank(self, rank: int) -> int:
        """The rank in the world of a rank of this group; -1: there is none."""
        return lib.group_world_rank(self.pointer, rank)

    def ranks(self) -> list[int]:
        """Its ranks of the world."""
        return [self.world_rank(rank) for rank in range(self.size)]

    def split(self, name: str, color: int, key: int = 0, *, order: str = "default") -> "Group | None":
        """Divides the group: ranks that give one color come together, numbered by their keys and, where
        these are equal, as here; a negative color: into none."""
        pointer = ctypes.c_void_p()
        self.context.check(self.context.call(lib.group_split, self.pointer, name.encode(), color, key,
                                             group_options(order), pointer))
        return None if not pointer.value else Group(self.context, pointer.value)

    def destroy(self) -> None:
        """Ends the group. Collective over its ranks; waits for its operations."""
        pointer = self.pointer
        self.context.check(self.context.call(lib.group_destroy, pointer))
        self._pointer = None

    # ---- How every operation is submitted -----------------------------------------------------

    def _name(self, name: str | None, *signature: Any) -> bytes:
        if name is not None:
            return name.encode()
        turns = self._turns.get(signature)
        if turns is None:  # setdefault: another thread may be here too
            text = ".".join(map(str, signature))
            names = [f"{text}.{turn}".encode() for turn in range(TURNS)]
            turns = self._turns.setdefault(signature, (names, itertools.count()))
        return turns[0][next(turns[1]) % TURNS]

    def _submit(self, call: Callable[..., int], arguments: tuple, options: _c.Options | None,
                handle: Handle, on_done: Callable[[Handle], None] | None, is_named: bool) -> Handle:
        """Submits, and hands the handle out. An automatic name that is still in flight is waited for:
        it comes to its launch by itself."""
        completions = self.context._completions
        pointer = ctypes.c_void_p()
        if options is not None:
            if on_done is not None:
                options = _copy(options)
                options.cookie = completions.cookie()
            arguments += (options,)
        status = call(*arguments, pointer)
        while status == errors.BusyError.status and not is_named:
            time.sleep(PAUSE_S)
            status = call(*arguments, pointer)
        if status != 0:
            self.context.check(status)
        handle._pointer = pointer.value
        if on_done is not None and options is not None:
            completions.attach(options.cookie, functools.partial(on_done, handle))
        return handle

    def _submit_array(self, kind: str, given: Any, out: Any, out_shape: tuple[int, ...] | None,
                      row_count: int, root: int | None, name: str | None, on_done: Any,
                      keywords: dict) -> Handle:
        """An operation with one input and one output whose sizes are known. out_shape: of a new output
        where `out` is None; None: there is none on this rank."""
        source = None if given is None else self._view(given)
        if out is None and out_shape is not None:
            out = arrays.like(given, out_shape)
        target = None if out is None else self._view(out, writes=True)
        about = source or target
        if about is None:
            raise errors.InvalidError(f"{kind}: neither an input nor an output says the type")
        if target is not None and source is not None and target.dtype != source.dtype:
            raise errors.InvalidError(f"{kind}: the input is of {arrays.NAMES[source.dtype]}, the "
                                      f"output of {arrays.NAMES[target.dtype]}")
        keywords.setdefault("tag", arrays.shape_tag(about.shape))
        arguments: tuple = (self.pointer, self._name(name, kind, about.dtype, row_count, root),
                            None if source is None else source.address,
                            None if target is None else target.address, row_count, about.dtype)
        if root is not None:
            arguments += (root,)
        return self._submit(getattr(lib, kind), arguments, make_options(**keywords),
                            Handle(self.context, None, (source, target), out), on_done,
                            name is not None)

    # ---- Reductions ---------------------------------------------------------------------------

    def allreduce(self, array: Any, out: Any = None, *, name: str | None = None,
                  on_done: Any = None, **keywords: Any) -> Handle:
        """Reduces array over the ranks into out, which is array itself by default."""
        source = self._view(array, writes=out is None)
        target = source if out is None else self._view(out, writes=True)
        if target.dtype != source.dtype:
            raise errors.InvalidError(f"allreduce: the input is of {arrays.NAMES[source.dtype]}, the "
                                      f"output of {arrays.NAMES[target.dtype]}")
        if "tag" not in keywords:
            keywords["tag"] = arrays.shape_tag(source.shape)
        arguments = (self.pointer, self._name(name, "allreduce", source.dtype, source.count, None),
                     source.address, target.address, source.count, source.dtype)
        handle = Handle(self.context, None, (source, target), array if out is None else out)
        return self._submit(lib.allreduce, arguments, make_options(**keywords), handle, on_done,
                            name is not None)

    def grouped_allreduce(self, tensors: Sequence[Any], outs: Sequence[Any] | None = None, *,
                          name: str | None = None, on_done: Any = None, **keywords: Any) -> Handle:
        """Reduces several arrays as one operation: all complete, or all fail. Result.value is the list
        of outputs."""
        outs = list(tensors if outs is None else outs)
        if len(outs) != len(tensors):
            raise errors.InvalidError(f"{len(tensors)} arrays and {len(outs)} outputs")
        sources = [self._view(one) for one in tensors]
        targets = [self._view(one, writes=True) for one in outs]
        if self.context.is_on_gpu and any(one.is_host for one in (*sources, *targets)):
            return self._allreduce_each(tensors, outs, name, on_done, keywords)
        members = (_c.Tensor * len(sources))()
        for i, (source, target) in enumerate(zip(sources, targets)):
            members[i] = _c.Tensor(source.address, target.address, source.count, source.dtype)
        total = sum(source.count for source in sources)
        arguments = (self.pointer, self._name(name, "grouped", len(sources), total), members,
                     len(sources))
        return self._submit(lib.grouped_allreduce, arguments, make_options(**keywords),
                            Handle(self.context, None, (sources, targets, members), outs), on_done,
                            name is not None)

    def _allreduce_each(self, tensors: Sequence[Any], outs: list[Any], name: str | None, on_done: Any,
                        keywords: dict) -> Handle:
        """Of a grouped allreduce with tensors in host memory, on a context with a GPU."""
        if on_done is not None:
            raise errors.UnsupportedError("on_done= of a grouped allreduce in host memory, on a context with a GPU")
        handles = []
        for i, (one, out) in enumerate(zip(tensors, outs)):
            stream = None if self._view(one).is_host else keywords.get("stream")
            handles.append(self.allreduce(one, out, name=None if name is None else f"{name}.{i}",
                                          **{**keywords, "stream": stream}))
        return Together(self.context, handles, outs)

    def reduce(self, array: Any, out: Any = None, *, root: int, name: str | None = None,
               on_done: Any = None, **keywords: Any) -> Handle:
        """Reduces array into out on the root, where it is array itself by default. Elsewhere the
        result's value is None."""
        data = self._view(array)
        if self.rank == root and out is None:
            out = array
        return self._submit_array("reduce", array, out if self.rank == root else None, None,
                                  data.count, root, name, on_done, keywords)

    def reduce_scatter(self, array: Any, out: Any = None, *, name: str | None = None,
                       on_done: Any = None, **keywords: Any) -> Handle:
        """Reduces array [size][...] and leaves row r of the result on rank r, in out [...]."""
        shape = self._rows(array, "reduce_scatter")
        return self._submit_array("reduce_scatter", array, out, shape, _count(shape), None, name,
                                  on_done, keywords)

    def reduce_scatterv(self, array: Any, out: Any, counts: Sequence[int], *,
                        name: str | None = None, on_done: Any = None, **keywords: Any) -> Handle:
        """As reduce_scatter() where rank r gets counts[r] elements of the flat array, the same counts
        on every rank, in out."""
        source, target = self._view(array), self._view(out, writes=True)
        if len(counts) != self.size or sum(counts) != source.count or \
                target.count != counts[self.rank]:
            raise errors.InvalidError(f"reduce_scatterv: counts {list(counts)} for {self.size} ranks, "
                                      f"{source.count} elements, and {target.count} in out")
        sizes = (ctypes.c_size_t * self.size)(*counts)
        keywords.setdefault("tag", arrays.shape_tag(source.shape))
        arguments = (self.pointer, self._name(name, "reduce_scatterv", source.dtype, source.count),
                     source.address, target.address, sizes, source.dtype)
        handle = Handle(self.context, None, (source, target, sizes), out)
        return self._submit(lib.reduce_scatterv, arguments, make_options(**keywords), handle, on_done,
                            name is not None)

    # ---- Copies -------------------------------------------------------------------------------

    def broadcast(self, array: Any, out: Any = None, *, root: int, name: str | None = None,
                  on_done: Any = None, **keywords: Any) -> Handle:
        """Copies the root's array to out on all ranks; out is array itself by default."""
        out = array if out is None else out
        data = self._view(out, writes=True)
        return self._submit_array("broadcast", array, out, None, data.count, root, name, on_done,
                                  keywords)

    def allgather(self, array: Any, out: Any = None, *, name: str | None = None,
                  on_done: Any = None, **keywords: Any) -> Handle:
        """Concatenates the ranks' arrays, of equal shapes, in out [size][...]."""
        data = self._view(array)
        return self._submit_array("allgather", array, out, (self.size, *data.shape), data.count,
                                  None, name, on_done, keywords)

    def gather(self, array: Any, out: Any = None, *, root: int, name: str | None = None,
               on_done: Any = None, **keywords: Any) -> Handle:
        """As allgather() on the root; elsewhere the result's value is None."""
        data = self._view(array)
        shape = (self.size, *data.shape) if self.rank == root else None
        return self._submit_array("gather", array, out if self.rank == root else None, shape,
                                  data.count, root, name, on_done, keywords)

    def scatter(self, array: Any, out: Any = None, *, root: int, name: str | None = None,
                on_done: Any = None, **keywords: Any) -> Handle:
        """Gives row r of the root's array [size][...] to rank r, in out [...], which other ranks must
        give."""
        if self.rank == root:
            shape = self._rows(array, "scatter")
        else:
            shape, array = self._view(out, writes=True).shape, None
        keywords.setdefault("tag", arrays.shape_tag(shape))
        return self._submit_array("scatter", array, out, shape, _count(shape), root, name, on_done,
                                  keywords)

    def alltoall(self, array: Any, out: Any = None, *, name: str | None = None,
                 on_done: Any = None, **keywords: Any) -> Handle:
        """Gives row r of array [size][...] to rank r, which finds it in row `rank` of its out."""
        shape = self._rows(array, "alltoall")
        return self._submit_array("alltoall", array, out, (self.size, *shape), _count(shape), None,
                                  name, on_done, keywords)

    # ---- Copies of parts that differ in size --------------------------------------------------

    def allgatherv(self, array: Any, *, name: str | None = None, on_done: Any = None,
                   **keywords: Any) -> Handle:
        """Concatenates the ranks' arrays, whose first extents may differ. The result's value is a new
        array, its counts are elements of each rank."""
        return self._gather_parts("allgatherv", array, None, name, on_done, keywords)

    def gatherv(self, array: Any, *, root: int, name: str | None = None, on_done: Any = None,
                **keywords: Any) -> Handle:
        """As allgatherv() on the root; elsewhere the result's value is None."""
        return self._gather_parts("gatherv", array, root, name, on_done, keywords)

    def _gather_parts(self, kind: str, array: Any, root: int | None, name: str | None,
                      on_done: Any, keywords: dict) -> Handle:
        source = self._view(array)
        if self.context.is_on_gpu:
            own, came = (ctypes.c_uint64 * 1)(source.count), (ctypes.c_uint64 * self.size)()
            receives = root is None or root == self.rank
            return self._follow(kind, array, source, own, came, (source.count,), root, receives, name, on_done,
                                keywords)
        room = _Room(array, source)
        counts = (ctypes.c_size_t * self.size)()
        keywords.setdefault("tag", _row_tag(source.shape))
        options = _copy(make_options(**keywords))
        receives = root is None or root == self.rank
        if receives:
            options.output = room.callback
        arguments: tuple = (self.pointer, self._name(name, kind, source.dtype, root), source.address,
                            source.count, None, 0, counts, source.dtype)
        if root is not None:
            arguments += (root,)
        handle = Handle(self.context, None, (source, room, counts), room.value if receives else None,
                        counts if receives else None)
        return self._submit(getattr(lib, kind), arguments, options, handle, on_done,
                            name is not None)

    def alltoallv(self, array: Any, splits: Sequence[int], *, name: str | None = None,
                  on_done: Any = None, **keywords: Any) -> Handle:
        """Gives splits[r] rows of array's first extent to rank r. The result's value is a new array of
        what came, in rank order; its counts are elements from each rank."""
        source = self._view(array)
        if len(splits) != self.size or sum(splits) != (source.shape[0] if source.shape else -1):
            raise errors.InvalidError(f"alltoallv: splits {list(splits)} for {self.size} ranks and "
                                      f"an array of the shape {source.shape}")
        row = max(_count(source.shape[1:]), 1)  # elements of one row
        sends = (ctypes.c_size_t * self.size)(*(split * row for split in splits))
        if self.context.is_on_gpu:
            own, came = (ctypes.c_uint64 * self.size)(*sends), (ctypes.c_uint64 * self.size)()
            return self._follow("alltoallv", array, source, own, came, (sends,), None, True, name, on_done, keywords)
        room = _Room(array, source)
        counts = (ctypes.c_size_t * self.size)()
        keywords.setdefault("tag", _row_tag(source.shape))
        options = _copy(make_options(**keywords))
        options.output = room.callback
        arguments = (self.pointer, self._name(name, "alltoallv", source.dtype), source.address,
                     sends, None, 0, counts, source.dtype)
        handle = Handle(self.context, None, (source, room, sends, counts), room.value, counts)
        return self._submit(lib.alltoallv, arguments, options, handle, on_done, name is not None)

    def _follow(self, kind: str, array: Any, source: arrays.Array, own: Any, came: Any, given: tuple,
                root: int | None, receives: bool, name: str | None, on_done: Any, keywords: dict) -> Handle:
        """An exchange of parts on a context with a GPU, see parts.py. own: what this rank tells the others, [1] for all
        of them or [size]; came: room for what they tell; given: the call's arguments between the addresses."""
        full = self._name(name, kind, source.dtype, root)
        keywords.setdefault("tag", _row_tag(source.shape))
        output = Output(array, source.shape[1:])
        keywords["stream"] = output.stream if output.stream is not None else keywords.get("stream")
        handle = Following(self.context)

        def submit() -> Handle:
            target = output.make(sum(came)) if receives else None
            counts = (ctypes.c_size_t * self.size)()
            arguments: tuple = (self.pointer, full, source.address, *given, target.address if target else None,
                                target.count if target else 0, counts, source.dtype)
            if root is not None:
                arguments += (root,)
            second = Handle(self.context, None, (source, target, given, counts), output.value if receives else None,
                            counts if receives else None)
            return self._submit(getattr(lib, kind), arguments, make_options(**keywords), second, on_done and (
                lambda _: on_done(handle)), name is not None)

        tell = self.alltoall if len(own) > 1 else self.allgather
        tell(own, came, name=None if name is None else f"{name}.counts",
             on_done=lambda first: handle.begin(first, submit))
        return handle

    # ---- Pairs, and without data --------------------------------------------------------------

    def send(self, array: Any, to: int, *, name: str | None = None, lane: int = 0,
             on_done: Any = None, **keywords: Any) -> Handle:
        """Sends array to one rank, which receives it under the same name; without names in the order of
        the calls of the pair, each lane by itself."""
        source = self._view(array)
        arguments = (self.pointer, self._name(name, "send", self.rank, to, lane), source.address,
                     source.count, source.dtype, to)
        return self._submit(lib.send, arguments, make_options(**keywords),
                            Handle(self.context, None, source, None), on_done, name is not None)

    def recv(self, out: Any, source: int, *, name: str | None = None, lane: int = 0,
             on_done: Any = None, **keywords: Any) -> Handle:
        """Receives into out, which may be larger than what comes."""
        target = self._view(out, writes=True)
        arguments = (self.pointer, self._name(name, "send", source, self.rank, lane),
                     target.address, target.count, target.dtype, source)
        return self._submit(lib.recv, arguments, make_options(**keywords),
                            Handle(self.context, None, target, out), on_done, name is not None)

    def barrier(self, name: str | None = None, *, on_done: Any = None) -> Handle:
        """Completes once every rank has submitted it."""
        return self._submit(lib.barrier, (self.pointer, self._name(name, "barrier")), make_options(),
                            Handle(self.context, None, None, None), on_done, name is not None)

    def join(self, *, on_done: Any = None) -> Handle:
        """Says that this rank has no more data; completes when all ranks have said so. Result.last_rank
        is the rank that joined last."""
        return self._submit(lib.join, (self.pointer,), make_options(),
                            Handle(self.context, None, None, None), on_done, True)

    def _rows(self, array: Any, kind: str) -> tuple[int, ...]:
        """The shape of a row of array [size][...]; a flat array is cut into `size` parts."""
        shape = self._view(array).shape
        if shape and shape[0] == self.size:
            return shape[1:]
        if shape and len(shape) == 1 and shape[0] % self.size == 0:
            return (shape[0] // self.size,)
        raise errors.InvalidError(f"{kind}: an array of the shape {shape} has not {self.size} rows, "
                                  "one for each rank")

    def __repr__(self) -> str:
        return f"<dp.Group {self.name}, rank {self.rank} of {self.size}>"


class _Room:
    """Makes the output of an operation whose size is known on arrival only. The callback runs on a
    thread of libdp."""

    def __init__(self, given: Any, source: arrays.Array) -> None:
        self._given = given
        self._made: Any = None
        self._shape = source.shape[1:]
        self.row = max(_count(self._shape), 1)  # elements of one row
        self.callback = _c.OUTPUT(self._make)

    def _make(self, user: Any, count: int) -> int | None:
        try:
            self._made = arrays.like(self._given, (count // self.row, *self._shape))
            return arrays.view(self._made, writes=True).address
        except BaseException:  # it must not leave a callback; libdp says that there was no memory
            return None

    def value(self) -> Any:
        """Once. This object and its callback hold each other until the garbage collector comes, so arrays leave
        it here."""
        made, self._made, self._given = self._made, None, None
        return made


def _row_tag(shape: tuple[int, ...]) -> int:
    """The tag of an array whose first extent may differ between ranks."""
    return arrays.shape_tag((0, *shape[1:])) if len(shape) > 1 else 0


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
