"""Comparing the parameters of ranks that train the same model, as a guard: replicas that drift apart are an error that
names the parameter, the ranks and both values.

Called by DistributedOptimizer behind a step, on every rank of its process set.
"""
from __future__ import annotations

import zlib
from typing import Any

import torch

from . import ops
from .errors import HorovodInternalError
from .functions import allgather_object
from .runtime import ProcessSet


def _digest(tensor: torch.Tensor) -> int:
    """Of a tensor's type, shape and bits."""
    values = ops.as_real(tensor.detach()).contiguous().cpu()
    about = zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    if values.numel() == 0:
        return about
    return zlib.crc32(memoryview(values.view(-1).view(torch.uint8).numpy()), about)


class ReplicaCheck:
    """Compares every `steps` steps; 0: never."""

    def __init__(self, steps: int, number: int, process_set: ProcessSet) -> None:
        self._steps = steps
        self._name = f"optimizer {number} replicas"
        self._process_set = process_set
        self._count = 0

    def after_step(self, names: "dict[Any, str]") -> None:
        """names: of the parameters. HorovodInternalError on every rank: they differ."""
        self._count += 1
        if self._steps == 0 or self._count % self._steps != 0 or not self._process_set.included():
            return
        pairs = list(names.items())
        digests = torch.tensor([_digest(param) for param, _ in pairs], dtype=torch.int64)
        # The largest and the smallest of each: one reduction, in which ranks that have joined do not count.
        largest = ops.allreduce_(torch.cat([digests, -digests]), op=ops.Max, name=self._name,
                                 process_set=self._process_set)
        differing = (largest[:len(pairs)] != -largest[len(pairs):]).nonzero().flatten().tolist()
        if differing:
            self._tell(pairs, differing)

    def _tell(self, pairs: list, differing: "list[int]") -> None:
        param, name = pairs[differing[0]]
        values = ops.as_real(param.detach()).contiguous().cpu().flatten()
        about = f"{str(param.dtype)[6:]} {list(param.shape)}"
        others = "" if len(differing) == 1 else f", and {len(differing) - 1} more parameters"
        ranks = self._process_set.ranks or []
        every = allgather_object((about, values), f"{self._name}.values", self._process_set)
        text = next((_difference(ranks[0], every[0], rank, one) for rank, one in zip(ranks, every)
                     if one[0] != every[0][0] or not torch.equal(_bits(one[1]), _bits(every[0][1]))), "they are equal again")
        raise HorovodInternalError(f"the ranks' parameters differ after step {self._count}: {name}{others}: {text}. "
                                   "Make them equal with hvd.broadcast_parameters() at the start, and change them "
                                   "in the same way on all ranks")


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.uint8) if values.numel() else values


def _difference(first: int, one: Any, second: int, other: Any) -> str:
    if one[0] != other[0]:
        return f"{one[0]} on rank {first}, {other[0]} on rank {second}"
    size = one[1].element_size()
    place = int((_bits(one[1]) != _bits(other[1])).nonzero()[0]) // size
    return f"element {place} is {one[1][place].item()!r} on rank {first}, {other[1][place].item()!r} on rank {second}"
