"""`TorchEstimator` on a real Spark: what is common to all estimators is tested here too."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ringcore_torch as ring
import torch
from pyarrow.fs import FileSelector, FSSpecHandler, PyFileSystem, S3FileSystem, copy_files
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from ringcore.data import ParquetShards
from ringcore_spark import LaunchError
from ringcore_spark.ml.frame import ready
from ringcore_spark.ml.parquet import write
from ringcore_spark.store import Store
from ringcore_spark.torch import TorchEstimator, TorchModel

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
ROWS = 256
TRUE = np.array([1.0, -2.0, 0.5])


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("frame") / "rows"
    inputs = np.random.default_rng(1).normal(size=(ROWS, 3))
    rows = [(n, *map(float, x), float(x @ TRUE), float(n % 4 == 0)) for n, x in enumerate(inputs)]
    types = "id long, a double, b double, c double, y double, held double"
    spark.createDataFrame(rows, types).repartition(3).write.parquet(f"file://{folder}")
    yield spark.read.parquet(f"file://{folder}")


def linear() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class ThreeInputs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.stack([a, b, c], 1))


class Alone:
    """A backend whose only rank is this process: for what is not about ranks, as starting them takes seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any], *, env: Mapping[str, str], spark: Any = None
    ) -> list[Any]:
        with self._lock:  # CrossValidator has threads.
            try:
                return [fn(*args)]
            finally:
                ring.shutdown()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Alone, ()


ALONE: dict[str, Any] = {"num_proc": None, "backend": Alone()}


def estimator(store: Any, **options: Any) -> TorchEstimator:
    torch.manual_seed(0)
    model = ThreeInputs()
    return TorchEstimator(
        **{
            "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            "loss": torch.nn.functional.mse_loss, "feature_cols": ["a", "b", "c"], "label_cols": ["y"],
            "batch_size": 16, "epochs": 2, "store": store, "num_proc": 2, "verbose": 0, **options,
        }
    )  # fmt: skip


def test_a_step_of_two_batches_is_one_of_a_batch_twice_as_large(frame: Any, tmp_path: Path) -> None:
    (tmp_path / "rows").symlink_to(frame.inputFiles()[0].removeprefix("file://").rpartition("/")[0])

    def summed(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return ((outputs - labels) ** 2).sum() / 16

    options: dict[str, Any] = {**ALONE, "shuffle": False, "loss": summed, "epochs": 1}
    one, other = (
        estimator(str(tmp_path), batch_size=size, backward_passes_per_step=passes, **options).fit_on_parquet("rows")
        for size, passes in ((16, 1), (8, 2))
    )
    np.testing.assert_allclose(weights(one.getModel()), weights(other.getModel()), rtol=1e-5, atol=1e-7)


def weights(model: Any) -> np.ndarray[Any, Any]:
    return torch.cat([value.flatten() for value in model.state_dict().values()]).numpy()


@pytest.mark.long
def test_two_ranks_give_the_weights_of_one_process_at_twice_the_batch(frame: Any, tmp_path: Path) -> None:
    (tmp_path / "rows").symlink_to(frame.inputFiles()[0].removeprefix("file://").rpartition("/")[0])
    fitted = estimator(str(tmp_path), random_seed=7).fit_on_parquet("rows")
    untrained = estimator(str(tmp_path))
    model, optimizer = untrained.getModel().train(), untrained.getOptimizer()
    shards = [ParquetShards(tmp_path / "rows", 16, rank=rank, size=2, seed=7, tensors="torch") for rank in range(2)]
    for _ in range(2):
        for parts in zip(*shards, strict=True):
            a, b, c, y = (torch.cat([part[name] for part in parts]).float() for name in "abcy")
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(a, b, c), y[:, None]).backward()
            optimizer.step()
    np.testing.assert_allclose(weights(fitted.getModel()), weights(model), rtol=1e-5, atol=1e-7)
    assert np.abs(weights(model) - weights(estimator(str(tmp_path)).getModel())).max() > 0.1


def test_a_store_is_named_by_a_url_that_says_more_than_the_folder(bucket: S3FileSystem) -> None:
    (options,) = bucket.__reduce__()[1]
    server = f"scheme=http&endpoint_override={options['endpoint_override']}"
    store = Store.create(f"s3a://some:thing@data/folder/?{server}")
    store.check_writable()
    store.write(b"one", "a", "b")
    assert (store.read("a", "b"), store.read("a", "c")) == (b"one", None)
    with bucket.open_input_stream("data/folder/a/b") as stream:
        assert stream.read() == b"one"
    assert store.url("a", "b") == f"s3a://some:thing@data/folder/a/b?{server}"
    assert "thing" not in f"{store} {store!r}", "passwords are nobody's business"
    with pytest.raises(ValueError, match=r"the store s3://...@nowhere/x cannot be written to: "):
        Store.create(f"s3://some:thing@nowhere/x?{server}").check_writable()


def test_data_that_is_elsewhere_is_read_where_it_is(frame: Any, bucket: S3FileSystem, tmp_path: Path) -> None:
    files = sorted(frame.inputFiles())
    folder = files[0].removeprefix("file://").rpartition("/")[0]
    in_store, local = tmp_path / "in_store", str(tmp_path / "store")
    (in_store / "rows").parent.mkdir()
    (in_store / "rows").symlink_to(folder)
    fitted = estimator(str(in_store), **ALONE).fit_on_parquet("rows", "rows")
    copy_files(folder, "data/elsewhere/rows", destination_filesystem=bucket)
    in_bucket = [f"s3a://data/elsewhere/rows/{file.rpartition('/')[2]}" for file in files]
    remote = Store.create("s3://data/some/store", filesystem=bucket)
    (options,) = bucket.__reduce__()[1]
    server = f"scheme=http&endpoint_override={options['endpoint_override']}"
    for store, source in (
        (local, folder),
        (local, Path(folder)),
        (local, f"file://{folder}"),
        (local, files),
        (local, [f"s3://some:thing@{url.partition('://')[2]}?{server}" for url in in_bucket]),
        (remote, in_bucket),
        (remote, "s3://data/elsewhere/rows"),
        (remote, folder),
    ):
        other = estimator(store, **ALONE).fit_on_parquet(source, source)
        np.testing.assert_array_equal(weights(fitted.getModel()), weights(other.getModel()))
        assert other.getHistory() == fitted.getHistory()
    with pytest.raises(ValueError, match=rf"{folder}/.* and s3://data/.* are on different file systems"):
        estimator(remote, **ALONE).fit_on_parquet([f"{folder}/part", "s3://data/elsewhere/rows"])
    with pytest.raises(ValueError, match=r"there is no file in the list"):
        estimator(remote, **ALONE).fit_on_parquet([])
    with pytest.raises(TypeError, match="int"):
        estimator(remote, **ALONE).fit_on_parquet(3)
    with pytest.raises(FileNotFoundError, match=r"there is no s3://\.\.\.@data/nothing$"):
        estimator(local, **ALONE).fit_on_parquet(f"s3://some:thing@data/nothing?{server}")


@pytest.mark.long
def test_fit_validates_and_transforms_with_a_store_in_a_bucket(frame: Any, bucket: S3FileSystem) -> None:
    store = Store.create("s3://data/some/folder", filesystem=bucket)
    fitted = estimator(store, validation="held", epochs=12, run_id="run", metrics=[torch.nn.functional.l1_loss]).fit(
        frame
    )
    assert [told["epoch"] for told in fitted.getHistory()] == list(range(12))
    last = fitted.getHistory()[-1]
    assert last["train"]["loss"] < 1e-2 and last["validation"]["loss"] < 1e-2
    assert 0 < last["validation"]["all_metrics"]["l1_loss"] < 0.1
    assert fitted.getHistory()[0]["train"]["loss"] > 1
    rows = fitted.transform(frame).collect()
    assert len(rows) == ROWS
    assert max(abs(row["y__output"] - row["y"]) for row in rows) < 0.5
    assert sorted(rows[0].asDict()) == ["a", "b", "c", "held", "id", "y", "y__output"]
    left = [info.path for info in bucket.get_file_info(FileSelector("data", recursive=True)) if info.is_file]
    assert left == ["data/some/folder/runs/run/checkpoint"], "the data is left"


def test_rows_of_partitions_that_are_uneven_empty_or_of_one_row_are_written_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    # Of five partitions two have no row, and one has one.
    numbers = "case id when 1 then sequence(0, 0) when 2 then sequence(1, 7) when 4 then sequence(8, 202) end"
    rows = spark.range(0, 5, 1, 5).selectExpr(f"explode({numbers}) as id")
    others = ["id / 2 as half", "array(array(id), array(-id)) as nested", "cast(id % 3 = 0 as int) as held"]
    assembled = VectorAssembler(inputCols=["id", "half"], outputCol="vector").transform(rows.selectExpr("id", *others))
    columns = ["id", "vector", "nested"]
    write(ready(assembled, columns, "held", 0), Store.create(str(tmp_path)), "train", "validation")
    assert len(list(tmp_path.glob("train/*.parquet"))) == 2, "what has no rows has no file"
    for folder, wanted in (("train", {1, 2}), ("validation", {0})):
        expected = [number for number in range(203) if number % 3 in wanted]
        for size in (1, 2, 8):  # There are fewer row groups than eight ranks.
            ranks = [ParquetShards(tmp_path / folder, 16, rank=rank, size=size, uneven="join") for rank in range(size)]
            batches = [batch for rank in ranks for batch in rank]
            assert sorted(number for batch in batches for number in batch["id"].tolist()) == expected
            for batch in batches:
                number = batch["id"]
                np.testing.assert_array_equal(batch["vector"], np.stack([number, number / 2], 1))
                np.testing.assert_array_equal(batch["nested"], np.stack([number, -number], 1)[:, :, np.newaxis])


@pytest.mark.long
def test_rows_are_left_with_the_tasks_that_have_them(frame: Any, tmp_path: Path) -> None:
    fitted = estimator(str(tmp_path), spill=True, epochs=8, run_id="run").fit(frame)
    losses = [told["train"]["loss"] for told in fitted.getHistory()]
    assert len(losses) == 8 and losses[-1] < losses[0] / 10
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == [
        "runs/run/checkpoint"
    ]


@pytest.mark.long
def test_a_pipeline_of_vectors_is_saved_and_loaded(frame: Any, tmp_path: Path) -> None:
    model, optimizer = linear()
    pipeline = Pipeline(
        stages=[
            VectorAssembler(inputCols=["a", "b", "c"], outputCol="x"),
            TorchEstimator(
                model=model, optimizer=optimizer, loss=torch.nn.MSELoss(), feature_cols=["x"], label_cols=["y"],
                store=str(tmp_path), epochs=1, batch_size=32, verbose=0, sample_weight_col="held", **ALONE,
            ),
        ]
    )  # fmt: skip
    pipeline.write().overwrite().save(f"file://{tmp_path}/pipeline")
    loaded = Pipeline.load(f"file://{tmp_path}/pipeline")
    again = loaded.getStages()[1]
    assert isinstance(again, TorchEstimator) and again.uid == pipeline.getStages()[1].uid
    assert again.getStore() is None, "a store is of a cluster"
    assert again.getOptimizer().param_groups[0]["params"][0] is again.getModel().weight
    assert again.getBackend() is None, "and so is a backend"
    again.setStore(str(tmp_path)).setBackend(Alone())
    one, other = pipeline.fit(frame), loaded.fit(frame)
    np.testing.assert_array_equal(weights(one.stages[1].getModel()), weights(other.stages[1].getModel()))

    one.save(f"file://{tmp_path}/fitted")
    fitted = PipelineModel.load(f"file://{tmp_path}/fitted")
    assert isinstance(fitted.stages[1], TorchModel)
    expected = {row["id"]: row["y__output"] for row in one.transform(frame).collect()}
    assert {row["id"]: row["y__output"] for row in fitted.transform(frame).collect()} == expected
    # By hand, with several outputs in a row, and other names.
    wide = TorchModel(model=torch.nn.Linear(3, 2).eval(), feature_columns=["x"], label_columns=["y"])
    (row,) = wide.setOutputCols(["z"]).transform(one.stages[0].transform(frame).limit(1)).collect()
    assert len(row["z"]) == 2


@pytest.mark.long
def test_a_cross_validator_chooses_the_epochs(frame: Any, tmp_path: Path) -> None:
    one = estimator(str(tmp_path), batch_size=32, **ALONE)
    grid = ParamGridBuilder().addGrid(one.epochs, [1, 2]).build()
    evaluator = RegressionEvaluator(predictionCol="y__output", labelCol="y")
    best = CrossValidator(
        estimator=one, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, seed=3, parallelism=2
    ).fit(frame)
    assert len(set(best.avgMetrics)) == 2
    assert len(best.bestModel.getHistory()) == [1, 2][int(np.argmin(best.avgMetrics))]
    assert not list((tmp_path / "intermediate").iterdir())


class Doubled:
    def __call__(self, batch: Any) -> Any:
        return batch.assign(y=batch["y"] * 2)


def test_a_run_goes_on_from_its_checkpoint_in_the_midst_of_the_data_and_batches_can_be_changed(
    frame: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        **ALONE,
        "transformation_fn": Doubled(),
        "random_seed": 3,
        "train_steps_per_epoch": 7,
    }
    whole = estimator(str(tmp_path), epochs=3, run_id="whole", **options).fit(frame)
    estimator(str(tmp_path), epochs=1, run_id="parts", **options).fit(frame)
    parts = estimator(str(tmp_path), epochs=3, run_id="parts", **options).fit(frame)
    assert [told["epoch"] for told in parts.getHistory()] == [0, 1, 2]
    np.testing.assert_array_equal(weights(whole.getModel()), weights(parts.getModel()))
    values = frame.select("y").collect()
    assert whole.getHistory()[0]["train"]["loss"] > np.mean([row["y"] ** 2 for row in values]), "labels are not doubled"


@pytest.mark.long
def test_classes_are_numbers_or_doubles_and_outputs_are_vectors(spark: SparkSession, tmp_path: Path) -> None:
    data = spark.createDataFrame(
        [([float(n % 2), 1.0], float(n % 2), n % 2) for n in range(32)], "x array<double>, d double, n int"
    )
    torch.manual_seed(0)

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.one(x), self.other(x)

    model = Two()
    fitted = TorchEstimator(
        model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1), loss=[torch.nn.CrossEntropyLoss()] * 2,
        loss_weights=[0.7, 0.3], feature_cols=["x"], label_cols=["d", "n"], store=str(tmp_path), epochs=8,
        batch_size=8, verbose=0, **ALONE,
    ).fit(data)  # fmt: skip
    for row in fitted.transform(data).collect():
        assert np.argmax(row["d__output"].toArray()) == np.argmax(row["n__output"].toArray()) == row["n"]


class Noted(torch.nn.Module):
    """Notes which process has unpickled it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0, 0] * x[:, 1, 1]

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        (self.folder / f"{os.getpid()}.{uuid.uuid4()}").touch()


@pytest.mark.long
def test_a_worker_loads_a_model_once_for_all_partitions_of_arrays_of_arrays(
    spark: SparkSession, tmp_path: Path
) -> None:
    model = TorchModel(model=Noted(tmp_path), feature_columns=["nested"], label_columns=["y"])
    rows = spark.range(0, 64, 1, 16).selectExpr("id", "array(array(id, 0), array(0, -id), array(1, 1)) as nested")
    for row in model.transform(rows).collect():
        assert row["y__output"] == -(row["id"] ** 2)
    processes = [path.name.partition(".")[0] for path in tmp_path.iterdir()]
    assert len(processes) == len(set(processes)) < 16


@pytest.mark.long
def test_a_row_of_weight_2_is_that_row_twice_and_one_of_weight_0_is_none(spark: SparkSession, tmp_path: Path) -> None:
    weight = np.array([0, 2, 1, 1, 2, 0, 1, 1])  # Of each rank's four rows the mean is 1.
    inputs = np.random.default_rng(1).normal(size=(len(weight), 3))
    columns = {**dict(zip("abc", inputs.T, strict=True)), "y": np.where(weight > 0, inputs @ TRUE, 1e6)}
    for name, rows in (("weighted", np.arange(len(weight))), ("repeated", np.repeat(np.arange(len(weight)), weight))):
        (tmp_path / name).mkdir()
        found = {column: values[rows] for column, values in {**columns, "weight": weight}.items()}
        pq.write_table(pa.table(found), tmp_path / name / "rows.parquet")
    weighted, repeated = (
        estimator(str(tmp_path), batch_size=4, shuffle=False, **options).fit_on_parquet(name, name)
        for name, options in (("weighted", {"sample_weight_col": "weight"}), ("repeated", {}))
    )
    np.testing.assert_allclose(weights(weighted.getModel()), weights(repeated.getModel()), rtol=1e-5, atol=1e-6)
    for part in ("train", "validation"):
        losses = [[told[part]["loss"] for told in fitted.getHistory()] for fitted in (weighted, repeated)]
        np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"feature_cols": ["a", "b", "name"]}, r"column 'name' has the type string, .*StringIndexer"),
        ({"label_cols": ["z"]}, r"no column 'z': it has id, a"),
        ({"store": None}, r"needs a store"),
        ({"store": "/proc/nowhere"}, r"the store /proc/nowhere cannot be written to: "),
        ({"model": None}, r"needs model="),
        ({"model": 3}, r"model= is a int, and not a torch.nn.Module"),
        ({"loss": None}, r"give one of loss= and loss_constructors="),
        ({"loss": "mse"}, r"a loss is 'mse', and no function"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)], lr=1)}, r"parameters that the model does not have"),
        ({"validation": 1.5}, r"validation=1.5 is neither"),
        ({"validation": "held", "spill": True}, r"spill=True keeps rows to train with only"),
        ({"validation": "held"}, r"no rows to validate with"),
        ({"epochs": 0}, r"epochs=0 must be at least 1"),
        ({"backward_passes_per_step": 0}, r"backward_passes_per_step=0 must be at least 1"),
        ({"num_proc": 3}, r"3 ranks need as many slots"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_ranks_start(
    frame: Any, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    named = frame.withColumn("name", sql.lit("x")).withColumn("held", sql.lit(0.0))
    made = estimator(str(tmp_path))
    for name, value in options.items():
        made._paramMap[made.getParam(name)] = value
    with pytest.raises(ValueError, match=said):
        made.fit(named)


def test_wrong_names_and_values_and_data_are_said(frame: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"no param 'feature_columns'; is feature_cols meant\?"):
        TorchEstimator(feature_columns=["a"])
    with pytest.raises(TypeError, match="batch_size"):
        TorchEstimator(batch_size="many")
    with pytest.raises(FileNotFoundError, match="no gone in the store"):
        estimator(str(tmp_path)).fit_on_parquet("gone")
    with pytest.raises(ValueError, match="no rows to train with"):
        estimator(str(tmp_path)).fit(frame.where("a > 1e9"))
    gone = tmp_path / "gone"
    frame.limit(8).write.parquet(f"file://{gone}")
    table = frame.sparkSession.read.parquet(f"file://{gone}")
    shutil.rmtree(gone)
    with pytest.raises(LaunchError, match=r"not write the rows.*: .*/gone/part-.* does not exist") as caught:
        estimator(str(tmp_path)).fit(table)
    assert "\tat org.apache" not in str(caught.value)
    with pytest.raises(ValueError, match=r"column 'b' has \d+ null\(s\) in .*dropna"):
        estimator(str(tmp_path), **ALONE).fit(frame.withColumn("b", sql.expr("if(id = 5, null, b)")))


def test_a_table_of_the_catalog_whose_place_has_gone_is_said_with_the_place(
    spark: SparkSession, frame: Any, tmp_path: Path
) -> None:
    frame.write.option("path", f"file://{tmp_path}/gone").saveAsTable("of_the_catalog")
    table = spark.table("of_the_catalog")
    shutil.rmtree(tmp_path / "gone")
    try:
        for rows in (table, spark.table("of_the_catalog")):
            with pytest.raises(LaunchError, match=rf"not write the rows.*: .*{tmp_path}/gone.* does not exist"):
                estimator(str(tmp_path / "store")).fit(rows)
    finally:
        spark.sql("DROP TABLE of_the_catalog")
    assert not list((tmp_path / "store").rglob("*.parquet")), "nothing is left in the store"


def test_stores_of_other_file_systems(tmp_path: Path) -> None:
    from fsspec.implementations.local import LocalFileSystem

    store = Store.create(f"file://{tmp_path}/other", filesystem=LocalFileSystem())
    store.check_writable()
    store.write(b"some", "a", "b")
    assert (tmp_path / "other" / "a" / "b").read_bytes() == b"some" == store.read("a", "b")
    assert store.read("a", "c") is None
    store.delete("a")
    assert not (tmp_path / "other" / "a").exists()
    given = {"filesystem": LocalFileSystem()}
    folder = "abfss://container@account.dfs.core.windows.net/x"
    azure = Store.create(folder, **given)
    assert azure.arrow("y")[1] == azure.place(f"{folder}/y")[1] == "container/x/y"
    assert Store.create("s3://some:thing@data/x", **given).arrow("y")[1] == "data/x/y"
    assert Store.create("dbfs:/x").arrow("y")[1] == "/dbfs/x/y"
    assert Store.create("/Volumes/x").arrow("y")[1] == "/Volumes/x/y"


class Flat(FSSpecHandler):
    """Moves nothing, as Arrow on a storage account of Azure that has no folders."""

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError(f"{src} to {dest}")


def test_a_store_that_moves_nothing_has_whole_files_and_no_others(tmp_path: Path) -> None:
    from fsspec.implementations.local import LocalFileSystem

    store = Store.create(f"abfs://{tmp_path}", filesystem=PyFileSystem(Flat(LocalFileSystem())))
    store.check_writable()
    for data in (b"some", b"more"):
        store.write(data, "a", "b")
        assert store.read("a", "b") == data
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["b"]
