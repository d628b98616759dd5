"""Horovod's exceptions."""

from __future__ import annotations

from ringcore.elastic import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than the one that was compiled against. ringcore compiles against none."""
