"""dp_hook.py - a communication hook that lets DistributedDataParallel exchange through libdp.

    state = dp_hook.Runtime("/path/to/libdp.so", wire="none")
    model = DistributedDataParallel(model)
    model.register_comm_hook(state, dp_hook.allreduce)

A bucket is submitted to dp_allreduce where autograd makes it ready, and averaged in place; a thread
awaits the buckets in their order and completes their futures. libdp finds its ranks by torchrun's
variables, or dprun's. CPU tensors only.
"""
import ctypes
import queue
import threading

import torch

DTYPES = {torch.float16: 8, torch.bfloat16: 9, torch.float32: 10, torch.float64: 11}
WIRES = {"default": 0, "none": 1, "fp16": 2, "bf16": 3}
AVERAGE = 1
FOREVER = -1.0


class Options(ctypes.Structure):
    """dp_options_t, as include/dp.h has it."""

    _fields_ = [("size", ctypes.c_size_t), ("reduce", ctypes.c_int), ("wire", ctypes.c_int),
                ("prescale", ctypes.c_double), ("postscale", ctypes.c_double),
                ("stream", ctypes.c_void_p), ("count_joined", ctypes.c_int)]


class Runtime:
    """A context of libdp, and the thread that awaits its handles."""

    def __init__(self, library, wire="none"):
        self.library = ctypes.CDLL(library)
        self._declare()
        self.context = ctypes.c_void_p()
        self._must(self.library.dp_init(None, ctypes.byref(self.context)), "dp_init")
        self.world = self.library.dp_world(self.context)
        self.options = Options(size=ctypes.sizeof(Options), reduce=AVERAGE, wire=WIRES[wire],
                               prescale=1.0, postscale=1.0)
        self.flying = queue.SimpleQueue()
        self.waiter = threading.Thread(target=self._wait, daemon=True)
        self.waiter.start()

    def _declare(self):
        library, pointer = self.library, ctypes.c_void_p
        library.dp_init.argtypes = [pointer, pointer]
        library.dp_world.argtypes, library.dp_world.restype = [pointer], pointer
        library.dp_error_text.argtypes, library.dp_error_text.restype = [pointer], ctypes.c_char_p
        library.dp_allreduce.argtypes = [pointer, ctypes.c_char_p, pointer, pointer,
                                         ctypes.c_size_t, ctypes.c_int, pointer, pointer]
        library.dp_wait.argtypes = [pointer, ctypes.c_double, pointer]
        library.dp_finalize.argtypes = [pointer]

    def _must(self, status, what):
        if status != 0:
            text = self.library.dp_error_text(self.context) if self.context else b""
            raise RuntimeError(f"{what}: status {status} {(text or b'').decode()}")

    def submit(self, name, tensor):
        """Averages a contiguous tensor over the ranks, in place; a future of it."""
        future, handle = torch.futures.Future(), ctypes.c_void_p()
        status = self.library.dp_allreduce(
            self.world, name.encode(), tensor.data_ptr(), tensor.data_ptr(), tensor.numel(),
            DTYPES[tensor.dtype], ctypes.byref(self.options), ctypes.byref(handle))
        self._must(status, name)
        self.flying.put((name, handle, tensor, future))
        return future

    def _wait(self):
        while (item := self.flying.get()) is not None:
            name, handle, tensor, future = item
            try:
                self._must(self.library.dp_wait(handle, FOREVER, None), name)
                future.set_result(tensor)
            except RuntimeError as error:
                future.set_exception(error)

    def close(self):
        """After the last backward, on every rank."""
        self.flying.put(None)
        self.waiter.join()
        self._must(self.library.dp_finalize(self.context), "dp_finalize")


def allreduce(state, bucket):
    """The hook itself. DDP regroups its buckets once; the size in the name keeps them apart."""
    tensor = bucket.buffer()
    return state.submit(f"bucket.{bucket.index()}.{tensor.numel()}", tensor)
