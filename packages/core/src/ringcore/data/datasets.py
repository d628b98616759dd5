"""`DatasetShards`: batches of a data set that is split by its own library: Hugging Face's, or mosaicml-streaming."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ringcore.data.alike import compared_by_all
from ringcore.data.shards import WINDOW_ROWS
from ringcore.job import state as job


class DatasetShards:
    """Batches of a rank's part of a data set, whose own library is told rank and size. Whoever iterates again goes on.

    Where rank and size are those of the job, all ranks make it, and what they were told of the data is compared; but
    not in an elastic job.

    Args:
        source: A Dataset or an IterableDataset of Hugging Face, or a function that makes one on the rank. Such a
            function may return a StreamingDataset of mosaicml-streaming too, which finds its place by RANK, WORLD_SIZE
            and LOCAL_WORLD_SIZE, and shuffles as it was told.
        batch_size: Rows of a batch, of this rank.
        columns: Their names; None: all.
        rank: This rank; None: of the job.
        size: Number of ranks; None: of the job.
        shuffle: Whether to shuffle.
        window_rows: How many rows of an IterableDataset are shuffled among themselves.
        seed: What the shuffle follows from; the same on all ranks.

    Raises:
        ValueError: It is no such data set, a column is not there, or there are more ranks than rows.
        MismatchError: Other ranks of the job were told of other data or another order, or could not make theirs.
    """

    def __init__(
        self,
        source: Any,
        batch_size: int,
        columns: Sequence[str] | None = None,
        *,
        rank: int | None = None,
        size: int | None = None,
        shuffle: bool = True,
        window_rows: int = WINDOW_ROWS,
        seed: int = 0,
    ) -> None:
        with compared_by_all("DatasetShards", is_of_job=rank is None and size is None) as told:
            self._rank = job.rank() if rank is None else rank
            self._size = job.size() if size is None else size
            self._batch_size = batch_size
            self._columns = None if columns is None else list(columns)
            self._shuffle = (seed, window_rows) if shuffle else None
            self._data = source if _kind(source) else source() if callable(source) else source
            self._batches_of = self._reader()
            self.set_epoch(0)
            told.shown = {"source": self._described(), "columns": columns, "shuffle": shuffle}
            if shuffle:
                told.shown.update(seed=seed, window_rows=window_rows)
            if _kind(self._data) == "Dataset":  # Then all ranks are promised as many batches.
                told.shown["batch_size"] = batch_size

    def set_epoch(self, epoch: int, batch: int = 0) -> None:
        """Go to an epoch, and in it to a batch."""
        self._epoch, self._batches = epoch, batch

    def __len__(self) -> int:
        """This rank's batches in an epoch: as many as every other rank's.

        Raises:
            TypeError: The data set does not tell.
        """
        kind = _kind(self._data)
        if kind == "IterableDataset":
            raise TypeError(  # as everything without a length does
                "an IterableDataset does not tell how many rows it has: say how many batches an epoch is "
                "(train_steps_per_epoch=, validation_steps_per_epoch=)"
            )
        rows = self._most() if kind == "Dataset" else len(self._data)
        return int(np.ceil(rows / self._batch_size))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """What is left of the epoch."""
        for batch in self._batches_of(self._epoch, self._batches * self._batch_size):
            self._batches += 1
            yield {name: np.asarray(batch[name]) for name in (self._columns or batch)}
        self.set_epoch(self._epoch + 1)

    def _described(self) -> str:
        kind = str(_kind(self._data))
        return f"{kind} ({len(self._data)} rows)" if kind == "Dataset" else kind

    def _reader(self) -> Callable[[int, int], Iterator[dict[str, Any]]]:
        """What reads an epoch, without so many of its first rows."""
        kind = _kind(self._data)
        readers = {"Dataset": self._mapped, "IterableDataset": self._iterable, "StreamingDataset": self._streamed}
        if kind is None:
            raise ValueError(
                f"a {type(self._data).__name__} is no data set that splits itself: give a Dataset or IterableDataset "
                "of Hugging Face, or a function that makes one, or a StreamingDataset, on each rank"
            )
        there: list[str] = getattr(self._data, "column_names", None) or []  # Some learn them with the first row.
        for name in self._columns or ():
            if there and name not in there:
                raise ValueError(f"there is no column {name!r} in the data: it has {', '.join(there)}")
        if kind == "Dataset" and len(self._data) < self._size:
            raise ValueError(
                f"{self._size} ranks cannot share {len(self._data)} row(s): give fewer ranks, or more rows"
            )
        return readers[kind]

    def _most(self) -> int:
        return -(-len(self._data) // self._size)

    def _mapped(self, epoch: int, skipped: int) -> Iterator[dict[str, Any]]:
        data = self._data if self._shuffle is None else self._data.shuffle(seed=self._shuffle[0] + epoch)
        part = self._split(data)
        # A rank that has a row less repeats one: all have as many batches, of the same sizes.
        rows = [row % len(part) for row in range(skipped, self._most())]
        return self._cut(part.select(rows) if rows != list(range(len(part))) else part)

    def _iterable(self, epoch: int, skipped: int) -> Iterator[dict[str, Any]]:
        data = self._data
        if self._shuffle is not None:
            data = data.shuffle(seed=self._shuffle[0] + epoch, buffer_size=self._shuffle[1])
        return self._cut(self._split(data).skip(skipped))

    def _streamed(self, epoch: int, skipped: int) -> Iterator[dict[str, Any]]:
        if self._data.next_epoch != epoch:  # after a checkpoint
            self._data.next_epoch = epoch
        rows = itertools.islice(iter(self._data), skipped, None)
        while some := list(itertools.islice(rows, self._batch_size)):
            yield {name: np.stack([row[name] for row in some]) for name in some[0]}

    def _split(self, data: Any) -> Any:
        from datasets.distributed import split_dataset_by_node

        part = split_dataset_by_node(data, rank=self._rank, world_size=self._size)
        return part if self._columns is None else part.select_columns(self._columns)

    def _cut(self, part: Any) -> Iterator[dict[str, Any]]:
        batches: Iterator[dict[str, Any]] = part.with_format("numpy").iter(self._batch_size)
        return batches


def _kind(source: Any) -> str | None:
    """Which class of data sets it is of; subclasses are."""
    packages = {"Dataset": "datasets", "IterableDataset": "datasets", "StreamingDataset": "streaming"}
    for one in type(source).__mro__:
        if packages.get(one.__name__) == one.__module__.partition(".")[0]:
            return one.__name__
    return None
