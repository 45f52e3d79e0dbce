"""Collectives of tensors as Horovod names them: op(), op_async() with poll() and synchronize(), and
autograd through all of them. Tensors lie in host memory or on the GPU of the context.

A failure of libdp is a HorovodInternalError on every rank, and the next operation works; what is wrong
on this rank alone is a ValueError.
"""
from __future__ import annotations

import itertools
from typing import Any, Callable, Iterable, Sequence

import torch

import dp

from . import reduction
from .compression import Compression
from .errors import HorovodInternalError
from .reduction import Reduction, stream_of as _stream
from .runtime import Operation, ProcessSet, Submitted, global_process_set, world

Average, Sum, Adasum, Min, Max, Product = range(6)
_REDUCE = {Average: dp.AVERAGE, Sum: dp.SUM, Min: dp.MIN, Max: dp.MAX, Product: dp.PRODUCT}
# Types whose factor after the sum libdp applies itself as Horovod does. A factor before it is applied here,
# where the product is rounded to the type: libdp's own sums use products that are not.
_SCALED = (torch.float32, torch.float64, torch.bfloat16)
_numbers = itertools.count(1)
_begin = reduction.begin


def resolve_op(op: int | None, average: bool | None) -> int:
    """The reduction of the old `average` and of `op`."""
    if op is not None and average is not None:
        raise ValueError("op and average exclude each other; average is deprecated, use op")
    if op is None:
        op = Sum if average is False else Average
    if op == Adasum:
        raise NotImplementedError("Adasum is not part of libdp: use op=hvd.Average with the learning "
                                  "rate scaled by hvd.size(), or LARS or LAMB for large batches")
    if op not in _REDUCE:
        raise ValueError(f"there is no reduction {op}")
    return op


def _check(tensor: Any, operation: str) -> torch.Tensor:
    reduction.check(tensor, operation)
    return tensor.detach()


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones, in the same memory: libdp has no type for them, and copies, sums and
    averages are the same."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _complete(kind: str, finish: Callable[[list[dp.Result]], Any],
              group: dp.Group) -> Callable[[list[dp.Result]], Any]:
    """Of a copy: an error on every rank that gave data where a rank has joined instead, as its part
    would be missing in silence."""
    def checked(results: list[dp.Result]) -> Any:
        for result in results:
            if result.contributors < group.size:
                raise HorovodInternalError(
                    f"{kind}: {group.size - result.contributors} of {group.size} ranks have joined; "
                    "only allreduce and barrier go on without them")
        return finish(results)
    return checked


_operations: dict[int, "Operation | Reduction"] = {}


def _register(operation: "Operation | Reduction") -> int:
    number = next(_numbers)
    _operations[number] = operation
    return number


def poll(handle: Any) -> bool:
    """Whether synchronize() would return at once. ValueError: no handle, or one that was waited for."""
    operation: Any = _operations.get(handle)
    if operation is None:
        if not isinstance(handle, _SparseAllreduce):
            raise ValueError(f"{handle} is no handle of an operation, or was waited for already")
        operation = handle
    return operation.done()


def synchronize(handle: Any) -> Any:
    """Waits for an operation and gives its output; None for a handle that is none any more.

    HorovodInternalError: it failed.
    """
    operation = _operations.pop(handle, None)
    if operation is not None:
        return operation.wait()
    return handle() if callable(handle) else None  # of sparse_allreduce_async()


def begin_all(calls: Iterable[Callable[[], int]]) -> list[int]:
    """The handles of several operations. Where one cannot be submitted, those before it have no handle any more."""
    handles: list[int] = []
    try:
        for call in calls:
            handles.append(call())
    except BaseException:
        for handle in handles:
            del _operations[handle]
        raise
    return handles


def synchronize_all(handles: Iterable[int]) -> list[Any]:
    """Waits for all of them, also behind one that failed: the outputs.

    HorovodInternalError: how the first one failed.
    """
    outputs, failure = [], None
    for handle in handles:
        try:
            outputs.append(synchronize(handle))
        except HorovodInternalError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return outputs


def _submit(kind: str, name: str | None, process_set: ProcessSet, begin: Callable[..., dp.Handle],
            operation: str) -> Submitted:
    process_set.member_group(operation)
    full = process_set.names.make(kind, name)
    try:
        return process_set.names.submit(full, lambda: begin(name=full), bool(name))
    except dp.InvalidError as error:
        raise ValueError(str(error)) from error
    except dp.Error as error:
        raise HorovodInternalError(str(error)) from error


# ---- Reductions ----------------------------------------------------------------------------------

def _scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Integers in fp64 and cut, floats rounded: as the reference does, before and after the sum."""
    if factor == 1.0:
        return tensor
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor * factor
    if tensor.dtype.is_floating_point:
        return (tensor.float() * factor).to(tensor.dtype)
    return (tensor.double() * factor).to(tensor.dtype)


def _begin_allreduce(tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], name: str | None,
                     op: int, prescale: float, postscale: float, process_set: ProcessSet,
                     is_grouped: bool) -> int:
    if prescale != 1.0:
        tensors = [_scale(_check(tensor, "allreduce"), prescale) for tensor in tensors]
    tensors = [_check(tensor, "allreduce") for tensor in tensors]
    targets = [_check(output, "allreduce") for output in outputs]
    group = process_set.member_group("allreduce")
    is_native = all(tensor.dtype in _SCALED for tensor in tensors)
    options: dict[str, Any] = {"op": _REDUCE[op], "count_joined": op == Average}
    if is_native:
        options["postscale"] = postscale
    if tensors:
        options["stream"] = _stream(tensors[0])

    def finish(results: list[dp.Result]) -> Any:
        if not is_native and postscale != 1.0:
            for target in targets:
                target.copy_(_scale(target, postscale))
        return list(outputs) if is_grouped else outputs[0]

    if is_grouped:
        def begin(name: str) -> dp.Handle:
            return group.grouped_allreduce(tensors, targets, name=name, **options)
    else:
        def begin(name: str) -> dp.Handle:
            return group.allreduce(tensors[0], targets[0], name=name, **options)
    kind = "grouped_allreduce" if is_grouped else "allreduce"
    on_gpu = reduction.all_on_gpu([*tensors, *targets])
    join = (lambda submitted: submitted.join(reduction.join, on_gpu)) if on_gpu else None
    return _register(Operation([_submit(kind, name, process_set, begin, "allreduce")], finish, join))


def _begin_one(tensor: torch.Tensor, output: torch.Tensor, name: str | None, op: int, prescale: float,
               postscale: float, process_set: ProcessSet) -> int:
    """The allreduce of one tensor. Libdp does all of it, where no factor is to be applied here."""
    if prescale != 1.0 or postscale != 1.0 and tensor.dtype not in _SCALED:
        return _begin_allreduce([tensor], [output], name, op, prescale, postscale, process_set, False)
    number = next(_numbers)
    _operations[number] = reduction.begin(tensor, output, name, _REDUCE[op], postscale, process_set)
    return number


def allreduce_async(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                    op: int | None = None, prescale_factor: float = 1.0,
                    postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> int:
    """Reduces tensor over the ranks into a new one. Average by default."""
    return _begin_one(tensor, torch.empty_like(tensor.detach()), name, resolve_op(op, average),
                      prescale_factor, postscale_factor, process_set)


def allreduce_async_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                     op: int | None = None, prescale_factor: float = 1.0,
                     postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> int:
    """Reduces tensor over the ranks in place."""
    if average is not None or op not in _REDUCE:
        op = resolve_op(op, average)
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        return _begin_one(tensor, tensor, name, op, prescale_factor, postscale_factor, process_set)
    number = next(_numbers)
    _operations[number] = _begin(tensor, tensor, name, _REDUCE[op], 1.0, process_set)
    return number


def allreduce_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
               op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """allreduce_async_() and synchronize()."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor,
                                        process_set))


def allreduce(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
              compression: Any = Compression.none, op: int | None = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Reduces tensor over the ranks into a new one. Autograd: the gradient is reduced likewise."""
    op = resolve_op(op, average)
    small, context = compression.compress(tensor)
    reduced = _Allreduce.apply(small, name, op, prescale_factor, postscale_factor, process_set)
    return compression.decompress(reduced, context)


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], average: bool | None = None,
                            name: str | None = None, op: int | None = None,
                            prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> int:
    """Reduces several tensors as one operation into new ones."""
    outputs = [torch.empty_like(tensor.detach()) for tensor in tensors]
    return _begin_allreduce(tensors, outputs, name, resolve_op(op, average), prescale_factor,
                            postscale_factor, process_set, True)


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], average: bool | None = None,
                             name: str | None = None, op: int | None = None,
                             prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> int:
    """Reduces several tensors as one operation in place."""
    return _begin_allreduce(tensors, tensors, name, resolve_op(op, average), prescale_factor,
                            postscale_factor, process_set, True)


def grouped_allreduce_(tensors: Sequence[torch.Tensor], average: bool | None = None,
                       name: str | None = None, op: int | None = None, prescale_factor: float = 1.0,
                       postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """grouped_allreduce_async_() and synchronize()."""
    return synchronize(grouped_allreduce_async_(tensors, average, name, op, prescale_factor,
                                                postscale_factor, process_set))


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: bool | None = None,
                      name: str | None = None, compression: Any = Compression.none,
                      op: int | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Reduces several tensors as one operation into new ones, with autograd."""
    op = resolve_op(op, average)
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = _GroupedAllreduce.apply(name, op, prescale_factor, postscale_factor, process_set,
                                      *[small for small, _ in pairs])
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs)]


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, name: Any, op: int, prescale: float, postscale: float,
                process_set: ProcessSet) -> Any:
        ctx.how = (op, prescale, postscale, process_set)
        return synchronize(allreduce_async(tensor, None, name, op, prescale, postscale, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        op, prescale, postscale, process_set = ctx.how
        reduced = allreduce(gradient.contiguous(), op=op, prescale_factor=prescale,
                            postscale_factor=postscale, process_set=process_set)
        return reduced, None, None, None, None, None


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Any, op: int, prescale: float, postscale: float,
                process_set: ProcessSet, *tensors: Any) -> Any:
        ctx.how = (op, prescale, postscale, process_set)
        return tuple(synchronize(grouped_allreduce_async(tensors, None, name, op, prescale, postscale,
                                                         process_set)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        op, prescale, postscale, process_set = ctx.how
        reduced = grouped_allreduce([one.contiguous() for one in gradients], op=op,
                                    prescale_factor=prescale, postscale_factor=postscale,
                                    process_set=process_set)
        return (None, None, None, None, None, *reduced)


class _SparseAllreduce:
    """A handle of sparse_allreduce_async(); a call of it waits, as synchronize() does."""

    def __init__(self, handles: list[int], size: torch.Size, divisor: int | None) -> None:
        self._handles = handles  # of indices and values
        self._size = size
        self._divisor = divisor

    def done(self) -> bool:
        """Whether it is over, failed or not."""
        return all(map(poll, self._handles))

    def __call__(self) -> torch.Tensor:
        indices, values = synchronize_all(self._handles)
        if self._divisor is not None:
            values = values / self._divisor
        return torch.sparse_coo_tensor(indices.transpose(0, 1), values, self._size)


def sparse_allreduce_async(tensor: torch.Tensor, name: str, op: int,
                           process_set: ProcessSet = global_process_set) -> Callable[[], torch.Tensor]:
    """Sums or averages a sparse tensor. Returns a function that waits and gives the sparse result."""
    op = resolve_op(op, None)
    if op not in (Average, Sum):
        raise ValueError("sparse tensors are summed or averaged")
    tensor = tensor.detach().coalesce() if not tensor.is_coalesced() else tensor.detach()
    indices = tensor._indices().transpose(0, 1).contiguous()
    handles = begin_all((lambda: allgather_async(indices, f"{name}.indices", process_set),
                         lambda: allgather_async(tensor._values(), f"{name}.values", process_set)))
    return _SparseAllreduce(handles, tensor.size(), process_set.size() if op == Average else None)


# ---- Copies --------------------------------------------------------------------------------------

def _begin_allgather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet,
                     kind: str = "allgather") -> Submitted:
    tensor = _check(tensor, kind)
    if tensor.dim() == 0:
        raise ValueError(f"{kind}: a scalar has no first dimension to gather along")
    group = process_set.member_group(kind)
    return _submit(kind, name, process_set,
                   lambda name: group.allgatherv(tensor, name=name, stream=_stream(tensor)), kind)


def allgather_async(tensor: torch.Tensor, name: str | None = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Concatenates the ranks' tensors along the first dimension, which may differ between ranks."""
    group = process_set.member_group("allgather")
    return _register(Operation([_begin_allgather(tensor, name, process_set)],
                                _complete("allgather", lambda results: results[0].value, group)))


def allgather(tensor: torch.Tensor, name: str | None = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """allgather_async() and synchronize(), with autograd: an average of the gradients, cut out."""
    return _Allgather.apply(tensor, name, process_set)


def gather_equal(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The ranks' tensors of one shape [...] as [size][...]. A rank that has joined gives zeros."""
    group = global_process_set.member_group("allgather")
    handle = _submit("allgather", name, global_process_set,
                     lambda name: group.allgather(tensor, name=name, stream=_stream(tensor)), "allgather")
    every = synchronize(_register(Operation([handle], lambda results: results[0].value)))
    return every.view(group.size, *tensor.shape)


def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: str | None = None,
                            process_set: ProcessSet = global_process_set) -> int:
    """Several allgathers behind one handle."""
    handles = [_begin_allgather(tensor, f"{name}.{i}" if name else None, process_set,
                                "grouped_allgather") for i, tensor in enumerate(tensors)]
    group = process_set.member_group("grouped_allgather")
    return _register(Operation(handles, _complete(
        "grouped_allgather", lambda results: [result.value for result in results], group)))


def grouped_allgather(tensors: Sequence[torch.Tensor], name: str | None = None,
                      process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """grouped_allgather_async() and synchronize(), with autograd."""
    return list(_GroupedAllgather.apply(name, process_set, *tensors))


def _own_rows(gradient: torch.Tensor, rows: Sequence[int], process_set: ProcessSet) -> torch.Tensor:
    """This rank's part of the average of an allgather's gradient."""
    average = allreduce(gradient.contiguous(), op=Average, process_set=process_set)
    own = process_set.member_group("allgather").rank
    first = sum(rows[:own])
    return average[first:first + rows[own]]


def _gather_rows(rows: Sequence[int], process_set: ProcessSet) -> list[list[int]]:
    """How many rows each rank gives, of each tensor."""
    table = synchronize(allgather_async(torch.tensor([list(rows)], dtype=torch.int64), None,
                                        process_set))
    return [table[:, i].tolist() for i in range(len(rows))]


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, name: Any, process_set: ProcessSet) -> Any:
        ctx.rows, ctx.process_set = tensor.shape[0] if tensor.dim() else 0, process_set
        return synchronize(allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        rows = _gather_rows([ctx.rows], ctx.process_set)[0]
        return _own_rows(gradient, rows, ctx.process_set), None, None


class _GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Any, process_set: ProcessSet, *tensors: Any) -> Any:
        ctx.rows, ctx.process_set = [tensor.shape[0] for tensor in tensors], process_set
        return tuple(synchronize(grouped_allgather_async(tensors, name, process_set)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        tables = _gather_rows(ctx.rows, ctx.process_set)
        return (None, None, *[_own_rows(gradient, rows, ctx.process_set)
                              for gradient, rows in zip(gradients, tables)])


def _root_in(process_set: ProcessSet, root_rank: int) -> int:
    """The root's number in the set, of a rank of the world."""
    if root_rank not in (process_set.ranks or ()):
        raise HorovodInternalError(f"broadcast: the root {root_rank} is not in the process set of "
                                   f"ranks {process_set.ranks}")
    return (process_set.ranks or []).index(root_rank)


def _begin_broadcast(tensor: torch.Tensor, output: torch.Tensor, root_rank: int, name: str | None,
                     process_set: ProcessSet) -> int:
    source, target = _check(tensor, "broadcast"), _check(output, "broadcast")
    group = process_set.member_group("broadcast")
    root = _root_in(process_set, root_rank)
    handle = _submit("broadcast", name, process_set,
                     lambda name: group.broadcast(source, target, root=root, name=name,
                                                  stream=_stream(source)), "broadcast")
    return _register(Operation([handle], _complete("broadcast", lambda results: output, group)))


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Copies the root's tensor into a new one. root_rank is a rank of the world."""
    return _begin_broadcast(tensor, torch.empty_like(tensor.detach()), root_rank, name, process_set)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> int:
    """Copies the root's tensor into this one."""
    return _begin_broadcast(tensor, tensor, root_rank, name, process_set)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """broadcast_async_() and synchronize()."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """broadcast_async() and synchronize(), with autograd: an average on the root, zero elsewhere."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, root_rank: int, name: Any, process_set: ProcessSet) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        average = allreduce(gradient.contiguous(), op=Average, process_set=ctx.process_set)
        return average if world.context.rank == ctx.root_rank else average * 0, None, None, None


def _splits(tensor: torch.Tensor, splits: Any, ranks: int) -> list[int]:
    """How many rows go to each rank; even parts where nothing is said."""
    if tensor.dim() == 0:
        raise ValueError("alltoall: a scalar has no first dimension to divide")
    if splits is None:
        if tensor.shape[0] % ranks != 0:
            raise ValueError(f"alltoall: {tensor.shape[0]} rows are not divisible by {ranks} ranks; "
                             "give splits")
        return [tensor.shape[0] // ranks] * ranks
    if isinstance(splits, torch.Tensor):
        if splits.dtype != torch.int32:
            splits = splits.to(torch.int32)
        splits = splits.tolist()
    splits = [int(split) for split in splits]
    if len(splits) != ranks or min(splits) < 0 or sum(splits) != tensor.shape[0]:
        raise ValueError(f"alltoall: splits {splits} for {ranks} ranks and {tensor.shape[0]} rows")
    return splits


def alltoall_async(tensor: torch.Tensor, splits: Any = None, name: str | None = None,
                   process_set: ProcessSet = global_process_set) -> int:
    """Gives splits[r] rows to rank r. synchronize() gives what came, and how many rows came from each rank: a
    tensor like `splits`, where that is one."""
    source = _check(tensor, "alltoall")
    group = process_set.member_group("alltoall")
    parts = _splits(source, splits, group.size)
    handle = _submit("alltoall", name, process_set,
                     lambda name: group.alltoallv(source, parts, name=name, stream=_stream(source)),
                     "alltoall")
    row = max(source[0].numel() if source.shape[0] else _row_numel(source), 1)

    def finish(results: list[dp.Result]) -> Any:
        rows = [count // row for count in results[0].counts or ()]
        if isinstance(splits, torch.Tensor):
            return results[0].value, splits.new_tensor(rows)
        return results[0].value, torch.tensor(rows, dtype=torch.int32)

    return _register(Operation([handle], _complete("alltoall", finish, group)))


def _row_numel(tensor: torch.Tensor) -> int:
    count = 1
    for extent in tensor.shape[1:]:
        count *= extent
    return count


def alltoall(tensor: torch.Tensor, splits: Any = None, name: str | None = None,
             process_set: ProcessSet = global_process_set) -> Any:
    """alltoall_async() and synchronize(), with autograd: the gradient goes back the same way. Without splits, what
    came alone."""
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, splits: Any, name: Any, process_set: ProcessSet) -> Any:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: Any, _: Any) -> Any:
        back, _ = alltoall(gradient.contiguous(), splits=ctx.received, process_set=ctx.process_set)
        return back, None, None, None


# ---- Reduce-scatter ------------------------------------------------------------------------------

def _scatter_rows(rows: int, ranks: int) -> list[int]:
    """The first rows % ranks ranks get one row more."""
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


def _begin_reducescatter(tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet,
                         prescale: float, postscale: float) -> Operation:
    source = _check(tensor, "reducescatter")
    if op not in (Average, Sum):
        raise ValueError("reducescatter sums or averages")
    if source.dim() == 0:
        raise ValueError("reducescatter: a scalar has no first dimension to divide")
    group = process_set.member_group("reducescatter")
    rows = _scatter_rows(source.shape[0], group.size)
    output = source.new_empty((rows[group.rank], *source.shape[1:]))
    is_native = source.dtype in _SCALED
    options: dict[str, Any] = {"op": _REDUCE[op], "stream": _stream(source)}
    if is_native:
        options["postscale"] = postscale
    source = _scale(source, prescale)
    counts = [row * _row_numel(source) for row in rows]
    handle = _submit("reducescatter", name, process_set,
                     lambda name: group.reduce_scatterv(source, output, counts, name=name, **options),
                     "reducescatter")

    def finish(results: list[dp.Result]) -> torch.Tensor:
        return output if is_native else _scale(output, postscale)

    return Operation([handle], _complete("reducescatter", finish, group))


def reducescatter_async(tensor: torch.Tensor, name: str | None = None, op: int = Average,
                        process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> int:
    """Reduces tensor and leaves a part of its rows on each rank; the first ones get one row more."""
    return _register(_begin_reducescatter(tensor, name, resolve_op(op, None), process_set,
                                          prescale_factor, postscale_factor))


def reducescatter(tensor: torch.Tensor, name: str | None = None, compression: Any = Compression.none,
                  op: int = Average, process_set: ProcessSet = global_process_set,
                  prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> torch.Tensor:
    """reducescatter_async() and synchronize(), with autograd: an allgather, times size for Sum."""
    small, context = compression.compress(tensor)
    part = _Reducescatter.apply(small, name, resolve_op(op, None), process_set, prescale_factor,
                                postscale_factor)
    return compression.decompress(part, context)


def grouped_reducescatter_async(tensors: Sequence[torch.Tensor], name: str | None = None,
                                op: int = Average, process_set: ProcessSet = global_process_set,
                                prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> int:
    """Several reduce-scatters behind one handle."""
    parts = [_begin_reducescatter(tensor, f"{name}.{i}" if name else None, resolve_op(op, None),
                                  process_set, prescale_factor, postscale_factor)
             for i, tensor in enumerate(tensors)]
    return _register(Operation([part.handles[0] for part in parts],
                                lambda results: [part._finish([result])
                                                 for part, result in zip(parts, results)]))


def grouped_reducescatter(tensors: Sequence[torch.Tensor], name: str | None = None,
                          compression: Any = Compression.none, op: int = Average,
                          process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> list[torch.Tensor]:
    """grouped_reducescatter_async() and synchronize(), with autograd."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    parts = _GroupedReducescatter.apply(name, resolve_op(op, None), process_set, prescale_factor,
                                        postscale_factor, *[small for small, _ in pairs])
    return [compression.decompress(part, context) for part, (_, context) in zip(parts, pairs)]


def _spread(gradient: torch.Tensor, how: tuple) -> torch.Tensor:
    op, process_set, prescale, postscale = how
    factor = prescale * postscale * (process_set.size() if op == Sum else 1)
    return allgather(_scale(gradient.contiguous(), factor), process_set=process_set)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, name: Any, op: int, process_set: ProcessSet, prescale: float,
                postscale: float) -> Any:
        ctx.how = (op, process_set, prescale, postscale)
        return synchronize(reducescatter_async(tensor, name, op, process_set, prescale, postscale))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _spread(gradient, ctx.how), None, None, None, None, None


class _GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Any, op: int, process_set: ProcessSet, prescale: float,
                postscale: float, *tensors: Any) -> Any:
        ctx.how = (op, process_set, prescale, postscale)
        return tuple(synchronize(grouped_reducescatter_async(tensors, name, op, process_set, prescale,
                                                             postscale)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, None, None, None, None, *[_spread(one, ctx.how) for one in gradients])


# ---- Without data --------------------------------------------------------------------------------

def join(device: int = -1) -> int:
    """Says that this rank has no more data; the others' reductions go on without it. Returns when all
    have joined: the rank that was last."""
    try:
        return world.context.join().wait().last_rank
    except dp.Error as error:
        raise HorovodInternalError(str(error)) from error


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns once every rank of the set has called it."""
    group = process_set.member_group("barrier")
    handle = _submit("barrier", None, process_set, group.barrier, "barrier")
    synchronize(_register(Operation([handle], lambda results: None)))
