"""The callbacks by which dp_init() uses a key-value store of Python."""
from __future__ import annotations

import ctypes
import datetime
from typing import Any, Callable

from . import _c, errors

FAILED = 1


def _functions(store: Any) -> tuple[Callable[[str, bytes], Any], Callable[[str, float], bytes]]:
    """put(key, value) and get(key, seconds) of a pair of functions or of a store like torch's."""
    if isinstance(store, tuple) and len(store) == 2:
        return store[0], store[1]
    if not all(hasattr(store, name) for name in ("set", "get", "wait")):
        raise errors.InvalidError(f"{type(store).__name__} is no store: it wants set, get and wait, "
                                  "or be a pair of functions put(key, bytes), get(key, seconds)")

    def get(key: str, seconds: float) -> bytes:
        store.wait([key], datetime.timedelta(seconds=seconds))
        return store.get(key)

    return store.set, get


class StoreCallbacks:
    """`put` and `get` for dp_init_options_t. Keep it alive until dp_init() has returned.

    failure: what a callback raised last; libdp itself learns only that it failed.
    """

    def __init__(self, store: Any) -> None:
        self.failure: BaseException | None = None
        put, get = _functions(store)

        def call_put(user: int, key: bytes, value: int, nbytes: int) -> int:
            try:
                put(key.decode(), ctypes.string_at(value, nbytes))
            except BaseException as failure:  # it must not leave a callback
                self.failure = failure
                return FAILED
            return 0

        def call_get(user: int, key: bytes, value: int, room: int, nbytes: Any,
                     seconds: float) -> int:
            try:
                data = bytes(get(key.decode(), seconds))
            except BaseException as failure:
                self.failure = failure
                return FAILED
            nbytes[0] = len(data)
            ctypes.memmove(value, data, min(room, len(data)))
            return 0

        self.put = _c.STORE_PUT(call_put)
        self.get = _c.STORE_GET(call_get)
