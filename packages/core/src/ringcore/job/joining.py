"""A process joins ranks that train, over connections of its own: its part, and that of each of them."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from ringcore import _native
from ringcore.bootstrap.aggregation import aggregation_of
from ringcore.bootstrap.keys import read_key
from ringcore.bootstrap.lanes import LateLanes
from ringcore.bootstrap.newcomer import connect_newcomer
from ringcore.job.making import make_context

if TYPE_CHECKING:
    from ringcore.bootstrap.aggregation import Aggregation
    from ringcore.bootstrap.connector import Connector, PeerConnection
    from ringcore.environment.invitation import Invitation
    from ringcore.environment.settings import Settings
    from ringcore.job.state import Context

_log = logging.getLogger("ringcore")
_meeting = threading.Lock()  # Of two that come one may still be met when the next one is.
_Peer = tuple[int, str, list[int], int, list[bytes]]


def meet_newcomer(current: Context, place: int, invitation: Invitation) -> None:
    """The part of a rank, or of another process that joins, on a thread of its own.

    Args:
        current: That of the rank.
        place: Its own.
        invitation: Of who joins.

    Raises:
        RingcoreError: It could not be connected with.
    """
    placement = invitation.placement(invitation.met.index(place))
    segment_fd = current.memory.fd if current.memory is not None else None
    connector = connect_newcomer(placement, current.settings, segment_fd, invitation.limit_s)
    with _meeting:
        _take_newcomer(current, invitation, connector)
    _log.info("rank %d has met a process that joins the job, at place %d", current.rank, invitation.place)


def _take_newcomer(current: Context, invitation: Invitation, connector: Connector) -> None:
    number = len(invitation.met)
    peer = _as_peer(invitation.place, connector.peers[number])
    if len(invitation.hosts) > len(current.hosts):
        current.hosts, current.slots = invitation.hosts, invitation.slots
    _forget_those_turned_away(current)
    connect_lanes(current, connector, {number: invitation.place})
    current.runtime.meet(peer)
    # The engine takes who was not met for one that was turned away, and may have lanes already.
    current.peer_fds.setdefault(invitation.place, []).extend(peer[2])
    current.arriving.add(invitation.place)


def _forget_those_turned_away(current: Context) -> None:
    others = set(current.peer_fds) - set(current.members)
    turned_away = {place for place in others if current.runtime.is_turned_away(place)}
    for place in turned_away:
        current.peer_fds.pop(place, None)  # Another thread may have found the same.
    current.part_lanes(turned_away)


def connect_with_members(invitation: Invitation, settings: Settings) -> Context:
    """Whoever joins: connect with all ranks, and the others that join. It is no rank yet.

    Raises:
        BootstrapError: It did not find them in time.
    """
    place = invitation.place
    memory: _native.HostMemory | None = None
    if settings.transport != "tcp":
        memory = _native.HostMemory.create(
            place, invitation.size, settings.arena_bytes, settings.fusion_threshold_bytes
        )
    placement = invitation.placement(len(invitation.met))
    connector = connect_newcomer(placement, settings, memory.fd if memory is not None else None, invitation.limit_s)
    place_of = dict(enumerate(invitation.met))
    peers = [_as_peer(member, connector.peers[number]) for number, member in place_of.items()]
    places = place + 1
    beside = sum(invitation.hosts[member] == invitation.hosts[place] for member in invitation.members)
    try:
        current = make_context(
            settings, memory, place, places, 0, peers, [0] * places, list(range(invitation.size)),
            (beside, beside + 1, 0, 1), has_witness=True, began_with=invitation.size,
            aggregation=_aggregation(settings, invitation),
        )  # fmt: skip
    except BaseException:
        connector.finish()
        raise
    current.hosts, current.slots = invitation.hosts, invitation.slots
    current.arriving.update(invitation.others)
    connect_lanes(current, connector, place_of)
    return current


def _aggregation(settings: Settings, invitation: Invitation) -> Aggregation | None:
    """The switch of the job, as those know it who have begun it."""
    key = read_key(settings)
    return None if key is None else aggregation_of(settings, key, invitation.began)


def connect_lanes(current: Context, connector: Connector, places: dict[int, int], *, listens: bool = False) -> None:
    """Let the connector make the lanes over TCP that the engine comes to need, if there can be any.

    Args:
        current: With the engine.
        connector: Connected with these peers.
        places: What the engine calls each.
        listens: Whether others may ask at any time.
    """
    if not any(connector.peers.get(number) is None or connector.peers[number].transport == "tcp" for number in places):
        connector.finish()
        return
    with current.lanes_lock:
        if current.has_left:  # meanwhile
            connector.finish()
            return
        if current.late_lanes is None:
            patience_s = current.settings.start_timeout_s
            current.late_lanes = LateLanes(current.runtime, current.peer_fds, patience_s, _rank_of(current))
        current.late_lanes.serve(connector, places, listens=listens)


def _rank_of(current: Context) -> Callable[[], int]:
    """What tells the rank of that moment, and does not keep the context, which keeps the lanes."""
    seen, first = weakref.ref(current), current.rank

    def rank() -> int:
        there = seen()
        return first if there is None else there.rank

    return rank


def _as_peer(place: int, peer: PeerConnection) -> _Peer:
    return place, peer.transport, peer.fds, -1 if peer.segment_fd is None else peer.segment_fd, peer.secrets
