"""The gradients of an optimizer in one block of libdp's memory, where the ranks of a node reduce them: no
copy into fused buffers, and norm and overflows come from the reduction itself.

Called by DistributedOptimizer, on the thread that runs backward. A parameter's first gradient of a step is
copied to its place, and `.grad` becomes a view of it.
"""
from __future__ import annotations

import math
from typing import Any, Sequence

import torch

import dp
from dp.arrays import shape_tag

from .reduction import Repeated

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


class Place:
    """Of one gradient: `view`, at `address`, is what `.grad` becomes."""

    __slots__ = ("view", "address", "reduction", "_flat", "_layout")

    def __init__(self, group: dp.Group, reduce: int, name: str, param: Any, memory: memoryview, offset: int) -> None:
        self._flat = torch.frombuffer(memory, dtype=param.dtype, count=param.numel(), offset=offset)
        self._layout = (param.dtype, param.device, param.size(), param.stride())
        self.address = self._flat.data_ptr()
        self.view = self._make_view()
        self.reduction = Repeated(group, f"allreduce.{name}", self.view, reduce, shape_tag(param.shape))

    def _make_view(self) -> torch.Tensor:
        # .data: no view in autograd's eyes, as older zero_grad() detaches gradients in place.
        return self._flat.as_strided(self._layout[2], self._layout[3]).data

    def fits(self, param: Any) -> bool:
        """Whether the parameter is what it was when the place was made: of the same type, shape and strides."""
        return self._layout == (param.dtype, param.device, param.size(), param.stride())

    def accepts(self, gradient: Any) -> bool:
        """Whether it is one as the place was made for, and the view is here."""
        return gradient is not None and gradient.dtype is self._layout[0] and gradient.is_cpu and not gradient.is_sparse and \
            gradient.shape == self._layout[2] and self.view.data_ptr() == self.address

    def own_view(self) -> torch.Tensor:
        """`view`, made anew where `.grad.data = ...` has given the tensor other memory."""
        if self.view.data_ptr() != self.address:
            self.view = self._make_view()
        return self.view

    def take(self, param: Any) -> None:
        """Brings `.grad` here; zeros where there is none."""
        gradient = param.grad
        if gradient is self.own_view():
            return
        if gradient is None:
            self.view.zero_()
        elif gradient.data_ptr() != self.view.data_ptr():
            self.view.copy_(gradient)
        param.grad = self.view


class GradientArena:
    """Places for the gradients of `named`: pairs (name, parameter).

    A rank that has joined counts in the averages, as zeros.
    """

    def __init__(self, context: dp.Context, group: dp.Group, reduce: int, named: Sequence[tuple[str, Any]]) -> None:
        sizes = [-(-param.numel() * param.element_size() // ALIGNMENT) * ALIGNMENT for _, param in named]
        memory = context.alloc(sum(sizes))
        self._context, self._group = context, group
        self.places: dict[Any, Place] = {}  # by parameter
        offset = 0
        for (name, param), size in zip(named, sizes):
            self.places[param] = Place(group, reduce, name, param, memory, offset)
            offset += size

    def is_of(self, group: dp.Group | None) -> bool:
        """Whether gradients are reduced over this group, and its world has not ended."""
        return self._group is group and self._context._pointer is not None
