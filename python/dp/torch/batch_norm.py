"""Batch normalisation over the batches of all ranks: one mean and variance, as if one rank had all.

Method: Ioffe and Szegedy 2015, arXiv:1502.03167; sums, sums of squares and counts are added over the
ranks, in fp32.
"""
from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from . import ops
from .runtime import size


class SyncBatchNorm(_BatchNorm):
    """As torch.nn.BatchNorm, over all ranks while training. Input [N][C][...], any device."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: expected at least 2 dimensions, got {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not self.training or size() == 1:
            return super().forward(input)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        factor = self.momentum
        if factor is None:
            factor = 1.0 / float(self.num_batches_tracked)
        return _Normalize.apply(input, self.weight, self.bias, self.running_mean, self.running_var,
                                self.eps, factor)


def _channels(input: torch.Tensor) -> tuple[list[int], list[int]]:
    """The dimensions summed over, and a shape that spreads one number per channel."""
    others = [i for i in range(input.dim()) if i != 1]
    return others, [-1 if i == 1 else 1 for i in range(input.dim())]


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any,
                eps: float, factor: float) -> Any:
        others, spread = _channels(input)
        values = input.float()
        channels = input.shape[1]
        sums = torch.cat([values.sum(others), (values * values).sum(others),
                          values.new_tensor([input.numel() / max(channels, 1)])])
        sums = ops.allreduce(sums, op=ops.Sum, name="sync_batch_norm")
        count = sums[-1]
        mean = sums[:channels] / count
        variance = sums[channels:-1] / count - mean * mean
        scale = torch.rsqrt(variance.clamp_min(0.0) + eps)
        if running_mean is not None:
            unbiased = variance * (count / (count - 1.0).clamp_min(1.0))
            running_mean.mul_(1.0 - factor).add_(mean.to(running_mean.dtype), alpha=factor)
            running_var.mul_(1.0 - factor).add_(unbiased.to(running_var.dtype), alpha=factor)
        normal = (values - mean.view(spread)) * scale.view(spread)
        ctx.save_for_backward(normal, weight, scale, count)
        if weight is not None:
            return (normal * weight.view(spread) + bias.view(spread)).to(input.dtype)
        return normal.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        normal, weight, scale, count = ctx.saved_tensors
        others, spread = _channels(gradient)
        values = gradient.float()
        bias_grad, weight_grad = values.sum(others), (values * normal).sum(others)
        sums = ops.allreduce(torch.cat([bias_grad, weight_grad]), op=ops.Sum,
                             name="sync_batch_norm.backward") / count
        channels = bias_grad.numel()
        factor = scale if weight is None else scale * weight
        input_grad = (values - sums[:channels].view(spread) -
                      normal * sums[channels:].view(spread)) * factor.view(spread)
        if weight is None:
            weight_grad = bias_grad = None
        return input_grad.to(gradient.dtype), weight_grad, bias_grad, None, None, None, None
