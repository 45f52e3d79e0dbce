"""The functions and structs of dp.h by ctypes. Nothing else in the package knows ctypes' types.

Calls that may wait drop the GIL (CDLL); short ones keep it (PyDLL), which saves most of their cost.
"""
from __future__ import annotations

import ctypes
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int, c_int32, c_size_t,
                    c_uint64, c_void_p)
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "libdp.so.0.3"


def _candidates() -> list[str]:
    """Where libdp may lie: what LIBDP_PATH names, in the wheel, in a build beside the sources, where
    the loader looks."""
    named = os.environ.get("LIBDP_PATH")
    if named:
        return [named]
    top = os.path.dirname(os.path.dirname(HERE))
    places = [os.path.join(HERE, "lib", NAME)]
    places += [os.path.join(top, build, NAME) for build in ("build", "build-dev")]
    return [place for place in places if os.path.exists(place)] + [NAME]


PATH = _candidates()[0]
# UCX's hooks on memory calls have crashed and frozen Python processes, and libdp needs none of them.
os.environ.setdefault("UCX_MEM_EVENTS", "n")
# NCCL reads it once in a process, perhaps for PyTorch first (docs/nccl.md).
os.environ.setdefault("NCCL_LAUNCH_ORDER_IMPLICIT", "1")
try:
    _waits = ctypes.CDLL(PATH)
    _short = ctypes.PyDLL(PATH)
except OSError as error:
    raise ImportError(f"libdp cannot be loaded from {PATH}: {error}. Build it (./quickstart.sh "
                      f"--build-only), install the wheel, or set LIBDP_PATH to {NAME}") from None


class Sized(Structure):
    """A struct with a `size`, set to the size of this header's version."""

    def __init__(self, **values):
        super().__init__(size=ctypes.sizeof(type(self)), **values)


STORE_PUT = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)
STORE_GET = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_size_t), c_double)
OUTPUT = CFUNCTYPE(c_void_p, c_void_p, c_size_t)


class InitOptions(Sized):
    _fields_ = [("size", c_size_t), ("error", c_void_p), ("error_bytes", c_size_t),
                ("settings", c_char_p), ("store_put", STORE_PUT), ("store_get", STORE_GET),
                ("store_user", c_void_p), ("store_rank", c_int), ("store_ranks", c_int),
                ("store_seconds", c_double), ("order", c_int)]


class GroupOptions(Sized):
    _fields_ = [("size", c_size_t), ("order", c_int), ("timeout", c_double)]


class Gradient(Structure):
    _fields_ = [("name", c_char_p), ("weight", c_void_p), ("gradient", c_void_p),
                ("count", c_size_t), ("dtype", c_int)]


class GradientsOptions(Sized):
    _fields_ = [("size", c_size_t), ("group", c_void_p), ("prefix", c_char_p), ("wire", c_int),
                ("accumulation_steps", c_int), ("clip_norm", c_double),
                ("initial_loss_scale", c_double), ("growth_interval", c_int), ("hysteresis", c_int),
                ("zero_unready", c_int), ("timeout", c_double)]


class GradientsResult(Sized):
    _fields_ = [("size", c_size_t), ("norm", c_double), ("clip_coef", c_double),
                ("loss_scale", c_double), ("nonfinite", c_uint64), ("skip", c_int)]


class Options(Sized):
    _fields_ = [("size", c_size_t), ("reduce", c_int), ("wire", c_int), ("prescale", c_double),
                ("postscale", c_double), ("count_joined", c_int), ("launch_now", c_int),
                ("stream", c_void_p), ("tag", c_uint64), ("cookie", c_uint64), ("output", OUTPUT),
                ("user", c_void_p), ("priority", c_int), ("timeout", c_double), ("more_follow", c_int)]


class Tensor(Structure):
    _fields_ = [("input", c_void_p), ("out", c_void_p), ("count", c_size_t), ("dtype", c_int)]


class Result(Sized):
    _fields_ = [("size", c_size_t), ("nonfinite", c_uint64), ("sum_squares", c_double),
                ("absmax", c_double), ("text", c_char_p), ("count", c_size_t),
                ("contributors", c_int), ("last_rank", c_int)]


class Stats(Sized):
    _fields_ = [("size", c_size_t)] + [(name, c_uint64) for name in (
        "submitted", "completed", "failed", "buckets", "bytes_reduced", "bytes_packed",
        "bytes_wire", "control_sent", "control_received", "wait_ns", "skew_ns", "transfer_ns",
        "coordinator_cpu_ns", "launch_cpu_ns", "trace_dropped")]


STRUCTS = {"dp_init_options_t": InitOptions, "dp_group_options_t": GroupOptions,
           "dp_gradient_t": Gradient,
           "dp_gradients_options_t": GradientsOptions, "dp_gradients_result_t": GradientsResult,
           "dp_options_t": Options, "dp_tensor_t": Tensor, "dp_result_t": Result,
           "dp_stats_t": Stats}

_P, _S, _N = c_void_p, c_char_p, c_size_t
_DATA = [_P, _S, _P, _P, _N, c_int]  # group, name, in, out, count, dtype
_END = [POINTER(Options), POINTER(_P)]  # options, handle
_LIST = [_P, _S, POINTER(Tensor), _N]  # group, name, tensors, count
_COUNTS = POINTER(c_size_t)

# name: what it returns, what it takes. In `waiting` are those that may block.
FUNCTIONS: dict[str, tuple] = {
    "dp_init": (c_int, [POINTER(InitOptions), POINTER(_P)]),
    "dp_finalize": (c_int, [_P]),
    "dp_abort": (None, [_P, _S]),
    "dp_status_string": (_S, [c_int]),
    "dp_error_text": (_S, [_P]),
    "dp_async_error": (c_int, [_P]),
    "dp_version": (_S, []),
    "dp_build_info": (_S, []),
    "dp_setting": (_S, [_P, _S]),
    "dp_world": (_P, [_P]),
    "dp_rank": (c_int, [_P]),
    "dp_size": (c_int, [_P]),
    "dp_local_rank": (c_int, [_P]),
    "dp_local_size": (c_int, [_P]),
    "dp_node_rank": (c_int, [_P]),
    "dp_node_count": (c_int, [_P]),
    "dp_gradients_create": (c_int, [_P, POINTER(Gradient), _N, POINTER(GradientsOptions),
                                    POINTER(_P)]),
    "dp_gradients_ready": (c_int, [_P, _N, _P]),
    "dp_gradients_sync": (c_int, [_P, POINTER(GradientsResult)]),
    "dp_gradients_destroy": (None, [_P]),
    "dp_allreduce": (c_int, _DATA + _END),
    "dp_broadcast": (c_int, _DATA + [c_int] + _END),
    "dp_allgather": (c_int, _DATA + _END),
    "dp_reduce_scatter": (c_int, _DATA + _END),
    "dp_reduce": (c_int, _DATA + [c_int] + _END),
    "dp_gather": (c_int, _DATA + [c_int] + _END),
    "dp_scatter": (c_int, _DATA + [c_int] + _END),
    "dp_alltoall": (c_int, _DATA + _END),
    "dp_barrier": (c_int, [_P, _S] + _END),
    "dp_allgatherv": (c_int, [_P, _S, _P, _N, _P, _N, _COUNTS, c_int] + _END),
    "dp_gatherv": (c_int, [_P, _S, _P, _N, _P, _N, _COUNTS, c_int, c_int] + _END),
    "dp_scatterv": (c_int, [_P, _S, _P, _COUNTS, _P, _N, c_int, c_int] + _END),
    "dp_alltoallv": (c_int, [_P, _S, _P, _COUNTS, _P, _N, _COUNTS, c_int] + _END),
    "dp_reduce_scatterv": (c_int, [_P, _S, _P, _P, _COUNTS, c_int] + _END),
    "dp_grouped_allreduce": (c_int, _LIST + _END),
    "dp_grouped_reduce": (c_int, _LIST + [c_int] + _END),
    "dp_grouped_broadcast": (c_int, _LIST + [c_int] + _END),
    "dp_grouped_allgather": (c_int, _LIST + _END),
    "dp_grouped_reduce_scatter": (c_int, _LIST + _END),
    "dp_send": (c_int, [_P, _S, _P, _N, c_int, c_int] + _END),
    "dp_recv": (c_int, [_P, _S, _P, _N, c_int, c_int] + _END),
    "dp_join": (c_int, [_P] + _END),
    "dp_wait": (c_int, [_P, c_double, POINTER(Result)]),
    "dp_stream_wait": (c_int, [_P, _P, c_double]),
    "dp_test": (c_int, [_P]),
    "dp_release": (None, [_P]),
    "dp_wait_all": (c_int, [_P, c_double]),
    "dp_completions_fd": (c_int, [_P, POINTER(c_int)]),
    "dp_completions_read": (_N, [_P, POINTER(c_uint64), _N]),
    "dp_group_create": (c_int, [_P, _S, POINTER(c_int32), _N, POINTER(GroupOptions), POINTER(_P)]),
    "dp_group_split": (c_int, [_P, _S, c_int, c_int, POINTER(GroupOptions), POINTER(_P)]),
    "dp_mesh_create": (c_int, [_P, POINTER(c_int32), _N, POINTER(_S), POINTER(GroupOptions),
                               POINTER(_P)]),
    "dp_group_destroy": (c_int, [_P]),
    "dp_group_rank": (c_int, [_P]),
    "dp_group_size": (c_int, [_P]),
    "dp_group_world_rank": (c_int, [_P, c_int]),
    "dp_group_name": (_S, [_P]),
    "dp_group_order": (c_int, [_P]),
    "dp_alloc": (c_int, [_P, _N, POINTER(_P)]),
    "dp_free": (c_int, [_P, _P]),
    "dp_register": (c_int, [_P, _P, _N]),
    "dp_deregister": (c_int, [_P, _P]),
    "dp_step_begin": (None, [_P, c_uint64]),
    "dp_step_end": (None, [_P]),
    "dp_span_begin": (None, [_P, _S]),
    "dp_span_end": (None, [_P]),
    "dp_stream_span_begin": (None, [_P, _S, _P]),
    "dp_stream_span_end": (None, [_P, _P]),
    "dp_stats_get": (c_int, [_P, POINTER(Stats)]),
}
WAITING = {"dp_init", "dp_finalize", "dp_gradients_create", "dp_gradients_sync",
           "dp_gradients_destroy", "dp_wait", "dp_stream_wait", "dp_wait_all", "dp_group_create",
           "dp_group_split", "dp_mesh_create", "dp_group_destroy", "dp_alloc", "dp_free", "dp_register",
           "dp_deregister"}


class Library:
    """The functions of dp.h as attributes, without their prefix: lib.allreduce."""

    def __init__(self) -> None:
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(_waits if name in WAITING else _short, name)
            function.restype = result
            function.argtypes = arguments
            setattr(self, name[3:], function)

    def __getattr__(self, name: str):  # for type checkers: all of FUNCTIONS is set above
        raise AttributeError(f"dp.h has no function dp_{name}")


lib = Library()


def bare(name: str) -> Any:
    """A function of dp.h for calls by the thousand: it takes what converted() makes and nothing else, and
    so does without the conversion of each argument, which is half the cost of a call."""
    function = (_waits if name in WAITING else _short)[name]  # by index: an object of its own
    function.restype = FUNCTIONS[name][0]
    return function


def converted(name: str, *values: Any) -> tuple:
    """Arguments of bare(name), of the types of dp.h. A struct is passed by its address; of simple values
    `.value` may be set between calls."""
    kinds = FUNCTIONS[name][1]
    if len(values) != len(kinds):
        raise TypeError(f"{name} takes {len(kinds)} arguments, and {len(values)} are here")
    return tuple(ctypes.byref(value) if isinstance(kind, type(POINTER(_P))) else kind(value)
                 for kind, value in zip(kinds, values))
