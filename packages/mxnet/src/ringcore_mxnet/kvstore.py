"""ringcore as one of MXNet's key-value stores, at MXNet's own plug-in point."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import mxnet as mx
import ringcore
from ringcore import InvalidArgument, Sum
from ringcore.adapter import context

from ringcore_mxnet._operations import allreduce, allreduce_, barrier, broadcast_
from ringcore_mxnet.compression import Compression, Compressor
from ringcore_mxnet.optimizer import DistributedOptimizer


def listed(value: Any) -> list[Any]:
    """One array, or one for each device, as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


def pairs_of(key: Any, value: Any) -> list[tuple[Any, Any]]:
    """Keys with what belongs to each: one array, or one for each device."""
    return list(zip(key, value, strict=True)) if isinstance(key, list | tuple) else [(key, value)]


@mx.kvstore.KVStoreBase.register
class Ring(mx.kvstore.KVStoreBase):  # type: ignore[misc]
    """`kvstore="dist_ring"`, in the place of "dist_sync": the same sums, without a server.

    Values are summed over the ranks, as in every store of MXNet: Gluon's `trainer.step` gets the batch size of all
    ranks together, `Module.fit` finds it out. Where a trainer leaves the update to the store, each rank runs the
    optimizer itself, on the same sums.

    Under the name "ring" MXNet uses it where there are several devices; with one it drops every store whose name lacks
    "dist", and says nothing. Hence "dist_ring", or an instance.
    """

    def __init__(self) -> None:
        ringcore.init()
        self._name = context().next_name("kvstore")
        self._compression: type[Compressor] = Compression.none
        self._stored: dict[Any, Any] = {}
        self._updater: Any = None

    @property
    def type(self) -> str:
        """What MXNet looks for "dist" in, and `Module` for "_sync": it divides by the batches of all workers then."""
        return "dist_ring_sync"

    @property
    def rank(self) -> int:
        """This process's number in the job."""
        return ringcore.rank()

    @property
    def num_workers(self) -> int:
        """The number of processes of the job."""
        return ringcore.size()

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether the store can do something beyond sums: "optimizer"."""
        return capability.lower() == str(mx.kvstore.KVStoreBase.OPTIMIZER)

    def init(self, key: Any, value: Any) -> None:
        """Store rank 0's value, once for each key.

        Raises:
            InvalidArgument: A row-sparse value, or a key that has one already.
        """
        for one, values in pairs_of(key, value):
            held = listed(values)[0]
            if held.stype != "default":
                self._refuse_rows(one)
            if one in self._stored:
                raise InvalidArgument(f"'{one}' has a value already; init takes each key once, and push changes values")
            self._stored[one] = held.copy()
            broadcast_(self._stored[one], 0, name=f"{self._name}.init.{one}")

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Store rank 0's value and write it into `out`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum over devices and ranks, and store the sum, or what the optimizer makes with it of what is stored."""
        for one, values in pairs_of(key, value):
            total = self._total(one, listed(values), priority)
            if self._updater is None:
                self._stored[one] = total
            else:
                self._updater(one, total, self._require(one))

    def pull(self, key: Any, out: Any, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Write what is stored into `out`, for as many devices as it has arrays for."""
        for one, targets in pairs_of(key, out):
            for target in listed(targets):
                self._require(one).copyto(target)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push` and `pull` into `out`; without `out` the sums go into `value`, and nothing is stored."""
        if out is not None:
            self.push(key, value, priority)
            self.pull(key, out, priority)
            return
        for one, values in pairs_of(key, value):
            self._sum_in_place(one, listed(values), priority)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Not there.

        Raises:
            InvalidArgument: Always.
        """
        self._refuse_rows(key)

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Send 16-bit floats: `{"type": "fp16"}`, "bf16"; between hosts integers: "int8", "int4".

        Raises:
            InvalidArgument: Another type.
        """
        kind = compression_params.get("type")
        if kind not in ("none", "fp16", "bf16", "int8", "int4"):
            raise InvalidArgument(
                f"dist_ring compresses with {{'type': 'fp16'}}, 'bf16', 'int8' or 'int4', not with '{kind}'"
            )
        self._compression = getattr(Compression, kind)

    def set_optimizer(self, optimizer: Any) -> None:
        """Let each rank update its weights with this optimizer."""
        if isinstance(optimizer, DistributedOptimizer):
            raise InvalidArgument("dist_ring sums gradients itself; pass the optimizer unwrapped, or kvstore=None")
        self._updater = mx.optimizer.get_updater(optimizer)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's state to a file; it is the same on all ranks."""
        Path(fname).write_bytes(self._require_updater().get_states(dump_optimizer))

    def load_optimizer_states(self, fname: str) -> None:
        """Read the optimizer's state from a file."""
        self._require_updater().set_states(Path(fname).read_bytes())

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        barrier()

    _barrier = barrier  # as MXNet's own stores call it

    def _require_updater(self) -> Any:
        if self._updater is None:
            raise InvalidArgument("the store has no optimizer; save or load the states of the trainer's")
        return self._updater

    def _total(self, key: Any, values: list[Any], priority: int) -> Any:
        own = values[0] if len(values) == 1 else mx.nd.add_n(*(value.as_in_context(mx.cpu()) for value in values))
        return allreduce(
            own, op=Sum, name=f"{self._name}.{key}", priority=priority, compression=self._compression
        )  # fmt: skip

    def _sum_in_place(self, key: Any, values: list[Any], priority: int) -> None:
        if len(values) == 1:
            allreduce_(
                values[0], op=Sum, name=f"{self._name}.{key}", priority=priority, compression=self._compression
            )  # fmt: skip
            return
        total = self._total(key, values, priority)
        for value in values:
            total.copyto(value)

    def _require(self, key: Any) -> Any:
        if key not in self._stored:
            raise InvalidArgument(f"the store has nothing under '{key}'; call init('{key}', value) on every rank first")
        return self._stored[key]

    def _refuse_rows(self, key: Any) -> NoReturn:
        raise InvalidArgument(
            f"'{key}': dist_ring has no row-sparse weights; keep weights dense, also where gradients are row-sparse, "
            "and use ring.DistributedTrainer"
        )


@mx.kvstore.KVStoreBase.register
class dist_ring(Ring):  # noqa: N801 - the class's name is the store's
    """`Ring` under a name that MXNet uses with one device as well."""
