"""A process joins ranks that train, over connections of its own: its part, and that of each of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ringcore import _native
from ringcore._errors import InvalidArgument, RingcoreError
from ringcore.bootstrap.newcomer import connect_newcomer
from ringcore.job.making import make_context

if TYPE_CHECKING:
    from ringcore.environment.invitation import Invitation
    from ringcore.environment.settings import Settings
    from ringcore.job.state import Context

_log = logging.getLogger("ringcore")


def meet_newcomer(current: Context, place: int, invitation: Invitation) -> None:
    """A rank's part, on a thread of its own.

    Args:
        current: The rank.
        place: The rank's own.
        invitation: Of who joins.

    Raises:
        RingcoreError: It could not be connected with.
    """
    if current.memory is None:
        raise InvalidArgument("this rank shares no memory, and nobody can join it but on its host")
    placement = invitation.placement(invitation.members.index(place))
    (peer,) = connect_newcomer(placement, current.settings, current.memory.fd)
    current.slots = invitation.slots
    current.peer_fds[invitation.place] = list(peer.fds)
    try:
        current.runtime.meet(invitation.place, peer.fds[0], -1 if peer.segment_fd is None else peer.segment_fd)
    except RingcoreError:
        del current.peer_fds[invitation.place]
        raise
    _log.info("rank %d has met a process that joins the job, at place %d", current.rank, invitation.place)


def connect_with_members(invitation: Invitation, settings: Settings) -> Context:
    """Whoever joins: connect with all ranks. It is none yet.

    Raises:
        BootstrapError: It did not find them in time.
    """
    place = invitation.place
    memory = _native.HostMemory.create(place, invitation.size, settings.arena_bytes, settings.fusion_threshold_bytes)
    placement = invitation.placement(len(invitation.members))
    found = connect_newcomer(placement, settings, memory.fd)
    peers = [
        (member, peer.kind, peer.fds, -1 if peer.segment_fd is None else peer.segment_fd, peer.secrets)
        for member, peer in zip(invitation.members, found, strict=True)
    ]
    places = place + 1
    return make_context(
        settings, memory, place, places, 0, peers, [0] * places, list(range(invitation.size)), (place, places, 0, 1),
        has_witness=True, began_with=invitation.size,
    )  # fmt: skip
