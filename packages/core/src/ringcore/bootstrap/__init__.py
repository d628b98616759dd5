"""How the ranks of a job find, authenticate and connect to each other.

The engine gets plain descriptors of authenticated connections: it has no cryptography and parses nothing from strangers.
"""

from __future__ import annotations

from ringcore.bootstrap.mesh import Mesh, PeerConnection, connect
from ringcore.bootstrap.rendezvous import RendezvousServer

__all__ = ["Mesh", "PeerConnection", "RendezvousServer", "connect"]
