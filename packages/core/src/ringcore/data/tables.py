"""Folders that are tables of Delta, Iceberg or Hudi: there, Parquet of older versions lies beside the newest."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyarrow import fs

# What the folder of such a table has, and the Parquet of others does not.
_LOGS = {"_delta_log": "Delta", "metadata": "Iceberg", ".hoodie": "Hudi"}
_REMEDIES = {
    "Iceberg": "[task.file.file_path for task in table.scan().plan_files()] of the package pyiceberg",
    "Hudi": "the list of the files that are the newest",
}


def dataset_of(source: Any, filesystem: Any) -> ds.Dataset:
    """What a path, or several, stand for; of a table of Delta only what its newest version has.

    Args:
        source: Path, paths, or dataset.
        filesystem: Of pyarrow or fsspec; None: as the path says.

    Raises:
        ImportError: It is a table of Delta, and its library is not installed.
        ValueError: It is a table that cannot be read as it is.
    """
    if isinstance(source, ds.Dataset):
        return source
    several = isinstance(source, (list, tuple))
    kind = None if several else _kind_of_table(str(source), filesystem)
    if kind is None:
        place: Any = [str(path) for path in source] if several else str(source)
        if several and filesystem is None and any("://" in path for path in place):
            filesystem, place = _on_one_file_system(place)
        return ds.dataset(place, filesystem=filesystem, format="parquet", partitioning="hive")
    if kind == "Delta":
        return _newest_of_delta(str(source), filesystem)
    raise ValueError(
        f"{source} is a table of {kind}: its folder has the files of older versions too, and rows that were deleted. "
        f"Give {_REMEDIES[kind]} in the place of the folder; or, to an estimator of Spark, the DataFrame: "
        f'fit(spark.read.format("{kind.lower()}").load(path))'
    )


def _newest_of_delta(source: str, filesystem: Any) -> ds.Dataset:
    try:
        import deltalake
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{source} is a table of Delta, and deltalake is not installed, which tells its files. Remedy: pip install "
            "deltalake",
            name="deltalake",
        ) from error
    found: ds.Dataset
    if filesystem is None or isinstance(filesystem, fs.LocalFileSystem):
        found = deltalake.DeltaTable(source).to_pyarrow_dataset()
        return found
    # deltalake has file systems of its own, and cannot be told to use this one, or its credentials, for the log.
    where, path = _place(source, filesystem)
    with tempfile.TemporaryDirectory(prefix="ringcore-") as folder:
        _copy_log(where, f"{path}/_delta_log", f"{folder}/_delta_log")
        found = deltalake.DeltaTable(folder).to_pyarrow_dataset(filesystem=fs.SubTreeFileSystem(path, where))
    return found


def _copy_log(where: fs.FileSystem, log: str, target: str) -> None:
    """Copy a log of Delta here, but for what is older than its last checkpoint."""
    last = f"{log}/_last_checkpoint"
    first, told = 0, b""
    if where.get_file_info(last).is_file:
        with where.open_input_stream(last) as stream:
            told = stream.read()
        first = json.loads(told)["version"]
    # It is listed behind that, so that what was told is there, whatever somebody writes meanwhile.
    for info in where.get_file_info(fs.FileSelector(log, recursive=True)):
        version = info.base_name[:20]  # Names of commits and checkpoints begin with it, in 20 digits.
        if info.is_file and not (version.isdigit() and int(version) < first):
            copy = Path(target, info.path.rpartition("/_delta_log/")[2])  # not all name it as they were asked
            copy.parent.mkdir(parents=True, exist_ok=True)
            fs.copy_files(info.path, str(copy), source_filesystem=where)
    if told:
        Path(target, "_last_checkpoint").write_bytes(told)


def _on_one_file_system(urls: list[str]) -> tuple[fs.FileSystem, list[str]]:
    """What catalogs of tables tell are URLs, and Arrow takes several files as paths only."""
    places = [_place(url, None) for url in urls]
    return places[0][0], [path for _, path in places]


def _kind_of_table(source: str, filesystem: Any) -> str | None:
    """Of which format a folder is a table; None: of none."""
    where, path = _place(source, filesystem)
    for info in where.get_file_info([f"{path}/{log}" for log in _LOGS]):
        if info.type == fs.FileType.Directory and (info.base_name != "metadata" or _has_metadata(where, info.path)):
            return _LOGS[info.base_name]
    return None


def _has_metadata(where: fs.FileSystem, folder: str) -> bool:
    """Whether it is Iceberg's, and not somebody's that has the same name."""
    return any(info.path.endswith(".metadata.json") for info in where.get_file_info(fs.FileSelector(folder)))


def _place(source: str, filesystem: Any) -> tuple[fs.FileSystem, str]:
    if filesystem is None:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(source if "://" in source else Path(source).resolve())
        return found
    if not isinstance(filesystem, fs.FileSystem):
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(filesystem))
    return filesystem, source.rstrip("/")
