"""`KerasEstimator` on a real Spark; what it has in common with others is tested with PyTorch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from ringcore.data import ParquetShards
from ringcore_spark.keras import KerasEstimator, KerasModel

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TRUE = np.array([1.0, -2.0, 0.5])


def network() -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])


def squares(labels: Any, outputs: Any) -> Any:
    return keras.ops.mean((labels - outputs) ** 2, axis=-1)


def estimator(store: Path, **options: Any) -> KerasEstimator:
    return KerasEstimator(
        **{
            "model": network(), "optimizer": keras.optimizers.SGD(0.1, momentum=0.9), "loss": squares,
            "metrics": [keras.metrics.MeanAbsoluteError(name="mae")], "feature_cols": ["x"], "label_cols": ["y"],
            "batch_size": 16, "epochs": 2, "store": str(store), "num_proc": 2, "verbose": 0, "random_seed": 7,
            **options,
        }
    )  # fmt: skip


@pytest.mark.long  # in each run those of PyTorch and Lightning train
def test_fit_equals_one_process_and_goes_on_and_is_saved(spark: SparkSession, tmp_path: Path) -> None:
    inputs = np.random.default_rng(1).normal(size=(128, 3))
    frame = spark.createDataFrame([([*map(float, x)], float(x @ TRUE)) for x in inputs], "x array<double>, y double")
    frame.repartition(2).write.parquet(f"file://{tmp_path}/rows")
    estimator(tmp_path, epochs=1, run_id="run").fit_on_parquet("rows", "rows")
    one = estimator(tmp_path, run_id="run")
    one.save(f"file://{tmp_path}/estimator")
    loaded = KerasEstimator.load(f"file://{tmp_path}/estimator")
    fitted = loaded.setStore(str(tmp_path)).fit_on_parquet("rows", "rows")

    model = network()
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    shards = [ParquetShards(tmp_path / "rows", 16, rank=rank, size=2, seed=7) for rank in range(2)]
    for _ in range(2):
        for parts in zip(*shards, strict=True):
            model.train_on_batch(*(np.concatenate([part[name] for part in parts]) for name in "xy"))
    for own, expected in zip(fitted.getModel().get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)
    history = fitted.getHistory()
    assert sorted(history) == ["loss", "mae", "val_loss", "val_mae"]
    assert [len(values) for values in history.values()] == [2] * 4
    outputs = np.asarray(fitted.getModel()(inputs).detach())[:, 0]
    assert np.isclose(history["val_mae"][1], np.abs(outputs - inputs @ TRUE).mean(), atol=1e-5)

    expected = {row["y"]: row["y__output"] for row in fitted.transform(frame).collect()}
    fitted.save(f"file://{tmp_path}/fitted")
    again = KerasModel.load(f"file://{tmp_path}/fitted").transform(frame).collect()
    assert {row["y"]: row["y__output"] for row in again} == expected
    assert np.isclose(expected[frame.first()["y"]], float(fitted.getModel()(inputs[:1])[0, 0]), atol=1e-5)


@pytest.mark.long
def test_a_row_of_weight_2_is_that_row_twice_and_one_of_weight_0_is_none(spark: SparkSession, tmp_path: Path) -> None:
    weight = np.array([0, 2, 1, 1, 2, 0, 1, 1])  # Of each rank's four rows the mean is 1.
    inputs = np.random.default_rng(1).normal(size=(len(weight), 3))
    labels = np.where(weight > 0, inputs @ TRUE, 1e6)
    for name, rows in (("weighted", np.arange(len(weight))), ("repeated", np.repeat(np.arange(len(weight)), weight))):
        (tmp_path / name).mkdir()
        found = {"x": list(inputs[rows]), "y": labels[rows], "weight": weight[rows].astype(np.float64)}
        pq.write_table(pa.table(found), tmp_path / name / "rows.parquet")
    weighted, repeated = (
        estimator(tmp_path, batch_size=4, shuffle=False, metrics=[], **options).fit_on_parquet(name, name).getModel()
        for name, options in (("weighted", {"sample_weight_col": "weight"}), ("repeated", {}))
    )
    for one, other in zip(weighted.get_weights(), repeated.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": 3}, r"model= is a int, and not a keras.Model"),
        ({"optimizer": 3}, r"optimizer= is a int, and not an optimizer of Keras 3"),
        ({"loss": None}, r"the model is not compiled"),
        ({"optimizer": None}, r"give an optimizer= too"),
    ],
)
def test_what_cannot_be_is_refused(spark: SparkSession, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    made = estimator(tmp_path)
    for name, value in options.items():
        made._paramMap[made.getParam(name)] = value
    with pytest.raises(ValueError, match=said):
        made.fit(spark.createDataFrame([([1.0, 2.0, 3.0], 1.0)], "x array<double>, y double"))
