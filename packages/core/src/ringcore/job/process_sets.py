"""Process sets: ranks that run collectives of their own."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from ringcore._errors import InvalidArgument, RingcoreError
from ringcore.job.agreement import agree
from ringcore.job.state import context, rank, size

_log = logging.getLogger("ringcore")


class ProcessSet:
    """A subset of the ranks that runs collectives of its own.

    Args:
        ranks: Ranks of the job, in any order, each once.
    """

    process_set_id: int | None = None
    _registered: ClassVar[weakref.WeakSet[ProcessSet]] = weakref.WeakSet()

    def __init__(self, ranks: Sequence[int]) -> None:
        if not isinstance(ranks, Iterable) or not all(hasattr(each, "__index__") for each in ranks):
            raise InvalidArgument(f"a process set is made of a list of ranks, as [0, 2], not of {ranks!r}")
        if len(set(ranks)) != len(ranks):
            raise InvalidArgument(f"a process set names each rank once, not {list(ranks)}")
        self._ranks = sorted(ranks)

    @property
    def ranks(self) -> list[int]:
        """The member ranks, ascending."""
        return list(self._ranks)

    def included(self) -> bool:
        """Whether this process is a member."""
        return rank() in self.ranks

    def rank(self) -> int:
        """This process's index among the members.

        Raises:
            InvalidArgument: It is not a member.
        """
        if not self.included():
            raise InvalidArgument(f"rank {rank()} is not a member of the process set {self.ranks}")
        return self.ranks.index(rank())

    def size(self) -> int:
        """The number of members."""
        return len(self.ranks)

    def _register(self, number: int) -> None:
        self.process_set_id = number
        ProcessSet._registered.add(self)

    @classmethod
    def renumber(cls, rank_of: Mapping[int, int]) -> None:
        """The members of all sets go by other ranks, and those that have none were lost."""
        for process_set in cls._registered:
            if process_set.process_set_id is not None:
                process_set._ranks = [rank_of[r] for r in process_set._ranks if r in rank_of]

    def __repr__(self) -> str:
        return f"ProcessSet(ranks={self.ranks}, process_set_id={self.process_set_id})"


class _World(ProcessSet):
    """All ranks."""

    process_set_id = 0

    def __init__(self) -> None:
        super().__init__([])

    def __reduce__(self) -> str:
        return "global_process_set"  # there is one in each process

    @property
    def ranks(self) -> list[int]:
        return list(range(size()))


global_process_set: ProcessSet = _World()


def add_process_set(ranks: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set. Collective: every rank of the job calls it with the same ranks, members or not.

    Raises:
        MismatchError: Ranks named different members.
        InvalidArgument: A rank does not exist.
    """
    process_set = ranks if isinstance(ranks, ProcessSet) else ProcessSet(ranks)
    current = context()
    if process_set.process_set_id is not None:
        raise InvalidArgument(f"{process_set} is registered already")
    wrong = [r for r in process_set.ranks if not 0 <= r < current.size]
    if wrong or not process_set.ranks:
        raise InvalidArgument(f"a process set has members among ranks 0 to {current.size - 1}, not {process_set.ranks}")
    agree("add_process_set", process_set.ranks)
    process_set._register(current.runtime.add_process_set(process_set.ranks))
    _log.debug("rank %d: added %s", current.rank, process_set)
    return process_set


def add_process_set_of_members(ranks: Sequence[int], number: int) -> ProcessSet:
    """Register a process set that the other ranks need not know of. Its members call this, each when it likes.

    Args:
        ranks: The members.
        number: Counted from 1, never used before in this job; the members have agreed on it.

    Raises:
        InvalidArgument: The number was used before, or this rank is not a member.
        ResourceError: A job cannot have so many of these sets.
    """
    current = context()
    process_set = ProcessSet(ranks)
    process_set._register(current.runtime.add_process_set(process_set.ranks, number))
    _log.debug("rank %d: added %s", current.rank, process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> None:
    """Forget a process set. Collective: every rank of the job calls it.

    Raises:
        InvalidArgument: It is not registered, is the world, or has operations that are not done.
    """
    if process_set is global_process_set:
        raise InvalidArgument(f"{process_set} cannot be removed: it has all ranks; shutdown() ends them")
    if process_set.process_set_id is None:
        raise InvalidArgument(f"{process_set} cannot be removed: add_process_set has not made it, or it is removed")
    agree("remove_process_set", process_set.process_set_id)
    _forget(process_set, process_set.process_set_id)


@contextlib.contextmanager
def process_set_for_a_while(ranks: Sequence[int]) -> Iterator[ProcessSet]:
    """A process set that is removed again, where all ranks of the job know its members: nobody waits for anybody.

    Args:
        ranks: The same on all ranks, of the job's present members.
    """
    process_set = ProcessSet(ranks)
    number = context().runtime.add_process_set(process_set.ranks)
    process_set._register(number)
    try:
        yield process_set
    except BaseException:
        with contextlib.suppress(RingcoreError):  # Where the job has ended there is none to be removed.
            _forget(process_set, number)
        raise
    _forget(process_set, number)


def _forget(process_set: ProcessSet, number: int) -> None:
    current = context()
    current.runtime.remove_process_set(number)
    _log.debug("rank %d: removed %s", current.rank, process_set)
    current.forget_names_of(number)
    process_set.process_set_id = None


def process_set_id_of(process_set: ProcessSet, kind: str = "", name: str | None = None) -> int:
    """The engine's number of a registered process set that this rank is a member of.

    Args:
        process_set: The set.
        kind: The operation that is to run in it, for errors.
        name: The operation's, where it has one already.

    Raises:
        InvalidArgument: It is not registered, or this rank is not a member.
    """
    if process_set is global_process_set:
        return 0
    if isinstance(process_set, ProcessSet) and process_set.process_set_id is not None and process_set.included():
        return process_set.process_set_id
    call = " ".join(filter(None, (kind, name and repr(name))))
    raise InvalidArgument(f"{call}: {_why_not(process_set)}" if call else _why_not(process_set))


def _why_not(process_set: object) -> str:
    """Why no operation of this rank can run in it."""
    if not isinstance(process_set, ProcessSet):
        return f"process_set is {process_set!r}; pass what add_process_set has returned"
    if process_set.process_set_id is None:
        return f"{process_set} is not registered; call add_process_set on every rank first"
    return (
        f"rank {rank()} is not a member of the process set {process_set.ranks}; only members call, those for which "
        "process_set.included() is true"
    )
