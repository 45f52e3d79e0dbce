"""Batch normalisation over the batches of all ranks: one mean and variance, as if one rank had all.

Method: Ioffe and Szegedy 2015, arXiv:1502.03167. Each rank finds its own mean and squared deviations from it,
and ranks gather those (Chan, Golub and LeVeque 1983, doi:10.1080/00031305.1983.10483115): sums of squares
would cancel where the mean is large beside the deviation.
"""
from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from . import ops
from .runtime import size


class SyncBatchNorm(_BatchNorm):
    """As torch.nn.BatchNorm, over all ranks while training, and always where it tracks no statistics. Input
    [N][C][...], any device."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: expected at least 2 dimensions, got {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if size() == 1 or not self.training and self.track_running_stats:
            return super().forward(input)
        mean, variance, factor = None, None, 0.0
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            mean, variance = self.running_mean, self.running_var
            self.num_batches_tracked.add_(1)
            factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        return _Normalize.apply(input, self.weight, self.bias, mean, variance, self.eps, factor)


def _channels(input: torch.Tensor) -> tuple[list[int], list[int]]:
    """The dimensions summed over, and a shape that spreads one number per channel."""
    others = [i for i in range(input.dim()) if i != 1]
    return others, [-1 if i == 1 else 1 for i in range(input.dim())]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Of the type to compute in."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _statistics(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean [C], variance [C] and count [] over the batches of all ranks, in fp64."""
    others, _ = _channels(values)
    channels = values.shape[1]
    count = values.numel() // max(channels, 1)
    own = torch.zeros(2 * channels + 1, dtype=torch.float64, device=values.device)
    if count > 0:  # a rank may have no samples
        variance, mean = torch.var_mean(values, others, unbiased=False)
        own[:channels], own[channels:-1], own[-1] = mean, variance.double() * count, count
    every = ops.gather_equal(own, "sync_batch_norm")
    means, deviations, counts = every[:, :channels], every[:, channels:-1], every[:, -1:]
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    return mean, (deviations + counts * (means - mean).square()).sum(0) / total, total


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any,
                eps: float, factor: float) -> Any:
        _, spread = _channels(input)
        values = _wide(input)
        mean, variance, count = _statistics(values)
        if running_mean is not None:
            unbiased = variance * (count / (count - 1.0).clamp_min(1.0))
            running_mean.mul_(1.0 - factor).add_(mean.to(running_mean.dtype), alpha=factor)
            running_var.mul_(1.0 - factor).add_(unbiased.to(running_var.dtype), alpha=factor)
        scale = torch.rsqrt(variance + eps).to(values.dtype)
        normal = (values - mean.to(values.dtype).view(spread)) * scale.view(spread)
        ctx.save_for_backward(normal, weight, scale, count)
        if weight is not None:
            return (normal * weight.view(spread) + bias.view(spread)).to(input.dtype)
        return normal.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        normal, weight, scale, count = ctx.saved_tensors
        others, spread = _channels(gradient)
        values = gradient.to(normal.dtype)
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
