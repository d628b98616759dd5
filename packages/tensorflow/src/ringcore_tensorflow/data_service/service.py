"""Who starts which of TensorFlow's servers, and datasets that read from them.

A worker of the compute job belongs to one dispatcher. That is in the compute job too, or with the ranks of the
training: one for all of them on rank 0, or one on each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from ringcore import RingcoreError
from ringcore.adapter import rank_and_size
from ringcore.bootstrap.interfaces import own_address
from tensorflow.data.experimental import service

from ringcore_tensorflow.data_service.client import ComputeClient
from ringcore_tensorflow.data_service.config import TfDataServiceConfig

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]

# A worker whose dispatcher does not answer looks for it this long, instead of an hour in which it cannot be stopped.
_LOST_DISPATCHER_MS = 10_000


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """The data service, for a rank of the training to use in a `with` block.

    A dispatcher that is on this rank ends with the block, after the other ranks have left theirs.

    Args:
        compute_config: From the compute job.
        rank: This rank.

    Yields:
        What `tf.data.experimental.service.distribute(service=...)` takes.

    Raises:
        RingcoreError: The compute job, a dispatcher or a worker is not there within the time limit.
        ValueError: There are several dispatchers, but none for this rank.
    """
    index = _dispatcher_of(compute_config, rank)
    with compute_config.compute_client() as client, contextlib.ExitStack() as own:
        is_owner = compute_config.dispatcher_side == "training" and rank == index
        if is_owner:
            own.enter_context(_dispatcher(client, index))
        elif compute_config.dispatcher_side == "training":
            client.register_reader(index)
        yield _address_of(client, compute_config, index)
        if is_owner:
            client.wait_for_readers(index)


def send_to_data_service(
    dataset: Any, compute_config: TfDataServiceConfig, rank: int, size: int | None = None,
    processing_mode: str = "distributed_epoch", reuse_dataset: bool = False, round_robin: bool = False,
) -> Any:  # fmt: skip
    """A dataset that the compute job prepares; also a method of `tf.data.Dataset`. For dispatchers in that job.

    Args:
        dataset: What it prepares.
        compute_config: From the compute job.
        rank: This rank.
        size: How many there are; needed where they share one dispatcher.
        processing_mode: What `tf.data.experimental.service.distribute` takes.
        reuse_dataset: Ranks that share a dispatcher share its elements, instead of having them all.
        round_robin: They take turns then; the dataset has to be endless.

    Raises:
        RuntimeError: The dispatchers are in the training job.
        RingcoreError: The compute job, a dispatcher or a worker is not there within the time limit.
        ValueError: There are several dispatchers, but none for this rank; or the size is needed.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "the dispatchers are in the training job, and somebody has to end them: write `with "
            "tf_data_service(compute_config, ring.rank()) as address:` and, in it, dataset.apply("
            "tf.data.experimental.service.distribute(service=address, ...)); or start compute_worker with "
            "--dispatcher-side compute"
        )
    is_shared = compute_config.dispatchers == 1 and reuse_dataset
    takes_turns = is_shared and round_robin
    if takes_turns and size is None:
        raise ValueError("ranks that take turns have to know how many there are: pass size=ring.size()")
    with compute_config.compute_client() as client:
        address = _address_of(client, compute_config, _dispatcher_of(compute_config, rank))
    return dataset.apply(
        service.distribute(
            processing_mode=processing_mode,
            service=address,
            job_name="job" if is_shared else None,
            consumer_index=rank if takes_turns else None,
            num_consumers=size if takes_turns else None,
        )
    )


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """What each process of the compute job does, until the training ends it.

    Args:
        compute_config: The same in all of them.

    Raises:
        RingcoreError: A dispatcher is not there within the time limit, or has gone.
    """
    rank, _ = rank_and_size()
    index, place = divmod(rank, compute_config.workers_per_dispatcher)
    with compute_config.compute_client() as client, contextlib.ExitStack() as own:
        if compute_config.dispatcher_side == "compute" and place == 0:
            own.enter_context(_dispatcher(client, index))
        target = client.wait_for_dispatcher_registration(index)
        worker = service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=target.partition("://")[2],
                worker_address=f"{_own_host()}:%port%",
                dispatcher_timeout_ms=_LOST_DISPATCHER_MS,
            )
        )
        client.register_worker_for_dispatcher(index, rank)
        client.wait_for_end_of_dispatcher(index)
        worker._stop()
        client.unregister_worker(index, rank)
        client.wait_for_shutdown()


@contextlib.contextmanager
def _dispatcher(client: ComputeClient, index: int) -> Iterator[None]:
    server = service.DispatchServer()
    protocol, _, address = server.target.partition("://")
    client.register_dispatcher(index, f"{protocol}://{_own_host()}:{address.rpartition(':')[2]}")
    try:
        yield
    finally:
        # Where the jobs met is gone when the compute job has failed; what has come of that is told already.
        with contextlib.suppress(RingcoreError):
            client.unregister_dispatcher(index)
        server._stop()


def _dispatcher_of(compute_config: TfDataServiceConfig, rank: int) -> int:
    index = 0 if compute_config.dispatchers == 1 else rank
    if index >= compute_config.dispatchers:
        raise ValueError(
            f"the data service has {compute_config.dispatchers} dispatchers, and none for rank {rank}: start "
            "compute_worker with --dispatchers 1, or with the number of ranks of the training"
        )
    return index


def _address_of(client: ComputeClient, compute_config: TfDataServiceConfig, index: int) -> str:
    address = client.wait_for_dispatcher_registration(index)
    client.wait_for_dispatcher_worker_registration(index, compute_config.workers_per_dispatcher)
    return address


def _own_host() -> str:
    address = own_address()
    return f"[{address}]" if ":" in address else address


tf.data.Dataset.send_to_data_service = send_to_data_service
