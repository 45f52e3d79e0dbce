"""The Work of the backend's form of Python: torch waits for the operations of one call through it.

Any thread may wait, one after the other.
"""
from __future__ import annotations

import datetime
import functools
import threading
from typing import TYPE_CHECKING, Callable, Sequence

import torch
import torch.distributed as dist

import dp

if TYPE_CHECKING:
    from .backend_python import DpBackend

UNSET = datetime.timedelta(0)


def fail(error: dp.Error) -> Exception:
    return dist.DistBackendError(str(error))


def _raise(error: Exception) -> None:
    raise error


def _gpus(tensors: Sequence[torch.Tensor]) -> list[torch.device]:
    """Where tensors of a future are, beside host memory: torch refuses to complete it with those of other devices."""
    return list(dict.fromkeys(tensor.device for tensor in tensors if tensor.device.type != "cpu"))


class Event:
    """A span of torch's profiler, from the submission of an operation to its end. It ends on another thread
    than it began on: so the profiler takes it as asynchronous, which may overlap others."""

    def __init__(self, title: str, tensors: Sequence[torch.Tensor], backend: "DpBackend") -> None:
        self._record = torch.autograd._record_function_with_args_enter(title, *tensors)
        self._thread = threading.get_ident()
        self._backend = backend

    def end(self) -> None:
        record, self._record = self._record, None
        if record is None:
            return
        if threading.get_ident() != self._thread:
            torch.autograd._record_function_with_args_exit(record)
        else:
            self._backend.waiter.submit(torch.autograd._record_function_with_args_exit, record).result()


class Work(dist._Work):
    """Operations of libdp, what is left to do behind them, and the tensors that they write."""

    def __init__(self, kind: str, handles: Sequence[dp.Handle], outputs: Sequence[torch.Tensor],
                 finish: Callable[[], None] | None, backend: "DpBackend", events: Sequence[Event]) -> None:
        super().__init__()
        self.kind = kind
        self.handles = list(handles)
        self.outputs = list(outputs)
        self.finish = finish
        self.events = list(events)
        self.limit = UNSET  # of a wait that gives none
        self._backend = backend
        self._lock = threading.Lock()  # a future's thread and the program's may wait at once
        self._future: torch.futures.Future | None = None

    def wait(self, timeout: datetime.timedelta = UNSET) -> bool:
        """Waits in the caller's thread, which does libdp's work meanwhile."""
        limit = next(one for one in (timeout, self.limit, self._backend.limit) if one > UNSET)
        with self._lock:
            try:
                for handle in self.handles:
                    handle.wait(limit.total_seconds())
            except dp.TimeoutError as error:
                raise self._backend.timed_out(self, limit) from error
            except dp.Error as error:
                self._backend.note(error)
                if isinstance(error, dp.MismatchError) and handle.place is not None:
                    self._backend.turns.forget(handle.place)
                raise fail(error) from error
            finally:
                for event in self.events:
                    event.end()
            if self.finish is not None:
                try:
                    self.finish()
                except Exception as error:  # the next wait raises it too
                    self.finish = functools.partial(_raise, error)
                    raise
                self.finish = None
        return True

    def get_future(self) -> torch.futures.Future:
        """A future of the outputs, waited for on the backend's thread."""
        if self._future is None:
            future = self._future = torch.futures.Future(devices=_gpus(self.outputs))
            self._backend.waiter.submit(self._complete, future)
        return self._future

    def _complete(self, future: torch.futures.Future) -> None:
        try:
            self.wait()
        except Exception as error:  # the future carries it to who waits
            future.set_exception(error)
        else:
            future.set_result(self.outputs)

    def is_completed(self) -> bool:
        return all(handle.done() for handle in self.handles)

    def is_success(self) -> bool:
        return self.is_completed()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self.outputs

    def synchronize(self) -> None:
        self.wait()
