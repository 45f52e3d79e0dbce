"""The allreduce of one tensor, which programs call by the thousand in every step; so with little Python.

Called by ops.py, on any thread. A name has a submission, where the arguments of libdp's call lie converted and
stay so while tensors of the same type, shape and options come under that name.
"""
from __future__ import annotations

import collections
import ctypes
import os
from typing import Any, Sequence

import torch

import dp
from dp import _c, errors
from dp.arrays import shape_tag, torch_type
from dp.group import make_options
from dp.handles import SLICE_S, abandon
from dp._c import lib

from .errors import HorovodInternalError
from .runtime import KEPT, ProcessSet, world

KIND = "allreduce"
NAME_BYTES = 255  # of a tensor's name
_PENDING = errors.PendingError.status
_allreduce = _c.bare("dp_allreduce")
_wait = _c.bare("dp_wait")
_Tensor = torch.Tensor


def check(tensor: Any, operation: str) -> None:
    """ValueError: no tensor, a sparse one, or one with gaps."""
    if not isinstance(tensor, _Tensor):
        raise ValueError(f"{operation}: a {type(tensor).__name__} is no tensor")
    if tensor.is_sparse:
        raise ValueError(f"{operation}: the tensor is sparse; sparse_allreduce_async() takes it")
    if not tensor.is_contiguous():
        raise ValueError(f"{operation}: Tensor is required to be contiguous.")


def stream_of(tensor: torch.Tensor) -> int | None:
    """The current stream of a GPU's tensor: 0 means the default one, which libdp knows as 1
    (cudaStreamLegacy)."""
    if not tensor.is_cuda:
        return None
    return torch.cuda.current_stream(tensor.device).cuda_stream or 1


class _Submission:
    """The reductions under one name, one after the other. Of the thread that took it out of `submissions`."""

    __slots__ = ("name", "context", "kind", "source", "target", "handle", "arguments")

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind: Any = None  # group, type, shape and options; of nothing yet
        self.handle = ctypes.c_void_p()

    def prepare(self, group: dp.Group, tensor: Any, reduce: int, postscale: float, stream: Any) -> None:
        """For tensors like this one."""
        self.kind = None  # until all of it is there
        options = make_options(reduce, 1.0, postscale, "default", 0, False, reduce == dp.AVERAGE,
                               stream, shape_tag(tensor.shape))
        self.arguments = _c.converted("dp_allreduce", group.pointer, self.name.encode(), 0, 0,
                                      tensor.numel(), torch_type(tensor.dtype), options, self.handle)
        self.source, self.target = self.arguments[2:4]
        self.context = group.context
        self.kind = (group, tensor.dtype, tensor.shape, reduce, postscale, stream)


class _Waiter:
    """The arguments of a wait, converted once; each waiting thread has one of its own meanwhile."""

    __slots__ = ("handle", "result", "arguments")

    def __init__(self) -> None:
        self.result = _c.Result()
        self.arguments = _c.converted("dp_wait", 0, SLICE_S, self.result)
        self.handle = self.arguments[0]


_waiters: list[_Waiter] = []  # that no thread uses now


# Contexts and handles of reductions for which streams wait, and no thread of the program.
_joined: "collections.deque[tuple[dp.Context, int]]" = collections.deque()


def raise_late() -> None:
    """HorovodInternalError: a reduction has failed after a stream was told to wait for it, so the program has used what it
    left. Said once, by the next call that begins or waits on a GPU."""
    while _joined:
        try:
            one = context, pointer = _joined.popleft()
        except IndexError:  # another thread took it
            return
        if context._pointer is None:  # finalize() has freed the handle
            continue
        result = _c.Result()
        status = lib.wait(pointer, 0.0, result)
        if status == _PENDING:
            _joined.appendleft(one)
            return
        if status != 0:
            text: Any = result.text
            error = errors.make(status, text.decode(errors="replace") if text else context.error_text())
            raise HorovodInternalError(str(error)) from error


def blocks_host() -> bool:
    """Whether waits are the host's on a GPU too, as the variable of PyTorch's backend for NCCL wants it."""
    return os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0").lower() in ("1", "y", "yes", "t", "true")


_blocks = blocks_host()


def join(context: dp.Context, pointer: int, tensors: Sequence[Any]) -> bool:
    """Makes the current stream of a GPU wait for an operation on these tensors, and takes its handle. False: it failed, or
    the host is to wait; dp_wait() tells."""
    raise_late()
    if _blocks:
        return False
    stream = torch.cuda.current_stream(tensors[0].device)
    status = _PENDING
    while status == _PENDING:  # a slice, behind which Python acts on Ctrl-C
        status = lib.stream_wait(pointer, stream.cuda_stream or 1, SLICE_S)
    if status != 0:
        return False
    # The stream on which they were allocated, and where their memory is used anew, may be another one.
    for tensor in tensors:
        tensor.record_stream(stream)
    _joined.append((context, pointer))
    return True


def all_on_gpu(tensors: Sequence[Any]) -> Sequence[Any]:
    """These, where all of them are on a GPU, and else none. HorovodInternalError: an earlier reduction failed late."""
    if not tensors or not all(tensor.is_cuda for tensor in tensors):
        return ()
    raise_late()
    return tensors


class Reduction:
    """One of them in flight: what ops.synchronize() waits for. Keeps its memory alive until it is over, or the stream
    of a GPU waits for it."""

    __slots__ = ("_context", "_pointer", "_tensor", "_output")

    def __init__(self, context: dp.Context, pointer: int | None, tensor: Any, output: Any) -> None:
        self._context = context
        self._pointer = pointer
        self._tensor = tensor
        self._output = output

    def done(self) -> bool:
        """Whether it is over, failed or not. Never waits."""
        return self._pointer is None or lib.test(self._pointer) != _PENDING

    def wait(self) -> Any:
        """The output, for the current stream where it is on a GPU. HorovodInternalError: it failed."""
        if self._context._pointer is None or self._pointer is None:  # finalize() has freed the handle
            self._tensor = self._output = self._pointer = None
            raise HorovodInternalError("the context was finalized")
        if self._output.is_cuda and join(self._context, self._pointer, (self._tensor, self._output)):
            output = self._output
            self._tensor = self._output = None
            self._pointer = None  # last, as below
            return output
        try:
            waiter = _waiters.pop()  # not asked first whether there is one: another thread may take it meanwhile
        except IndexError:
            waiter = _Waiter()
        waiter.handle.value = self._pointer
        waiter.result.text = None
        try:
            status = _wait(*waiter.arguments)
            while status == _PENDING:  # a slice, behind which Python acts on Ctrl-C
                status = _wait(*waiter.arguments)
        except BaseException:  # of a signal's handler, right behind a wait
            if waiter.result.text is not None:  # which ended the operation: the handle has gone back
                self._tensor = self._output = self._pointer = None
            raise
        output = self._output
        self._tensor = self._output = None  # the name keeps this object, perhaps for ever
        self._pointer = None  # last: from here on the next reduction of this name may use the object
        if status != 0:
            text: Any = waiter.result.text
            error = errors.make(status, text.decode(errors="replace") if text else
                                self._context.error_text())
            raise HorovodInternalError(str(error)) from error
        _waiters.append(waiter)
        return output

    def __del__(self) -> None:
        if self._pointer is not None:
            abandon(self._context, self._pointer, (self._tensor, self._output))


class Repeated:
    """The average or sum of a tensor in each step, in place and under one name: the arguments of libdp's calls are
    converted once. Of one thread at a time, which waits for it before it begins it again."""

    __slots__ = ("tensor", "found", "bytes", "_context", "_group", "_dtype", "_shape", "_handle", "_source", "_target", "_arguments",
                 "_arguments_before_more", "_waiting")

    def __init__(self, group: dp.Group, name: str, like: Any, reduce: int, tag: int) -> None:
        """like: a tensor of the type and shape; the others are as it is."""
        self.tensor: Any = None  # in flight
        self.found = _c.Result()  # by the last one
        self.bytes = like.numel() * like.element_size()
        self._context = group.context
        self._group = group
        self._dtype, self._shape = like.dtype, like.shape
        self._handle = ctypes.c_void_p()
        options, before_more = (make_options(reduce, 1.0, 1.0, "default", 0, False, reduce == dp.AVERAGE, None, tag, more)
                                for more in (False, True))
        self._arguments = _c.converted("dp_allreduce", group.pointer, name.encode()[:NAME_BYTES], 0, 0, like.numel(),
                                       torch_type(like.dtype), options, self._handle)
        self._arguments_before_more = (*self._arguments[:6], ctypes.byref(before_more), self._arguments[7])
        self._source, self._target = self._arguments[2:4]
        self._waiting = (self._handle, ctypes.c_double(SLICE_S), ctypes.byref(self.found))

    def fits(self, group: dp.Group | None, tensor: Any) -> bool:
        """Whether it is of this group and for tensors of this type and shape, and its world has not ended."""
        return self._group is group and tensor.dtype is self._dtype and tensor.shape == self._shape and \
            self._context._pointer is not None

    def begin(self, tensor: Any, more_follow: bool = False) -> None:
        """Reduces it where it lies. more_follow: the caller begins another one at once. HorovodInternalError: it cannot be
        submitted."""
        self._source.value = self._target.value = tensor.data_ptr()
        status = _allreduce(*(self._arguments_before_more if more_follow else self._arguments))
        if status != 0:
            raise HorovodInternalError(str(errors.make(status, self._context.error_text())))
        self.tensor = tensor

    def is_zero(self) -> bool:
        """Whether the last one gave nothing but zeros, or numbers whose squares are."""
        return self.found.sum_squares == 0.0 and self.found.nonfinite == 0

    @property
    def address(self) -> int | None:
        """Where the last one lies."""
        return self._source.value

    def __del__(self) -> None:
        if self.tensor is not None:
            abandon(self._context, self._handle.value or 0, self.tensor)

    def finish(self) -> HorovodInternalError | None:
        """Waits until it is over; how it failed."""
        if self._context._pointer is None:  # finalize() has freed the handle
            return HorovodInternalError("the context was finalized")
        status = _wait(*self._waiting)
        while status == _PENDING:  # a slice, behind which Python acts on Ctrl-C
            status = _wait(*self._waiting)
        self.tensor = None
        if status == 0:
            return None
        text = self.found.text
        return HorovodInternalError(str(errors.make(status, text.decode(errors="replace") if text else
                                                    self._context.error_text())))


def begin(tensor: Any, output: Any, name: str | None, reduce: int, postscale: float,
          process_set: ProcessSet) -> Reduction:
    """Reduces tensor into output, which may be the same. `reduce` is libdp's, and `postscale` one that libdp
    applies to this type as Horovod does."""
    if not isinstance(tensor, _Tensor) or tensor.is_sparse or not tensor.is_contiguous():
        check(tensor, KIND)  # says what is wrong
    group, names = process_set.group, process_set.names
    if group is None or not world.is_initialized:
        group = process_set.member_group(KIND)  # says what is wrong
    stream = stream_of(tensor) if tensor.is_cuda else None
    if stream is not None:
        raise_late()
    key = name or names.next(KIND)
    # Taken out, which is cheaper than a lock: another thread under this name meanwhile makes a submission of its own,
    # and one of the two operations is refused.
    submission = names.submissions.pop(key, None) or _make_submission(key)
    try:
        before = names.pending.get(submission.name)
        if before is not None and before._pointer is not None and not before.done():
            names.check_free(submission.name, bool(name))
        if submission.kind != (group, tensor.dtype, tensor.shape, reduce, postscale, stream) or \
                submission.context._pointer is None:
            submission.prepare(group, tensor, reduce, postscale, stream)
        submission.source.value = address = tensor.data_ptr()
        submission.target.value = address if output is tensor else output.data_ptr()
        status = _allreduce(*submission.arguments)
        if status != 0:
            submission.context.check(status)
        context, pointer = submission.context, submission.handle.value
    except (dp.InvalidError, dp.BusyError) as error:
        raise ValueError(str(error)) from error
    except dp.Error as error:
        raise HorovodInternalError(str(error)) from error
    finally:
        names.submissions[key] = submission
    if type(before) is Reduction and before._pointer is None:  # nobody waits for it any more
        before._context, before._tensor, before._output = context, tensor, output
        before._pointer = pointer
        return before
    reduction = names.pending[submission.name] = Reduction(context, pointer, tensor, output)
    if len(names.pending) > KEPT:
        names.forget_old()
    return reduction


def _make_submission(key: Any) -> _Submission:
    return _Submission(f"{KIND}.{key}" if isinstance(key, str) else f"{KIND}.noname.{key}")
