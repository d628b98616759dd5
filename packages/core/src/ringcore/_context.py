"""The state of this process: whether it is initialised, its place in the job, its engine."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ringcore._errors import InvalidArgument, NotInitializedError, RingcoreError

if TYPE_CHECKING:
    from ringcore import _native
    from ringcore._placement import Placement
    from ringcore._settings import Settings


# So many unnamed operations of a kind may be under way at once. Then their names come again: the engine remembers each
# one for ever, and its first use costs more.
_UNNAMED = 16384


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
    # The engine's connections. A forked child closes its copies: with them it would hide this process's death.
    peer_fds: list[int] = field(default_factory=list)
    counters: dict[tuple[str, int | None], int] = field(default_factory=dict)
    attention_thread: threading.Thread | None = None

    def next_name(self, kind: str, process_set: ProcessSet | None = None) -> str:
        """The name of an operation that the caller did not name: equal on all ranks that call in the same order.

        Args:
            kind: The operation's.
            process_set: Each counts for itself: its members may make other calls than the rest. None: the world.
        """
        key = kind, 0 if process_set is None else process_set.process_set_id
        number = self.counters.get(key, 0)
        self.counters[key] = (number + 1) % _UNNAMED
        return f"{kind}.noname.{number}"

    def forget_names(self, prefix: str) -> None:
        """Count operations whose kind begins like this anew; every rank that runs them does so."""
        for key in [key for key in self.counters if key[0].startswith(prefix)]:
            del self.counters[key]


_context: Context | None = None
_inherited: Context | None = None  # of the parent of this forked process; its engine did not come along
_lock = threading.Lock()
_farewell = ""
# Of adapters: called by `shutdown` while the engine still runs.
before_shutdown: list[Callable[[], None]] = []


def _forget_parent() -> None:
    global _context, _inherited, _lock
    _lock = threading.Lock()
    if _context is None:
        return
    for fd in _context.peer_fds:
        os.close(fd)
    _context.peer_fds.clear()
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


def init(comm: Any = None, *, settings: Settings | None = None, placement: Placement | None = None) -> None:
    """Find this process's place in the job, connect to the other ranks and start the engine.

    The place comes from the environment: ringrun, torchrun, mpirun, srun; without a launcher the job is this process
    alone. Calling it again while initialised does nothing. After `shutdown()` it connects anew.

    Args:
        comm: A communicator of mpi4py, such as `MPI.COMM_WORLD`: its processes are the ranks, and all of them call
            this. They meet through MPI, which also carries what goes between hosts. It may go on being used.
        settings: Overrides what the `RINGCORE_*` variables say.
        placement: This process's place, where an adapter knows it from its framework instead.

    Raises:
        BootstrapError: The ranks could not find each other in time; the message names them and the remedy.
        InvalidArgument: The environment contradicts itself, `comm` is no communicator of mpi4py or of a job that MPI
            has not launched, or MPI was initialised for fewer threads than `MPI_THREAD_SERIALIZED`.
    """
    global _context
    with _lock:
        if _context is not None:
            return
        from ringcore._connect import connect_context

        _context = connect_context(settings, placement, comm)
        atexit.unregister(shutdown)
        atexit.register(shutdown)
        _install_excepthook()
        from ringcore._attention import start_attention_thread

        _context.attention_thread = start_attention_thread(_context)
    if _context.settings.timeline:
        from ringcore._timeline import start_timeline

        start_timeline(_context.settings.timeline)


def shutdown() -> None:
    """Leave the job: tell the other ranks, stop the engine. Does nothing when not initialised."""
    global _context
    if _context is not None:
        for finish in before_shutdown:
            finish()
    with _lock:
        current = _context
        if current is None:
            return
        from ringcore import _timeline

        _timeline.write_pending()
        current.peer_fds.clear()
        current.runtime.leave(_farewell)
        if current.attention_thread is not None:
            current.attention_thread.join()
        _context = None


def is_initialized() -> bool:
    """Whether `init()` was called and `shutdown()` was not."""
    return _context is not None


def rank() -> int:
    """This process's number in the job, from 0."""
    return context().rank


def size() -> int:
    """The number of processes of the job."""
    return context().size


def local_rank() -> int:
    """This process's number among those of its host, from 0: the index of its device."""
    return context().local_rank


def local_size() -> int:
    """The number of the job's processes on this host."""
    return context().local_size


def cross_rank() -> int:
    """The number of this process's host among those that have a process of this local rank."""
    return context().cross_rank


def cross_size() -> int:
    """The number of hosts that have a process of this local rank."""
    return context().cross_size


def is_homogeneous() -> bool:
    """Whether every host has the same number of processes."""
    hosts = context().host_of
    return len({hosts.count(host) for host in hosts}) == 1


class ProcessSet:
    """A subset of the ranks that runs collectives of its own.

    Args:
        ranks: Ranks of the job, in any order, each once.
    """

    process_set_id: int | None = None

    def __init__(self, ranks: Sequence[int]) -> None:
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
    from ringcore._objects import agree

    agree("add_process_set", process_set.ranks)
    process_set.process_set_id = current.runtime.add_process_set(process_set.ranks)
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
    process_set.process_set_id = current.runtime.add_process_set(process_set.ranks, number)
    return process_set


def remove_process_set(process_set: ProcessSet) -> None:
    """Forget a process set. Collective: every rank of the job calls it.

    Raises:
        InvalidArgument: It is not registered, is the world, or has operations that are not done.
    """
    current = context()
    if process_set.process_set_id is None or process_set is global_process_set:
        raise InvalidArgument(f"{process_set} cannot be removed")
    from ringcore._objects import agree

    agree("remove_process_set", process_set.process_set_id)
    current.runtime.remove_process_set(process_set.process_set_id)
    process_set.process_set_id = None


def process_set_id_of(process_set: ProcessSet) -> int:
    """The engine's number of a registered process set that this rank is a member of.

    Raises:
        InvalidArgument: It is not registered, or this rank is not a member.
    """
    if process_set is global_process_set:
        return 0
    if process_set.process_set_id is None:
        raise InvalidArgument(f"{process_set} is not registered; call add_process_set on every rank first")
    if not process_set.included():
        raise InvalidArgument(f"rank {rank()} is not a member of the process set {process_set.ranks}")
    return process_set.process_set_id


def _install_excepthook() -> None:
    """Let the other ranks know which exception ended this one."""
    previous = sys.excepthook
    if getattr(previous, "_is_ringcore", False):
        return

    def hook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> Any:
        global _farewell
        if not isinstance(value, RingcoreError):
            _farewell = f"it raised {kind.__name__}: {value}"[:2000]
        return previous(kind, value, traceback)

    hook._is_ringcore = True  # type: ignore[attr-defined]
    sys.excepthook = hook
