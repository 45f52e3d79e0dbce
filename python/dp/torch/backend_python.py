"""A process group of torch.distributed over a dp.Group, as a Backend in Python (torch 2.14 and later).

torch calls each method with lists of tensors and waits through the Work that it returns. Collectives have
no names there, but one order per group. So the nth collective of a group has the same name on every rank
(turns.py), whatever it is: where ranks disagree about kind, type, count or root, libdp finds both under one
name and tells every rank. Sends and receives have the names of dp.Group, made from the pair and the tag.

A rank of the process group is a number in it; libdp numbers a group by ascending rank of the world, so
groups of another order translate.
"""
from __future__ import annotations

import concurrent.futures
import datetime
import functools
import threading
import time
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist

import dp
from dp.arrays import shape_tag

from . import backend_end
from .backend_memory import Pool
from .backend_work import UNSET, Event, Work, fail
from .ops import _stream
from .turns import Turns

c10d: Any = torch._C._distributed_c10d  # without type hints
_REDUCE = {dist.ReduceOp.SUM: dp.SUM, dist.ReduceOp.AVG: dp.AVERAGE, dist.ReduceOp.MIN: dp.MIN,
           dist.ReduceOp.MAX: dp.MAX, dist.ReduceOp.PRODUCT: dp.PRODUCT}
_BITWISE: dict[Any, Callable] = {dist.ReduceOp.BAND: torch.bitwise_and,
                                 dist.ReduceOp.BOR: torch.bitwise_or,
                                 dist.ReduceOp.BXOR: torch.bitwise_xor}
_REDUCTIONS = {"allreduce", "reduce", "reduce_scatter", "reduce_scatterv"}
_EQUAL = _REDUCTIONS | {"broadcast", "allgather"}  # of which every rank gives as much
PAUSE_S = 20e-6  # between two looks whether a name is free again
_is_profiled = torch._C._autograd._profiler_enabled
_KNOWN = {torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32, torch.uint32, torch.int64,
          torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool}


class DpBackend(c10d.Backend):
    """What init_process_group("dp") puts into a process group."""

    title = "dp"  # of its spans in torch's profiler

    def __init__(self, context: dp.Context, group: dp.Group, ranks: Sequence[int],
                 timeout: datetime.timedelta, store: dist.Store, parent: "DpBackend | None" = None) -> None:
        """ranks: of the world, in the order of the process group; store: of this group; parent: the
        backend whose shutdown() ends the context; None: this one's does."""
        order = sorted(ranks)
        self._to_group = [order.index(rank) for rank in ranks]
        super().__init__(self._to_group.index(group.rank), len(ranks))
        self.context = context
        self.limit = timeout
        self.waiter = concurrent.futures.ThreadPoolExecutor(1, "dp futures")
        self._group = group
        self._is_ordered = self._to_group == list(range(len(ranks)))
        self._from_group = [self._to_group.index(i) for i in range(len(ranks))]
        self._ranks = list(ranks)
        self._store = store
        self._options = c10d.Backend.Options("dp", timeout=timeout)
        self._coalesced: list[Work] | None = None
        self._lock = threading.Lock()
        self.turns = Turns()
        self._is_scaled = context.setting("WIRE") == "fp16"  # by the magnitude of a name's last sum
        self._sequence = 0  # collectives of this group
        self._monitored = 0  # monitored barriers of it
        self._root: DpBackend = parent or self
        self.pool: Pool = Pool(context) if parent is None else parent.pool
        # Of the root alone: groups that it has named, waits that timed out, ends of groups. And backends of
        # groups, as torch's wrapper for TORCH_DISTRIBUTED_DEBUG=DETAIL does not keep objects of Python.
        self._members: list[DpBackend] = [self]
        self._splits = 0
        self._late: list[Work] = []
        self.failure = c10d.ErrorType.SUCCESS
        self._ending: list[threading.Thread] = []

    # ---- About it -----------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return "dp"

    @property
    def options(self) -> Any:
        return self._options

    @property
    def supports_splitting(self) -> bool:
        return True

    def split(self, store: dist.Store, ranks: Sequence[int], options: Any) -> "DpBackend":
        """Called by torch on every rank; ranks: of this group, in the order of the new one.

        A backend of C++ answers with nothing where this rank is not among them. torch follows what a
        backend in Python returns without looking whether it is None (seen with 2.15), and crashes."""
        if self.rank() not in ranks:
            raise RuntimeError(
                f"split_group(): rank {self.rank()} is in none of the new groups, which PyTorch cannot be told by a "
                "backend in Python; use new_group(), or the backend's form of C++ (python3 -m dp.torch.native)")
        members = [self._ranks[rank] for rank in ranks]
        limit = options._timeout if options is not None else self.limit
        name = store.get("dp.name") if ranks[0] != self.rank() else self._name_split(store)
        return self._root.new_group(name.decode(), members, limit, store)

    def _name_split(self, store: dist.Store) -> bytes:
        """The first member names the group, as torch gives its name to the store alone."""
        with self._root._lock:
            self._root._splits += 1
            name = f"torch split {self._root._splits} of {self.context.rank}".encode()
        store.set("dp.name", name)
        return name

    def new_group(self, name: str, members: Sequence[int], timeout: datetime.timedelta,
                  store: dist.Store) -> "DpBackend":
        """A group of this context; members: of the world, in the order of the process group."""
        try:
            group = self.context.group(name[:63], list(members))
        except dp.Error as error:
            raise fail(error) from error
        assert group is not None, "torch calls this on members only"
        backend = type(self)(self.context, group, members, timeout, store, self._root)
        self._root._members.append(backend)
        return backend

    @property
    def supports_coalescing(self) -> bool:
        return True

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A tensor in memory that the ranks of a node reduce and gather where it lies."""
        if torch.device(device).type != "cpu":
            return torch.empty(size, dtype=dtype, device=device)
        return self._root.pool.tensor(size, dtype)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self.limit = timeout

    def get_error(self) -> Any:
        """What an operation of this rank has found, in whichever group of the world."""
        return self._root.failure

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to agree on: it counts from 0 on every rank."""

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    # ---- Its end ------------------------------------------------------------------------------

    def timed_out(self, work: Work, limit: datetime.timedelta) -> Exception:
        """The error of a wait that was too long. The operation goes on; shutdown() waits no more for it."""
        self._root._late.append(work)
        return dist.DistBackendError(
            f"rank {self.rank()}: Timed out waiting {limit / datetime.timedelta(milliseconds=1):.0f}ms for "
            f"{work.kind} of the group of ranks {self._ranks}; libdp's log says which ranks are missing")

    def shutdown(self) -> None:
        """Collective: every rank of the process group calls it, in destroy_process_group()."""
        if self in self._root._members:
            self._root._members.remove(self)
        if self._root is not self:  # in the background, as other ranks may destroy it much later
            end = threading.Thread(target=self._end_group, name="dp group's end", daemon=True)
            self._root._ending.append(end)
            end.start()
            return
        backend_end.finalize(self.context, self.limit, self._has_late, self._await_groups,
                             lambda: self.waiter.shutdown(wait=True))

    def _has_late(self) -> bool:
        return not all(work.is_completed() for work in self._late)

    def _await_groups(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        for thread in self._ending:
            thread.join(max(end - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._ending)

    def _end_group(self) -> None:
        try:
            self._group.destroy()
        except dp.Error:  # the context has ended, and its groups with it
            pass

    def abort(self) -> None:
        """Of the world: libdp has no other."""
        self.context.abort("torch.distributed aborted the process group")
        self.note(dp.AbortedError())

    def note(self, error: dp.Error) -> None:
        """For get_error(): the first failure after which the world is unusable."""
        if self._root.failure == c10d.ErrorType.SUCCESS:
            if isinstance(error, dp.StalledError):
                self._root.failure = c10d.ErrorType.TIMEOUT
            elif isinstance(error, (dp.PeerLostError, dp.AbortedError)):
                self._root.failure = c10d.ErrorType.REMOTE_ERROR

    # ---- How operations are submitted ---------------------------------------------------------

    def _work(self, kind: str, handles: Sequence[dp.Handle], inputs: Sequence[torch.Tensor],
              outputs: Sequence[torch.Tensor], finish: Callable[[], None] | None = None) -> Work:
        events = [Event(f"{self.title}:{kind}", inputs, self)] if _is_profiled() else []
        work = Work(kind, handles, outputs, finish, self, events)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _join(self, kind: str, works: Sequence[Work], outputs: Sequence[torch.Tensor]) -> Work:
        """Several works as one."""
        if len(works) == 1:
            works[0].outputs = list(outputs)
            return works[0]
        joined = Work(kind, [handle for work in works for handle in work.handles], outputs,
                       _all(work.finish for work in works), self,
                       [event for work in works for event in work.events])
        if self._coalesced is not None:
            self._coalesced = [work for work in self._coalesced if work not in works] + [joined]
        return joined

    def _submit(self, call: Callable[..., dp.Handle], *arguments: Any, **keywords: Any) -> dp.Handle:
        """The next collective of the group, under the next name. A sum whose name is not known to be its own
        travels without fp16."""
        kind, count, nbytes = call.__name__, 0, 0
        if kind in _EQUAL:
            count, nbytes = arguments[0].numel(), arguments[0].nbytes
        signature = (kind, count, count and arguments[0].dtype, keywords.get("op"), keywords.get("root"),
                     keywords.get("prescale"))
        number, is_known, place = self.turns.next(signature, nbytes)
        self._sequence = place + 1
        if self._is_scaled and not is_known and kind in _REDUCTIONS:
            keywords["wire"] = "none"
        try:
            while True:
                try:
                    handle = call(*arguments, name=f"c10d.{number}", **keywords)
                except dp.BusyError:  # the last one of this name, which comes to its launch by itself
                    time.sleep(PAUSE_S)
                else:
                    handle.place = place
                    return handle
        except dp.Error as error:
            self.note(error)
            raise fail(error) from error

    def _submit_pair(self, call: Callable[..., dp.Handle], *arguments: Any, **keywords: Any) -> dp.Handle:
        try:
            return call(*arguments, **keywords)
        except dp.Error as error:
            self.note(error)
            raise fail(error) from error

    @staticmethod
    def _flat(tensor: torch.Tensor) -> torch.Tensor:
        """The memory of a tensor as libdp takes it: dense, of a type that it has, or as bytes. A copy where
        the tensor is not dense."""
        tensor = tensor.detach()
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
        if tensor.dtype not in _KNOWN:
            tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor.view(torch.uint8)
        return tensor.reshape(-1)

    def _target(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None] | None]:
        """Where a result goes, and what brings it to a tensor that is not dense."""
        flat = self._flat(tensor)
        if tensor.is_contiguous():
            return flat, None
        return flat, lambda: tensor.detach().copy_(flat.view(tensor.dtype).view(tensor.shape)
                                                   if flat.dtype == torch.uint8
                                                   else flat.reshape(tensor.shape))

    @staticmethod
    def _reduction(op: Any, tensor: torch.Tensor) -> tuple[dict[str, Any], Callable | None]:
        """libdp's options of a ReduceOp; a function for those that it lacks."""
        if tensor.dtype not in _KNOWN:  # libdp gets bytes, or the parts of complex numbers
            if not tensor.is_complex():
                raise fail(dp.InvalidError(f"no reduction of {tensor.dtype}"))
            if any(op == one for one in (dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)):
                raise fail(dp.InvalidError("complex numbers can only be summed and averaged"))
        for known, number in _REDUCE.items():
            if op == known:
                return {"op": number}, None
        for known, function in _BITWISE.items():
            if op == known:
                return {}, function
        kind, factor = op.__getstate__()
        if isinstance(factor, torch.Tensor):
            factor = factor.item()
        return {"op": dp.SUM, "prescale": float(factor)}, None

    # ---- Reductions ---------------------------------------------------------------------------

    def _begin_allreduce(self, tensor: torch.Tensor, op: Any) -> tuple[dp.Handle, Callable | None]:
        options, bitwise = self._reduction(op, tensor)
        if tensor.dtype == torch.bool and options.get("op") in (dp.SUM, dp.PRODUCT):
            options["op"] = dp.MAX if options["op"] == dp.SUM else dp.MIN
        target, finish = self._target(tensor)
        if bitwise is not None:
            combine, rows = bitwise, target.new_empty((self.size(), target.numel()))
            handle = self._submit(self._group.allgather, target, rows, stream=_stream(target))
            return handle, lambda: tensor.detach().copy_(_combine(combine, rows).reshape(tensor.shape))
        return self._submit(self._group.allreduce, target, stream=_stream(target), **options), finish

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if tensors[0].is_sparse:
            return self.allreduce_sparse(tensors, opts)
        begun = [self._begin_allreduce(tensor, opts.reduceOp if opts else dist.ReduceOp.SUM)
                 for tensor in tensors]
        return self._work("all_reduce", [handle for handle, _ in begun], tensors, tensors,
                          _all(finish for _, finish in begun))

    def allreduce_coalesced(self, tensors: Any, opts: Any) -> Work:
        return self.allreduce(tensors, opts)

    def allreduce_sparse(self, tensors: Any, opts: Any) -> Work:
        """The sum of a sparse tensor, whose coordinates and values are gathered."""
        tensor = tensors[0]
        if opts is not None and opts.reduceOp != dist.ReduceOp.SUM:
            raise fail(dp.InvalidError("all_reduce of a sparse tensor can only sum"))
        own = tensor.detach().coalesce()
        places, values = own.indices().t().contiguous(), own.values().contiguous()
        handles = [self._submit(self._group.allgatherv, part, stream=_stream(part), tag=shape_tag((0, *tensor.shape)))
                   for part in (places, values)]

        def build() -> None:
            every = torch.sparse_coo_tensor(handles[0].wait().value.t(), handles[1].wait().value, tensor.shape)
            with torch.no_grad():  # a detached one would keep its coordinates to itself
                tensor.copy_(every.coalesce())

        return self._work("sparse_all_reduce", handles, [], tensors, build)

    def reduce(self, tensors: Any, opts: Any) -> Work:
        options, bitwise = self._reduction(opts.reduceOp, tensors[0])
        if bitwise is not None:
            return self.allreduce(tensors, opts)
        target, finish = self._target(tensors[0])
        root = self._to_group[opts.rootRank]
        handle = self._submit(self._group.reduce, target, root=root, stream=_stream(target), **options)
        return self._work("reduce", [handle], tensors, tensors,
                          finish if self.rank() == opts.rootRank else None)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Work:
        options, bitwise = self._reduction(opts.reduceOp, input)
        source = self._flat(input).view(self.size(), -1)
        if not self._is_ordered:
            source = source[self._from_group].contiguous()
        if bitwise is not None:
            combine, parts = bitwise, torch.empty_like(source)
            handle = self._submit(self._group.alltoall, source, parts, stream=_stream(source))
            return self._work("reduce_scatter", [handle], [input], [output],
                              lambda: output.detach().copy_(_combine(combine, parts).reshape(output.shape)))
        target, finish = self._target(output)
        handle = self._submit(self._group.reduce_scatter, source, target, stream=_stream(target),
                              **options)
        return self._work("reduce_scatter", [handle], [input], [output], finish)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        works = [self._reduce_scatter_list(output, rows, opts) for output, rows in zip(outputs, inputs)]
        return self._join("reduce_scatter", works, outputs)

    def _reduce_scatter_list(self, output: torch.Tensor, rows: Sequence[torch.Tensor],
                             opts: Any) -> Work:
        if all(row.shape == rows[0].shape for row in rows):
            return self.reduce_scatter_single(output, torch.stack([row.detach() for row in rows]), opts)
        options, bitwise = self._reduction(opts.reduceOp, output)
        parts = [self._flat(rows[self._from_group[i]]) for i in range(self.size())]
        if bitwise is not None:
            combine, counts = bitwise, [part.numel() for part in parts]
            handle = self._submit(self._group.alltoallv, torch.cat(parts), counts, stream=_stream(parts[0]))
            return self._work("reduce_scatter", [handle], rows, [output], lambda: output.detach().copy_(_combine(
                combine, handle.wait().value.view(self.size(), -1)).reshape(output.shape)))
        target, finish = self._target(output)
        handle = self._submit(self._group.reduce_scatterv, torch.cat(parts), target,
                              [part.numel() for part in parts], stream=_stream(target), **options)
        return self._work("reduce_scatter", [handle], rows, [output], finish)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        return self._join("reduce_scatter", [self.reduce_scatter_single(output, rows, opts)
                                             for output, rows in zip(outputs, inputs)], outputs)

    # ---- Copies -------------------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any) -> Work:
        target, finish = self._target(tensors[0])
        root = self._to_group[opts.rootRank]
        handle = self._submit(self._group.broadcast, target, root=root, stream=_stream(target))
        return self._work("broadcast", [handle], tensors, tensors, finish)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Work:
        source = self._flat(input)
        target, finish = self._target(output)
        if self._is_ordered:
            rows = target.view(self.size(), -1) if target.numel() else target
            handle = self._submit(self._group.allgather, source, rows, stream=_stream(source))
            return self._work("all_gather", [handle], [input], [output], finish)
        rows = source.new_empty((self.size(), source.numel()))
        handle = self._submit(self._group.allgather, source, rows, stream=_stream(source))

        def reorder() -> None:
            target.copy_(rows[self._to_group].reshape(-1))
            if finish is not None:
                finish()

        return self._work("all_gather", [handle], [input], [output], reorder)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        return self._join("all_gather", [self.all_gather_single(output, one, opts)
                                         for output, one in zip(outputs, inputs)], outputs)

    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        handles, ends = [], []
        for rows, one in zip(outputs, inputs):
            source = self._flat(one)
            handles.append(self._submit(self._group.allgatherv, source, stream=_stream(source)))
            ends.append(functools.partial(self._divide, "all_gather", handles[-1], rows))
        return self._work("all_gather", handles, inputs, [row for rows in outputs for row in rows], _all(ends))

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        """outputs: a list of one list of tensors per rank."""
        rows = [[one[i] for one in outputs] for i in range(len(inputs))]
        return self.allgather(rows, inputs, opts)

    def _divide(self, kind: str, handle: dp.Handle, rows: Sequence[torch.Tensor]) -> None:
        """Brings what came from each rank into the tensor that waits for it."""
        result = handle.wait()
        for rank, (part, row) in enumerate(zip(self._parts(result), rows)):
            wanted = row.numel() * (2 if row.is_complex() else 1)
            if row.dtype not in _KNOWN and not row.is_complex():
                wanted *= row.dtype.itemsize
            if part.numel() != wanted:
                raise dist.DistBackendError(f"{kind}: {part.numel()} elements came from rank {rank}, and rank "
                                            f"{self.rank()} has room for {wanted}")
            row.detach().copy_(self._as(part, row))

    def _parts(self, result: dp.Result) -> list[torch.Tensor]:
        """What came from each rank, flat, by rank of this group."""
        parts = torch.split(result.value, result.counts)
        return [parts[self._to_group[rank]] for rank in range(self.size())]

    @staticmethod
    def _as(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Flat memory with the type and shape of another tensor."""
        if like.dtype not in _KNOWN:
            part = part.view(-1, 2) if like.is_complex() else part
            part = torch.view_as_complex(part) if like.is_complex() else part.view(like.dtype)
        return part.reshape(like.shape)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        source = self._flat(inputs[0])
        root = self._to_group[opts.rootRank]
        handle = self._submit(self._group.gatherv, source, root=root, stream=_stream(source))
        if self.rank() != opts.rootRank:
            return self._work("gather", [handle], inputs, [])
        rows = outputs[0]
        return self._work("gather", [handle], inputs, rows, lambda: self._divide("gather", handle, rows))

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        target, finish = self._target(outputs[0])
        root = self._to_group[opts.rootRank]
        source, given = None, outputs
        if self.rank() == opts.rootRank:
            given = inputs[0]
            source = torch.stack([self._flat(given[self._from_group[i]]) for i in range(self.size())])
        handle = self._submit(self._group.scatter, source, target, root=root, stream=_stream(target),
                              tag=0)
        return self._work("scatter", [handle], given, outputs, finish)

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor, output_splits: Any,
                      input_splits: Any, opts: Any) -> Work:
        source = self._flat(input)
        rows = input.shape[0] if input.dim() else 1
        row = source.numel() // max(rows, 1)
        splits = list(input_splits) or [rows // self.size()] * self.size()
        return self._alltoall(torch.split(source, [split * row for split in splits]), [input], [output])

    def all_to_all_single(self, output: torch.Tensor, input: torch.Tensor, output_splits: Any,
                          input_splits: Any, opts: Any) -> Work:
        return self.alltoall_base(output, input, output_splits, input_splits, opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        return self._alltoall([self._flat(one) for one in inputs], inputs, outputs)

    def _alltoall(self, parts: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                  outputs: Sequence[torch.Tensor]) -> Work:
        """parts: flat, one for each rank. outputs: one for each rank, or one for all of them."""
        ordered = [parts[self._from_group[i]] for i in range(self.size())]
        source = torch.cat(ordered) if ordered else parts[0]
        handle = self._submit(self._group.alltoallv, source, [part.numel() for part in ordered],
                              stream=_stream(source))

        def divide() -> None:
            if len(outputs) > 1 or self.size() == 1:
                self._divide("all_to_all", handle, outputs)
                return
            came = torch.cat(self._parts(handle.wait()))
            if came.numel() != self._flat(outputs[0]).numel():
                raise dist.DistBackendError(f"all_to_all: {came.numel()} elements came to rank {self.rank()}, "
                                            f"which has room for {outputs[0].numel()}")
            outputs[0].detach().copy_(self._as(came, outputs[0]))

        return self._work("all_to_all", [handle], inputs, outputs, divide)

    # ---- Pairs, and without data --------------------------------------------------------------

    def send(self, tensors: Any, to: int, tag: int) -> Work:
        source = self._flat(tensors[0])
        handle = self._submit_pair(self._group.send, source, self._to_group[to], lane=tag,
                                   stream=_stream(source))
        return self._work("send", [handle], tensors, tensors)

    def recv(self, tensors: Any, source: int, tag: int) -> Work:
        target, finish = self._target(tensors[0])
        handle = self._submit_pair(self._group.recv, target, self._to_group[source], lane=tag,
                                   stream=_stream(target))
        return self._work("recv", [handle], tensors, tensors, finish)

    def recv_anysource(self, tensors: Any, tag: int) -> Work:
        raise NotImplementedError("dp: a receive from any rank; torch does not let a backend in Python say "
                                  "which rank it was. Give the source")

    def barrier(self, opts: Any = None) -> Work:
        work = self._work("barrier", [self._submit(self._group.barrier)], [], [])
        work.limit = opts.timeout if opts is not None else UNSET
        return work

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """A barrier by the store, after which rank 0 knows who was missing. Nothing of it stays under way."""
        limit = opts.timeout if opts is not None and opts.timeout >= UNSET else self.limit
        self._monitored += 1
        store = dist.PrefixStore(f"dp.monitored.{self._monitored}", self._store)
        if self.rank() != 0:
            store.set(str(self.rank()), b"here")
            self._pass_monitored(store, limit)
            return
        if limit <= UNSET:
            raise dist.DistBackendError("Rank 0 timed out in monitoredBarrier after 0 ms")
        missing = self._find_missing(store, limit, wait_all_ranks)
        store.set("passed", b"no" if missing else b"yes")
        if missing:
            raise dist.DistBackendError(
                f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} failed to pass "
                f"monitoredBarrier in {limit / datetime.timedelta(milliseconds=1):.0f} ms")

    def _find_missing(self, store: dist.Store, limit: datetime.timedelta, wants_all: bool) -> list[int]:
        """Which ranks did not come in time; the first one alone, or all."""
        missing, end = [], time.monotonic() + limit.total_seconds()
        for rank in range(1, self.size()):
            left = max(end - time.monotonic(), 0.001)
            try:
                store.wait([str(rank)], datetime.timedelta(seconds=left))
            except RuntimeError:  # of the store, of whatever class
                missing.append(rank)
                if not wants_all:
                    break
        return missing

    def _pass_monitored(self, store: dist.Store, limit: datetime.timedelta) -> None:
        try:
            store.wait(["passed"], max(limit, datetime.timedelta(milliseconds=1)))
            has_passed = store.get("passed") == b"yes"
        except RuntimeError:
            has_passed = False
        if not has_passed:
            raise dist.DistBackendError(
                f"Rank {self.rank()} successfully reached monitoredBarrier, but received errors while waiting "
                "for send/recv from rank 0. Please check rank 0 logs for faulty rank.")

    def start_coalescing(self) -> None:
        self._coalesced = []

    def end_coalescing(self) -> Work:
        works, self._coalesced = self._coalesced or [], None
        return self._join("coalesced", works, [tensor for work in works for tensor in work.outputs])


def _combine(function: Callable, rows: torch.Tensor) -> torch.Tensor:
    """The rows reduced to one."""
    total = rows[0]
    for row in rows[1:]:
        total = function(total, row)
    return total


def _all(functions: Any) -> Callable[[], None] | None:
    """One function that calls all that are not None."""
    wanted = [function for function in functions if function is not None]
    if not wanted:
        return None

    def call() -> None:
        for function in wanted:
            function()

    return call
