"""Parquet to batches of torch on two ranks: 20 float columns."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 2_000_000
COLUMNS = 20
BATCH = 1024
WINDOW = 65536


def write(folder: str) -> None:
    """Make the files, several for each rank."""
    import pyarrow as pa
    import pyarrow.parquet

    random = np.random.default_rng(0)
    for part in range(4):
        values = random.random((COLUMNS, ROWS // 4), np.float32)
        table = pa.table({f"c{index}": column for index, column in enumerate(values)})
        pyarrow.parquet.write_table(table, Path(folder, f"part-{part}.parquet"), row_group_size=50_000)


def by_shards(folder: str, shuffle: bool = True) -> float:
    """Seconds of an epoch of this rank."""
    import ringcore as ring
    import torch  # noqa: F401 - which takes longer than an epoch
    from ringcore.data import ParquetShards

    ring.init()
    shards = ParquetShards(folder, BATCH, shuffle=shuffle, tensors="torch")
    ring.barrier()
    return _epoch(shards)


def by_shards_in_order(folder: str) -> float:
    """The same in the order of the files."""
    return by_shards(folder, shuffle=False)


def by_loader(folder: str, shuffle: bool = False) -> float:
    """The same by torch's DataLoader over what pyarrow reads."""
    import ringcore as ring
    import torch

    ring.init()
    files = sorted(map(str, Path(folder).iterdir()))[ring.rank() :: ring.size()]

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            for part in _shuffled(files) if shuffle else _in_order(files):
                yield {name: torch.from_numpy(part[name].to_numpy().copy()) for name in part.schema.names}

    loader = torch.utils.data.DataLoader(Stream(), batch_size=None)
    ring.barrier()
    return _epoch(loader)


def by_loader_shuffled(folder: str) -> float:
    """The same with rows shuffled as ParquetShards does: row groups, and rows in a window."""
    return by_loader(folder, shuffle=True)


def _in_order(files: list[str]) -> Any:
    import pyarrow.dataset

    return pyarrow.dataset.dataset(files).to_batches(batch_size=BATCH)


def _shuffled(files: list[str]) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.dataset

    random = np.random.default_rng()
    parts = [part for one in pyarrow.dataset.dataset(files).get_fragments() for part in one.split_by_row_group()]
    held: list[Any] = []
    for index in [*random.permutation(len(parts)), None]:
        held += [parts[index].to_table()] if index is not None else []
        while held and (index is None or sum(map(len, held)) >= WINDOW):
            table = pa.concat_tables(held)
            window, held = table[:WINDOW], [table[WINDOW:]] if len(table) > WINDOW else []
            window = window.combine_chunks().take(random.permutation(len(window)))
            yield from window.to_batches(max_chunksize=BATCH)


def _epoch(batches: Any) -> float:
    begin = time.perf_counter()
    seen = sum(len(one["c0"]) for one in batches)
    taken = time.perf_counter() - begin
    assert abs(seen - ROWS // 2) <= 1, seen
    return taken


PARTS = ("read",)


def main(repeats: int, _parts: Sequence[str]) -> None:
    """Read it by petastorm, in two processes as ranks are."""
    from multiprocessing import get_context

    from common import tell

    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        with get_context("spawn").Pool(2) as pool:
            taken = [
                max(pool.starmap(_by_petastorm, [(folder, rank) for rank in range(2)])) for _ in range(repeats + 1)
            ]
    tell(f"an epoch of {ROWS:,} rows, 2 ranks", "petastorm's BatchedDataLoader", taken)


def _by_petastorm(folder: str, rank: int) -> float:
    from petastorm import make_batch_reader
    from petastorm.pytorch import BatchedDataLoader

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    begin = time.perf_counter()
    with make_batch_reader(f"file://{folder}", cur_shard=rank, shard_count=2, shuffle_row_groups=True) as reader:
        seen = sum(len(one["c0"]) for one in BatchedDataLoader(reader, batch_size=BATCH))
    taken = time.perf_counter() - begin
    assert abs(seen - ROWS // 2) <= ROWS // 20, seen  # It deals out whole row groups.
    return taken
