"""`ParquetShards`: batches of a Parquet data set, for each rank its part."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ringcore.data.alike import compared_by_all
from ringcore.data.groups import RowGroups
from ringcore.data.shards import WINDOW_ROWS, Shards
from ringcore.job import state as job


class ParquetShards(Shards):
    """Batches of a Parquet data set; every row once an epoch, over all ranks.

    Row groups are shuffled and stand in a line, of which each rank has an equal part: it reads the row groups of its
    part, and shares one with a neighbour where the cut goes through it. A window of rows is in memory and is shuffled
    inside, while the next one is read. Whoever iterates again goes on: at the next epoch, or where it has stopped.

    Where rank and size are those of the job, all ranks make it, and what they were told of the data is compared; but
    not in an elastic job.

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
        uneven: Literal["pad", "join"] = "pad",
        tensors: Literal["numpy", "torch", "tensorflow"] = "numpy",
        filesystem: Any = None,
    ) -> None:
        with compared_by_all("ParquetShards", is_of_job=rank is None and size is None) as told:
            groups = _groups(source, filesystem, rank)
            super().__init__(
                groups, batch_size, columns, rank=rank, size=size, shuffle=shuffle,
                window_rows=window_rows, seed=seed, uneven=uneven, tensors=tensors,
            )  # fmt: skip
            told.shown = {
                "source": f"{groups.name} ({self.rows} rows)", "columns": list(self._columns), "shuffle": shuffle,
                "seed": seed, "uneven": uneven, "window_rows": window_rows,
            }  # fmt: skip
            if self._padded:  # Then all ranks are promised as many batches.
                told.shown["batch_size"] = batch_size
            told.compared["source"] = groups.identity()


def _groups(source: Any, filesystem: Any, rank: int | None) -> RowGroups:
    try:
        return RowGroups(source, filesystem)
    except FileNotFoundError as error:
        if rank is None and job.is_initialized():
            rank = job.rank()
        where = f"{'' if rank is None else f'rank {rank} '}on host {socket.gethostname()}"
        raise FileNotFoundError(
            f"ParquetShards of {source!r}: {where} finds nothing there ({error}), in "
            f"the working directory {Path.cwd()}. Remedy: correct the path; where hosts "
            "share no file system, the data must be at this path on each, or in a store (s3://bucket/table)"
        ) from error
