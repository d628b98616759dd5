"""`fit` of all frameworks: the DataFrame is written as Parquet, and ranks train on it."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.ml import Estimator
from pyspark.sql import SparkSession

from ringcore_spark.ml.backend import SparkBackend
from ringcore_spark.ml.frame import ready
from ringcore_spark.ml.params import TRAINING, FromTable, with_params
from ringcore_spark.ml.parquet import write
from ringcore_spark.ml.saving import Saved
from ringcore_spark.ml.work import Source, Work
from ringcore_spark.store import Store

# Not told to ranks as params: a framework has its own way of pickling them, or they are the driver's.
_APART = {"model", "optimizer", "loss", "metrics", "callbacks", "store", "backend"}
# What the data follows from.
_OF_DATA = {"feature_cols", "label_cols", "sample_weight_col", "validation", "random_seed", "store"}


class Trained(NamedTuple):
    """What rank 0 returns.

    Attributes:
        state: The framework's, of the trained model.
        history: What was measured.
        shapes: Of a row's outputs.
    """

    state: Any
    history: Any
    shapes: Any


class _Data(NamedTuple):
    train: Source | None
    validation: Source | None
    rows: Any = None  # a DataFrame whose tasks keep them, where nothing is written
    given: Mapping[str, Any] | None = None  # data sets that split themselves


@with_params(TRAINING)
class RingEstimator(Saved, FromTable, Estimator):
    """An Estimator of Spark ML whose `fit` trains on ranks. A subclass is of a framework.

    Args:
        **params: See `table`.
    """

    @staticmethod
    def train(work: Work, payload: bytes) -> Trained | None:
        """Called on every rank, with what `payload` returned; rank 0's result is what counts."""
        raise NotImplementedError

    def payload(self) -> bytes:
        """What ranks need of the framework's objects.

        Raises:
            ValueError: One is missing, or does not fit.
        """
        raise NotImplementedError

    def trained_model(self, trained: Trained, run_id: str) -> Any:
        """The transformer."""
        raise NotImplementedError

    def environ(self) -> Mapping[str, str]:
        """Variables for ranks."""
        return {}

    def fit_on_parquet(self, train_path: Any, val_path: Any = None) -> Any:
        """Train on Parquet that is there already; nothing is written but checkpoints.

        Args:
            train_path: A folder or a file: below the store's folder, or elsewhere by an absolute path or a URL. A table
                of Delta is read in its newest version. Or a list of files, such as those that Iceberg tells.
            val_path: Likewise, of data to validate with.

        Returns:
            The transformer.

        Raises:
            FileNotFoundError: There is nothing.
            TypeError: It is no path.
            ValueError: The list is empty, or its files are on different file systems.
        """
        store, data = self._store(), _Data(_source(train_path), None if val_path is None else _source(val_path))
        for source in (data.train, data.validation):
            missing = None if source is None else _missing(store, source)
            if missing is not None:
                raise FileNotFoundError(f"there is no {store.name_of(missing)}")
        return self._train(SparkSession.getActiveSession(), data)

    def fitMultiple(  # noqa: N802 - Spark's word
        self,
        dataset: Any,
        paramMaps: Sequence[Mapping[Any, Any]],  # noqa: N803
    ) -> Iterator[tuple[int, Any]]:
        """Train with each of several maps of params; the data is written once, if they do not change it."""
        if any(param.name in _OF_DATA for params in paramMaps for param in params):
            several: Iterator[tuple[int, Any]] = super().fitMultiple(dataset, paramMaps)
            return several
        return _Several(self.copy(), dataset, paramMaps)

    def _fit(self, dataset: Any) -> Any:
        if not hasattr(dataset, "sparkSession"):
            return self._train(SparkSession.getActiveSession(), self._splitting(dataset))
        with self._written(dataset) as data:
            return self._train(dataset.sparkSession, data)

    def _splitting(self, source: Any) -> _Data:
        """A data set of Hugging Face, or a function that makes one on a rank; or a dictionary of them."""
        if self.value("validation") is not None or self.value("spill"):
            raise ValueError(
                "validation= and spill= are for the rows of a DataFrame: leave them out, and give "
                '{"train": ..., "validation": ...} where there is data to validate with'
            )
        given = source if isinstance(source, Mapping) else {"train": source}
        if "train" not in given:
            raise ValueError(f'there is no "train" among the data sets, but {", ".join(map(str, given)) or "none"}')
        kept = {name: given[name] for name in ("train", "validation") if name in given}
        return _Data(None, None, given=kept)

    @contextlib.contextmanager
    def _written(self, frame: Any) -> Iterator[_Data]:
        """The frame in the store, until it is not needed any more."""
        self._check()
        self.payload()  # What it refuses is refused before data is written.
        weight, validation = self.value("sample_weight_col"), self.value("validation")
        columns = [*self.value("feature_cols"), *self.value("label_cols"), *([weight] if weight else [])]
        numbers = ready(frame, columns, validation, self._seed())
        if self.value("spill"):
            yield _Data(None, None, numbers)
            return
        store = self._store()
        store.check_writable()
        folder = f"intermediate/{uuid.uuid4().hex}"
        train = f"{folder}/train"
        data = _Data(train, f"{folder}/validation" if validation else None)
        try:
            write(numbers, store, train, f"{folder}/validation")
            for path, what in ((train, "train"), (data.validation, "validate")):
                if path is not None and _missing(store, path) is not None:
                    raise ValueError(f"the DataFrame has no rows to {what} with (validation={validation!r})")
            yield data
        finally:
            store.delete(folder)

    def _train(self, spark: Any, data: _Data) -> Any:
        self._check()
        store, run_id = self._store(), self.value("run_id") or f"run-{uuid.uuid4().hex}"
        params = {name: self.value(name) for name in self.table if name not in _APART}
        work = Work(params, store, data.train, data.validation, run_id, self._seed(), data.given)
        backend = self.value("backend") or SparkBackend(self.value("num_proc"))
        given = {} if data.rows is None else {"dataframe": data.rows}  # Not every backend knows of it.
        results = backend.run(type(self).train, [work, self.payload()], env=self.environ(), spark=spark, **given)
        return self.trained_model(results[0], run_id)

    def _store(self) -> Store:
        store = self.value("store")
        if store is None:
            raise ValueError(
                "the estimator needs a store, where its data and checkpoints are: store=Store.create(path), with a "
                "folder that the driver and all executors can read and write"
            )
        return Store.create(store) if isinstance(store, str) else store

    def _seed(self) -> int:
        return int(self.value("random_seed") or 0)

    def _check(self) -> None:
        for name in ("model", "feature_cols", "label_cols"):
            if not self.value(name):
                raise ValueError(f"{type(self).__name__} needs {name}= ({self.table[name].doc})")
        for name in ("batch_size", "epochs", "backward_passes_per_step"):
            if self.value(name) < 1:
                raise ValueError(f"{name}={self.value(name)} must be at least 1")
        if self.value("spill") and self.value("validation") is not None:
            raise ValueError("spill=True keeps rows to train with only: leave validation= out, or spill=")
        if self.value("backend") is not None and self.value("num_proc") is not None:
            raise ValueError("num_proc= and backend= both say how many ranks: give one of them")


class _Several(Iterator[tuple[int, Any]]):
    """Models of several maps of params, on data that is written once. Spark's CrossValidator asks from threads."""

    def __init__(self, estimator: RingEstimator, frame: Any, maps: Sequence[Mapping[Any, Any]]) -> None:
        self._estimator = estimator
        self._frame = frame
        self._maps = maps
        self._lock = threading.Lock()
        self._next = 0
        self._left = len(maps)
        self._stack = contextlib.ExitStack()
        self._data: _Data | None = None

    def __next__(self) -> tuple[int, Any]:
        with self._lock:
            index, self._next = self._next, self._next + 1
            if index >= len(self._maps):
                raise StopIteration
            if self._data is None:
                self._data = self._stack.enter_context(self._estimator._written(self._frame))
        try:
            return index, self._estimator.copy(self._maps[index])._train(self._frame.sparkSession, self._data)
        finally:
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._stack.close()


def _source(given: Any) -> Source:
    several = isinstance(given, Sequence) and not isinstance(given, str)
    return [os.fspath(path) for path in given] if several else os.fspath(given)


def _missing(store: Store, source: Source) -> str | None:
    """The first of the paths at which there is nothing."""
    from pyarrow import fs

    filesystem, place = store.place(source)
    paths, places = ([source], [place]) if isinstance(source, str) else (source, place)
    infos = zip(paths, filesystem.get_file_info(places), strict=True)
    return next((path for path, info in infos if info.type == fs.FileType.NotFound), None)
