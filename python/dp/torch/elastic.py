"""Elastic training is not part of libdp: a job ends when a rank is lost, with its name. The names are here
so that a program which asks for them is told so in a sentence."""
from __future__ import annotations

from typing import Any

from .errors import HorovodInternalError, HostsUpdatedInterrupt

SENTENCE = ("elastic training is not part of libdp: a job ends when a rank is lost; start it again "
             "from its last checkpoint with the ranks that are left")


def run(func: Any) -> Any:
    """Refused."""
    raise NotImplementedError(SENTENCE)


class _Refused:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(SENTENCE)


_NAMES = ("ElasticSampler", "ModelStateHandler", "ObjectState", "OptimizerStateHandler", "SamplerStateHandler", "State",
          "StateHandler", "TorchState")
globals().update({name: type(name, (_Refused,), {"__doc__": "Refused."}) for name in _NAMES})

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "run", *_NAMES]
