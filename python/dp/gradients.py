"""Averaging the gradients of a model, as dp_gradients_*() does for C."""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Sequence

from . import _c, arrays, errors
from ._c import lib
from .context import Context
from .group import WIRES, Group


class GradientsResult(NamedTuple):
    """What a sync found; equal on all ranks.

    norm        of all averaged gradients together, unscaled
    clip_coef   the optimizer multiplies gradients by it: min(1, clip_norm / norm)
    loss_scale  multiply the next step's loss by it; 1 without loss scaling
    nonfinite   Inf and NaN elements
    skip        True: an overflow; leave the weights alone this time
    """

    norm: float
    clip_coef: float
    loss_scale: float
    nonfinite: int
    skip: bool


class Gradients:
    """Registers the gradients of a model and makes every rank's weights equal to rank 0's. Collective.

    tensors: (name, weight, gradient) in the order in which backward finishes them, the same list on
    every rank. weight may be None: it is not broadcast. Both [shape], in memory that stays; gradients
    are best in context.empty().
    """

    def __init__(self, context: Context, tensors: Sequence[tuple[str, Any, Any]], *,
                 prefix: str = "", wire: str = "default", accumulation_steps: int = 1,
                 zero_unready: bool = False, growth_interval: int = 2000, clip_norm: float = 0.0,
                 initial_loss_scale: float = 0.0, hysteresis: int = 1,
                 group: Group | None = None) -> None:
        if wire not in WIRES:
            raise errors.InvalidError(f"there is no wire '{wire}'; {', '.join(WIRES)}")
        self._context = context
        self._pointer: int | None = None
        self._keeps: list[Any] = []
        members = (_c.Gradient * len(tensors))()
        for i, (name, weight, gradient) in enumerate(tensors):
            data = arrays.view(gradient, writes=True)
            values = None if weight is None else arrays.view(weight, writes=True)
            if values is not None and (values.count, values.dtype) != (data.count, data.dtype):
                raise errors.InvalidError(
                    f"{name}: {values.count} weights of {arrays.NAMES[values.dtype]}, "
                    f"{data.count} gradients of {arrays.NAMES[data.dtype]}")
            self._keeps += [data, values]
            members[i] = _c.Gradient(name.encode(), None if values is None else values.address,
                                     data.address, data.count, data.dtype)
        options = _c.GradientsOptions(
            prefix=prefix.encode(), wire=WIRES[wire], accumulation_steps=accumulation_steps,
            zero_unready=zero_unready, growth_interval=growth_interval, clip_norm=clip_norm,
            initial_loss_scale=initial_loss_scale, hysteresis=hysteresis,
            group=None if group is None else group.pointer)
        pointer = ctypes.c_void_p()
        context.check(context.call(lib.gradients_create, context.pointer, members, len(tensors), options, pointer))
        self._pointer = pointer.value

    def ready(self, index: int, stream: int | None = None) -> None:
        """Gradient `index` is complete; its average begins to travel. Never waits for another rank."""
        status = lib.gradients_ready(self._live(), index, stream)
        if status != 0:
            self._context.check(status)

    def sync(self) -> GradientsResult:
        """Waits until every gradient is averaged in place."""
        raw = _c.GradientsResult()
        self._context.check(self._context.call(lib.gradients_sync, self._live(), raw))
        return GradientsResult(raw.norm, raw.clip_coef, raw.loss_scale, raw.nonfinite,
                               bool(raw.skip))

    def destroy(self) -> None:
        """Waits for what is in flight; the tensors stay."""
        if self._pointer is not None and self._context.is_alive:
            self._context.call(lib.gradients_destroy, self._pointer)
        self._pointer = None
        self._keeps = []

    def _live(self) -> int:
        self._context.pointer
        if self._pointer is None:
            raise errors.OrderError("the gradients were destroyed")
        return self._pointer
