"""`init` and `shutdown`: how this process comes into its job, and leaves it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ringcore._errors import BootstrapError, InvalidArgument, PeerLostError, ShutdownError
from ringcore.bootstrap.sockets import RanksMissingError
from ringcore.environment.loss import tell_loss
from ringcore.job import timeline
from ringcore.job.attention import start_attention_thread
from ringcore.job.connect import connect_context
from ringcore.job.metrics import MetricsPage
from ringcore.job.nvtx import mark_operations
from ringcore.job.state import context, is_initialized, set_context
from ringcore.job.watch import start_watch

if TYPE_CHECKING:
    from ringcore.environment.placement import Placement
    from ringcore.environment.settings import Settings

_lock = threading.Lock()
_farewell = ""
# Of adapters: called by `shutdown` while the engine still runs.
before_shutdown: list[Callable[[], None]] = []
# Of what adapters keep from one job to the next, as ranks and their number may be others: called by `init`, and when
# the engine goes on with those that are left.
_after_init: list[weakref.WeakMethod[Callable[[], None]]] = []


def after_init(method: Callable[[], None]) -> None:
    """Let each later `init` call a method, for as long as its object lives."""
    _after_init.append(weakref.WeakMethod(method, _after_init.remove))


def begin_anew() -> None:
    """The ranks are others: adapters forget what they have under way."""
    for method in [reference() for reference in _after_init]:
        if method is not None:
            method()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()  # the parent may have held it


os.register_at_fork(after_in_child=_renew_lock)


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
            has not launched, MPI was initialised for fewer threads than `MPI_THREAD_SERIALIZED`, a rank cannot
            write the timeline or serve the metrics that are asked for, or NVTX is not there.
    """
    with _lock:
        if is_initialized():
            return
        try:
            current = connect_context(settings, placement, comm)
        except RanksMissingError as error:  # which ones is for the launcher
            raise BootstrapError(str(error)) from None
        set_context(current)
        atexit.unregister(shutdown)
        atexit.register(shutdown)
        _install_excepthook()
        tell_loss(None)
        current.attention_thread = start_attention_thread(current)
        start_watch(current)
    begin_anew()
    try:
        if current.settings.plans:
            from ringcore.job.generators import register_installed

            register_installed(current.settings.plans)
        if current.settings.nvtx:
            mark_operations(current)
        if current.settings.metrics_port:
            current.services.append(MetricsPage(current))
        if current.settings.timeline:
            timeline.start_timeline(current.settings.timeline)
    except InvalidArgument as error:
        leave_because(error)
        raise


def shutdown() -> None:
    """Leave the job: tell the other ranks, stop the engine. Does nothing when not initialised."""
    if is_initialized():
        for finish in before_shutdown:
            finish()
    with _lock:
        if not is_initialized():
            return
        current = context()
        timeline.write_pending()
        current.peer_fds.clear()
        current.runtime.leave(_farewell)
        with current.lanes_lock:
            current.has_left = True
        if current.late_lanes is not None:
            current.late_lanes.stop()
        if current.attention_thread is not None:
            current.attention_thread.join()
        if current.launcher is not None:
            current.launcher.part()
        while current.services:  # They know the context: what is in a circle goes late.
            current.services.pop().stop()
        set_context(None)


def leave_because(error: BaseException) -> None:
    """Leave the job where the process goes on: the others, which may wait for this rank, learn of the exception."""
    global _farewell
    _tell_why(error)
    try:
        shutdown()
    finally:
        _farewell = ""


def _tell_why(error: BaseException) -> None:
    global _farewell
    if not isinstance(error, PeerLostError | ShutdownError):  # these tell of others
        _farewell = f"it raised {type(error).__name__}: {error}"[:2000]


def _install_excepthook() -> None:
    """Let the other ranks know which exception ended this one."""
    previous = sys.excepthook
    if getattr(previous, "_is_ringcore", False):
        return

    def hook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> Any:
        _tell_why(value)
        return previous(kind, value, traceback)

    hook._is_ringcore = True  # type: ignore[attr-defined]
    sys.excepthook = hook
