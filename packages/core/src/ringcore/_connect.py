"""From the environment to a running engine: placement, bootstrap, native runtime."""

from __future__ import annotations

import os

from ringcore import _native
from ringcore._context import Context
from ringcore._placement import Placement, find_placement
from ringcore._settings import Settings

# One fusion buffer a data lane lies at the front of each arena.
_DATA_LANES = 3


def connect_context(settings: Settings | None, placement: Placement | None) -> Context:
    """Connect this process to its job. See `ringcore.init`."""
    settings = settings or Settings.from_environ(os.environ)
    placement = placement or find_placement(os.environ)
    memory: _native.HostMemory | None = None

    def create_segment() -> int:
        nonlocal memory
        reserved = _DATA_LANES * settings.fusion_threshold_bytes
        memory = _native.HostMemory.create(placement.rank, placement.size, settings.arena_bytes, reserved)
        return memory.fd

    if placement.size == 1:
        return _context_of(settings, None, 0, 1, 0, [], [0], (0, 1, 0, 1))
    from ringcore.bootstrap import connect

    mesh = connect(placement, settings, create_segment=None if settings.transport == "tcp" else create_segment)
    peers = [(p.rank, p.kind, p.fds, -1 if p.segment_fd is None else p.segment_fd) for p in mesh.peers]
    place = (mesh.local_rank, mesh.local_size, mesh.cross_rank, mesh.cross_size)
    return _context_of(settings, memory, mesh.rank, mesh.size, mesh.epoch, peers, mesh.host_of, place)


def _context_of(
    settings: Settings,
    memory: _native.HostMemory | None,
    rank: int,
    size: int,
    epoch: int,
    peers: list[tuple[int, str, list[int], int]],
    host_of: list[int],
    place: tuple[int, int, int, int],
) -> Context:
    runtime = _native.Runtime(
        rank,
        size,
        epoch,
        memory,
        peers,
        host_of,
        place[0],
        place[1],
        fusion_threshold_bytes=settings.fusion_threshold_bytes,
        eager_limit_bytes=settings.eager_limit_bytes,
        deterministic=settings.deterministic,
        timeout_s=settings.timeout_s,
        stall_warning_s=settings.stall_warning_s,
        heartbeat_s=settings.heartbeat_s,
        spin_s=settings.spin_us * 1e-6,
    )
    return Context(
        rank, size, *place, host_of=host_of, settings=settings, runtime=runtime, memory=memory,
        peer_fds=[fd for _, _, fds, _ in peers for fd in fds],
    )  # fmt: skip
