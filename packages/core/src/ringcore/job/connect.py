"""From the environment to a running engine: placement, bootstrap, native runtime."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any, NoReturn

from ringcore import _native
from ringcore._errors import BootstrapError, InvalidArgument
from ringcore.bootstrap.aggregation import aggregation_of
from ringcore.bootstrap.keys import read_key
from ringcore.bootstrap.sockets import RanksMissingError
from ringcore.environment.invitation import Invitation
from ringcore.environment.libraries import tell_engine
from ringcore.environment.placement import Placement, find_placement
from ringcore.environment.settings import Settings
from ringcore.job.joining import connect_lanes, connect_with_members, meet_newcomer
from ringcore.job.logs import log_start, set_level, warn_of_launcher
from ringcore.job.making import make_context
from ringcore.job.members import count_as_last
from ringcore.job.membership import Membership, membership
from ringcore.job.state import Context

_log = logging.getLogger("ringcore")
# Where ranks do not connect they hang, which is mended by so many meetings, or cannot be reached, which is not.
_MEETINGS = 3


def connect_context(settings: Settings | None, placement: Placement | None, comm: Any = None) -> Context:
    """Connect this process to its job. See `ringcore.init`."""
    launcher = membership() if placement is None and comm is None else None
    if launcher is None:
        return _connect(settings, placement, comm)
    tries = 0
    while True:
        met = launcher.meet()
        if isinstance(met, Invitation):
            joined = _join(settings, met, launcher)
            if joined is not None:
                return joined
            continue
        try:
            connected = _connect(settings, met)
            launcher.tell_connected()
            if connected.settings.elastic and connected.size > 1:
                connected.launcher = launcher
                launcher.attend(connected.runtime, partial(meet_newcomer, connected, connected.rank))
            return connected
        except BootstrapError as error:
            missing = error.ranks if isinstance(error, RanksMissingError) else []
            if missing and tries < _MEETINGS:
                tries += 1
                launcher.lost = missing[0]  # If it hangs, the launcher ends it.
            elif not launcher.overtaken():
                raise
            _log.info("rank %d meets the others again: %s", met.rank, error)


def _join(settings: Settings | None, invitation: Invitation, launcher: Membership) -> Context | None:
    """Join ranks that train; None: they ended or changed before, or have other settings."""
    settings = settings or Settings.from_environ(os.environ)
    set_level(settings.log_level)
    tell_engine(settings)
    try:
        connected = connect_with_members(invitation, settings)
    except BootstrapError as error:
        _log.info("this process meets the ranks again: %s", error)
        return None
    connected.launcher = launcher
    launcher.attend(connected.runtime, partial(meet_newcomer, connected, invitation.place))
    launcher.tell_met(invitation.place)
    count_as_last(connected, [*invitation.members, invitation.place])
    connected.job = job_name(invitation.placement(0), settings)
    log_start(connected, "ringrun, in a job that runs", _native.kernel_instruction_set())
    return connected


def _connect(settings: Settings | None, placement: Placement | None, comm: Any = None) -> Context:
    settings = settings or Settings.from_environ(os.environ)
    set_level(settings.log_level)
    tell_engine(settings)
    world: _native.MpiWorld | None = None
    if comm is not None:
        from ringcore.environment.mpi import open_world

        world = open_world(None, settings, comm)
        _check_launched_by_mpi(world)
        placement = Placement(world.rank, world.size, None, None, None, None, source="the MPI communicator")
    else:
        placement = placement or find_placement(os.environ)
        if _meets_through_mpi(placement, settings):
            from ringcore.environment.mpi import NoMpiLibrary, open_world

            try:
                world = open_world(placement, settings, None)
            except NoMpiLibrary as error:
                # Slurm may speak MPICH's language by default where nobody has an MPI.
                if settings.transport == "mpi" or placement.master_addr is None:
                    raise
                _log.info("rank %d meets the others over TCP: %s", placement.rank, error)
    memory: _native.HostMemory | None = None

    def create_segment() -> int:
        nonlocal memory
        memory = _native.HostMemory.create(
            placement.rank, placement.processes, settings.arena_bytes, settings.fusion_threshold_bytes
        )
        return memory.fd

    if placement.processes == 1:
        key = read_key(settings) if placement.epoch is not None else None  # others may join
        aggregation = None if key is None else aggregation_of(settings, key, placement.epoch or 0)
        alone = make_context(settings, None, 0, 1, 0, [], [0], [0], (0, 1, 0, 1), aggregation=aggregation)
        return _tell_of_start(alone, placement)
    from ringcore.bootstrap import connect

    shares = settings.transport not in ("tcp", "mpi")
    mesh = connect(placement, settings, create_segment=create_segment if shares else None, world=world)
    peers = [(p.rank, p.transport, p.fds, -1 if p.segment_fd is None else p.segment_fd, p.secrets) for p in mesh.peers]
    place = (mesh.local_rank, mesh.local_size, mesh.cross_rank, mesh.cross_size)
    try:
        connected = make_context(
            settings, memory, mesh.rank, mesh.size, mesh.epoch, peers, mesh.host_of, mesh.local_ranks, place, world,
            has_witness=settings.elastic and placement.epoch is not None, told=mesh.told,
            aggregation=mesh.aggregation,
        )  # fmt: skip
    except BaseException:
        if mesh.connector is not None:
            mesh.connector.finish()
        raise
    if mesh.failure is not None:
        if mesh.connector is not None:
            mesh.connector.finish()
        _tell_others(connected, mesh.failure)
    if mesh.connector is not None:
        listens = any(transport == "tcp" and not fds for _, transport, fds, _, _ in peers)
        connect_lanes(connected, mesh.connector, {p.rank: p.rank for p in mesh.peers}, listens=listens)
    connected.endpoint = mesh.endpoint
    return _tell_of_start(connected, placement)


def _tell_of_start(connected: Context, placement: Placement) -> Context:
    connected.job = job_name(placement, connected.settings)
    log_start(connected, placement.placed_by, _native.kernel_instruction_set())
    if connected.settings.elastic and connected.rank == 0 < connected.size - 1 and placement.epoch is None:
        warn_of_launcher(placement)
    return connected


def job_name(placement: Placement, settings: Settings) -> str:
    """What `ringcore status` calls a job: the launcher's name of it, or one after the launcher's process."""
    return settings.job_id or placement.job_id or f"{placement.source.replace(' ', '-')}-{os.getppid()}"


def _tell_others(connected: Context, failure: BootstrapError) -> NoReturn:
    """Not all have come: those that are there hear of it as of any other failure."""
    connected.runtime.fail(str(failure))
    connected.peer_fds.clear()
    connected.runtime.leave("")
    raise failure


def _check_launched_by_mpi(world: _native.MpiWorld) -> None:
    """Where another launcher has started several ranks, MPI believes each to be alone.

    Raises:
        InvalidArgument: It is so, and each rank would train for itself.
    """
    try:
        told = find_placement(os.environ)
    except InvalidArgument:
        return  # MPI knows better
    if world.size == 1 < told.size and told.source in ("ringrun", "torchrun", "Horovod", "Kubernetes"):
        raise InvalidArgument(
            f"{told.source} has started {told.size} ranks, but the communicator has this one alone: MPI has not "
            "launched them. Call init() without a communicator, or start the job with mpirun or mpiexec"
        )


def _meets_through_mpi(placement: Placement, settings: Settings) -> bool:
    """Whether the ranks are to meet through MPI, though nobody has passed a communicator of it."""
    if settings.transport == "mpi":
        return placement.size > 1
    from ringcore.environment.mpi import has_shims, launched_by_mpi

    # On one host everything is there without it; between hosts it is the only one that knows the way.
    several_hosts = placement.local_size is not None and placement.local_size < placement.size
    return launched_by_mpi(placement) and several_hosts and settings.rendezvous is None and has_shims()
