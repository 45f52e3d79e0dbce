"""Operations that libdp lacks on a context with a GPU, made of two or several others behind one handle.

Parts that differ in size: on the host libdp asks for the output when it knows the counts. On a GPU it enqueues work ahead
and cannot, so ranks tell each other the counts first, and the data follows. The second operation is submitted on the
context's completion thread, because ranks may wait for their exchanges in any order.

Groups of tensors in ordinary host memory: each goes alone, through memory that the GPU can read.

Called by group.py alone.
"""
from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable, Sequence

from . import _c, arrays, errors
from .handles import Handle, Result, slices

_sides: dict[int, Any] = {}  # a stream of each GPU, on which outputs are made


class Following(Handle):
    """An operation that is submitted when another one is over."""

    __slots__ = ("_begun", "_second")

    def __init__(self, context: Any) -> None:
        super().__init__(context, None, None, None)
        self._begun = threading.Event()  # set once _second or _error is there
        self._second: Handle | None = None

    def begin(self, first: Handle, submit: Callable[[], Handle]) -> None:
        """The first one is over, failed or not. On the completion thread."""
        try:
            first.wait()
            self._second = submit()
        except errors.Error as error:
            self._error = error
        except BaseException as error:  # no memory for the output; it must not end the thread
            self._error = errors.make(errors.NoMemoryError.status, str(error))
        finally:
            self._begun.set()

    def done(self) -> bool:
        """Whether it is over, failed or not. Never waits."""
        return self._begun.is_set() and (self._second is None or self._second.done())

    def wait(self, timeout: float | None = None) -> Result:
        """As of any handle."""
        end = None if timeout is None else time.monotonic() + timeout
        for seconds in slices(timeout):
            if self._begun.wait(seconds):
                break
            self.context.pointer  # OrderError after finalize()
        else:
            raise errors.PendingError(f"not over after {timeout} s; the operation goes on")
        if self._second is None:
            assert self._error is not None
            raise self._error
        return self._second.wait(None if end is None else max(end - time.monotonic(), 0.0))


class Together(Handle):
    """Several reductions as one: the figures are of all of them. Fails as the first one that failed."""

    __slots__ = ("_handles",)

    def __init__(self, context: Any, handles: Sequence[Handle], outs: list[Any]) -> None:
        super().__init__(context, None, None, outs)
        self._handles = handles

    def done(self) -> bool:
        """Whether all are over, failed or not. Never waits."""
        return all(handle.done() for handle in self._handles)

    def wait(self, timeout: float | None = None) -> Result:
        """As of any handle."""
        end = None if timeout is None else time.monotonic() + timeout
        results, failure = [], None
        for handle in self._handles:  # all of them, also behind one that failed
            try:
                results.append(handle.wait(None if end is None else max(end - time.monotonic(), 0.0)))
            except errors.PendingError:
                raise
            except errors.Error as error:
                failure = failure or error
        if failure is not None:
            raise failure
        raw = _c.Result(contributors=min(result.contributors for result in results), last_rank=-1,
                        nonfinite=sum(result.nonfinite for result in results),
                        sum_squares=sum(result.sum_squares for result in results),
                        absmax=max(result.absmax for result in results))
        return Result(self._value, None, raw)


class Output:
    """The output of an exchange, made when its size is known, on another thread than the program's.

    stream: behind which the input is complete; None: host memory.
    """

    def __init__(self, given: Any, row_shape: tuple[int, ...]) -> None:
        self._given = given
        self._row_shape = row_shape
        self._made: Any = None
        self._torch: Any = sys.modules.get("torch") if getattr(given, "is_cuda", False) else None
        self.stream: int | None = None
        if self._torch is not None:
            cuda, device = self._torch.cuda, given.device
            self._side = _sides.get(device.index) or _sides.setdefault(device.index, cuda.Stream(device))
            self._event = cuda.current_stream(device).record_event()
            self.stream = self._side.cuda_stream

    def make(self, count: int) -> arrays.Array:
        """For so many elements. A GPU's memory comes from a stream that nothing else runs on: the program's may
        still read what it has freed."""
        row = 1
        for extent in self._row_shape:
            row *= extent
        shape = (count // max(row, 1), *self._row_shape)
        if self._torch is None:
            self._made = arrays.like(self._given, shape)
        else:
            with self._torch.cuda.stream(self._side):
                self._side.wait_event(self._event)
                self._made = self._given.new_empty(shape)
        return arrays.view(self._made, writes=True)

    def value(self) -> Any:
        """On the thread that waits, which will use it on its current stream."""
        if self._torch is not None:
            self._made.record_stream(self._torch.cuda.current_stream(self._made.device))
        return self._made
