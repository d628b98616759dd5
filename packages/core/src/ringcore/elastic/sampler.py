"""Which samples of an epoch each rank takes, and which are left after an interruption."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence, Sized
from typing import Any

from ringcore.job.state import rank, size


class ElasticSampler:
    """Deals out the samples of a data set that were not processed in this epoch, to however many ranks there are.

    All ranks get as many, so that none waits for another; where the samples cannot be divided so, the first ones of the
    rest come twice.

    Args:
        dataset: Of a fixed length.
        shuffle: In another order in each epoch; on all ranks the same.
        seed: Of that order.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """A new epoch: nothing is processed. Call it at the end of the one before."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has processed its batch of this number, counted from the last `reset`."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Sequence[int]) -> None:
        """Every rank has processed as many samples as these, the next ones of its share."""
        self.processed_num += len(indices) * self.num_replicas

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of one of this rank's batches."""
        return list(itertools.islice(self, batch_idx * batch_size, (batch_idx + 1) * batch_size))

    def state_dict(self) -> dict[str, Any]:
        """Where this epoch stands."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on there."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal out what is left to the ranks that are there."""
        self.num_replicas = size()
        self.rank = rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)  # noqa: S311 - no secret
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        whole = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        return itertools.islice(whole, self.rank, None, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples
