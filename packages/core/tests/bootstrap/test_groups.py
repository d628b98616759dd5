"""Who shares memory with whom is told over connections that are there already: whoever does not say it is named."""

from __future__ import annotations

import socket
import time

import pytest
from ringcore._errors import BootstrapError
from ringcore.bootstrap.connector import PeerConnection
from ringcore.bootstrap.groups import Groups


def agree(limit_s: float) -> tuple[socket.socket, Groups]:
    """Rank 0, and the other end of its connection to rank 3."""
    ours, theirs = socket.socketpair()
    peer = PeerConnection(3, "tcp", [ours.detach()], control_secret=b"of the connection")
    return theirs, Groups(0, {3: peer}, time.monotonic() + limit_s)


def test_who_says_nothing_is_named() -> None:
    theirs, groups = agree(0.05)
    with theirs, pytest.raises(BootstrapError, match=r"rank 3 is connected with rank 0, and could not tell it"):
        groups.agree(4, None)
    groups.peers[3].close()


def test_who_breaks_off_is_named() -> None:
    theirs, groups = agree(60.0)
    theirs.close()
    with pytest.raises(BootstrapError, match=r"rank 3 broke off while rank 0 and the others connected"):
        groups.agree(4, None)
    groups.peers[3].close()
