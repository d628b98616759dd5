"""Who the ranks of an elastic job are, once some were lost: what this process keeps by rank is kept by other ranks."""

from __future__ import annotations

import itertools
import logging
from array import array
from collections.abc import Callable, Collection, Sequence

from ringcore.job.agreement import gather_bytes
from ringcore.job.process_sets import ProcessSet
from ringcore.job.state import Context, context, follows, is_initialized

_log = logging.getLogger("ringcore")
_PLACES = "i"  # Ranks tell each other places as numbers of this kind.
_listeners: list[Callable[[], None]] = []


def on_membership_change(function: Callable[[], None]) -> Callable[[], None]:
    """Have a function called whenever ranks were lost, have come or have given up their switch, and this one goes on.

    It is called in the call that returns the first result of the ranks that go on, or before `MembershipChangedError`
    is raised, or in the commit at which others come; `rank()` and `size()` are those of the ranks that go on. What it
    raises is logged.

    Args:
        function: Called without arguments.

    Returns:
        The function, so that this may be used as a decorator.
    """
    _listeners.append(function)
    return function


def take_note(of: int | None = None) -> None:
    """Operations are those of the ranks that go on, from here on.

    Args:
        of: The epoch whose result is about to be returned, so that all ranks count its members from the same place in
            the program on; None: `MembershipChangedError` is about to be raised, or others were let in.
    """
    if not is_initialized():
        return
    current = context()
    epoch, members = current.runtime.members(of)
    if epoch == current.epoch:
        return  # of several operations that failed this is not the first one that says so
    current.epoch, current.is_newcomer = epoch, False
    ProcessSet.renumber({old: members.index(place) for old, place in enumerate(current.members) if place in members})
    _renumber(current, members)
    if of is None:
        current.counters.clear()  # ranks may have come to different numbers
    current.runtime.accept_change(epoch, current.local_rank, current.local_size)
    launcher = current.launcher
    if launcher is not None and current.size < launcher.least and not current.goes_back:
        launcher.wait_for_the_end()
    for listener in _listeners:
        try:
            listener()
        except Exception:
            _log.exception("rank %d: a function of on_membership_change has failed", current.rank)


follows.append(take_note)


def let_in(place: int) -> bool:
    """Wait until all ranks have called this, and who wants the place has joined them, or cannot any more.

    Returns:
        Whether the ranks are others now.
    """
    current = context()
    before = current.epoch
    current.runtime.let_in(place)
    take_note()
    return current.epoch != before


def pack_arrivals() -> bytes:
    """The places of those whom this rank has met, and who want to join it, for the others."""
    current = context()
    # The engine lets nobody in where all would meet anew instead, and the launcher tells nothing of those who come.
    return array(_PLACES, current.runtime.arrivals() if current.launcher is not None else []).tobytes()


def arrived_everywhere(packed: Sequence[bytes]) -> set[int]:
    """The places of those whom all ranks have met.

    Args:
        packed: By rank, what `pack_arrivals` has made.
    """
    return set.intersection(*(set(array(_PLACES, part)) for part in packed))


def newcomers_given_up() -> list[int]:
    """The places of those who were met, and will be no members; told once."""
    current = context()
    met = list(current.arriving)  # Another thread may add to it.
    given_up = [p for p in met if p not in current.members and current.runtime.is_turned_away(p)]
    current.arriving.difference_update(current.members, given_up)
    return given_up


def part_with(places: Sequence[int]) -> None:
    """Go on without those who leave now, having said so to all: all ranks call this, and those who leave do behind it.

    Raises:
        MembershipChangedError: Another rank was lost before all had come here: all go back to the last commit.
    """
    current = context()
    # What finds that they have left is done again, unseen: nobody goes back. Nobody leaves before all are ready.
    current.runtime.fail_on_change(False)
    try:
        gather_bytes(b"", current.next_name("elastic.leaving"))
        while any(place in current.members for place in places) and current.members[current.rank] not in places:
            # Whoever has left is a member until somebody needs it.
            gather_bytes(b"", current.next_name("elastic.parting"))
    finally:
        current.runtime.fail_on_change(True)


def count_as_last(current: Context, members: list[int]) -> None:
    """This process is connected with ranks that train, and is to be one: it counts as if it were the last.

    It asks to be let in where it has a use for that, in `become_member` or by its first collective. What its script
    does until then keeps nobody waiting.
    """
    current.is_newcomer = True
    _renumber(current, members, beside=current.arriving)


def become_member() -> bool:
    """Wait until this process is a rank, if it has been connected with ranks that train and is none yet.

    Returns:
        Whether the ranks are others than have been counted so far.

    Raises:
        RingcoreError: It cannot become one: the ranks have ended, or meet anew.
        SystemExit: It was told to end.
    """
    current = context()
    if not current.is_newcomer:
        return False
    if current.launcher is not None and current.launcher.news().leaves:
        current.launcher.leave()
    current.runtime.become_member()
    if not current.is_newcomer:  # Meanwhile, by a collective of another thread.
        return True
    before = current.members
    take_note(current.runtime.members()[0])
    return current.members != before


def _renumber(current: Context, members: list[int], *, beside: Collection[int] = ()) -> None:
    """Count anew.

    Args:
        current: With those who have been members so far.
        members: Who is one.
        beside: Of those so far, who has yet to be let in.
    """
    own = current.members[current.rank]
    rank_of = {member: rank for rank, member in enumerate(members)}
    gone = set(current.members) - set(members) - set(beside)
    # Of those who were met, and are no members: some never will be.
    met = set(current.peer_fds) - set(members) - gone
    gone.update(place for place in met if current.runtime.is_turned_away(place))
    for place in gone:
        current.peer_fds.pop(place, None)  # the engine closes them now, and the numbers will be others'
    current.part_lanes(gone)
    have_joined = members[-1] >= len(current.local_ranks)
    hosts = current.runtime.hosts_of(members)
    in_order = list(dict.fromkeys(hosts))
    current.members, current.host_of = members, [in_order.index(host) for host in hosts]
    host_of_first = current.hosts if have_joined else _hosts(current.local_ranks)
    hosts = [host_of_first[member] for member in members]
    # Of each rank, its number among those of its host: whoever joins has the device of the one in whose slot it is.
    slots = [current.slots[member] for member in members] if have_joined else list(range(len(members)))
    local_ranks = [
        sum(other == host and before < slot for other, before in zip(hosts, slots, strict=True))
        for host, slot in zip(hosts, slots, strict=True)
    ]
    current.rank, current.size = rank_of[own], len(members)
    current.local_rank, current.local_size = local_ranks[current.rank], hosts.count(hosts[current.rank])
    alike = [rank for rank, local_rank in enumerate(local_ranks) if local_rank == current.local_rank]
    current.cross_rank, current.cross_size = alike.index(current.rank), len(alike)


def _hosts(local_ranks: list[int]) -> list[int]:
    """Which ranks are of one host, though they may share no memory: launchers number them host by host, or in turns."""
    in_a_row = all(after in (0, before + 1) for before, after in itertools.pairwise(local_ranks))
    if in_a_row:
        return [local_ranks[: rank + 1].count(0) for rank in range(len(local_ranks))]
    return [local_ranks[:rank].count(local_rank) for rank, local_rank in enumerate(local_ranks)]
