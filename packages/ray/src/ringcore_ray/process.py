"""What a process of Ray's does to be a rank: one place at a time, and rank 0 serves the rendezvous."""

from __future__ import annotations

import os
from collections.abc import Mapping

import ray
from ringcore import BootstrapError
from ringcore.launcher.external import Job, Raised, Seat, connect, outcome_of

_job: Job | None = None
_seat: Seat | None = None


def node_of() -> tuple[str, str, list[str]]:
    """This process's node, its address there, and the GPUs that Ray has given it."""
    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), [str(gpu) for gpu in gpus]


def open_job(size: int, host: str, environ: Mapping[str, str]) -> list[bytes]:
    """Serve the rendezvous of a new job in this process, until its rank leaves.

    Returns:
        The tickets of all ranks, in their order.
    """
    global _job
    close_job()
    _job = Job(size, host=host, environ=environ)
    return [_job.ticket(rank) for rank in range(size)]


def close_job() -> None:
    """Serve no more."""
    global _job
    if _job is not None:
        _job.close()
        _job = None


def take_seat(ticket: bytes, gpus: str | None = None) -> None:
    """Be this rank, in place of what this process was before.

    Args:
        ticket: From `open_job`.
        gpus: Those of all ranks of this node: the local rank is the index of a rank's own.
    """
    global _seat
    leave()
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    _seat = connect(ticket)


def leave(error: BaseException | None = None) -> None:
    """Be no rank any more.

    Args:
        error: What ended the work of this rank: the others are told.
    """
    global _seat
    seat, _seat = _seat, None
    if seat is None:
        return
    if error is None:
        seat.close()
    else:
        seat.leave_because(error)


def outcome(error: BaseException) -> Raised:
    """What to tell of an exception that is being handled.

    Ranks meet in rank 0's process: where they do not find each other, they may have lost that.
    """
    told = outcome_of(error)
    if told.lost_rank is None and isinstance(error, BootstrapError) and _seat is not None and _seat.rank != 0:
        return told._replace(lost_rank=0)
    return told


def gpus_of_node(nodes: list[tuple[str, str, list[str]]], node: str) -> str:
    """The GPUs of all ranks on a node, as CUDA_VISIBLE_DEVICES has them; in the order of ranks."""
    return ",".join(dict.fromkeys(gpu for name, _, own in nodes if name == node for gpu in own))


def meeting_host(nodes: list[tuple[str, str, list[str]]]) -> str:
    """Where rank 0 serves: on loopback if all ranks are there."""
    return "127.0.0.1" if len({node for node, _, _ in nodes}) == 1 else nodes[0][1]
