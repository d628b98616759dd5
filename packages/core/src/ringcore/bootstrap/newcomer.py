"""A process that joins ranks of its host that have met meets them, while they train: at a round of the rendezvous.

It is the last one of the round, and connects with all; the others are connected.
"""

from __future__ import annotations

import secrets
import socket
import time
from typing import TYPE_CHECKING, Any

from ringcore._version import __version__
from ringcore.bootstrap.auth import key_of_job
from ringcore.bootstrap.connector import Connector, PeerConnection
from ringcore.bootstrap.groups import own_domain
from ringcore.bootstrap.keys import rendezvous_of
from ringcore.bootstrap.meeting import meet

if TYPE_CHECKING:
    from ringcore.environment.placement import Placement
    from ringcore.environment.settings import Settings


def connect_newcomer(placement: Placement, settings: Settings, segment_fd: int) -> list[PeerConnection]:
    """Meet the others of the round.

    Args:
        placement: This process's number in the round, and how many take part in it.
        settings: As for `mesh.connect`.
        segment_fd: This process's memory file.

    Returns:
        With the last of the round, the connection with each other one, by their numbers; with another one, that with
        the last.

    Raises:
        BootstrapError: They did not find each other in time, or share no memory.
    """
    deadline = time.monotonic() + settings.start_timeout_s
    last = placement.size - 1
    is_last = placement.rank == last
    with rendezvous_of(placement, settings) as (address, key), socket.socket(socket.AF_UNIX) as listener:
        name = f"ringcore-{secrets.token_hex(16)}"
        if is_last:
            listener.bind(f"\0{name}")  # abstract: no file, gone with the process
            listener.listen(1024)
        contact: dict[str, Any] = {
            "rank": placement.rank,
            "size": placement.size,
            "local_rank": None,
            "job": settings.job_id,
            "version": __version__,
            "start_timeout_s": settings.start_timeout_s,
            "unix": name if is_last else None,
            "domain": own_domain(),
            "epoch": placement.epoch,
            "tcp": [],
        }
        epoch, secret, contacts = meet(address, key, contact, deadline)
        connector = Connector(
            placement.rank, epoch, key_of_job(secret, settings.job_id or ""), contacts, segment_fd,
            [listener] if is_last else [], settings, deadline,
        )  # fmt: skip
        others = list(range(last)) if is_last else [last]
        try:
            connector.dial(others)
            connector.serve_until_connected(others)
        except BaseException:
            connector.close()
            raise
        connector.finish()
    return [connector.peers[other] for other in others]
