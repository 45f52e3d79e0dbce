"""GradScaler: torch.amp.GradScaler for a DistributedOptimizer. It waits for the reduction before it looks at
gradients, and knows from the reduction whether one of them overflowed on any rank.

torch's own scaler works too, but only behind optimizer.synchronize(): it reads gradients that are in flight
otherwise.
"""
from __future__ import annotations

from typing import Any

import torch

from .optimizer import is_distributed_optimizer

_Scaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler  # torch before 2.3


class GradScaler(_Scaler):
    """Scales the loss of training in fp16:

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # only to look at gradients before the step
        scaler.step(optimizer)      # waits, divides and clips in one pass; skips behind an overflow
        scaler.update()

    The optimizer's clip= applies to gradients that were divided. Other optimizers are served as by torch.
    """

    def _unscale_grads_(self, optimizer: Any, inv_scale: torch.Tensor, found_inf: torch.Tensor,
                        allow_fp16: bool) -> dict[torch.device, torch.Tensor]:
        if not is_distributed_optimizer(optimizer):
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        if not optimizer.is_synchronized:
            optimizer.synchronize()
        has_overflow = optimizer.nonfinite
        if not has_overflow:
            optimizer.scale_gradients(1.0 / float(inv_scale))
        found = torch.full_like(found_inf, float(has_overflow))
        return {found.device: found}

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's step, unless a gradient overflowed on any rank."""
        if not is_distributed_optimizer(optimizer) or not self.is_enabled():
            return super().step(optimizer, *args, **kwargs)
        if self._per_optimizer_states[id(optimizer)]["stage"].name == "READY":
            self.unscale_(optimizer)  # also where a fused optimizer would divide by itself
        with optimizer.skip_synchronize():
            result = super().step(optimizer, *args, **kwargs)
        optimizer.forget_step()
        return result
