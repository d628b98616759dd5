"""Spark: see `__main__`."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import common
import numpy as np
import reading
import ringcore
import ringcore_spark
import torch
from killing import error_after_kill, java_above, parent
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

ROWS = 400_000
FEATURES = [f"x{index}" for index in range(8)]


def main(repeats: int, parts: Sequence[str]) -> None:
    """The rows of these parts."""
    run = functools.partial(ringcore_spark.run, num_proc=2)
    for part in parts:
        spark = session("local-cluster[2,1,1024]" if part == "executors" else "local[2]")
        PARTS[part](run, repeats)
        spark.stop()


def session(master: str = "local[2]") -> SparkSession:
    """A Spark in whose tasks functions of these modules can run."""
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable, OMP_NUM_THREADS="1")
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    made = builder.config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"]).getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def _calls(run: Any, repeats: int) -> None:
    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    calls = {
        "ringcore_spark.run": lambda: common.check(run(common.by_ringcore)),
        "TorchDistributor": lambda: common.check(distributor.run(common.by_torch)),
    }
    common.interleaved("call to results of 4 MiB, 2 ranks of Spark", repeats, calls)
    common.interleaved(
        "our part of it: from the ticket to init() on all ranks", repeats, {"ringcore_spark.run": lambda: _own(run)}
    )


def _parquet(_run: Any, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        reading.write(folder)
        readers = {
            "ParquetShards, shuffled": reading.by_shards, "ParquetShards, in order": reading.by_shards_in_order,
            "DataLoader over pyarrow, shuffled": reading.by_loader_shuffled,
            "DataLoader over pyarrow, in order": reading.by_loader,
        }  # fmt: skip
        calls = {
            name: functools.partial(lambda reader: max(ringcore.run(reader, [folder], np=2)), reader)
            for name, reader in readers.items()
        }
        common.interleaved(f"an epoch of {reading.ROWS:,} rows, 2 ranks", repeats, calls)


def _kills(run: Any, repeats: int) -> None:
    waiting = lambda folder: run(common.waits, (folder,))  # noqa: E731
    kills = {
        "a rank": lambda: error_after_kill(waiting, lambda pid: pid),
        "Spark's Python worker": lambda: error_after_kill(waiting, lambda pid: parent(parent(parent(pid)))),
    }
    common.interleaved("from the kill to the error, Spark", repeats, kills)


def _executor_kills(run: Any, repeats: int) -> None:
    def killed() -> float:
        _await_executors()  # Spark starts another one in the place of that which was killed.
        return error_after_kill(lambda folder: run(common.waits, (folder,)), java_above)

    common.interleaved("from the kill to the error, Spark", repeats, {"an executor's JVM": killed})


def _await_executors() -> None:
    scala = SparkSession.getActiveSession().sparkContext._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    deadline = time.monotonic() + 300
    while scala.maxNumConcurrentTasks(profile) < 2:
        assert time.monotonic() < deadline, "Spark has not two executors"
        time.sleep(0.1)


def _own(run: Any) -> float:
    places = run(common.from_ticket_to_init)
    return float(max(done for _, done in places) - max(started for started, _ in places))


def _by_hand(folder: str, epochs: int) -> None:
    """What the estimator does, without it."""
    import ringcore_torch as ring
    from ringcore.data import ParquetShards

    ring.init()
    model = _model()
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    ring.broadcast_parameters(model.state_dict(), root_rank=0)
    shards = ParquetShards(folder, 256, [*FEATURES, "y"], tensors="torch")
    for _ in range(epochs):
        for batch in shards:
            optimizer.zero_grad()
            inputs = torch.stack([batch[name] for name in FEATURES], 1)
            torch.nn.functional.mse_loss(model.net(inputs)[:, 0], batch["y"]).backward()
            optimizer.step()


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(len(FEATURES), 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))

    def forward(self, *columns: torch.Tensor) -> torch.Tensor:
        return self.net(torch.stack(columns, 1))


def _model() -> _Model:
    torch.manual_seed(0)
    return _Model()


def _estimators(run: Any, repeats: int) -> None:
    from ringcore_spark.torch import TorchEstimator

    with tempfile.TemporaryDirectory() as folder:
        values = np.random.default_rng(0).random((len(FEATURES) + 1, ROWS), np.float32)
        import pandas as pd

        os.mkdir(f"{folder}/rows")
        pd.DataFrame(dict(zip([*FEATURES, "y"], values, strict=True))).to_parquet(
            f"{folder}/rows/part.parquet", row_group_size=50_000
        )

        def fit() -> None:
            model = _model()
            TorchEstimator(
                model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), loss=torch.nn.MSELoss(),
                feature_cols=FEATURES, label_cols=["y"], batch_size=256, epochs=2, store=folder, num_proc=2, verbose=0,
            ).fit_on_parquet("rows")  # fmt: skip

        calls = {"TorchEstimator": fit, "ringcore_spark.run": lambda: run(_by_hand, (f"{folder}/rows", 2)) and None}
        common.interleaved(f"2 epochs of {ROWS:,} rows of Parquet, 2 ranks", repeats, calls)


PARTS = {"calls": _calls, "estimator": _estimators, "parquet": _parquet, "kills": _kills, "executors": _executor_kills}
