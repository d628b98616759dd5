"""What a rank has met the others with becomes its running engine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ringcore import _native
from ringcore._errors import InvalidArgument
from ringcore.environment.libraries import nccl_shares_gpus
from ringcore.environment.settings import Settings
from ringcore.job.state import Context

if TYPE_CHECKING:
    from ringcore.bootstrap.aggregation import Aggregation
    from ringcore.bootstrap.told_network import ToldNetwork


def make_context(
    settings: Settings,
    memory: _native.HostMemory | None,
    rank: int,
    size: int,
    epoch: int,
    peers: list[tuple[int, str, list[int], int, list[bytes]]],
    host_of: list[int],
    local_ranks: list[int],
    place: tuple[int, int, int, int],
    world: _native.MpiWorld | None = None,
    *,
    has_witness: bool = False,
    began_with: int | None = None,
    told: ToldNetwork | None = None,
    aggregation: Aggregation | None = None,
) -> Context:
    """The running engine of a rank, and what Python keeps of it.

    Args:
        settings: Of this rank.
        memory: What it shares.
        rank: Its number.
        size: Of the job, without its servers.
        epoch: Of its connections.
        peers: Of each: rank, transport, descriptors, memory file, secrets.
        host_of: Numbers the groups of processes that share memory, for each rank, and behind these each server.
        local_ranks: Of each rank.
        place: The local rank and size, and the cross rank and size.
        world: MPI, where it was opened.
        has_witness: The launcher has a vote on who goes on.
        began_with: This process joins a job that runs, which so many ranks have begun; else None.
        told: Of the network between hosts, where somebody has.
        aggregation: A switch that sums on the way.

    Raises:
        InvalidArgument: The job cannot be elastic, or cannot have servers.
    """
    ranks = host_of if began_with else host_of[:size]
    servers = len(host_of) - len(ranks)
    over_mpi = any(transport == "mpi" for _, transport, _, _, _ in peers)
    if servers and (settings.elastic or told is not None or over_mpi):
        raise InvalidArgument(
            "a job with servers is not elastic, is not told what lies between its hosts, and does not use MPI between "
            "its ranks. Remedy: leave out --servers, or --min-np, --topology-file, RINGCORE_ELASTIC and "
            "RINGCORE_TRANSPORT=mpi"
        )
    if settings.elastic and over_mpi:
        raise InvalidArgument(
            "an elastic job cannot use MPI between its ranks: MPI ends all of them when one is lost. Start it with "
            "ringrun, or set RINGCORE_TRANSPORT=tcp"
        )
    if aggregation is not None and servers:
        raise InvalidArgument(
            "a job that a switch sums for has no servers. Remedy: leave out --switch (RINGCORE_SWITCH), or --servers"
        )
    runtime = _native.Runtime(
        rank,
        began_with or len(host_of),
        epoch,
        memory,
        peers,
        host_of,
        place[0],
        place[1],
        fusion_threshold_bytes=settings.fusion_threshold_bytes,
        partition_bytes=settings.partition_bytes,
        credit_bytes=settings.credit_bytes,
        eager_limit_bytes=settings.eager_limit_bytes,
        deterministic=settings.deterministic,
        timeout_s=settings.timeout_s,
        stall_warning_s=settings.stall_warning_s,
        heartbeat_s=settings.heartbeat_s,
        elastic=settings.elastic,
        elastic_timeout_s=settings.elastic_timeout_s,
        has_witness=has_witness,
        start_timeout_s=settings.start_timeout_s,
        spin_s=settings.spin_us * 1e-6,
        nccl_shares_gpus=nccl_shares_gpus(os.environ),
        mpi=world,
        joins=began_with is not None,
        network=None if told is None else told.network,
        servers=servers,
        aggregation=aggregation,
    )
    return Context(
        rank, size, *place, host_of=ranks, settings=settings, runtime=runtime, memory=memory, epoch=epoch,
        local_ranks=local_ranks, server_hosts=host_of[len(ranks) :], told=told,
        peer_fds={peer: list(fds) for peer, _, fds, _, _ in peers},
    )  # fmt: skip
