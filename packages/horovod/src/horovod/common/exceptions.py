"""Horovod's exceptions."""

from __future__ import annotations

from ringcore import RingcoreError
from ringcore.elastic import HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]

# Whatever ends a collective: scripts catch it to start over.
HorovodInternalError = RingcoreError


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than the one that was compiled against. ringcore compiles against none."""
