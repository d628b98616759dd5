"""What the Trainer's "ring" does otherwise in an elastic job: ranks that are left go on in the same loop.

Nothing goes through torch.distributed, whose groups do not shrink: the strategy's collectives are ringcore's, which who
is left does again. The training data is dealt out anew, and Lightning's loop is told how many batches are left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import ringcore
import torch
from ringcore import InvalidArgument, MembershipChangedError, adapter
from ringcore_torch import allgather, allreduce, barrier
from ringcore_torch.elastic import ElasticSampler

from ringcore_lightning.environment import RingEnvironment

T = TypeVar("T")
_OPS = {
    "sum": ringcore.Sum,
    "mean": ringcore.Average,
    "avg": ringcore.Average,
    "min": ringcore.Min,
    "max": ringcore.Max,
}


class ElasticEnvironment(RingEnvironment):
    """Ranks are those that there are: fewer, and with other numbers, when some were lost."""

    def __init__(self) -> None:
        super().__init__()
        ringcore.init()
        if not adapter.is_elastic():
            raise InvalidArgument(
                "RingStrategy(elastic=True) needs a job that goes on without a lost rank. Remedy: start it by ringrun "
                "--min-np N, or leave out elastic=True"
            )

    @classmethod
    def of(cls, base: type[Any]) -> Any:
        """One of a package's cluster environments."""
        return type("ElasticEnvironment", (cls, base), {})()

    def world_size(self) -> int:
        """The number of ranks."""
        return ringcore.size()

    def set_world_size(self, size: int) -> None:
        """The launcher decides, and chance."""

    def global_rank(self) -> int:
        """This process's rank."""
        return ringcore.rank()


def again(collective: Callable[[], T]) -> T:
    """What cannot be done again by the engine when a rank is lost fails on all that are left: these do it again."""
    while True:
        try:
            return collective()
        except MembershipChangedError:
            continue


def reduce(tensor: Any, op: Any) -> Any:
    """As Lightning's strategies reduce: what is no tensor stays as it is; a mean is a float.

    Args:
        tensor: Of any shape, the same on all ranks.
        op: A name, or one of torch.distributed's; None: the mean.

    Raises:
        InvalidArgument: Another operation than a sum, a mean, a minimum or a maximum.
    """
    if not isinstance(tensor, torch.Tensor):
        return tensor
    name = "mean" if op is None else str(op).rpartition(".")[2].lower()
    if name not in _OPS:
        raise InvalidArgument(f"RingStrategy(elastic=True) does not reduce by '{name}'; take one of {', '.join(_OPS)}")
    how = _OPS[name]
    floats = tensor.float() if how is ringcore.Average and not tensor.is_floating_point() else tensor
    return again(lambda: allreduce(floats.detach(), op=how))


def gather(tensor: torch.Tensor) -> torch.Tensor:
    """The tensors of all ranks, along a new first dimension."""
    return again(lambda: allgather(tensor.detach()[None]))


def broadcast(value: Any, root: int) -> Any:
    """An object of one rank."""
    return again(lambda: ringcore.broadcast_object(value, root))


def wait_for_all() -> None:
    """Until all ranks are there."""
    again(barrier)


class ElasticLoader:
    """Deals out a loader's samples by `ElasticSampler.batches`: each once an epoch, also those of ranks that are lost.

    Where fewer samples are left than there are ranks, some of these take one that another has.

    Args:
        loader: As Lightning has made it of the user's.

    Raises:
        InvalidArgument: It reads ahead of the steps, or its batches are of a kind that cannot be dealt out.
    """

    def __init__(self, loader: Any) -> None:
        if not isinstance(loader, torch.utils.data.DataLoader) or loader.batch_size is None:
            raise InvalidArgument(
                f"RingStrategy(elastic=True) deals out the batches of a DataLoader with a batch_size, not of a "
                f"{type(loader).__name__} without one"
            )
        if isinstance(loader.dataset, torch.utils.data.IterableDataset):
            raise InvalidArgument(
                "RingStrategy(elastic=True) deals out samples by number, and an IterableDataset has none"
            )
        if loader.num_workers > 0:
            raise InvalidArgument(
                f"the training data is loaded by num_workers={loader.num_workers} processes, which read ahead: what "
                "they have read for a rank that is lost would be missing. Remedy: pass num_workers=0 to the DataLoader"
            )
        if type(loader.sampler) is not torch.utils.data.DistributedSampler:
            raise InvalidArgument(
                f"RingStrategy(elastic=True) deals out the samples itself, and the training data has a "
                f"{type(loader.sampler).__name__}. Remedy: give the DataLoader shuffle=True or False, and no sampler; "
                "leave use_distributed_sampler=True"
            )
        self._loader = loader
        self._batch_size: int = loader.batch_size
        dataset: Any = loader.dataset
        self.sampler = ElasticSampler(dataset, loader.sampler.shuffle, int(os.environ.get("PL_GLOBAL_SEED", "0")))

    def __len__(self) -> int:
        return self.sampler.batches_left(self._batch_size)

    def __iter__(self) -> Iterator[Any]:
        for numbers in self.sampler.batches(self._batch_size):
            own = numbers or self.sampler.remaining_indices[-1:]
            yield self._loader.collate_fn([self._loader.dataset[number] for number in own])


class Followed:
    """The Trainer's loop over training data, which learns how many batches are left when ranks were lost.

    Args:
        trainer: Lightning's; its loops and their fetchers are told by attributes that they keep to themselves.

    Raises:
        InvalidArgument: The Trainer was asked for something that cannot go on without a rank.
    """

    def __init__(self, trainer: Any) -> None:
        asked = {"limit_train_batches": 1.0, "accumulate_grad_batches": 1, "overfit_batches": 0.0}
        for name, only in asked.items():
            if getattr(trainer, name) != only:
                raise InvalidArgument(
                    f"RingStrategy(elastic=True) takes {name}={only} only, not {getattr(trainer, name)}: a step is one "
                    "batch of each rank, and an epoch all samples. Remedy: leave it out, or elastic=True"
                )
        if not trainer.lightning_module.automatic_optimization:
            raise InvalidArgument(
                "RingStrategy(elastic=True) takes automatic optimization only: a step is one batch of each rank"
            )
        self._trainer = trainer
        self._members = list(adapter.followed().members)

    def step_is_done(self) -> None:
        """The gradients were averaged, by those who are there now."""
        for loader in self._trainer.fit_loop._combined_loader.flattened:
            loader.sampler.record()
        self.follow()

    def follow(self) -> None:
        """Ranks may have been lost since the last call, and an epoch may have begun."""
        members, loop = list(adapter.followed().members), self._trainer.fit_loop
        fetcher, combined = loop._data_fetcher, loop._combined_loader
        if members != self._members:
            self._members = members
            self._trainer.strategy.set_world_ranks()
            combined.limits[:] = [float("inf")] * len(combined.limits)
            fetcher.length = fetcher.fetched + max(len(loader) for loader in combined.flattened)
            fetcher.done = fetcher.fetched == fetcher.length
            loop.epoch_loop.batch_progress.is_last_batch = fetcher.done
        loop.max_batches = fetcher.length
