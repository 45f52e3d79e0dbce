"""The GPU that a thread works with, as its current context of the CUDA driver.

libdp takes the GPU of the thread that calls dp_init(). So a thread that makes this call for another one first takes
over its GPU. A process that has not loaded the driver has none.
"""
from __future__ import annotations

import ctypes
import os
from typing import Any

DRIVER = "libcuda.so.1"


class CurrentGpu:
    """Reads and sets it, on the thread that calls."""

    def __init__(self) -> None:
        self._driver: Any = None
        try:
            self._driver = ctypes.CDLL(DRIVER, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        except OSError:  # not loaded
            pass

    def get(self) -> int | None:
        """None: it works with none."""
        context = ctypes.c_void_p()
        if self._driver is None or self._driver.cuCtxGetCurrent(ctypes.byref(context)) != 0:
            return None
        return context.value

    def set(self, context: int | None) -> None:
        if context is not None:
            self._driver.cuCtxSetCurrent(ctypes.c_void_p(context))
