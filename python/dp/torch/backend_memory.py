"""Memory for allocate_tensor() of the backend: blocks that the ranks of a node reduce where they lie, kept for
the next call.

FSDP2 asks for its buffers anew in every step. A block is private memory of this process that was given to
libdp by dp_register(), so its contents stay when the world ends, and tensors on it may outlive the process
group. When the last tensor on a block has gone, the block is free and serves the next call of its size class.
Where libdp has no room for a block, a tensor gets ordinary memory, which works as well, at the price of copies.
"""
from __future__ import annotations

import collections
import ctypes
import mmap
import threading
from typing import Any

import torch

import dp
from dp._c import lib

PAGE = 4096
STEPS = 8  # size classes between two powers of two, so that at most an eighth of a block is waste
KEEP = 4  # free bytes that are kept, as a multiple of what was in use at one time


def size_class(nbytes: int) -> int:
    """The bytes of a block for so many: whole pages."""
    step = max((1 << (max(nbytes, 1).bit_length() - 1)) // STEPS, PAGE)
    return -(-nbytes // step) * step


class _Block:
    """Memory of this process; registered with libdp while the pool knows it."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))


class _Lease:
    """What tensors on a block hold together. Its end may come on any thread and within any call, also one of
    the pool: so it leaves the block in a queue, which the next call looks through."""

    def __init__(self, block: _Block, returned: "collections.deque[_Block]") -> None:
        self._block = block
        self._returned = returned

    def __del__(self) -> None:
        self._returned.append(self._block)


class Pool:
    """The blocks of one context, which it registers with add_owner(). Any thread may call it."""

    def __init__(self, context: dp.Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._free: dict[int, list[_Block]] = {}  # by size class
        self._idle: "collections.OrderedDict[_Block, None]" = collections.OrderedDict()  # free ones, oldest first
        self._returned: "collections.deque[_Block]" = collections.deque()
        self._kinds: dict[int, Any] = {}
        self._is_full = False  # libdp had no room, and nothing has come back since
        self._is_refused = False  # it takes no memory of this kind here
        self._used_bytes = self._peak_bytes = self._free_bytes = 0
        self.made = 0  # blocks, since the beginning
        context.add_owner(self)

    def tensor(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of so many elements, on memory of any contents."""
        block = self._take(size_class(size * dtype.itemsize)) if size > 0 else None
        if block is None:
            return torch.empty(size, dtype=dtype)
        if block.nbytes not in self._kinds:
            self._kinds[block.nbytes] = type("Memory", (ctypes.c_char * block.nbytes,), {})
        array = self._kinds[block.nbytes].from_buffer(block.memory)
        array.lease = _Lease(block, self._returned)
        return torch.frombuffer(array, dtype=dtype, count=size)

    def _take(self, nbytes: int) -> _Block | None:
        """A block of this size class; None: libdp has no room, or the world has ended."""
        with self._lock:
            self._collect()
            if not self._context.is_alive or self._is_refused:
                return None
            if self._free.get(nbytes):
                block = self._free[nbytes].pop()
                del self._idle[block]
                self._free_bytes -= nbytes
            else:
                made = self._make(nbytes)
                if made is None:
                    return None
                block = made
            self._used_bytes += nbytes
            self._peak_bytes = max(self._peak_bytes, self._used_bytes)
            return block

    def _collect(self) -> None:
        """Takes back what has become free."""
        while self._returned:
            block = self._returned.popleft()
            self._used_bytes -= block.nbytes
            self._free_bytes += block.nbytes
            self._free.setdefault(block.nbytes, []).append(block)
            self._idle[block] = None
            self._is_full = False
        while self._free_bytes > KEEP * self._peak_bytes:
            self._drop()

    def _make(self, nbytes: int) -> _Block | None:
        """A new one, in place of free ones of other sizes where there is no room."""
        if self._is_full:
            return None
        block = _Block(nbytes)
        while True:
            status = lib.register(self._context.pointer, block.address, nbytes)
            if status == 0:
                self.made += 1
                return block
            if status != dp.NoMemoryError.status:
                self._is_refused = True
                return None
            if not self._idle:
                self._is_full = True
                return None
            self._drop()

    def _drop(self) -> None:
        """Gives the block back that has been free for longest."""
        block, _ = self._idle.popitem(last=False)
        self._free[block.nbytes].remove(block)
        self._free_bytes -= block.nbytes
        lib.deregister(self._context.pointer, block.address)

    # ---- Called by the context ----------------------------------------------------------------

    def close(self) -> None:
        """Before dp_finalize(), which makes the blocks private memory again: until then none may go."""

    def clear(self) -> None:
        """After it: tensors keep what they lie on."""
        with self._lock:
            self._free.clear()
            self._idle.clear()
            self._returned.clear()
