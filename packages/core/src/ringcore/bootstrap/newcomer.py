"""A process that joins ranks that have met meets them, while they train: at a round of the rendezvous.

It is the last one of the round, and connects with all; the others are connected. Of two the lower one dials, as ever:
nobody but the last listens.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from typing import TYPE_CHECKING, Any

from ringcore._version import __version__
from ringcore.bootstrap.aggregation import announce_switch, check_switch
from ringcore.bootstrap.auth import key_of_job
from ringcore.bootstrap.connector import Connector
from ringcore.bootstrap.encryption import announce_encryption, check_encryption
from ringcore.bootstrap.groups import own_domain
from ringcore.bootstrap.keys import rendezvous_of
from ringcore.bootstrap.meeting import meet
from ringcore.bootstrap.paths import announce, check_all_listen, listen

if TYPE_CHECKING:
    from ringcore.environment.placement import Placement
    from ringcore.environment.settings import Settings


def connect_newcomer(placement: Placement, settings: Settings, segment_fd: int | None, limit_s: float) -> Connector:
    """Meet the others of the round.

    Args:
        placement: This process's number in the round, and how many take part in it.
        settings: As for `mesh.connect`.
        segment_fd: This process's memory file; None: it shares no memory.
        limit_s: So long they have.

    Returns:
        Connected, with the last of the round, with each other one, by their numbers; with another one, with the last.

    Raises:
        BootstrapError: They did not find each other in time, or cannot reach each other.
    """
    deadline = time.monotonic() + limit_s
    last = placement.size - 1
    is_last = placement.rank == last
    with rendezvous_of(placement, settings) as (address, key), contextlib.ExitStack() as sockets:
        listeners, endpoints = listen(settings, address)
        name = f"ringcore-{secrets.token_hex(16)}"
        if is_last and segment_fd is not None:
            local = socket.socket(socket.AF_UNIX)
            local.bind(f"\0{name}")  # abstract: no file, gone with the process
            local.listen(1024)
            listeners.append(local)
        for listener in listeners:
            sockets.callback(listener.close)
        contact: dict[str, Any] = {
            "rank": placement.rank,
            "size": placement.size,
            "local_rank": None,
            "job": settings.job_id,
            "version": __version__,
            "start_timeout_s": settings.start_timeout_s,
            "unix": name if is_last and segment_fd is not None else None,
            "domain": own_domain(),
            "epoch": placement.epoch,
            **announce(endpoints, settings),
            **announce_encryption(settings, endpoints),
            **announce_switch(settings),
        }
        epoch, secret, contacts = meet(address, key, contact, deadline)
        check_encryption(contacts)
        check_switch(contacts)
        check_all_listen(contacts, settings)
        if is_last:
            sockets.pop_all()  # They are the connector's now.
        connector = Connector(
            placement.rank, epoch, key_of_job(secret, settings.job_id or ""), contacts, segment_fd,
            listeners if is_last else [], settings, deadline,
        )  # fmt: skip
        others = list(range(last)) if is_last else [last]
        try:
            connector.dial(others)
            connector.serve_until_connected(others)
        except BaseException:
            connector.close()
            raise
        connector.connect_late()
    return connector
