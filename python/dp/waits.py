"""Calls of libdp that may block until other ranks come, made so that Ctrl-C ends them.

Python runs a signal's handler on the main thread alone, between two of its own instructions. So the main thread
leaves such a call to another thread, and looks for signals four times a second until it is over. Waits for a
handle do without: they come back from libdp as often (handles.py).
"""
from __future__ import annotations

import queue
import threading
from typing import Any, Callable

SLICE_S = 0.25


class _Call:
    """One call, and what became of it."""

    def __init__(self, function: Callable, arguments: tuple) -> None:
        self.result: Any = None
        self.failure: BaseException | None = None
        self._function = function
        self._arguments = arguments  # alive while libdp uses them
        self._late: Callable[[Any], None] | None = None
        self._lock = threading.Lock()
        self._is_over = False
        self._over = threading.Lock()
        self._over.acquire()

    def run(self) -> None:
        try:
            self.result = self._function(*self._arguments)
        except BaseException as failure:  # of the thread that waits
            self.failure = failure
        with self._lock:
            self._is_over = True
            late = self._late
        self._over.release()
        if late is not None:
            late(self.result)

    def wait(self) -> None:
        while not self._over.acquire(True, SLICE_S):
            pass

    def leave(self, late: Callable[[Any], None]) -> None:
        """Nobody waits any more. Calls late(result) when it is over: there, or here where it is already."""
        with self._lock:
            if not self._is_over:
                self._late = late
                return
        late(self.result)


class _Worker(threading.Thread):
    """Makes calls, one after the other."""

    def __init__(self) -> None:
        super().__init__(name="dp calls", daemon=True)
        self.calls: "queue.SimpleQueue[_Call | None]" = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        for call in iter(self.calls.get, None):
            call.run()
            del call  # and what it refers to, until the next one comes


class Caller:
    """Calls on behalf of the main thread. Those of other threads are made by themselves."""

    def __init__(self) -> None:
        self._idle: _Worker | None = None

    def call(self, function: Callable, *arguments: Any, stop: Callable[[BaseException], None] | None = None,
             late: Callable[[Any], None] | None = None) -> Any:
        """function(*arguments).

        Where a signal's handler raises an exception meanwhile, it is raised here, and one of these follows:
            stop    is called with the exception, and ends the call, which is waited for
            late    the call goes on; late(its result) is called when it is over
        """
        worker = self._worker()
        if worker is None:
            return function(*arguments)
        call = _Call(function, arguments)
        try:
            worker.calls.put(call)
            call.wait()
        except BaseException as reason:
            worker.calls.put(None)
            if late is not None:
                call.leave(late)
            elif stop is not None:
                stop(reason)
                call.wait()
            raise
        self._idle = worker
        if call.failure is not None:
            raise call.failure
        return call.result

    def close(self) -> None:
        """Ends the thread, behind the last call."""
        worker, self._idle = self._idle, None
        if worker is not None:
            worker.calls.put(None)

    def _worker(self) -> _Worker | None:
        """A thread that has nothing to do. It is taken from here, as a signal's handler may call libdp as well.
        None: this thread makes the call itself."""
        if threading.get_ident() != threading.main_thread().ident:
            return None
        worker, self._idle = self._idle, None
        if worker is not None and worker.is_alive():  # it is not in a forked child
            return worker
        try:
            return _Worker()
        except RuntimeError:  # the process ends, or may have no more threads
            return None
