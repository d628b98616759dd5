"""Groups of `ray.util.collective` that work by ringcore: among actors of a host through shared memory."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import ray
import ringcore
from ray.experimental import internal_kv
from ray.util.collective import register_collective_backend
from ray.util.collective.backend_registry import _global_registry
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import (
    AllGatherOptions,
    AllReduceOptions,
    BarrierOptions,
    BroadcastOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
)

from ringcore_ray import process

_NAMESPACE = b"ringcore"
_POLL_S = 0.005
_LIMIT_S = 60.0
_OPS = {
    ReduceOp.SUM: ringcore.Sum,
    ReduceOp.PRODUCT: ringcore.Product,
    ReduceOp.MIN: ringcore.Min,
    ReduceOp.MAX: ringcore.Max,
}


def register_ring() -> None:
    """Make "RING" a backend of `ray.util.collective` in this process: on the driver, and in each actor."""
    if not _global_registry.is_registered("RING"):
        register_collective_backend("RING", RingGroup)


class RingGroup(BaseGroup):
    """A group of actors. A process is in one group at a time; tensors are numpy arrays, or torch's on the CPU."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        if rank == 0:
            host = ray.util.get_node_ip_address()
            for other, ticket in enumerate(process.open_job(world_size, host, {})):
                internal_kv._internal_kv_put(self._place(other), ticket, overwrite=True, namespace=_NAMESPACE)
        process.take_seat(self._await_ticket())
        ringcore.init()

    def _place(self, rank: int) -> bytes:
        return f"collective/{self._group_name}/{rank}".encode()

    def _await_ticket(self) -> bytes:
        deadline = time.monotonic() + _LIMIT_S
        place = self._place(self._rank)
        while (ticket := internal_kv._internal_kv_get(place, namespace=_NAMESPACE)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"rank 0 of the group {self._group_name!r} did not come within {_LIMIT_S:g} s: is "
                    "init_collective_group called in the actor of every rank?"
                )
            time.sleep(_POLL_S)
        # A later group of the same name has another one.
        internal_kv._internal_kv_del(place, namespace=_NAMESPACE)
        return bytes(ticket)

    @classmethod
    def backend(cls) -> str:
        """Its name."""
        return "RING"

    @classmethod
    def check_backend_availability(cls) -> bool:
        """It needs nothing but ringcore."""
        return True

    def destroy_group(self) -> None:
        """Leave the group."""
        process.leave()
        process.close_job()

    def allreduce(self, tensor: list[Any], allreduce_options: Any = AllReduceOptions) -> None:
        """Reduce in place."""
        ringcore.allreduce_(_array(tensor[0]), op=_OPS[allreduce_options.reduceOp])

    def barrier(self, barrier_options: Any = BarrierOptions) -> None:
        """Wait for all ranks."""
        ringcore.barrier()

    def reduce(self, tensor: list[Any], reduce_options: Any = ReduceOptions) -> None:
        """Reduce; the tensors of other ranks than the root stay as they are."""
        array = _array(tensor[0])
        result = ringcore.allreduce(array, op=_OPS[reduce_options.reduceOp])
        if self._rank == reduce_options.root_rank:
            array[...] = result

    def broadcast(self, tensor: list[Any], broadcast_options: Any = BroadcastOptions) -> None:
        """Copy the root's tensor to all."""
        ringcore.broadcast_(_array(tensor[0]), broadcast_options.root_rank)

    def allgather(
        self, tensor_list: list[list[Any]], tensor: list[Any], allgather_options: Any = AllGatherOptions
    ) -> None:
        """Fill the list with the tensors of all ranks."""
        for target, part in zip(tensor_list[0], ringcore.allgather(_array(tensor[0])[np.newaxis]), strict=True):
            _array(target)[...] = part

    def reducescatter(
        self, tensor: list[Any], tensor_list: list[list[Any]], reducescatter_options: Any = ReduceScatterOptions
    ) -> None:
        """Reduce the lists of all ranks; each gets its part."""
        parts = np.stack([_array(part) for part in tensor_list[0]])
        _array(tensor[0])[...] = ringcore.reducescatter(parts, op=_OPS[reducescatter_options.reduceOp])[0]

    def send(self, tensor: list[Any], send_options: Any) -> None:
        """Not there."""
        raise NotImplementedError("ringcore has no send and recv: use alltoall, broadcast, or an actor call of Ray")

    def recv(self, tensor: list[Any], recv_options: Any) -> None:
        """Not there."""
        self.send(tensor, recv_options)


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    """The memory of a tensor as an array; numpy's own, or what shares its memory with numpy."""
    return tensor if isinstance(tensor, np.ndarray) else np.from_dlpack(tensor)
