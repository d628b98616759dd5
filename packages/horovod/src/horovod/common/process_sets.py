"""Process sets as Horovod has them: each set of ranks once, made of ranks or of a communicator of mpi4py."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import ringcore
from ringcore import InvalidArgument, is_initialized

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "is_initialized", "remove_process_set"]


class ProcessSet(ringcore.ProcessSet):
    """`ringcore.ProcessSet`.

    Args:
        ranks_or_comm: Ranks in any order, or a communicator of mpi4py, which `init(process_sets=[...])` takes.
    """

    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Any) -> None:
        if not isinstance(ranks_or_comm, Iterable):
            self.mpi_comm = ranks_or_comm
            ranks_or_comm = _ranks_of(ranks_or_comm, None)
        ranks = list(ranks_or_comm)
        if not all(isinstance(rank, int) for rank in ranks):
            raise InvalidArgument(f"a process set is made of ranks or of a communicator of mpi4py, not of {ranks}")
        super().__init__(ranks)

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


class _World(ProcessSet):
    process_set_id = 0

    def __init__(self) -> None:
        super().__init__([])

    def __reduce__(self) -> str:
        return "global_process_set"  # there is one in each process

    @property
    def ranks(self) -> list[int]:
        return ringcore.global_process_set.ranks


global_process_set: ProcessSet = _World()

# Of each registered set. Every rank has the same ones.
_ranks: dict[int | None, list[int]] = {}


def _ranks_of(comm: Any, job: Any) -> list[int]:
    """The ranks of a communicator in the job's, which is that of all processes unless `init` has got another one."""
    from mpi4py import MPI

    if not isinstance(comm, MPI.Comm):
        raise InvalidArgument(f"a process set is made of ranks or of a communicator of mpi4py, not of {comm!r}")
    everybody = (MPI.COMM_WORLD if job is None else job).group
    return list(MPI.Group.Translate_ranks(comm.group, None, everybody))


def ids_and_ranks() -> dict[int | None, list[int]]:
    """The ranks of each process set, by its number."""
    return {0: global_process_set.ranks, **_ranks}


def known(process_set: ringcore.ProcessSet) -> ringcore.ProcessSet:
    """The process set itself, if it is what it says.

    Raises:
        InvalidArgument: It has a number that no process set has.
    """
    number = process_set.process_set_id
    if isinstance(process_set, ProcessSet) and number is not None and number not in ids_and_ranks():
        raise InvalidArgument(f"{process_set}: no process set has this number; use what add_process_set has returned")
    return process_set


def forget_process_sets() -> None:
    """A new job begins: it has none."""
    _ranks.clear()


def register_process_sets(process_sets: Sequence[ProcessSet], job: Any) -> None:
    """Register those that ranks give to `init`; every rank its own, where they are made of communicators.

    Args:
        process_sets: This rank's.
        job: The communicator that `init` has got, or None.

    Raises:
        InvalidArgument: Two of this rank's have the same ranks, or one those of the job. The others are registered.
    """
    for process_set in process_sets:
        if getattr(process_set, "mpi_comm", None) is not None:
            process_set._ranks = sorted(_ranks_of(process_set.mpi_comm, job))
    mine = json.dumps([process_set.ranks for process_set in process_sets]) + "\n"
    told = ringcore.allgather(np.frombuffer(mine.encode(), np.uint8), name="init.process_sets")
    lists = [json.loads(line) for line in told.tobytes().decode().splitlines()]
    # In the order of their places in the lists, so that the parts of a communicator get numbers one after the other.
    for place in range(max(map(len, lists))):
        for ranks in [given[place] for given in lists if place < len(given)]:
            if ranks not in ids_and_ranks().values():
                _register(ProcessSet(ranks))
    twice = [each for each in process_sets if not _take_number(each, process_sets)]
    if twice:
        raise InvalidArgument(f"each process set is registered once: others have the ranks of {twice}")


def _register(process_set: ringcore.ProcessSet) -> None:
    ringcore.add_process_set(process_set)
    _ranks[process_set.process_set_id] = process_set.ranks


def _take_number(process_set: ProcessSet, others: Sequence[ProcessSet]) -> bool:
    """Whether it is the first of its ranks; then it gets its number."""
    first = next(other for other in (global_process_set, *others) if other.ranks == process_set.ranks)
    numbers = {tuple(ranks): number for number, ranks in ids_and_ranks().items()}
    process_set.process_set_id = numbers[tuple(process_set.ranks)] if first is process_set else None
    return first is process_set


def add_process_set(process_set: ringcore.ProcessSet | Sequence[int]) -> ringcore.ProcessSet:
    """`ringcore.add_process_set`, of ranks that no other process set has.

    Raises:
        InvalidArgument: Another one has these ranks.
    """
    added = process_set if isinstance(process_set, ringcore.ProcessSet) else ProcessSet(process_set)
    if added.ranks in ids_and_ranks().values():
        raise InvalidArgument(f"each process set is registered once: another one has the ranks of {added}")
    _register(added)
    return added


def remove_process_set(process_set: ringcore.ProcessSet) -> bool:
    """Forget a process set; False if it is the global one, or not registered."""
    number = process_set.process_set_id
    if not number:
        return False
    ringcore.remove_process_set(process_set)
    _ranks.pop(number, None)
    return True
