"""What there is already, in the place of a DataFrame: data sets of Hugging Face, and tables of Delta."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import datasets
import deltalake
import fsspec
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import fs
from pyspark.sql import SparkSession
from ringcore.data import DatasetShards, ParquetShards
from ringcore_spark import RankError
from ringcore_spark.store import LocalStore, Store
from ringcore_spark.torch import TorchEstimator
from support import ranks

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def rows(count: int) -> datasets.Dataset:
    values = {"id": list(range(count)), "pair": [[n, n + 1] for n in range(count)]}
    return datasets.Dataset.from_dict(values).add_column("text", ["x"] * count)


def epoch(shards: DatasetShards) -> list[list[int]]:
    batches = list(shards)
    for batch in batches:
        assert (batch["pair"] == np.stack([batch["id"], batch["id"] + 1], 1)).all()
    return [batch["id"].tolist() for batch in batches]


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_row_is_used_once_and_ranks_have_as_many_batches(shuffle: bool) -> None:
    ranks = [
        DatasetShards(rows(101), 8, ["id", "pair"], rank=rank, size=3, shuffle=shuffle, seed=5) for rank in range(3)
    ]
    first, second = ([epoch(rank) for rank in ranks] for _ in range(2))
    for found in (first, second):
        assert {id_ for rank in found for batch in rank for id_ in batch} == set(range(101))
        assert [[len(batch) for batch in rank] for rank in found] == [[8, 8, 8, 8, 2]] * 3
    assert (first == second) is not shuffle
    assert [len(rank) for rank in ranks] == [5] * 3
    ranks[0].set_epoch(1, batch=3)
    assert epoch(ranks[0]) == second[0][3:]


def test_a_data_set_that_is_only_read_on_is_split_by_its_library() -> None:
    source = rows(24).to_iterable_dataset(num_shards=4)
    ranks = [DatasetShards(lambda: source, 4, ["id", "pair"], rank=rank, size=2, window_rows=8) for rank in range(2)]
    first, second = ([epoch(rank) for rank in ranks] for _ in range(2))
    for found in (first, second):
        assert sorted(id_ for rank in found for batch in rank for id_ in batch) == list(range(24))
    assert first != second
    ranks[1].set_epoch(1, batch=2)
    assert epoch(ranks[1]) == second[1][2:]
    with pytest.raises(TypeError, match=r"does not tell how many rows .*train_steps_per_epoch="):
        len(ranks[0])


@pytest.mark.parametrize(
    ("source", "size", "said"),
    [
        ([1, 2], 2, r"a list is no data set that splits itself: give a Dataset or IterableDataset of Hugging Face"),
        (rows(2), 3, r"3 ranks cannot share 2 row\(s\): give fewer ranks, or more rows"),
        (rows(2).remove_columns("pair"), 1, r"there is no column 'pair' in the data: it has id, text"),
    ],
)
def test_what_cannot_be_split_is_refused(source: Any, size: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DatasetShards(source, 1, ["id", "pair"], rank=0, size=size)


def make_shards(seeds: list[int]) -> str:
    import datasets
    import ringcore
    from ringcore.data import DatasetShards

    ringcore.init()
    source = datasets.Dataset.from_dict({"id": list(range(8))})
    try:
        return f"{len(DatasetShards(source, 2, seed=seeds[ringcore.rank()]))} batches"
    except ringcore.MismatchError as error:
        return str(error)


@pytest.mark.parametrize(
    ("seeds", "said"),
    [([1, 1], "2 batches"), ([1, 2], "DatasetShards with different arguments: seed is 1 on ranks [0] and 2 on ranks")],
)
def test_ranks_that_were_told_different_orders_are_told_so(seeds: list[int], said: str, tmp_path: Path) -> None:
    assert all(said in each for each in ranks.run(make_shards, 2, tmp_path, seeds))


def estimator(store: Any, **options: Any) -> TorchEstimator:
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    return TorchEstimator(
        **{
            "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loss": torch.nn.MSELoss(),
            "feature_cols": ["x"], "label_cols": ["y"], "input_shapes": [[-1, 1]], "batch_size": 8, "epochs": 2,
            "store": store if isinstance(store, Store) else str(store), "num_proc": 2, "verbose": 0, "shuffle": False,
            **options,
        }
    )  # fmt: skip


@pytest.mark.long
def test_an_estimator_takes_them_in_the_place_of_a_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 16)
    whole = datasets.Dataset.from_dict({"x": x, "y": 2 * x + 1})
    own = estimator(tmp_path)
    fitted = own.fit(datasets.DatasetDict(train=whole, validation=whole))

    reference = estimator(tmp_path)
    model, optimizer = reference.getModel(), reference.getOptimizer()
    inputs, labels = (torch.from_numpy(each).float().reshape(-1, 1) for each in (x, 2 * x + 1))
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()
    for found, expected in zip(fitted.getModel().parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    error = float(torch.nn.functional.mse_loss(model(inputs), labels))
    assert fitted.getHistory()[1]["validation"]["loss"] == pytest.approx(error, rel=1e-4)
    with pytest.raises(RankError, match=r"there is no column 'x' in the data: it has z"):
        own.fit(lambda: datasets.Dataset.from_dict({"z": x}))
    with pytest.raises(ValueError, match=r"validation= and spill= are for the rows of a DataFrame"):
        estimator(tmp_path, validation=0.1).fit(whole)
    with pytest.raises(ValueError, match=r'there is no "train" among the data sets, but test'):
        own.fit({"test": whole})


class SeveralVersions(LocalStore):
    """Each rank finds another version, as when somebody writes meanwhile."""

    def arrow(self, *parts: str) -> tuple[Any, str]:
        return fs.LocalFileSystem(), "/".join([self.prefix_path, os.environ.get("RINGCORE_RANK", "0"), *parts])


def test_of_a_table_of_delta_the_newest_version_is_read(spark: SparkSession, tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 16)
    for name, later in (("0", x), ("1", x[1:])):
        path = tmp_path / name / "table"
        deltalake.write_deltalake(path, pa.table({"x": x, "y": x + 1e9}))
        deltalake.write_deltalake(path, pa.table({"x": later, "y": 2 * later + 1}), mode="overwrite")
    # Several files, whose folders have the values of a column.
    halves = pa.table({"x": x, "y": 2 * x + 1, "half": (x > 0).astype(np.int32)})
    deltalake.write_deltalake(tmp_path / "halves", halves, partition_by=["half"])
    (batch,) = ParquetShards(tmp_path / "halves", 16, rank=0, size=1)
    assert (batch["half"] == (batch["x"] > 0)).all() and sorted(batch["x"]) == x.tolist()

    fitted = estimator(tmp_path / "0").fit_on_parquet("table")
    assert fitted.getHistory()[0]["train"]["loss"] < 10, "rows of the first version are there"
    said = r"table has changed while ranks opened it: rank 0 has found 16 row\(s\), and rank 1 15\. Let nobody write"
    with pytest.raises(RankError, match=said):
        estimator(SeveralVersions(str(tmp_path))).fit_on_parquet("table")


class Noting(fs.FSSpecHandler):
    """Notes which files are opened."""

    def __init__(self, filesystem: Any) -> None:
        super().__init__(filesystem)
        self.opened: list[str] = []

    def open_input_stream(self, path: str) -> Any:
        self.opened.append(path.rpartition("/")[2])
        return super().open_input_stream(path)


@pytest.mark.long
def test_of_a_table_of_delta_in_a_bucket_the_newest_version_is_read(
    spark: SparkSession, bucket: fs.S3FileSystem, tmp_path: Path
) -> None:
    x = np.linspace(-1, 1, 16)
    table = tmp_path / "table"
    deltalake.write_deltalake(table, pa.table({"x": x, "y": x + 1e9}))
    deltalake.write_deltalake(table, pa.table({"x": x[:8], "y": 2 * x[:8] + 1}), mode="overwrite")
    deltalake.DeltaTable(table).create_checkpoint()
    deltalake.write_deltalake(table, pa.table({"x": x[8:], "y": 2 * x[8:] + 1}), mode="append")
    fs.copy_files(str(table), "data/tables/one", destination_filesystem=bucket)

    store = Store.create("s3://data/store", filesystem=bucket)
    fitted = estimator(store).fit_on_parquet("s3://data/tables/one")
    assert fitted.getHistory()[0]["train"]["loss"] < 10, "rows of the first version are there"

    noting = Noting(fsspec.filesystem("local"))
    (batch,) = ParquetShards(str(table), 16, rank=0, size=1, shuffle=False, filesystem=fs.PyFileSystem(noting))
    assert sorted(batch["x"]) == x.tolist()
    assert "00000000000000000000.json" not in noting.opened, "the checkpoint has what is before it"
    assert "00000000000000000002.json" in noting.opened

    memory = fsspec.filesystem("memory")  # which names files in another way than it is asked for them
    memory.put(str(table), "/tables/one", recursive=True)
    (batch,) = ParquetShards("tables/one", 16, rank=0, size=1, shuffle=False, filesystem=memory)
    assert sorted(batch["x"]) == x.tolist()
