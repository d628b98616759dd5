"""Measures ranks that clusters start, beside what those clusters have: clusters.py spark|ray|parquet [repeats].

    spark    ringcore_spark.run and TorchDistributor: from the call to the results of a 4 MiB allreduce on 2 ranks
    ray      RingTrainer and Ray Train's TorchTrainer: the same from fit(); and RingExecutor's start() alone
    parquet  ParquetShards and a torch DataLoader over pyarrow: rows per second of one rank, 20 float columns

Interleaved; the first call of each, and the median, least and most of the others. Results are checked. All three:
`nox -s bench_clusters -- 5`. For a machine that does nothing else.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ELEMENTS = 1 << 20  # 4 MiB
REPEATS = int(sys.argv[2]) if len(sys.argv) > 2 else 10
ROWS = 2_000_000


def by_ringcore() -> float:
    import ringcore as ring

    ring.init()
    return float(ring.allreduce(np.ones(ELEMENTS, np.float32), op=ring.Sum)[0])


def by_torch(group: bool = True) -> float:
    import torch

    if group:
        torch.distributed.init_process_group("gloo")
    values = torch.ones(ELEMENTS)
    torch.distributed.all_reduce(values)
    return float(values[0])


def interleaved(what: str, calls: dict[str, Callable[[], Any]]) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    for name, (first, *later) in seconds.items():
        row = {"first_s": first, "median_s": statistics.median(later), "least_s": min(later), "most_s": max(later)}
        print(
            json.dumps({"what": what, "who": name, **{key: round(value, 4) for key, value in row.items()}}), flush=True
        )


def check(found: Any) -> None:
    values = found if isinstance(found, list) else [found]
    assert all(value == 2.0 for value in values), found


def spark() -> None:
    import ringcore_spark
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    calls = {
        "ringcore_spark.run": lambda: check(ringcore_spark.run(by_ringcore, num_proc=2)),
        "TorchDistributor": lambda: check(distributor.run(by_torch)),
    }
    interleaved("call to results, 2 ranks of Spark", calls)
    session.stop()


def ray_() -> None:
    import ray
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer
    from ringcore_ray import RingExecutor, RingTrainer

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    scaling = ScalingConfig(num_workers=2)
    trainers = {
        "RingTrainer": lambda: RingTrainer(lambda: check(by_ringcore()), scaling_config=scaling).fit(),
        "TorchTrainer": lambda: TorchTrainer(lambda: check(by_torch(group=False)), scaling_config=scaling).fit(),
    }
    interleaved("fit() to its end, 2 workers of Ray Train", trainers)
    executor = RingExecutor(num_workers=2)

    def start() -> None:
        executor.start()
        executor.shutdown()

    interleaved("start() and shutdown() of 2 actors", {"RingExecutor": start})


def parquet() -> None:
    import pyarrow as pa
    import pyarrow.dataset
    import pyarrow.parquet
    import torch
    from ringcore.data import ParquetShards

    rows, columns, batch = ROWS, 20, 1024
    with tempfile.TemporaryDirectory() as folder:
        values = np.random.default_rng(0).random((columns, rows), np.float32)
        table = pa.table({f"c{index}": column for index, column in enumerate(values)})
        pyarrow.parquet.write_table(table, Path(folder, "data.parquet"), row_group_size=100_000)

        class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
            def __iter__(self) -> Any:
                for part in pyarrow.dataset.dataset(folder).to_batches(batch_size=batch):
                    yield {name: torch.from_numpy(part[name].to_numpy().copy()) for name in part.schema.names}

        def shards() -> None:
            seen = sum(len(one["c0"]) for one in ParquetShards(folder, batch, rank=0, size=1, tensors="torch"))
            assert seen == rows

        def loader() -> None:
            assert sum(len(one["c0"]) for one in torch.utils.data.DataLoader(Stream(), batch_size=None)) == rows

        interleaved(
            f"an epoch of {rows:,} rows", {"ParquetShards, shuffled": shards, "DataLoader, in order": loader}, 5
        )


if __name__ == "__main__":
    {"spark": spark, "ray": ray_, "parquet": parquet}[sys.argv[1]]()
