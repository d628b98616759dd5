"""Which samples of an epoch each rank takes, and which are left after an interruption."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator, Sequence, Sized
from typing import Any

from ringcore.job.state import followed

# What each rank takes in a step: its samples, by rank.
Shares = list[list[int]]


class ElasticSampler:
    """Deals out the samples of a data set that were not processed in this epoch, to however many ranks there are.

    `batches` gives each sample once an epoch, whatever happens. Whoever goes through the sampler itself, as loaders do,
    gets as many samples on all ranks; where these cannot be divided so, the first ones of the rest come twice.

    Args:
        dataset: Of a fixed length.
        shuffle: In another order in each epoch; on all ranks the same.
        seed: Of that order.
    """

    _step: Shares | None = None  # that `batches` has given, until it is recorded

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """A new epoch: nothing is processed. Call it at the end of the one before."""
        self.load_state_dict({"epoch": epoch, "processed_num": 0})

    def batches(self, batch_size: int) -> Iterator[list[int]]:
        """This rank's batches of what is left of the epoch: as many on all ranks, each sample in one of them, once.

        A batch counts as processed when the next one is asked for, or at `record`. When ranks have come or gone, or a
        step was dropped, what is left is dealt out anew, with the samples that lost ranks had in that step. Not for
        loaders that read ahead of the steps.

        Args:
            batch_size: Samples of each rank. The last batches have fewer. Where fewer samples than ranks are left, some
                batches are empty: step without a backward pass. A `batch_size` of 1 may give batches of two.
        """
        while True:
            self.reset()
            if not self.remaining_indices:
                return
            for shares in self._rounds(batch_size):
                self._step = shares
                yield shares[self.rank]
                self.record()
                if self._is_outdated:
                    break

    def batches_left(self, batch_size: int) -> int:
        """How many batches `batches` still gives, if the ranks stay: not counting the one that it gave last."""
        ahead = copy.copy(self)
        ahead._missed = list(self._missed)
        ahead.record()
        ahead.reset()
        return sum(1 for _ in ahead._rounds(batch_size))

    def record(self) -> None:
        """The batch that `batches` gave last is processed, by the ranks that are there: before a commit of its step."""
        shares, self._step = self._step, None
        if shares is not None:
            self._process(shares)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has processed its batch of this number, counted from the last `reset`; without `batches`."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Sequence[int]) -> None:
        """Every rank has processed as many samples as these, the next ones of its share."""
        own = len(indices) * self.num_replicas
        chunk = self.remaining_indices[self._taken : self._taken + own]
        self._process([chunk[rank :: self.num_replicas] for rank in range(self.num_replicas)])

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of one of this rank's batches."""
        return list(itertools.islice(self, batch_idx * batch_size, (batch_idx + 1) * batch_size))

    @property
    def processed_num(self) -> int:
        """How many samples of this epoch are processed."""
        return len(self.dataset) - len(self.remaining_indices) + self._taken - len(self._missed)

    def state_dict(self) -> dict[str, Any]:
        """Where this epoch stands."""
        again, begun = self._left()
        return {"epoch": self.epoch, "processed_num": begun - len(again), "again": again}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on there."""
        self.epoch = state_dict["epoch"]
        self._again: list[int] = list(state_dict.get("again", []))
        self._begun = min(state_dict["processed_num"] + len(self._again), len(self.dataset))
        self._deal()

    def reset(self) -> None:
        """Deal out what is left to the ranks that are there."""
        self._again, self._begun = self._left()
        self._deal()

    def _deal(self) -> None:
        current = followed()
        self.num_replicas, self.rank, self._places = current.size, current.rank, list(current.members)
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)  # noqa: S311 - no secret
        # Those that have come to a rank which was lost with them, and those that have come to nobody.
        self.remaining_indices = [*self._again, *order[self._begun :]]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self._taken = 0  # of what remained, processed or missed
        self._missed: list[int] = []
        self._step = None
        self._dropped = current.dropped_steps
        self._is_outdated = False

    def _left(self) -> tuple[list[int], int]:
        """What is to come again, and how far the epoch's order has come."""
        begun = self._begun + max(self._taken - len(self._again), 0)
        return [*self._again[self._taken :], *self._missed], begun

    def _process(self, shares: Shares) -> None:
        """The next ones of what remains: a step is the work of those who are there at its end."""
        current = followed()
        is_dropped, self._dropped = current.dropped_steps != self._dropped, current.dropped_steps
        self._taken += sum(map(len, shares))
        for place, share in zip(self._places, shares, strict=True):
            if is_dropped or place not in current.members:
                self._missed += share
        self._is_outdated = is_dropped or current.members != self._places

    def _rounds(self, batch_size: int) -> Iterator[Shares]:
        """What all ranks take, step by step: nobody is without a sample, as long as there are as many as ranks."""
        ranks, left = self.num_replicas, self.remaining_indices
        while left:
            count = ranks * batch_size
            if count < len(left) < count + ranks:  # The last step would be one of few.
                count = ranks * -(-batch_size // 2) if batch_size > 1 else len(left)
            yield [left[:count][rank::ranks] for rank in range(ranks)]
            left = left[count:]

    def __iter__(self) -> Iterator[int]:
        whole = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        return itertools.islice(whole, self.rank, None, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples
