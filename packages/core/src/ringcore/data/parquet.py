"""`ParquetShards`: batches of a Parquet data set, for each rank its part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ringcore.data.groups import RowGroups
from ringcore.data.shards import WINDOW_ROWS, Shards


class ParquetShards(Shards):
    """Batches of a Parquet data set; every row once an epoch, over all ranks.

    Row groups are shuffled and stand in a line, of which each rank has an equal part: it reads the row groups of its
    part, and shares one with a neighbour where the cut goes through it. A window of rows is in memory and is shuffled
    inside, while the next one is read. Whoever iterates again goes on: at the next epoch, or where it has stopped.

    Args:
        source: A folder, a file, several files, or a dataset of pyarrow (of Delta or Iceberg, for example).
        batch_size: Rows of a batch, of this rank.
        columns: Their names; `a.b` is a field of a struct. None: all.
        rank: This rank; None: of the job.
        size: Number of ranks; None: of the job.
        shuffle: Whether to shuffle; otherwise in the order of the files.
        window_rows: How many rows are shuffled among themselves.
        seed: What the shuffle follows from; the same on all ranks.
        uneven: "pad": a rank that has a row less repeats one, so all have the same number of batches, of the same
            sizes. "join": none is repeated; a rank may have a batch less, and calls `ring.join()` at the end.
        tensors: What batches hold: arrays of "numpy", tensors of "torch" or "tensorflow".
        filesystem: Of pyarrow or fsspec; None: as the path says.

    Raises:
        ValueError: A column is not there or not numeric, or a number is wrong.
        FileNotFoundError: There is nothing at this path.
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
        uneven: Literal["pad", "join"] = "pad",
        tensors: Literal["numpy", "torch", "tensorflow"] = "numpy",
        filesystem: Any = None,
    ) -> None:
        super().__init__(
            RowGroups(source, filesystem), batch_size, columns, rank=rank, size=size, shuffle=shuffle,
            window_rows=window_rows, seed=seed, uneven=uneven, tensors=tensors,
        )  # fmt: skip
