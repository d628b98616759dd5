"""`LightningEstimator` on a real Spark; what it has in common with others is tested with PyTorch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import pyarrow.dataset as ds
import pytest
import torch
from pyspark.sql import SparkSession
from ringcore.data import ParquetShards
from ringcore_spark import RankError
from ringcore_spark.lightning import LightningEstimator

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TRUE = np.array([1.0, -2.0, 0.5])


def module() -> lightning.LightningModule:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

        def loss_of(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.nn.functional.mse_loss(self(batch["x"])[:, 0], batch["y"])

        def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
            loss = self.loss_of(batch)
            self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True, batch_size=len(batch["y"]))
            return loss

        def validation_step(self, batch: dict[str, torch.Tensor], _index: int) -> None:
            self.log("val_loss", self.loss_of(batch), sync_dist=True, batch_size=len(batch["y"]))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    torch.manual_seed(0)
    return Module()


def estimator(store: Path, **options: Any) -> LightningEstimator:
    return LightningEstimator(
        **{
            "model": module(), "feature_cols": ["x"], "label_cols": ["y"], "batch_size": 16, "epochs": 2,
            "store": str(store), "num_proc": 2, "verbose": 0, "random_seed": 7, **options,
        }
    )  # fmt: skip


def test_fit_equals_one_process_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    inputs = np.random.default_rng(1).normal(size=(128, 3))
    frame = spark.createDataFrame([([*map(float, x)], float(x @ TRUE)) for x in inputs], "x array<double>, y double")
    frame.repartition(2).write.parquet(f"file://{tmp_path}/rows")
    estimator(tmp_path, epochs=1, run_id="run").fit_on_parquet("rows", "rows")
    fitted = estimator(tmp_path, run_id="run").fit_on_parquet("rows", "rows")

    model: Any = module()
    optimizer = model.configure_optimizers()
    shards = [ParquetShards(tmp_path / "rows", 16, rank=rank, size=2, seed=7, tensors="torch") for rank in range(2)]
    for _ in range(2):
        for parts in zip(*shards, strict=True):
            optimizer.zero_grad()
            model.loss_of({name: torch.cat([part[name] for part in parts]).float() for name in "xy"}).backward()
            optimizer.step()
    for own, expected in zip(fitted.getModel().parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)
    history = fitted.getHistory()
    assert [told["epoch"] for told in history] == [0, 1]
    outputs = fitted.getModel()(torch.tensor(inputs).float()).detach().numpy()[:, 0]
    assert np.isclose(history[1]["val_loss"], ((outputs - inputs @ TRUE) ** 2).mean(), atol=1e-5)
    row = fitted.transform(frame.limit(1)).first()
    assert np.isclose(row["y__output"], float(fitted.getModel()(torch.tensor(row["x"]))), atol=1e-5)


class Rows(lightning.LightningDataModule):
    """Reads its rows by itself, and notes what it is told."""

    def __init__(self, **told: Any) -> None:
        super().__init__()
        self.told = told

    def loader(self, folder: str, size: int) -> torch.utils.data.DataLoader[Any]:
        rows = ds.dataset(folder).to_table().to_pydict()
        own = slice(self.told["cur_shard"], None, self.told["shard_count"])
        data = [
            {"x": torch.tensor(x), "y": torch.tensor(y)} for x, y in zip(rows["x"][own], rows["y"][own], strict=True)
        ]
        return torch.utils.data.DataLoader(data, batch_size=size)

    def train_dataloader(self) -> torch.utils.data.DataLoader[Any]:
        Path(self.told["train_dir"]).parent.joinpath(f"told.{self.told['cur_shard']}").write_text(repr(self.told))
        return self.loader(self.told["train_dir"], self.told["train_batch_size"])

    def val_dataloader(self) -> torch.utils.data.DataLoader[Any]:
        return self.loader(self.told["val_dir"], self.told["val_batch_size"])


@pytest.mark.long
def test_a_data_module_has_a_ranks_place_and_profiler_and_logger_are_lightnings(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.createDataFrame([([1.0, 2.0, float(n)], 1.0) for n in range(24)], "x array<double>, y double")
    frame.repartition(2).write.parquet(f"file://{tmp_path}/data/rows")
    options = {
        "data_module": Rows, "profiler": "simple", "batch_size": 4, "epochs": 1, "terminate_on_nan": True,
        "callbacks": [lightning.callbacks.LearningRateMonitor("step")],  # refuses to be where there is no logger
    }  # fmt: skip
    fitted = estimator(tmp_path, **options).fit_on_parquet("data/rows", "data/rows")
    assert {"loss", "val_loss"} <= set(fitted.getHistory()[0])
    for rank in range(2):
        told = eval((tmp_path / "data" / f"told.{rank}").read_text())
        assert (told["cur_shard"], told["shard_count"], told["has_val"]) == (rank, 2, True)
        assert (told["steps_per_epoch_train"], told["train_batch_size"], told["schema_fields"]) == (3, 4, ["x", "y"])
    with pytest.raises(ValueError, match=r"data_module= reads the rows from the store, and spill=True writes none"):
        estimator(tmp_path, data_module=Rows, spill=True).fit(frame)


@pytest.mark.long
def test_a_loss_that_is_not_finite_ends_the_training_where_that_is_wanted(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([([1.0, 2.0, 3.0], float("nan"))] * 8, "x array<double>, y double")
    said = r"rank [01] raised ValueError: the loss of batch 0 of epoch 0 is nan, which is not finite"
    with pytest.raises(RankError, match=said):
        estimator(tmp_path, terminate_on_nan=True).fit(frame)


def test_what_cannot_be_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([([1.0, 2.0, 3.0], 1.0)], "x array<double>, y double")
    with pytest.raises(ValueError, match=r"model= is a Linear, and not a LightningModule"):
        estimator(tmp_path, model=torch.nn.Linear(3, 1)).fit(frame)
    with pytest.raises(ValueError, match=r"loss= is the module's own"):
        estimator(tmp_path, loss=torch.nn.MSELoss()).fit(frame)
