"""The end of the world of a process group, in both forms of the backend: destroy_process_group() calls it on
the program's thread.
"""
from __future__ import annotations

import datetime
import time
import warnings
from typing import Callable

import dp


def finalize(context: dp.Context, timeout: datetime.timedelta, has_late: Callable[[], bool],
             await_groups: Callable[[float], bool], stop: Callable[[], None]) -> None:
    """Waits for what is under way, and ends the context; with a reason where something stays.

    has_late      whether an operation has timed out that is still under way
    await_groups  waits so many seconds for groups that end; whether all have
    stop          ends the threads that wait for operations
    """
    reason = _wait_for_all(context, timeout, has_late, await_groups)
    if reason is not None:
        context.abort(f"destroy_process_group: {reason}")
    stop()
    try:
        context.finalize(force=True)
    except dp.Error as error:  # the program is through; what failed before has been raised there
        warnings.warn(f"destroy_process_group: {error}", stacklevel=3)


def _wait_for_all(context: dp.Context, timeout: datetime.timedelta, has_late: Callable[[], bool],
                  await_groups: Callable[[float], bool]) -> str | None:
    """Says what the end found unfinished when the time was over; None: nothing."""
    end = time.monotonic() + timeout.total_seconds()
    if has_late():
        return "operations have timed out"
    try:
        context.wait_all(max(end - time.monotonic(), 0))
    except dp.TimeoutError:
        return f"operations are under way after {timeout} that other ranks have not called"
    except dp.Error:  # raised where they were waited for, or about to be told by finalize()
        pass
    if not await_groups(max(end - time.monotonic(), 0)):
        return f"other ranks have not destroyed a group after {timeout}"
    return None
