"""Gradients in fewer bytes while they travel. Fp32 sums can also be cast by libdp itself, on the wire
between nodes alone and with a scale against overflow: DP_WIRE=fp16."""
from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """compress() gives what travels and what decompress() needs to bring it back."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> "tuple[torch.Tensor, Any]":
        """The tensor that travels, and its context."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """What came, as it was."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """As it is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> "tuple[torch.Tensor, Any]":
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class FP16Compressor(Compressor):
    """Floating-point tensors as fp16; others as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> "tuple[torch.Tensor, Any]":
        is_float = tensor.dtype.is_floating_point
        return tensor.half() if is_float else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if tensor.dtype == ctx else tensor.type(ctx)


class Compression:
    """The names of the compressors, for hvd.DistributedOptimizer(compression=...)."""

    none = NoneCompressor
    fp16 = FP16Compressor
