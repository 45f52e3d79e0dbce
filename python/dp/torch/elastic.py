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


class State(_Refused):
    """Refused."""


class ObjectState(_Refused):
    """Refused."""


class TorchState(_Refused):
    """Refused."""


class ElasticSampler(_Refused):
    """Refused."""


class StateHandler(_Refused):
    """Refused."""


class ModelStateHandler(StateHandler):
    """Refused."""


class OptimizerStateHandler(StateHandler):
    """Refused."""


class SamplerStateHandler(StateHandler):
    """Refused."""


__all__ = ["ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ModelStateHandler", "ObjectState",
           "OptimizerStateHandler", "SamplerStateHandler", "State", "StateHandler", "TorchState", "run"]
