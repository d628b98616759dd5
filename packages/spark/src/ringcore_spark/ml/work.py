"""What a rank has of an estimator: its params, its data and its place in the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import ringcore as ring
from ringcore.adapter import unpickle
from ringcore.data import ArrowShards, DatasetShards, ParquetShards

from ringcore_spark.partition import partition
from ringcore_spark.store import Store

Arrays = list[np.ndarray[Any, Any]]
# A path of data, or several files.
Source = str | Sequence[str]


class Batch(NamedTuple):
    """Rows to train with.

    Attributes:
        features: An array for each feature column.
        labels: Likewise.
        weights: Of the rows, if they have any.
    """

    features: Arrays
    labels: Arrays
    weights: np.ndarray[Any, Any] | None


class Batches:
    """Batches without end, epoch after epoch.

    Attributes:
        steps: Batches of an epoch: all, or as many as the user wants.
    """

    def __init__(self, work: Work, shards: ParquetShards | ArrowShards | DatasetShards, steps: int | None) -> None:
        self._work = work
        self._shards = shards
        self._stream = self._endless()
        self.steps = steps or len(shards)

    def epoch(self) -> Iterator[Batch]:
        """The next epoch."""
        return islice(self._stream, self.steps)

    def skip(self, epochs: int) -> None:
        """Begin where so many epochs have ended; those of the user's length need not be those of the data."""
        try:
            whole = len(self._shards)
        except TypeError:  # It does not tell: what there is makes one epoch, of as many steps as the user wants.
            whole = self.steps
        self._shards.set_epoch(*divmod(epochs * self.steps, whole))

    def _endless(self) -> Iterator[Batch]:
        while True:
            for arrays in self._shards:
                yield self._work.batch_of(arrays)


@dataclass(frozen=True)
class Checkpoint:
    """What is kept after each epoch.

    Attributes:
        epochs: How many are done.
        history: What was measured.
        state: The framework's.
    """

    epochs: int
    history: Any
    state: Any


@dataclass(frozen=True)
class Work:
    """One training, as all ranks have it.

    Attributes:
        params: Of the estimator, but for those that stay on the driver.
        store: Where the data is.
        train: The data, as `Store.place` takes it; None: ranks have the rows of their tasks.
        validation: Likewise; None: there is none.
        run_id: Of this run.
        seed: Of everything random.
        given: Data sets that split themselves, "train" and perhaps "validation", in the place of folders.
    """

    params: Mapping[str, Any]
    store: Store
    train: Source | None
    validation: Source | None
    run_id: str
    seed: int
    given: Mapping[str, Any] | None = None

    def training(self) -> Batches:
        """This rank's batches to train with."""
        steps = self.params["train_steps_per_epoch"]
        return self._batches("train", self.params["batch_size"], steps, shuffle=self.params["shuffle"])

    def validating(self) -> Batches | None:
        """This rank's batches to validate with."""
        if self.validation is None and "validation" not in (self.given or {}):
            return None
        size = self.params["val_batch_size"] or self.params["batch_size"]
        return self._batches("validation", size, self.params["validation_steps_per_epoch"], shuffle=False)

    def _batches(self, part: str, size: int, steps: int | None, *, shuffle: bool) -> Batches:
        weight = self.params["sample_weight_col"]
        window = self.params["shuffle_buffer_size"]
        columns = [*self.params["feature_cols"], *self.params["label_cols"], *([weight] if weight else [])]
        names = list(dict.fromkeys(columns))
        order: dict[str, Any] = {"shuffle": shuffle and window > 0, "window_rows": max(window, 1), "seed": self.seed}
        if self.given is not None:
            return Batches(self, DatasetShards(self.given[part], size, names, **order), steps)
        source = self.train if part == "train" else self.validation
        if source is None:
            return Batches(self, partition(size, names, **order), steps)
        filesystem, place = self.store.place(source)
        # With rank and size, so that data that somebody writes to is told of below, in the words of an estimator.
        order |= {"rank": ring.rank(), "size": ring.size(), "filesystem": filesystem}
        shards = ParquetShards(place, size, names, **order)
        _check_the_same(part, place, shards.rows)
        return Batches(self, shards, steps)

    def url(self, source: Source | None) -> str | list[str] | None:
        """Data as whoever opens it by its name has it; several files where the user has given several."""
        if source is None or isinstance(source, str):
            return None if source is None else self.store.url_of(source)
        return [self.store.url_of(path) for path in source]

    def batch_of(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Batch:
        """Columns as the model's inputs and labels."""
        change = self.params["transformation_fn"]
        if change is not None:
            arrays = _from_pandas(change(_to_pandas(arrays)))
        weight = self.params["sample_weight_col"]
        return Batch(
            _shaped(arrays, self.params["feature_cols"], self.params.get("input_shapes")),
            _shaped(arrays, self.params["label_cols"], self.params["label_shapes"]),
            arrays[weight] if weight else None,
        )

    def tell(self, epoch: int, measured: Mapping[str, float]) -> None:
        """Say how an epoch went, here and in Spark's page. For rank 0."""
        if self.params["verbose"]:
            values = ", ".join(f"{name} {value:.4g}" for name, value in measured.items())
            print(f"progress: epoch {epoch + 1} of {self.params['epochs']}: {values}", flush=True)

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint."""
        self.store.write(cloudpickle.dumps(checkpoint), "runs", self.run_id, "checkpoint")

    def saved(self) -> Checkpoint | None:
        """The checkpoint of an earlier training of this run."""
        data = self.store.read("runs", self.run_id, "checkpoint")
        return None if data is None else unpickle(data)


def _check_the_same(part: str, place: str | list[str], rows: int) -> None:
    """Somebody may write to data that is not an estimator's own while ranks look what there is."""
    of_ranks = ring.allgather(np.array([rows]), name=f"ringcore_spark.{part}").tolist()
    other = next((rank for rank, found in enumerate(of_ranks) if found != of_ranks[0]), None)
    if other is not None:
        what = place if isinstance(place, str) else f"one of {len(place)} files, {place[0]} the first,"
        raise ValueError(
            f"{what} has changed while ranks opened it: rank 0 has found {of_ranks[0]} row(s), and rank {other} "
            f"{of_ranks[other]}. Let nobody write to it while it is read, or train on a copy"
        )


def _shaped(arrays: Mapping[str, np.ndarray[Any, Any]], names: list[str], shapes: Any) -> Arrays:
    found = [arrays[name] for name in names]
    return found if not shapes else [array.reshape(shape) for array, shape in zip(found, shapes, strict=True)]


def _to_pandas(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    import pandas

    return pandas.DataFrame({name: list(array) if array.ndim > 1 else array for name, array in arrays.items()})


def _from_pandas(frame: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {
        name: np.stack(frame[name].to_list()) if frame[name].dtype == object else frame[name].to_numpy()
        for name in frame.columns
    }
