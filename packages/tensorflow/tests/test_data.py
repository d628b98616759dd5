"""`ringcore.data.ParquetShards` with tensors of TensorFlow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
from ringcore.data import ParquetShards


def test_batches_are_tensors_on_arrows_memory(tmp_path: Path) -> None:
    rows = 64
    table = pa.table({"v": pa.array([[float(row), -1.0] for row in range(rows)], pa.list_(pa.float32(), 2))})
    pq.write_table(table.append_column("yes", pa.array([True] * rows)), tmp_path / "one.parquet")
    shards = ParquetShards(tmp_path, 32, rank=0, size=1, shuffle=False, tensors="tensorflow")
    one, other = list(shards)
    assert np.array_equal(one["v"], [[float(row), -1.0] for row in range(32)])
    assert one["yes"].dtype == tf.bool
    addresses = [np.asarray(memoryview(batch["v"])).__array_interface__["data"][0] for batch in (one, other)]
    assert addresses[1] - addresses[0] == 32 * 2 * 4, "batches are not pieces of one buffer"
    (shuffled,) = ParquetShards(tmp_path, rows, rank=0, size=1, tensors="tensorflow")
    assert sorted(shuffled["v"].numpy()[:, 0].tolist()) == list(range(rows))
