"""How the ranks of a job find, authenticate and connect to each other.

The engine gets plain descriptors of authenticated connections: it has no cryptography, and parses nothing from
strangers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcore.bootstrap.rendezvous import RendezvousServer

if TYPE_CHECKING:
    from ringcore.bootstrap.connector import PeerConnection
    from ringcore.bootstrap.mesh import Mesh, connect

__all__ = ["Mesh", "PeerConnection", "RendezvousServer", "connect"]


def __getattr__(name: str) -> Any:
    # Loaded at first use: the launcher serves a rendezvous and connects to nobody, and its start is part of every job.
    if name not in __all__:
        raise AttributeError(f"module 'ringcore.bootstrap' has no attribute {name!r}")
    from ringcore.bootstrap import mesh

    return getattr(mesh, name)
