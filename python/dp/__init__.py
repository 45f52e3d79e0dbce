"""libdp for Python: collectives that overlap with computation, over arrays of any library.

    import dp, numpy as np

    with dp.init() as world:                       # under dprun, torchrun, mpirun, srun, or alone
        gradient = world.empty(1000)               # NumPy, in memory that ranks reduce in place
        ...
        handle = world.allreduce(gradient, op=dp.AVERAGE, name="gradient")
        ...                                        # computes on
        handle.wait()

ctypes over dp.h: everything slow or clever is in C. Errors are exceptions with libdp's text; waits end
at Ctrl-C. dp.torch is Horovod's API and a backend of torch.distributed.
"""
from __future__ import annotations

from ._c import PATH as LIBRARY
from ._c import lib as _lib
from .context import Context, Stats, init
from .errors import (AbortedError, BusyError, CheckError, ConfigError, Error, FullError,
                     InvalidError, LeftError, MismatchError, NoMemoryError, OrderError,
                     PeerLostError, PendingError, StalledError, SystemFailure, TimeoutError,
                     TruncatedError, UnsupportedError)
from .gradients import Gradients, GradientsResult
from .group import AVERAGE, MAX, MIN, PRODUCT, SUM, Group
from .handles import Handle, Result

__version__ = _lib.version().decode()
BUILD = _lib.build_info().decode()

__all__ = [
    "AVERAGE", "BUILD", "LIBRARY", "MAX", "MIN", "PRODUCT", "SUM", "Context", "Gradients",
    "GradientsResult", "Group", "Handle", "Result", "Stats", "init", "AbortedError", "BusyError",
    "CheckError", "ConfigError", "Error", "FullError", "InvalidError", "LeftError",
    "MismatchError", "NoMemoryError", "OrderError", "PeerLostError", "PendingError",
    "StalledError", "SystemFailure", "TimeoutError", "TruncatedError", "UnsupportedError"]
