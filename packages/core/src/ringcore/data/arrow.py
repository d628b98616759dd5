"""`ArrowShards`: batches of rows that are this rank's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ringcore.data.groups import RecordBatches
from ringcore.data.shards import WINDOW_ROWS, Shards


class ArrowShards(Shards):
    """Batches of a file of Arrow IPC whose rows are all for this rank; it is mapped into memory.

    Whoever iterates again goes on: at the next epoch, or where it has stopped.

    Args:
        path: The file.
        batch_size: Rows of a batch.
        columns: Their names; None: all.
        rows: With fewer rows than this, some are repeated: the largest number of a rank gives all as many batches.
        shuffle: Whether to shuffle; otherwise in the order of the file.
        window_rows: How many rows are shuffled among themselves.
        seed: What the shuffle follows from.
        tensors: What batches hold: arrays of "numpy", tensors of "torch" or "tensorflow".

    Raises:
        ValueError: A column is not there or not numeric, or a number is wrong.
    """

    def __init__(
        self,
        path: str,
        batch_size: int,
        columns: Sequence[str] | None = None,
        *,
        rows: int | None = None,
        shuffle: bool = True,
        window_rows: int = WINDOW_ROWS,
        seed: int = 0,
        tensors: Literal["numpy", "torch", "tensorflow"] = "numpy",
    ) -> None:
        super().__init__(
            RecordBatches(path, rows), batch_size, columns, rank=0, size=1, shuffle=shuffle,
            window_rows=window_rows, seed=seed, tensors=tensors,
        )  # fmt: skip
