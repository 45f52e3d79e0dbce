"""The gradients of an optimizer in one block of libdp's memory, where the ranks of a node reduce them: no
copy into fused buffers, and norm and overflows come from the reduction itself.

Called by DistributedOptimizer, on the thread that runs backward. A parameter's first gradient of a step is
copied to its place, and `.grad` becomes a view of it; what further passes add goes there by itself.
"""
from __future__ import annotations

import ctypes
import math
from typing import Any, Sequence

import torch

import dp
from dp import _c, arrays, errors
from dp._c import lib
from dp.handles import slices

from .errors import HorovodInternalError

NAME_BYTES = 255  # of a tensor's name
_allreduce = _c.bare("dp_allreduce")
ALIGNMENT = 256  # bytes: a line of the cache, and more than any kernel asks for


def is_placeable(param: torch.Tensor) -> bool:
    """Whether a gradient of this parameter can lie in libdp's memory: dense, in host memory, floating."""
    return (param.device.type == "cpu" and param.layout == torch.strided and param.numel() > 0
            and param.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
            and torch._debug_has_internal_overlap(param) == 0)


class Found:
    """What a sync found in the averages: their norm, and how many elements are Inf or NaN."""

    def __init__(self, squares: list[float], nonfinite: int) -> None:
        # Ranks may wait in different orders, and must find the same norm: fsum() is exact.
        self.norm = math.inf if nonfinite else math.sqrt(math.fsum(squares))
        self.nonfinite = nonfinite


class GradientArena:
    """Places for the gradients of `named`: pairs (name, parameter), the same list on every rank.

    Arguments of libdp's calls are made once. A rank that has joined counts in the averages, as zeros.
    """

    def __init__(self, context: dp.Context, group: dp.Group, named: Sequence[tuple[str, Any]]) -> None:
        sizes = [-(-param.numel() * param.element_size() // ALIGNMENT) * ALIGNMENT for _, param in named]
        self._context = context
        memory = context.alloc(sum(sizes))
        self._index = {param: i for i, (_, param) in enumerate(named)}
        self._views: list[torch.Tensor] = []
        self._arguments: list[tuple] = []
        self._handles = [ctypes.c_void_p() for _ in named]
        self._in_flight: list[ctypes.c_void_p] = []
        options = _c.Options(reduce=dp.AVERAGE, count_joined=1, prescale=1.0, postscale=1.0)
        offset = 0
        for (name, param), size, handle in zip(named, sizes, self._handles):
            flat = torch.frombuffer(memory, dtype=param.dtype, count=param.numel(), offset=offset)
            data = arrays.view(flat)
            # .data: no view in autograd's eyes, as older zero_grad() detaches gradients in place.
            self._views.append(flat.as_strided(param.size(), param.stride()).data)
            self._arguments.append(_c.converted(
                "dp_allreduce", group.pointer, name.encode()[:NAME_BYTES], data.address, data.address,
                data.count, data.dtype, options, handle))
            offset += size

    def __contains__(self, param: Any) -> bool:
        return param in self._index

    def place(self, param: Any) -> None:
        """Brings `.grad` to its place; zeros where there is none."""
        view = self._views[self._index[param]]
        gradient = param.grad
        if gradient is view:
            return
        if gradient is None:
            view.zero_()
        elif gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
        param.grad = view

    def start(self, param: Any) -> None:
        """Its gradient is complete and begins to travel."""
        self.place(param)
        index = self._index[param]
        status = _allreduce(*self._arguments[index])
        if status != 0:
            raise HorovodInternalError(str(errors.make(status, self._context.error_text())))
        self._in_flight.append(self._handles[index])

    @property
    def is_in_flight(self) -> bool:
        """Whether a gradient has begun to travel since the last sync."""
        return bool(self._in_flight)

    def sync(self) -> Found:
        """Waits until all are averages. HorovodInternalError: one failed; none is in flight then."""
        raw = _c.Result()
        squares, nonfinite, failure = [], 0, None
        in_flight, self._in_flight = self._in_flight, []
        for handle in in_flight:
            for seconds in slices(None):
                status = lib.wait(handle, seconds, raw)
                if status != errors.TimeoutError.status:
                    break
            if status != 0:
                text = raw.text.decode(errors="replace") if raw.text else self._context.error_text()
                failure = failure or HorovodInternalError(str(errors.make(status, text)))
            squares.append(raw.sum_squares)
            nonfinite += raw.nonfinite
        if failure is not None:
            raise failure
        return Found(squares, nonfinite)
