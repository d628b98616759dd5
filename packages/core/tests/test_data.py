"""`ringcore.data.ParquetShards`: every row once an epoch, and as many batches on every rank."""

from __future__ import annotations

import json
import sys
import threading
import tracemalloc
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ringcore
from ringcore.data import ArrowShards, ParquetShards
from ringcore.data.columns import Memory
from support import ranks
from support.processes import LIMIT_S


def write(folder: Path, groups: Sequence[Sequence[int]]) -> Path:
    """Files with row groups of these sizes, and rows with their number."""
    number = 0
    folder.mkdir(exist_ok=True)
    for index, sizes in enumerate(groups):
        schema = pa.schema([("id", pa.int64()), ("x", pa.float32())])
        with pq.ParquetWriter(folder / f"part-{index:03}.parquet", schema) as writer:
            for size in sizes:
                ids = np.arange(number, number + size)
                writer.write_table(pa.table({"id": ids, "x": ids.astype(np.float32) / 2}, schema))
                number += size
    return folder


def all_shards(path: Any, batch: int, size: int, **options: Any) -> list[ParquetShards]:
    return [ParquetShards(path, batch, rank=rank, size=size, **options) for rank in range(size)]


def ids_of(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch["id"]]


# Uneven, empty and of one row; fewer row groups than ranks; no row at all.
SHAPES = [[[5, 1, 8], [], [3], [1]], [[2]], [[40]], [[1], [1], [1]], [[0]]]


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("uneven", ["pad", "join"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_row_is_used_once_by_as_many_batches(
    tmp_path: Path, sizes: list[list[int]], size: int, uneven: str, shuffle: bool
) -> None:
    path = write(tmp_path / "data", sizes)
    rows = sum(map(sum, sizes))
    options: dict[str, Any] = {"uneven": uneven, "shuffle": shuffle, "window_rows": 4}
    shards = all_shards(path, 2, size, **options)
    assert {one.rows for one in shards} == {rows}
    expected = [len(one) for one in shards]
    batches = [list(one) for one in shards]
    assert [len(own) for own in batches] == expected
    used = [number for own in batches for number in ids_of(own)]
    assert set(used) == set(range(rows))
    if uneven == "join":
        assert len(used) == rows
        assert max(expected) - min(expected) <= 1
    else:
        assert len({tuple(len(batch["id"]) for batch in own) for own in batches}) == 1, "sizes differ"
        assert len(used) - rows < size
    if not shuffle and uneven == "join":
        assert used == list(range(rows))
    assert all(batch["x"].tolist() == (batch["id"] / 2).tolist() for own in batches for batch in own)


@pytest.mark.long
def test_a_million_rows_once_and_shuffled_anew_each_epoch(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    sizes = random.multinomial(1_000_000, random.dirichlet(np.ones(60))).tolist()
    path = write(tmp_path / "data", [sizes[start::7] for start in range(7)])
    shards = all_shards(path, 256, 3, window_rows=50_000)
    orders = []
    for _ in range(2):
        own = [np.concatenate([batch["id"] for batch in one]) for one in shards]
        assert len({len(ids) for ids in own}) == 1
        assert np.array_equal(np.unique(np.concatenate(own)), np.arange(1_000_000))
        assert sum(map(len, own)) - 1_000_000 == 2  # 333,334 rows each
        orders.append(own[0])
    assert not np.array_equal(*orders)
    # Within a window and not only by row groups.
    assert np.mean(np.abs(np.diff(orders[0][:10_000])) > 1) > 0.9


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_position_is_gone_on_from_by_as_many_ranks_or_others(tmp_path: Path, shuffle: bool) -> None:
    path = write(tmp_path / "data", [[30, 7], [50, 13, 1], [400]])
    options: dict[str, Any] = {"window_rows": 16, "shuffle": shuffle, "seed": 3}
    whole = [ids_of(one) for one in all_shards(path, 4, 2, **options)]
    shards = all_shards(path, 4, 2, **options)
    had = [ids_of(next(iterator) for _ in range(7)) for iterator in map(iter, shards)]
    states = [json.loads(json.dumps(one.state_dict())) for one in shards]
    assert states[0] == states[1]

    again = all_shards(path, 4, 2, **options)
    for one in again:
        one.load_state_dict(states[0])
    assert [had[rank] + ids_of(one) for rank, one in enumerate(again)] == whole
    assert {one.epoch for one in again} == {1}

    used = had[0] + had[1]
    for size, batch, batches in ((3, 5, 6), (1, 8, 4), (4, 3, 1000)):
        others = all_shards(path, batch, size, **options)
        for one in others:
            one.load_state_dict(states[0])
        iterators = [iter(one) for one in others]
        used += [number for own in iterators for number in ids_of(islice(own, batches))]
        states = [one.state_dict() for one in others]
    assert set(used) == set(range(501))
    # No row twice, but for those of padding: one for a rank and each deal.
    assert len(used) - 501 <= 8
    with pytest.raises(ValueError, match=r"the position is one in 501 rows, and the data has 2"):
        ParquetShards(write(tmp_path / "other", [[2]]), 1, rank=0, size=1).load_state_dict(states[0] | {"rows": 501})


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_rows_that_were_repeated_are_not_left(tmp_path: Path, batches: int) -> None:
    """Three ranks have three rows each of seven, two of them repeated, in one window; what is left is dealt to one."""
    path = write(tmp_path / "data", [[7]])
    for seed in range(8):
        shards = all_shards(path, 1, 3, seed=seed, window_rows=4)
        had = [ids_of(islice(one, batches)) for one in shards]
        other = ParquetShards(path, 1, rank=0, size=1)
        other.load_state_dict(shards[0].state_dict())
        left = ids_of(other)
        assert len(left) == len(set(left))
        assert {*left, *(number for own in had for number in own)} == set(range(7))


def test_whoever_stops_within_an_epoch_goes_on_there(tmp_path: Path) -> None:
    shards = ParquetShards(write(tmp_path / "data", [[10]]), 2, rank=0, size=1, shuffle=False)
    for batch in shards:
        if 5 in batch["id"]:
            break
    assert ids_of(shards) == [6, 7, 8, 9]
    shards.set_epoch(0)
    assert ids_of(shards) == list(range(10))
    shards.set_epoch(4, 3)
    assert ids_of(shards) == [6, 7, 8, 9]
    assert shards.epoch == 5


def test_whoever_stops_does_not_wait_for_what_is_read_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shards,) = all_shards(write(tmp_path / "data", [[4], [4]]), 2, 1, window_rows=4)
    goes_on, read = threading.Event(), shards._read
    windows: list[Any] = []

    def read_slowly(window: Any) -> Any:
        windows.append(window)
        if len(windows) == 2:
            goes_on.wait(LIMIT_S)
        return read(window)

    monkeypatch.setattr(shards, "_read", read_slowly)
    loop = iter(shards)
    next(loop)
    stopping = threading.Thread(target=loop.close)  # as the garbage collector does
    stopping.start()
    stopping.join(10.0)
    waits = stopping.is_alive()
    goes_on.set()
    stopping.join()
    assert not waits


def test_vectors_and_images_and_structs_are_arrays_on_arrows_memory(tmp_path: Path) -> None:
    images = pa.list_(pa.list_(pa.float32(), 3), 2)
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    table = pa.table(
        {
            "image": pa.array(values.tolist(), images),
            "vector": pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float64())),
            "yes": pa.array([True, False, True, True]),
            "a": pa.array([{"b": {"c": row}, "d": -row} for row in range(4)]),
            "a.e": pa.array([5, 6, 7, 8], pa.uint8()),
        }
    )
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=4)
    (batch,) = ParquetShards(tmp_path / "one.parquet", 4, rank=0, size=1, shuffle=False)
    assert {name: array.shape for name, array in batch.items()} == {
        "image": (4, 2, 3), "vector": (4, 2), "yes": (4,), "a.b.c": (4,), "a.d": (4,), "a.e": (4,),
    }  # fmt: skip
    assert np.array_equal(batch["image"], values)
    assert (batch["yes"].tolist(), batch["a.b.c"].tolist()) == ([True, False, True, True], [0, 1, 2, 3])
    assert (batch["a.d"].tolist(), batch["a.e"].tolist()) == ([0, -1, -2, -3], [5, 6, 7, 8])

    (one, other) = ParquetShards(tmp_path, 2, ["image"], rank=0, size=1, shuffle=False)
    distance = other["image"].__array_interface__["data"][0] - one["image"].__array_interface__["data"][0]
    assert distance == one["image"].nbytes, "batches are not pieces of one buffer"
    assert one["image"].flags.writeable


def test_a_folder_of_partitions_has_their_columns(tmp_path: Path) -> None:
    for year in (2020, 2021):
        write(tmp_path / f"year={year}", [[2]])
    (batch,) = ParquetShards(tmp_path, 4, ["year", "id"], rank=0, size=1, shuffle=False)
    assert batch["year"].tolist() == [2020, 2020, 2021, 2021]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array(["a", "b"]), r"column 'x' has the type string, which is not numeric: .*Cast it to a number"),
        (pa.array([["a"], ["b"]]), r"column 'x' has the type list<.*string>, which is not numeric"),
        (pa.array([1.0, None]), r"column 'x' has 1 null\(s\) in .*\.parquet: .*fillna.*dropna"),
        (pa.array([[1.0], [None]]), r"column 'x' has 1 null\(s\)"),
        (pa.array([[1.0], None], pa.list_(pa.float64(), 1)), r"column 'x' has 1 null\(s\)"),
        (pa.array([[1.0], [1.0, 2.0]]), r"column 'x' has lists of 1 to 2 values in .*\.parquet: .*Pad them"),
    ],
)
def test_columns_that_cannot_be_tensors_are_named(tmp_path: Path, column: Any, said: str) -> None:
    pq.write_table(pa.table({"x": column}), tmp_path / "one.parquet")
    with pytest.raises(ValueError, match=said):
        list(ParquetShards(tmp_path, 1, rank=0, size=1))


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "data", [[2]])
    for options, said in (
        ({"columns": ["y"]}, r"no column 'y' in the data: it has id, x"),
        ({"columns": []}, r"no columns are asked for"),
        ({"batch_size": 0}, r"batch_size=0"),
        ({"rank": 1}, r"no rank 1 of 1"),
        ({"uneven": "drop"}, r"\"pad\" or \"join\", not 'drop'"),
        ({"tensors": "mxnet"}, r"one of numpy, torch, tensorflow, not 'mxnet'"),
    ):
        with pytest.raises(ValueError, match=said):
            ParquetShards(path, **{"batch_size": 1, "rank": 0, "size": 1, **options})
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ParquetShards(tmp_path / "nowhere", 1, rank=0, size=1)
    with pytest.raises(ringcore.NotInitializedError):
        ParquetShards(path, 1)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("metadata/v2.metadata.json", r"is a table of Iceberg: .*older versions.*scan\(\)\.plan_files\(\)"),
        (".hoodie/hoodie.properties", r'is a table of Hudi: .*the newest in the place .*format\("hudi"\)\.load'),
    ],
)
def test_tables_with_rows_of_older_versions_are_refused(tmp_path: Path, log: str, said: str) -> None:
    path = write(tmp_path / "data", [[2]])
    mark = path / log
    mark.parent.mkdir()
    if mark.parent.name == "metadata":
        assert ParquetShards(path, 1, rank=0, size=1).rows == 2, "a folder of this name makes no table"
    mark.touch()
    with pytest.raises(ValueError, match=said):
        ParquetShards(path, 1, rank=0, size=1)
    files = [*path.glob("*.parquet")]
    for several in (files, [file.as_uri() for file in files]):
        assert ParquetShards(several, 1, rank=0, size=1).rows == 2


def test_a_table_of_delta_names_the_package_that_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "data", [[2]])
    (path / "_delta_log").mkdir()
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ImportError, match=r"is a table of Delta, .*Remedy: pip install deltalake"):
        ParquetShards(path, 1, rank=0, size=1)


def test_rows_of_ones_own_are_mapped_and_repeated_until_all_ranks_have_as_many(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.arrow")
    with pa.ipc.new_file(path, pa.schema({"id": pa.int64(), "name": pa.string()})) as writer:
        for ids in (range(5), range(5, 7)):
            writer.write_batch(pa.record_batch({"id": list(ids), "name": ["x"] * len(ids)}))
    whole = ArrowShards(path, 3, ["id"], shuffle=False)
    assert [batch["id"].tolist() for batch in whole] == [[0, 1, 2], [3, 4, 5], [6]]
    assert (whole.rows, whole.epoch) == (7, 1)
    for shuffle in (False, True):
        more = ArrowShards(path, 4, ["id"], rows=16, shuffle=shuffle)
        batches = [batch["id"] for batch in more]
        assert [len(batch) for batch in batches] == [4] * 4 and len(more) == 4
        assert set(np.concatenate(batches)) == set(range(7))
        batches[0][0] = 99  # what is handed out may be written to, and the file stays
        assert 99 not in np.concatenate([batch["id"] for batch in more])
    with pytest.raises(ValueError, match="column 'name' has the type string"):
        ArrowShards(path, 3)


def test_memory_is_used_again_but_not_while_a_batch_has_some_of_it(tmp_path: Path) -> None:
    memory = Memory()
    first = memory.take((2, 1 << 18), np.dtype(np.float32))
    first[:] = 7
    batch = first[1, :3]
    del first
    assert not np.shares_memory(memory.take((2, 1 << 18), np.dtype(np.float32)), batch)
    del batch
    taken = [memory.take((2, 1 << 18), np.dtype(np.float32)) for _ in range(2)]
    assert any((array == 7).all() for array in taken)
    shards = ParquetShards(write(tmp_path / "data", [[64]]), 4, rank=0, size=1, window_rows=8)
    kept = list(islice(shards, 2))  # the first window
    before = [batch["id"].copy() for batch in kept]
    for batch in islice(shards, 14):
        batch["id"][:] = -1
    assert all((batch["id"] == ids).all() for batch, ids in zip(kept, before, strict=True))


def test_windows_of_many_lengths_do_not_each_keep_memory() -> None:
    memory = Memory()
    rows = range(1 << 16, (1 << 16) + 20)
    tracemalloc.start()
    try:
        for length in rows:
            memory.take((2, length), np.dtype(np.float32))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4 * (2 * max(rows) * 4)


def make_shards(cases: list) -> list:
    import ringcore
    from ringcore.data import ParquetShards

    ringcore.init()
    said = []
    for case in cases:
        options = {"batch_size": 4, **case[ringcore.rank()]}
        try:
            batches = sum(1 for _ in ParquetShards(**options))
            said.append(f"{batches} batches")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def test_ranks_that_were_told_different_things_are_told_so(tmp_path: Path) -> None:
    for copy in ("here", "there"):
        write(tmp_path / copy, [[5, 1], [8]])
    same = {"source": str(tmp_path / "here")}
    nowhere = {"source": str(tmp_path / "tabel")}
    alone = {**same, "rank": 0, "size": 1}
    parts = [{"source": f"{same['source']}/part-00{rank}.parquet"} for rank in range(2)]
    cases: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
        (same, {"source": str(tmp_path / "there")}, ["2 batches"]),
        ({**alone, "seed": 1}, alone, ["4 batches"]),
        ({**same, "uneven": "join"}, {**same, "uneven": "join", "batch_size": 7}, ["batches"]),
        (same, {**same, "seed": 1}, ["MismatchError", "seed is 0 on ranks [0] and 1 on ranks [1]", "Remedy"]),
        (same, {**same, "batch_size": 5}, ["MismatchError", "batch_size is 4 on ranks [0] and 5 on ranks [1]"]),
        (same, {**same, "shuffle": False}, ["MismatchError", "shuffle is True on ranks [0] and False on ranks [1]"]),
        (same, {**same, "columns": ["x"]}, ["MismatchError", "columns is ['id', 'x'] on ranks [0] and ['x'] on"]),
        (*parts, ["MismatchError", "source is", "part-000.parquet (6 rows) on ranks [0]", "part-001.parquet (8 rows)"]),
        (nowhere, nowhere, ["FileNotFoundError", "rank", "'" + nowhere["source"] + "'", "Remedy"]),
        (same, nowhere, ["rank 1", nowhere["source"], "Remedy"]),
        ({**same, "columns": ["y"]}, same, ["no column 'y'"]),
        (same, same, ["2 batches"]),  # nothing of what was refused is left
    ]
    found = ranks.run(make_shards, 2, tmp_path, [case[:2] for case in cases])
    for number, (*_, words) in enumerate(cases):
        for rank in range(2):
            said = found[rank][number]
            assert all(word in said for word in words), f"rank {rank}, case {number}: {said}"
    elastic = ranks.run(make_shards, 2, tmp_path, [({**same, "seed": 1}, same)], env={"RINGCORE_ELASTIC": "1"})
    assert elastic == [["2 batches"]] * 2
    assert [said[9].partition(":")[0] for said in found] == ["MismatchError", "FileNotFoundError"]
    assert [said[10].partition(":")[0] for said in found] == ["ValueError", "MismatchError"]
