"""The state of this process: whether it is initialised, its place in the job, its engine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ringcore._errors import NotInitializedError

if TYPE_CHECKING:
    from ringcore import _native
    from ringcore.bootstrap.lanes import LateLanes
    from ringcore.bootstrap.paths import Endpoint
    from ringcore.bootstrap.told_network import ToldNetwork
    from ringcore.environment.settings import Settings
    from ringcore.job.membership import Membership

# So many unnamed operations of a kind may be under way at once. Then their names come again: the engine remembers as
# many, and the first use of a name costs more.
_UNNAMED = 16384


class Service(Protocol):
    """What runs beside the job, for those who look at it."""

    def stop(self) -> None:
        """Let nobody in any more."""

    def forget(self) -> None:
        """In a forked child: close the copies of what the parent goes on with."""


@dataclass
class Context:
    """An initialised job as this rank sees it."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host_of: list[int]
    settings: Settings
    runtime: _native.Runtime
    memory: _native.HostMemory | None
    # The engine's connections, by rank of the first epoch. A forked child closes its copies: with them it would hide
    # this process's death.
    peer_fds: dict[int, list[int]] = field(default_factory=dict)
    counters: dict[tuple[str, int | None], int] = field(default_factory=dict)
    attention_thread: threading.Thread | None = None
    late_lanes: LateLanes | None = None  # where there are peers over TCP
    lanes_lock: threading.Lock = field(default_factory=threading.Lock)  # Guards: `late_lanes`, `has_left`.
    has_left: bool = False
    endpoint: Endpoint | None = None  # where it listens for others over TCP
    launcher: Membership | None = None  # the witness of the engine
    goes_back: bool = False  # the caller does to a commit, as `elastic.run` does, and others can join it there
    job: str = ""  # what `ringcore status` calls it
    began: float = field(default_factory=time.monotonic)
    steps: int = 0
    dropped_steps: int = 0  # as a rank was lost in them: see DistributedOptimizer's on_lost_rank
    joins: int = 0  # that have ended, of all process sets
    is_intact: bool = False  # The ranks are others than before, and those of before go on from where they were.
    services: list[Service] = field(default_factory=list)
    epoch: int = 0
    # By rank of the first epoch: who was lost is among them.
    local_ranks: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)  # of the present epoch, as ranks of the first
    # By place, once somebody was to join: a number of the host as the launcher knows it, and which of its slots.
    hosts: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    server_hosts: list[int] = field(default_factory=list)  # as `host_of`, of the servers behind the ranks
    # Once servers hold an optimizer, by server: the process set of all ranks and it; and where ranks
    # step for themselves, that of this rank and it.
    server_sets: list[Any] = field(default_factory=list)
    server_pairs: list[Any] = field(default_factory=list)
    told: ToldNetwork | None = None  # what lies between the hosts
    arriving: set[int] = field(default_factory=set)  # The places of those who were met, and are no members yet.
    is_newcomer: bool = False  # This process is no member yet, and counts as if it were the last.
    # Memory that a newcomer has touched while nobody waited for it: for the state that it is given, and its first step.
    touched_for_state: list[bytes] = field(default_factory=list)
    touched_for_step: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = list(range(self.size))

    @property
    def servers(self) -> int:
        """How many there are, behind the ranks."""
        return len(self.server_hosts)

    def part_lanes(self, places: Collection[int]) -> None:
        """No lane over TCP is connected any more with those who are at these places, if ever one was."""
        with self.lanes_lock:
            if self.late_lanes is not None and not self.has_left and places:
                self.late_lanes.part_with(places)

    def next_name(self, kind: str, set_id: int | None = 0) -> str:
        """The name of an operation that the caller did not name: equal on all ranks that call in the same order.

        Args:
            kind: The operation's.
            set_id: The number of the process set. Each counts for itself: its members may make other calls than the
                rest.
        """
        key = kind, set_id
        number = self.counters.get(key, 0)
        self.counters[key] = (number + 1) % _UNNAMED
        return f"{kind}.noname.{number}"

    def forget_names(self, prefix: str) -> None:
        """Count operations whose kind begins like this anew; every rank that runs them does so."""
        for key in [key for key in self.counters if key[0].startswith(prefix)]:
            del self.counters[key]

    def forget_names_of(self, process_set_id: int) -> None:
        """Forget the count of a process set that is removed: its number may be another one's later."""
        for key in [key for key in self.counters if key[1] == process_set_id]:
            del self.counters[key]


# What makes the context that of the ranks of an epoch: `members.take_note`, which is above this.
follows: list[Callable[[int], None]] = []

_context: Context | None = None
_inherited: Context | None = None  # of the parent of this forked process; its engine did not come along


def _forget_parent() -> None:
    global _context, _inherited
    if _context is None:
        return
    for fds in _context.peer_fds.values():
        for fd in fds:
            os.close(fd)
    _context.peer_fds.clear()
    for service in _context.services:
        service.forget()
    if _context.late_lanes is not None:
        _context.late_lanes.forget()
    _context, _inherited = None, _context


os.register_at_fork(after_in_child=_forget_parent)


def context() -> Context:
    """The current context.

    Raises:
        NotInitializedError: Before `init()`, after `shutdown()`, and in a forked child.
    """
    if _context is not None:
        return _context
    if _inherited is not None:
        raise NotInitializedError(
            "ringcore was initialized in the parent of this forked process, and its engine did not come along; "
            "start workers with the 'spawn' method, or call ringcore.init() after the fork"
        )
    raise NotInitializedError("ringcore has not been initialized; call ringcore.init() first")


def set_context(new: Context | None) -> None:
    """For `init` and `shutdown`: what `context` returns from now on."""
    global _context
    _context = new


def is_initialized() -> bool:
    """Whether `init()` was called and `shutdown()` was not."""
    return _context is not None


def is_elastic() -> bool:
    """Whether the others go on when ranks are lost, and do again what was under way."""
    return _context is not None and _context.settings.elastic


def goes_back() -> bool:
    """Whether the caller goes back to a commit when a rank is lost, as `elastic.run` does."""
    return _context is not None and _context.goes_back


def followed() -> Context:
    """The current context, of the ranks whose results this process has: a compiled program tells Python of none.

    Raises:
        NotInitializedError: See `context`.
    """
    current = context()
    if current.settings.elastic and current.runtime.told_epoch > current.epoch:
        for follow in follows:
            follow(current.runtime.told_epoch)
    return current


def rank() -> int:
    """This process's number in the job, from 0."""
    return followed().rank


def size() -> int:
    """The number of processes of the job."""
    return followed().size


def local_rank() -> int:
    """This process's number among those of its host, from 0: the index of its device."""
    return followed().local_rank


def local_size() -> int:
    """The number of the job's processes on this host."""
    return followed().local_size


def cross_rank() -> int:
    """The number of this process's host among those that have a process of this local rank."""
    return followed().cross_rank


def cross_size() -> int:
    """The number of hosts that have a process of this local rank."""
    return followed().cross_size


def is_homogeneous() -> bool:
    """Whether every host has the same number of processes."""
    hosts = followed().host_of
    return len({hosts.count(host) for host in hosts}) == 1
