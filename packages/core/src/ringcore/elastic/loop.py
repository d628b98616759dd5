"""The loop around a training function: after a loss it goes on from the last commit, with the ranks that are there."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ringcore._errors import (
    MembershipChangedError,
    PeerLostError,
    RingcoreError,
    ShutdownError,
    TimeoutError,
)
from ringcore.elastic.alike import Parts, find_parts
from ringcore.elastic.state import HostsUpdatedInterrupt, JoinedInterrupt, PartedInterrupt, State
from ringcore.job import members
from ringcore.job.handover import Handover, handing_over
from ringcore.job.lifecycle import begin_anew, init, shutdown
from ringcore.job.membership import membership
from ringcore.job.process_sets import global_process_set
from ringcore.job.state import context, is_initialized
from ringcore.job.told_errors import as_ringcore_error

_log = logging.getLogger("ringcore")
T = TypeVar("T")
_REMEDY = "The others cannot go on where their number is fixed. Remedy: start the job by ringrun --min-np N"


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Decorate a training function: it begins with the state of rank 0, and goes on when ranks come and go.

    When a rank is lost, the state goes back to its last commit, and the function is called again in the same process,
    by the ranks that are left. It needs `ringrun --min-np`, or `RINGCORE_ELASTIC` and a launcher that lets the others
    live; without these a lost rank ends the others.

    Args:
        func: Takes a state, and whatever else. It goes on from where the state stands.
    """

    @functools.wraps(func)
    def call(state: State, *args: Any, **options: Any) -> T:
        with _leaving_at_commits():
            return _train(functools.partial(func, state, *args, **options), state)

    return call


@contextlib.contextmanager
def _leaving_at_commits() -> Iterator[None]:
    launcher = membership()
    if launcher is None:
        yield
        return
    launcher.commits = True
    try:
        yield
    finally:
        launcher.commits = False


def _train(func: Callable[[], T], state: State) -> T:
    must_sync, has_changed = True, False
    if is_initialized():
        context().is_intact = False  # It may have been with another state.
    while True:
        try:
            if is_initialized():
                has_changed |= _become_member()
                _let_go_back(True)
            if has_changed:
                state.on_reset()
            if must_sync:
                _give(state)
            result = func()
            if is_initialized():
                _let_go_back(False)
            return result
        except PartedInterrupt:
            must_sync = not _go_on(intact=True) and _meet_again(intact=True)
        except JoinedInterrupt:
            must_sync = _go_on(intact=True) or _meet_again(intact=False)
        except HostsUpdatedInterrupt as interrupt:
            must_sync = _meet_again(intact=interrupt.skip_sync)
        except Exception as error:
            lost = as_ringcore_error(error)
            if lost is None or not _is_loss(lost):
                raise
            if membership() is None and not isinstance(lost, MembershipChangedError):
                raise _with_remedy(lost) from error
            _log.warning("rank %d goes back to its last commit: %s", context().rank, lost)
            state.restore()
            must_sync = _goes_on_after(lost) or _meet_again(intact=False)
        has_changed = True


def _let_go_back(goes_back: bool) -> None:
    """Whether the program goes back to a commit when a rank is lost: who does has to be told."""
    context().goes_back = goes_back
    context().runtime.fail_on_change(goes_back)


def _give(state: State) -> None:
    """The state to those who need it; whoever sends nothing of it trains on at once, and keeps what it has saved last.

    If a rank is lost soon after, all go back to what rank 0 has saved, so nobody has to save it here.
    """
    parts = find_parts(state)
    while parts is None:  # It is given to all at once who are ready to join.
        begin_anew()
        state.on_reset()
        parts = find_parts(state)
    context().touched_for_state.clear()
    if not parts.givers:
        state.sync()
    elif parts.takers:
        _give_among(parts, state)
    context().touched_for_step.clear()  # Not before: the state has memory of its own.


def _give_among(parts: Parts, state: State) -> None:
    with handing_over(parts.givers, parts.takers) as handover:
        if not handover.gives and not handover.included():
            _excuse(handover)
        state.sync_among, state.handover = handover.first, handover
        try:
            state.sync()
        finally:
            state.sync_among, state.handover = global_process_set, None
        if not handover.included():  # Whoever gives a share only may be done before others are.
            _excuse(handover)


def _excuse(handover: Handover) -> None:
    """A state may be large, and nobody who waits for those that have to do with it is to lose patience.

    Rank 0 and those that come do, so that somebody notices when one of them hangs.
    """
    context().runtime.excuse([rank for rank in handover.everybody.ranks if rank != context().rank])


def _become_member() -> bool:
    """Whoever has come to ranks that train asks to be one here, where it has all it needs; or meets them anew."""
    while context().is_newcomer:
        context().goes_back = True
        try:
            return members.become_member()
        except RingcoreError as error:
            _log.info("this process meets the ranks again: %s", error)
            _meet_again(intact=False)
    return False


def _goes_on_after(lost: RingcoreError) -> bool:
    """Whether the engine has seen to it, and the ranks that are left are enough: all of them know the same."""
    return isinstance(lost, MembershipChangedError) and _go_on(intact=False)


def _go_on(*, intact: bool) -> bool:
    """With the ranks that the engine has now, if they are enough.

    Args:
        intact: Nobody has gone back to a commit.
    """
    launcher = membership()
    if launcher is not None and context().size < launcher.least:
        return False
    context().is_intact = intact
    begin_anew()
    return True


def _meet_again(*, intact: bool) -> bool:
    """Leaves the ranks of this epoch and meets those of the next; returns whether the state must be synchronised."""
    launcher = membership()
    settings = None
    if is_initialized():
        settings = context().settings
        if launcher is not None:
            launcher.lost = context().runtime.lost_rank
        shutdown()
    if launcher is not None:
        launcher.intact = intact
    init(settings=settings)
    return launcher is None or launcher.must_sync


def _is_loss(error: RingcoreError) -> bool:
    """Whether a rank is gone, or as good as gone; after other errors the same would happen again.

    Scripts raise the base of all errors, which is Horovod's HorovodInternalError, to start over.
    """
    lost = MembershipChangedError | PeerLostError | ShutdownError | TimeoutError
    return isinstance(error, lost) or type(error) is RingcoreError


def _with_remedy(error: RingcoreError) -> RingcoreError:
    return PeerLostError(f"{error} {_REMEDY}") if isinstance(error, PeerLostError) else error
