"""What a DistributedOptimizer keeps of a parameter's gradient from its hook to the step. Called by optimizer.py, on the
threads that run backward and step()."""
from __future__ import annotations

import math
from typing import Any

from .reduction import Repeated


class InFlight:
    """What is in flight for a parameter, or for a group of them."""

    def __init__(self, handle: Any, params: list, contexts: list, is_sparse: bool = False,
                 densified: "set[Any] | None" = None) -> None:
        self.handle = handle
        self.params = params
        self.contexts = contexts
        self.is_sparse = is_sparse
        self.densified = densified or set()  # whose gradients were sparse, and are again afterwards


class Gradient:
    """A parameter's gradient. The parameter's hook has it, so it must not hold the parameter."""

    __slots__ = ("name", "left", "bytes", "is_started", "is_missing", "is_measured", "is_shared", "sparse_dim",
                 "place", "reduction", "tensor", "version", "__weakref__")

    def __init__(self, name: str, passes: int, sparse_dim: int) -> None:
        self.name = name  # in libdp
        self.left = passes  # that accumulate before it is reduced
        self.bytes: float = math.inf  # that it adds to a burst; at first it waits for no other gradient
        self.is_started = False  # it is reduced
        self.is_missing = False  # this rank had none in this step
        self.is_measured = False  # `reduction` has figures of this step
        self.is_shared = False  # a later optimizer has the parameter too
        self.sparse_dim = sparse_dim  # of a sparse one as it was last; 0: dense
        self.place: Any = None  # in libdp's memory
        self.reduction: Repeated | None = None  # of a dense one in host memory
        # The gradient that is reduced, and torch's count of the writes to it. Libdp's own are not counted.
        self.tensor: Any = None
        self.version = 0

    def keep(self, tensor: Any) -> None:
        """This is what is reduced."""
        self.tensor, self.version = tensor, tensor._version

    def is_as_reduced(self) -> bool:
        """Whether nobody but libdp has written to it since keep()."""
        return self.tensor is None or self.tensor._version == self.version

    def is_in(self, param: Any) -> bool:
        """Whether `.grad` is what was reduced."""
        tensor, found = self.tensor, param.grad
        return tensor is None or found is None or found is tensor and tensor._version == self.version
