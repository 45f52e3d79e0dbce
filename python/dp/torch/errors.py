"""Horovod's exceptions."""
from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """An operation failed: ranks disagree about a tensor, or the world has ended."""


class HostsUpdatedInterrupt(RuntimeError):
    """Of elastic jobs: the set of hosts has changed."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of hosts has changed")
        self.skip_sync = skip_sync
