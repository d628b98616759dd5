"""`ringcore.data.ParquetShards` with tensors of PyTorch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from ringcore.data import ParquetShards


def test_batches_are_tensors_on_arrows_memory(tmp_path: Path) -> None:
    table = pa.table({"v": pa.array([[float(row), -1.0] for row in range(8)], pa.list_(pa.float32(), 2))})
    pq.write_table(table.append_column("yes", pa.array([True] * 8)), tmp_path / "one.parquet")
    shards = ParquetShards(tmp_path, 4, rank=0, size=1, shuffle=False, tensors="torch")
    one, other = list(shards)
    assert torch.equal(one["v"], torch.tensor([[float(row), -1.0] for row in range(4)]))
    assert one["yes"].dtype == torch.bool
    assert other["v"].data_ptr() - one["v"].data_ptr() == 4 * 2 * 4, "batches are not pieces of one buffer"
    (shuffled,) = ParquetShards(tmp_path, 8, rank=0, size=1, tensors="torch")
    assert sorted(shuffled["v"][:, 0].tolist()) == list(range(8))
