"""Each rank's share of a dataset."""

from __future__ import annotations

import logging
from typing import Any, Literal

import keras
import numpy as np
from ringcore import InvalidArgument
from ringcore.adapter import ProcessSet, global_process_set

_log = logging.getLogger("ringcore")

Remainder = Literal["drop", "repeat", "keep"]


def shard(data: Any, *, remainder: Remainder = "drop", process_set: ProcessSet = global_process_set) -> Any:
    """This rank's share of a dataset that every rank has: samples `rank`, `rank + size`, `rank + 2 * size`, ...

    So batch k of all ranks together is batch k of one process with the batch of all ranks. What does not divide evenly
    is told of in the log.

    Args:
        data: An array or a nest of arrays (dict, tuple, list) with samples along the first dimension; a
            `tf.data.Dataset`, whose elements are shared out: shard before you shuffle and batch; a
            `keras.utils.PyDataset`, whose batches are; a PyTorch `DataLoader`, whose samples are.
        remainder: Samples that do not divide evenly: `drop` them, `repeat` the first ones so that all ranks have as
            many, or `keep` them on the first ranks, which then have one more; see `EndTogetherCallback`.
        process_set: The ranks that share.

    Returns:
        What `model.fit` takes, of the kind of `data`.

    Raises:
        InvalidArgument: Another kind of data, arrays of different lengths, fewer samples than ranks.
    """
    if remainder not in ("drop", "repeat", "keep"):
        raise InvalidArgument(f"remainder is 'drop', 'repeat' or 'keep', not {remainder!r}")
    share = _Share(process_set.rank(), process_set.size(), remainder)
    module = type(data).__module__
    if isinstance(data, keras.utils.PyDataset):
        return _PyDatasetShare(data, share.indices(data.num_batches, "batches"))
    if module.startswith("tensorflow.") and hasattr(data, "element_spec"):
        return _share_of_tf_dataset(data, share)
    if module.startswith("torch.utils.data"):
        return _share_of_loader(data, share)
    arrays = [array for array in keras.tree.flatten(data) if array is not None]
    lengths = {len(array) for array in arrays if np.ndim(array) > 0}
    if not arrays or len(lengths) != 1 or any(np.ndim(array) == 0 for array in arrays):
        raise InvalidArgument(
            f"shard takes arrays with samples along the first dimension, a tf.data.Dataset, a PyDataset or a "
            f"DataLoader, not {type(data).__name__} with lengths {sorted(lengths)}"
        )
    indices = share.indices(lengths.pop(), "samples")
    return keras.tree.map_structure(lambda array: None if array is None else _rows(array, indices), data)


def _rows(array: Any, indices: Any) -> Any:
    if hasattr(array, "iloc"):  # pandas
        return array.iloc[indices]
    if type(array).__module__.startswith("tensorflow."):
        import tensorflow as tf

        return tf.gather(array, indices)
    return array[indices]


class _Share:
    """Which samples are this rank's."""

    def __init__(self, rank: int, size: int, remainder: Remainder) -> None:
        self.rank, self.size, self.remainder = rank, size, remainder

    def indices(self, total: int, what: str) -> Any:
        """Of `total` samples; tells what happens to those that do not divide evenly."""
        each, left = divmod(total, self.size)
        if total < self.size:
            raise InvalidArgument(f"{total} {what} cannot be shared by {self.size} ranks")
        if left > 0 and self.rank == 0:
            done = {
                "drop": f"{each} each; {left} left out",
                "repeat": f"{each + 1} each; {self.size - left} repeated",
                "keep": f"{each + 1} for the first {left}, {each} for the others",
            }[self.remainder]
            _log.warning("shard: %d %s on %d ranks: %s", total, what, self.size, done)
        own = np.arange(self.rank, total, self.size)
        if self.remainder == "drop":
            return own[:each]
        if self.remainder == "repeat" and left > 0 and self.rank >= left:
            return np.append(own, self.rank - left)
        return own


class _PyDatasetShare(keras.utils.PyDataset):  # type: ignore[misc]
    """Some of the batches of a PyDataset."""

    def __init__(self, dataset: Any, indices: Any) -> None:
        super().__init__(
            workers=dataset.workers, use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )  # fmt: skip
        self._dataset, self._indices = dataset, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[int(self._indices[index])]

    def on_epoch_begin(self) -> None:
        self._dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._dataset.on_epoch_end()


def _share_of_tf_dataset(dataset: Any, share: _Share) -> Any:
    total = int(dataset.cardinality())
    if total >= 0:
        count = len(share.indices(total, "elements"))
        # What is repeated are the first ones, as `indices` has it.
        source = dataset.concatenate(dataset) if share.remainder == "repeat" else dataset
        return source.shard(share.size, share.rank).take(count)
    if share.remainder != "drop":
        raise InvalidArgument(
            "a tf.data.Dataset that does not know its length can only be sharded with remainder='drop'; or tell it: "
            "dataset.apply(tf.data.experimental.assert_cardinality(n))"
        )
    import tensorflow as tf

    # Of unknown length, or endless: in rounds of one element a rank, so that an incomplete last one is left out.
    rounds = dataset.batch(share.size, drop_remainder=True)
    return rounds.map(
        lambda *parts: tf.nest.map_structure(lambda part: part[share.rank], parts if len(parts) > 1 else parts[0])
    )


def _share_of_loader(loader: Any, share: _Share) -> Any:
    from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset

    if not isinstance(loader, DataLoader) or loader.batch_size is None or not hasattr(loader.dataset, "__len__"):
        raise InvalidArgument(
            "shard takes a DataLoader of a dataset that has a length, with batch_size; give others a sampler or a "
            "worker_init_fn of your own"
        )
    if type(loader.sampler) not in (RandomSampler, SequentialSampler) or getattr(loader.sampler, "replacement", False):
        raise InvalidArgument(
            f"shard would leave out the DataLoader's {type(loader.sampler).__name__}; give it the share of this rank: "
            "DistributedSampler(dataset, num_replicas=ring.size(), rank=ring.rank()), or a Subset as dataset"
        )
    samples = Subset(loader.dataset, share.indices(len(loader.dataset), "samples").tolist())
    return DataLoader(
        samples, batch_size=loader.batch_size, shuffle=isinstance(loader.sampler, RandomSampler),
        num_workers=loader.num_workers, collate_fn=loader.collate_fn, pin_memory=loader.pin_memory,
        drop_last=loader.drop_last, timeout=loader.timeout, worker_init_fn=loader.worker_init_fn,
        generator=loader.generator, persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
    )  # fmt: skip
