"""Horovod's exceptions."""

from __future__ import annotations

from ringcore import RingcoreError

# Whatever ends a collective: scripts catch it to start over.
HorovodInternalError = RingcoreError


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed.

    Args:
        skip_sync: The state need not be synchronised again.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than the one that was compiled against. ringcore compiles against none."""
