"""The rows of a DataFrame as Parquet in a store: each task writes its own, through Arrow, as ranks read them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from ringcore.launcher.external import LaunchError

from ringcore_spark import cluster
from ringcore_spark.ml.frame import VALIDATION
from ringcore_spark.store import Store, rename

# A row group has so many bytes in memory: enough to read it in one piece, and to hold several.
_GROUP_BYTES = 16 << 20


def write(frame: Any, store: Store, train: str, validation: str) -> None:
    """Write a frame's rows.

    Args:
        frame: Columns that are numbers or lists of them, and one that says which rows are for validation.
        store: Where to.
        train: Folder for the others, in the store. It is not made if there are none.
        validation: Folder for these.

    Raises:
        LaunchError: Spark cannot read the frame, or a task cannot write its rows.
    """
    try:
        frame.mapInArrow(_Writer(store, {False: train, True: validation}), "nothing int").collect()
    except Exception as error:
        raise LaunchError(cluster.words_of(frame.sparkSession, error, "write the rows")) from error


class _Writer:
    """What Spark calls for each partition."""

    def __init__(self, store: Store, folders: dict[bool, str]) -> None:
        self._store = store
        self._folders = folders

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.compute
        from pyspark import TaskContext

        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        files = {held: _File(self._store, folder, part) for held, folder in self._folders.items()}
        for batch in batches:
            table = pa.Table.from_batches([batch])
            for held, file in files.items():
                file.add(table.filter(pa.compute.equal(table[VALIDATION], held)).drop_columns([VALIDATION]))
        for file in files.values():
            file.close()
        yield from ()


class _File:
    """One file of a partition, if it gets rows. A task that Spark tries again replaces what the first has written."""

    def __init__(self, store: Store, folder: str, part: int) -> None:
        self._filesystem, self._folder = store.arrow(folder)
        # What begins with an underscore is no data for whoever reads the folder.
        self._partial = f"{self._folder}/_{uuid.uuid4().hex}"
        self._path = f"{self._folder}/part-{part:05}.parquet"
        self._tables: list[Any] = []
        self._writer: Any = None

    def add(self, table: Any) -> None:
        """Take rows."""
        if len(table):
            self._tables.append(table)
        if sum(one.nbytes for one in self._tables) >= _GROUP_BYTES:
            self._write()

    def close(self) -> None:
        """Write what is left, and give the file its name."""
        if self._tables:
            self._write()
        if self._writer is not None:
            self._writer.close()
            rename(self._filesystem, self._partial, self._path)

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        table, self._tables = pa.concat_tables(self._tables), []
        if self._writer is None:
            self._filesystem.create_dir(self._folder, recursive=True)
            self._writer = pyarrow.parquet.ParquetWriter(self._partial, table.schema, filesystem=self._filesystem)
        self._writer.write_table(table, row_group_size=len(table))
