"""One exception per status of dp.h. Each carries libdp's text, which names rank, node, tensor and both values."""
from __future__ import annotations

import builtins


class Error(RuntimeError):
    """A call of libdp failed. `status` is its dp_status_t."""

    status = -1


class InvalidError(Error, ValueError):
    """An argument is wrong; nothing was done."""


class ConfigError(Error):
    """A setting, or the environment that a launcher left, is wrong."""


class NoMemoryError(Error, MemoryError):
    """Host memory ran out."""


class SystemFailure(Error, OSError):
    """The operating system, or a library below libdp, refused."""


class UnsupportedError(Error):
    """Valid, but not on this machine or in this build."""


class FullError(Error):
    """As many operations or groups as are allowed are there; wait for one to end."""


class PendingError(Error, builtins.TimeoutError):
    """The wait ended; the operation goes on."""


class BusyError(Error):
    """The name is in flight, or an operation uses the memory."""


class TimeoutError(Error, builtins.TimeoutError):
    """The operation's own time limit, or that of a setting, is over: it has failed."""


class MismatchError(Error):
    """Ranks disagree about this tensor; other tensors are untouched."""


class TruncatedError(Error):
    """More elements came than a receiver had room for; nothing was written."""


class LeftError(Error):
    """A rank finalized before it submitted this tensor."""


class PeerLostError(Error):
    """A rank died. The context can only be finalized."""


class AbortedError(Error):
    """abort() on some rank, or an internal failure. The context can only be finalized."""


class StalledError(Error):
    """Nothing happened to a tensor for DP_STALL_LIMIT. The context can only be finalized."""


class OrderError(Error):
    """Calls in an order that cannot be right, such as ready() twice."""


class CheckError(Error):
    """DP_CHECK_DATA=1 found a buffer written in flight, or replicas that differ."""


# By the number of the status, as dp.h lists them; 0 is DP_OK.
BY_STATUS: tuple[type[Error] | None, ...] = (
    None, InvalidError, ConfigError, NoMemoryError, SystemFailure, UnsupportedError, FullError,
    PendingError, BusyError, TimeoutError, MismatchError, TruncatedError, LeftError, PeerLostError,
    AbortedError, StalledError, OrderError, CheckError)

for _number, _kind in enumerate(BY_STATUS):
    if _kind is not None:
        _kind.status = _number


def make(status: int, text: str) -> Error:
    """The exception of a status, with a text for people."""
    kind = BY_STATUS[status] if 0 < status < len(BY_STATUS) else None
    return (kind or Error)(text)
