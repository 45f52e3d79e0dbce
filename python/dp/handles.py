"""Operations in flight, and the thread that tells of those that are over."""
from __future__ import annotations

import ctypes
import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable, Iterator

from . import _c, errors
from ._c import lib
from .waits import SLICE_S

if TYPE_CHECKING:
    from .context import Context

COOKIES = 256
_NEW_RESULT = bytes(_c.Result())
_PENDING = errors.PendingError.status


def slices(timeout: float | None) -> Iterator[float]:
    """A timeout as waits short enough for Ctrl-C; None: for ever."""
    while timeout is None:
        yield SLICE_S
    while timeout > SLICE_S:
        yield SLICE_S
        timeout -= SLICE_S
    yield max(timeout, 0.0)


class Result:
    """What an operation found. Figures of reductions are equal on all ranks.

    value         the output: what the call was given, or a new array
    counts        elements from each rank, of operations whose parts differ; else None
    nonfinite     Inf and NaN elements in the result of a floating-point sum or average
    sum_squares   of its finite elements
    absmax        its largest finite magnitude
    contributors  ranks that had not joined
    last_rank     of join(): the rank that joined last; else -1
    """

    __slots__ = ("value", "counts", "_raw")

    def __init__(self, value: Any, counts: "list[int] | None", raw: _c.Result) -> None:
        self.value = value
        self.counts = counts
        self._raw = raw

    @property
    def nonfinite(self) -> int:
        return self._raw.nonfinite

    @property
    def sum_squares(self) -> float:
        return self._raw.sum_squares

    @property
    def absmax(self) -> float:
        return self._raw.absmax

    @property
    def contributors(self) -> int:
        return self._raw.contributors

    @property
    def last_rank(self) -> int:
        return self._raw.last_rank


class Handle:
    """One operation in flight. Keeps its memory alive until it is over, even if it is dropped.

    wait() may be called any number of times, by one thread at a time.
    """

    __slots__ = ("context", "place", "_pointer", "_keeps", "_value", "_counts", "_result", "_error",
                 "__weakref__")

    def __init__(self, context: "Context", pointer: int | None, keeps: Any, value: Any,
                 counts: Any = None) -> None:
        self.context = context
        self.place: int | None = None  # other bindings': in an order of theirs
        self._pointer = pointer
        self._keeps = keeps
        self._value = value
        self._counts = counts
        self._result: Result | None = None
        self._error: errors.Error | None = None

    def done(self) -> bool:
        """Whether it is over, failed or not. Never waits."""
        return self._pointer is None or lib.test(self._pointer) != _PENDING

    def wait(self, timeout: float | None = None) -> Result:
        """Waits until it is over. PendingError, a TimeoutError, after `timeout` seconds: it goes on. Raises how it
        failed."""
        if self._pointer is not None:
            self._finish(timeout)
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def _finish(self, timeout: float | None) -> None:
        raw = _c.Result.from_buffer_copy(_NEW_RESULT)
        self.context.pointer  # OrderError after finalize(), which has freed the handle
        try:
            if timeout is None:  # the usual case, without a generator
                status = lib.wait(self._pointer, SLICE_S, raw)
                while status == _PENDING:
                    status = lib.wait(self._pointer, SLICE_S, raw)
            else:
                for seconds in slices(timeout):
                    status = lib.wait(self._pointer, seconds, raw)
                    if status != _PENDING:
                        break
        except BaseException:  # of a signal's handler, right behind a wait
            if raw.text is not None:  # which ended the operation, so there is no handle any more
                self._conclude(errors.Error.status if raw.text else 0, raw)
            raise
        if status == _PENDING:
            raise errors.PendingError(f"not over after {timeout} s; the operation goes on")
        self._conclude(status, raw)

    def _conclude(self, status: int, raw: _c.Result) -> None:
        """It is over, and libdp has taken its handle back."""
        self._pointer = None
        if status != 0:
            text = raw.text.decode(errors="replace") if raw.text else self.context.error_text()
            self._error = errors.make(status, text)
        else:
            value = self._value() if callable(self._value) else self._value
            counts = None if self._counts is None else list(self._counts)
            self._result = Result(value, counts, raw)
        self._keeps = self._value = None

    def __del__(self) -> None:
        if self._pointer is not None:
            abandon(self.context, self._pointer, self._keeps)


def abandon(context: "Context", pointer: int, keeps: Any) -> None:
    """Gives a handle back that nobody will wait for. In flight, its memory must outlive the operation, so
    it moves to the context."""
    if not context.is_alive:
        return
    if lib.test(pointer) == _PENDING:
        context._completions.adopt(pointer, keeps)
    else:
        lib.release(pointer)


def _call(function: Callable[[], None]) -> None:
    """A function of the program. Nobody waits for what it raises, which is told as that of a thread."""
    try:
        function()
    except BaseException:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


class Completions:
    """Calls functions when operations are over, on a thread of its own, which starts with the first.

    A cookie stands for the function; libdp lists the cookies of operations that are over.
    """

    def __init__(self, context: "Context") -> None:
        self._context = context
        self._lock = threading.Lock()
        self._functions: dict[int, Callable[[], None]] = {}
        self._early: set[int] = set()  # over before attach()
        self._next = 1
        self._thread: threading.Thread | None = None
        self._wake: tuple[int, int] | None = None
        self._orphans: list[tuple[int, Any]] = []

    def cookie(self) -> int:
        """A cookie for dp_options_t; attach() says what it stands for."""
        with self._lock:
            if self._thread is None:
                self._start()
            cookie = self._next
            self._next += 1
        return cookie

    def attach(self, cookie: int, function: Callable[[], None]) -> None:
        """Calls the function when the operation with this cookie is over: on the thread, or here where
        it is over already."""
        with self._lock:
            is_over = cookie in self._early
            if is_over:
                self._early.discard(cookie)
            else:
                self._functions[cookie] = function
        if is_over:
            _call(function)

    def adopt(self, pointer: int, keeps: Any) -> None:
        """Keeps the memory of a dropped handle until its operation is over."""
        self._orphans = [one for one in self._orphans if not self._is_over(one[0])]
        self._orphans.append((pointer, keeps))

    @staticmethod
    def _is_over(pointer: int) -> bool:
        if lib.test(pointer) == _PENDING:
            return False
        lib.release(pointer)
        return True

    def _start(self) -> None:
        fd = ctypes.c_int()
        self._context.check(lib.completions_fd(self._context.pointer, fd))
        self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, args=(fd.value, self._wake[0]),
                                        name="dp completions", daemon=True)
        self._thread.start()

    def _run(self, fd: int, wake: int) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while not any(ready == wake for ready, _ in poll.poll()):
            self._drain()
        self._drain()

    def _drain(self) -> None:
        cookies = (ctypes.c_uint64 * COOKIES)()
        count = COOKIES
        while count == COOKIES:
            count = lib.completions_read(self._context._pointer, cookies, COOKIES)
            for i in range(count):
                with self._lock:
                    function = self._functions.pop(cookies[i], None)
                    if function is None:
                        self._early.add(cookies[i])
                if function is not None:
                    _call(function)

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    def stop(self) -> None:
        """Calls the functions of what is over, and ends the thread."""
        thread, self._thread = self._thread, None
        if thread is None or self._wake is None:
            return
        os.write(self._wake[1], b"x")
        if thread is not threading.current_thread():
            thread.join()
        for end in self._wake:
            os.close(end)
        self._wake = None
