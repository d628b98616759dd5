"""Rows of a DataFrame without a copy in a store: each task keeps its partition, and its rank maps it into memory."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

_VARIABLE = "RINGCORE_SPARK_PARTITION"


@contextlib.contextmanager
def kept(batches: Iterator[Any] | None) -> Iterator[dict[str, str]]:
    """Keep the rows of a partition in a file of Arrow IPC, where Spark has its own temporary files.

    The file has no name, so nothing is left of it whatever happens to the task: the rank finds it through this process.

    Args:
        batches: They; None: no rank wants any.

    Returns:
        Variables for the rank.
    """
    if batches is None:
        yield {}
        return
    import pyarrow as pa

    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
    with tempfile.TemporaryFile(prefix="ringcore-", dir=folder) as file:
        writer = None
        for batch in batches:
            writer = writer or pa.ipc.new_file(file, batch.schema)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()
            file.flush()
        yield {_VARIABLE: f"/proc/{os.getpid()}/fd/{file.fileno()}" if writer is not None else ""}


def partition(
    batch_size: int,
    columns: Sequence[str] | None = None,
    *,
    shuffle: bool = True,
    window_rows: int = 65536,
    seed: int = 0,
    uneven: Literal["pad", "join"] = "pad",
    tensors: Literal["numpy", "torch", "tensorflow"] = "numpy",
) -> Any:
    """This rank's part of the DataFrame that `run(dataframe=...)` was given, in batches; after `ring.init()`.

    All ranks call it. Rows stay with their rank, and are shuffled there.

    Args:
        batch_size: Rows of a batch, of this rank.
        columns: Their names; None: all.
        shuffle: Whether to shuffle.
        window_rows: How many rows are shuffled among themselves.
        seed: What the shuffle follows from.
        uneven: "pad": ranks with fewer rows than others repeat some, so all have the same number of batches. "join":
            none is repeated, and a rank that has fewer batches calls `ring.join()` after its last one.
        tensors: What batches hold: arrays of "numpy", tensors of "torch" or "tensorflow".

    Returns:
        A `ringcore.data.ArrowShards`.

    Raises:
        RuntimeError: There was no DataFrame.
        ValueError: A rank has no rows, or a column is not there or not numeric.
    """
    import ringcore as ring
    from ringcore.data import ArrowShards

    path = os.environ.get(_VARIABLE)
    if path is None:
        raise RuntimeError("there is no DataFrame: give one to ringcore_spark.run(fn, dataframe=...)")
    own = ArrowShards(path, 1, columns).rows if path else 0
    rows = ring.allgather(np.array([own]), name="ringcore_spark.partition").tolist()
    if not all(rows):
        raise ValueError(
            f"rank {rows.index(0)} has none of the DataFrame's {sum(rows)} row(s): give fewer ranks (num_proc=), or "
            "more rows"
        )
    if uneven not in ("pad", "join"):
        raise ValueError(f'uneven is "pad" or "join", not {uneven!r}')
    return ArrowShards(
        path, batch_size, columns, rows=max(rows) if uneven == "pad" else None, shuffle=shuffle,
        window_rows=window_rows, seed=seed, tensors=tensors,
    )  # fmt: skip
