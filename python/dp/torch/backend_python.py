"""A process group of torch.distributed over a dp.Group, as a Backend in Python (torch 2.14 and later).

torch calls each method with lists of tensors and waits through the Work that it returns. Collectives have
no names there, but one order per group, so the names that dp.Group makes from kind, type and count do.
A rank of the process group is a number in it; libdp numbers a group by ascending rank of the world, so
groups of another order translate.
"""
from __future__ import annotations

import concurrent.futures
import datetime
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import dp

from .ops import _stream

_REDUCE = {dist.ReduceOp.SUM: dp.SUM, dist.ReduceOp.AVG: dp.AVERAGE, dist.ReduceOp.MIN: dp.MIN,
           dist.ReduceOp.MAX: dp.MAX, dist.ReduceOp.PRODUCT: dp.PRODUCT}
_BITWISE: dict[Any, Callable] = {dist.ReduceOp.BAND: torch.bitwise_and,
                                 dist.ReduceOp.BOR: torch.bitwise_or,
                                 dist.ReduceOp.BXOR: torch.bitwise_xor}
_UNSET = datetime.timedelta(0)
_KNOWN = {torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32, torch.uint32, torch.int64,
          torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool}


def _fail(error: dp.Error) -> Exception:
    return dist.DistBackendError(str(error))


class _Work(dist._Work):
    """Operations of libdp, what is left to do behind them, and the tensors that they write."""

    def __init__(self, handles: Sequence[dp.Handle], outputs: Sequence[torch.Tensor],
                 finish: Callable[[], None] | None, backend: "DpBackend") -> None:
        super().__init__()
        self._handles = list(handles)
        self._outputs = list(outputs)
        self._finish = finish
        self._backend = backend

    def wait(self, timeout: datetime.timedelta = _UNSET) -> bool:
        """Waits in the caller's thread, which does libdp's work meanwhile."""
        limit = timeout if timeout > _UNSET else self._backend.limit
        try:
            for handle in self._handles:
                handle.wait(limit.total_seconds())
        except dp.Error as error:
            raise _fail(error) from error
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def get_future(self) -> torch.futures.Future:
        """A future of the outputs, waited for on the backend's thread."""
        future: torch.futures.Future = torch.futures.Future()

        def complete() -> None:
            try:
                self.wait()
            except Exception as error:  # the future carries it to who waits
                future.set_exception(error)
            else:
                future.set_result(self._outputs)

        self._backend.waiter.submit(complete)
        return future

    def is_completed(self) -> bool:
        return all(handle.done() for handle in self._handles)

    def is_success(self) -> bool:
        return self.is_completed()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._outputs

    def synchronize(self) -> None:
        self.wait()


class DpBackend(c10d.Backend):
    """What init_process_group("dp") puts into a process group."""

    def __init__(self, context: dp.Context, group: dp.Group, ranks: Sequence[int],
                 timeout: datetime.timedelta, owns: bool) -> None:
        """ranks: of the world, in the order of the process group; owns: shutdown() ends the context."""
        order = sorted(ranks)
        self._to_group = [order.index(rank) for rank in ranks]
        super().__init__(self._to_group.index(group.rank), len(ranks))
        self.context = context
        self.limit = timeout
        self.waiter = concurrent.futures.ThreadPoolExecutor(1, "dp futures")
        self._group = group
        self._is_ordered = self._to_group == list(range(len(ranks)))
        self._from_group = [self._to_group.index(i) for i in range(len(ranks))]
        self._owns = owns
        self._options = c10d.Backend.Options("dp", timeout=timeout)
        self._coalesced: list[_Work] | None = None

    # ---- About it -----------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return "dp"

    @property
    def options(self) -> Any:
        return self._options

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return True

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A tensor in memory that the ranks of a node reduce and gather where it lies."""
        if torch.device(device).type != "cpu" or size == 0:
            return torch.empty(size, dtype=dtype, device=device)
        return torch.frombuffer(self.context.alloc(size * dtype.itemsize), dtype=dtype)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self.limit = timeout

    def get_error(self) -> Any:
        return None

    def shutdown(self) -> None:
        """Collective: every rank of the process group calls it, in destroy_process_group()."""
        self.waiter.shutdown(wait=True)
        if self._owns:
            try:
                self.context.finalize(force=True)
            except dp.Error as error:
                raise _fail(error) from error

    def abort(self) -> None:
        self.context.abort("torch.distributed aborted the process group")

    # ---- How operations are submitted ---------------------------------------------------------

    def _work(self, handles: Sequence[dp.Handle], outputs: Sequence[torch.Tensor],
              finish: Callable[[], None] | None = None) -> _Work:
        work = _Work(handles, outputs, finish, self)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

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
    def _reduction(op: Any) -> tuple[dict[str, Any], Callable | None]:
        """libdp's options of a ReduceOp; a function for those that it lacks."""
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

    def _submit(self, call: Callable[..., dp.Handle], *arguments: Any, **keywords: Any) -> dp.Handle:
        try:
            return call(*arguments, **keywords)
        except dp.Error as error:
            raise _fail(error) from error

    # ---- Reductions ---------------------------------------------------------------------------

    def _begin_allreduce(self, tensor: torch.Tensor, op: Any) -> tuple[dp.Handle, Callable | None]:
        options, bitwise = self._reduction(op)
        if tensor.dtype == torch.bool and options.get("op") in (dp.SUM, dp.PRODUCT):
            options["op"] = dp.MAX if options["op"] == dp.SUM else dp.MIN
        target, finish = self._target(tensor)
        if bitwise is not None:
            rows = target.new_empty((self.size(), target.numel()))
            handle = self._submit(self._group.allgather, target, rows, stream=_stream(target))

            def combine() -> None:
                total = rows[0]
                for row in rows[1:]:
                    total = bitwise(total, row)
                tensor.detach().copy_(total.reshape(tensor.shape))

            return handle, combine
        return self._submit(self._group.allreduce, target, stream=_stream(target), **options), finish

    def allreduce(self, tensors: Any, opts: Any = None) -> _Work:
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        begun = [self._begin_allreduce(tensor, opts.reduceOp if opts else dist.ReduceOp.SUM)
                 for tensor in tensors]
        return self._work([handle for handle, _ in begun], tensors,
                          _all(finish for _, finish in begun))

    def allreduce_coalesced(self, tensors: Any, opts: Any) -> _Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Any, opts: Any) -> _Work:
        options, bitwise = self._reduction(opts.reduceOp)
        if bitwise is not None:
            return self.allreduce(tensors, opts)
        target, finish = self._target(tensors[0])
        root = self._to_group[opts.rootRank]
        handle = self._submit(self._group.reduce, target, root=root, stream=_stream(target), **options)
        return self._work([handle], tensors, finish if self.rank() == opts.rootRank else None)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> _Work:
        options, bitwise = self._reduction(opts.reduceOp)
        if bitwise is not None:
            raise NotImplementedError("dp: a reduce-scatter by bits")
        source = self._flat(input).view(self.size(), -1)
        if not self._is_ordered:
            source = source[self._from_group].contiguous()
        target, finish = self._target(output)
        handle = self._submit(self._group.reduce_scatter, source, target, stream=_stream(target),
                              **options)
        return self._work([handle], [output], finish)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> _Work:
        works = [self._reduce_scatter_list(output, rows, opts) for output, rows in zip(outputs, inputs)]
        return _join(self, works, outputs)

    def _reduce_scatter_list(self, output: torch.Tensor, rows: Sequence[torch.Tensor],
                             opts: Any) -> _Work:
        if all(row.shape == rows[0].shape for row in rows):
            return self.reduce_scatter_single(output, torch.stack([row.detach() for row in rows]), opts)
        options, _ = self._reduction(opts.reduceOp)
        parts = [self._flat(rows[self._from_group[i]]) for i in range(self.size())]
        target, finish = self._target(output)
        handle = self._submit(self._group.reduce_scatterv, torch.cat(parts), target,
                              [part.numel() for part in parts], stream=_stream(target), **options)
        return self._work([handle], [output], finish)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> _Work:
        return _join(self, [self.reduce_scatter_single(output, rows, opts)
                            for output, rows in zip(outputs, inputs)], outputs)

    # ---- Copies -------------------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any) -> _Work:
        target, finish = self._target(tensors[0])
        root = self._to_group[opts.rootRank]
        handle = self._submit(self._group.broadcast, target, root=root, stream=_stream(target))
        return self._work([handle], tensors, finish)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> _Work:
        source = self._flat(input)
        target, finish = self._target(output)
        if self._is_ordered:
            rows = target.view(self.size(), -1) if target.numel() else target
            handle = self._submit(self._group.allgather, source, rows, stream=_stream(source))
            return self._work([handle], [output], finish)
        rows = source.new_empty((self.size(), source.numel()))
        handle = self._submit(self._group.allgather, source, rows, stream=_stream(source))

        def reorder() -> None:
            target.copy_(rows[self._to_group].reshape(-1))
            if finish is not None:
                finish()

        return self._work([handle], [output], reorder)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> _Work:
        return _join(self, [self.all_gather_single(output, one, opts)
                            for output, one in zip(outputs, inputs)], outputs)

    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> _Work:
        works = [self._allgather_list(rows, one) for rows, one in zip(outputs, inputs)]
        return _join(self, works, [row for rows in outputs for row in rows])

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> _Work:
        """outputs: a list of one list of tensors per rank."""
        rows = [[one[i] for one in outputs] for i in range(len(inputs))]
        return self.allgather(rows, inputs, opts)

    def _allgather_list(self, rows: Sequence[torch.Tensor], input: torch.Tensor) -> _Work:
        source = self._flat(input)
        handle = self._submit(self._group.allgatherv, source, stream=_stream(source))

        def divide() -> None:
            result = handle.wait()
            parts = torch.split(result.value, result.counts)
            for rank, row in enumerate(rows):
                part = parts[self._to_group[rank]]
                row.detach().copy_(self._as(part, row))

        return self._work([handle], rows, divide)

    @staticmethod
    def _as(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Flat memory with the type and shape of another tensor."""
        if like.dtype not in _KNOWN:
            part = part.view(-1, 2) if like.is_complex() else part
            part = torch.view_as_complex(part) if like.is_complex() else part.view(like.dtype)
        return part.reshape(like.shape)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> _Work:
        source = self._flat(inputs[0])
        root = self._to_group[opts.rootRank]
        handle = self._submit(self._group.gatherv, source, root=root, stream=_stream(source))
        if self.rank() != opts.rootRank:
            return self._work([handle], [])
        rows = outputs[0]

        def divide() -> None:
            result = handle.wait()
            parts = torch.split(result.value, result.counts)
            for rank, row in enumerate(rows):
                row.detach().copy_(self._as(parts[self._to_group[rank]], row))

        return self._work([handle], rows, divide)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> _Work:
        target, finish = self._target(outputs[0])
        root = self._to_group[opts.rootRank]
        source = None
        if self.rank() == opts.rootRank:
            rows = inputs[0]
            source = torch.stack([self._flat(rows[self._from_group[i]]) for i in range(self.size())])
        handle = self._submit(self._group.scatter, source, target, root=root, stream=_stream(target),
                              tag=0)
        return self._work([handle], outputs, finish)

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor, output_splits: Any,
                      input_splits: Any, opts: Any) -> _Work:
        source = self._flat(input)
        rows = input.shape[0] if input.dim() else 1
        row = source.numel() // max(rows, 1)
        splits = list(input_splits) or [rows // self.size()] * self.size()
        return self._alltoall(torch.split(source, [split * row for split in splits]), [output])

    def all_to_all_single(self, output: torch.Tensor, input: torch.Tensor, output_splits: Any,
                          input_splits: Any, opts: Any) -> _Work:
        return self.alltoall_base(output, input, output_splits, input_splits, opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> _Work:
        return self._alltoall([self._flat(one) for one in inputs], outputs)

    def _alltoall(self, parts: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> _Work:
        """parts: flat, one for each rank. outputs: one for each rank, or one for all of them."""
        ordered = [parts[self._from_group[i]] for i in range(self.size())]
        source = torch.cat(ordered) if ordered else parts[0]
        handle = self._submit(self._group.alltoallv, source, [part.numel() for part in ordered],
                              stream=_stream(source))

        def divide() -> None:
            result = handle.wait()
            came = torch.split(result.value, result.counts)
            came = [came[self._to_group[rank]] for rank in range(self.size())]
            if len(outputs) == 1 and self.size() > 1:
                outputs[0].detach().copy_(self._as(torch.cat(came), outputs[0]))
                return
            for part, output in zip(came, outputs):
                output.detach().copy_(self._as(part, output))

        return self._work([handle], outputs, divide)

    # ---- Pairs, and without data --------------------------------------------------------------

    def send(self, tensors: Any, to: int, tag: int) -> _Work:
        source = self._flat(tensors[0])
        handle = self._submit(self._group.send, source, self._to_group[to], lane=tag,
                              stream=_stream(source))
        return self._work([handle], tensors)

    def recv(self, tensors: Any, source: int, tag: int) -> _Work:
        target, finish = self._target(tensors[0])
        handle = self._submit(self._group.recv, target, self._to_group[source], lane=tag,
                              stream=_stream(target))
        return self._work([handle], tensors, finish)

    def barrier(self, opts: Any = None) -> _Work:
        return self._work([self._submit(self._group.barrier)], [])

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """A barrier whose failure says who is missing, as libdp's stall report does in the log."""
        limit = opts.timeout if opts is not None and opts.timeout > _UNSET else self.limit
        self._work([self._submit(self._group.barrier)], []).wait(limit)

    def start_coalescing(self) -> None:
        self._coalesced = []

    def end_coalescing(self) -> _Work:
        works, self._coalesced = self._coalesced or [], None
        return _join(self, works, [tensor for work in works for tensor in work._outputs])


def _all(functions: Any) -> Callable[[], None] | None:
    """One function that calls all that are not None."""
    wanted = [function for function in functions if function is not None]
    if not wanted:
        return None

    def call() -> None:
        for function in wanted:
            function()

    return call


def _join(backend: DpBackend, works: Sequence[_Work], outputs: Any) -> _Work:
    """Several works as one."""
    if backend._coalesced is not None:
        for work in works:
            backend._coalesced.remove(work)
    return backend._work([handle for work in works for handle in work._handles], list(outputs),
                         _all(work._finish for work in works))
