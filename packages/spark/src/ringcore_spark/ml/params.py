"""Params of Spark ML, from tables: each with a getter and a setter, as Horovod's estimators have them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters

C = TypeVar("C")


class Given(NamedTuple):
    """A param.

    Attributes:
        doc: What it is.
        default: What it is if nobody sets it.
        convert: Spark's check and conversion.
    """

    doc: str
    default: Any = None
    convert: Callable[[Any], Any] | None = None


_INT, _BOOL, _TEXT = TypeConverters.toInt, TypeConverters.toBoolean, TypeConverters.toString
_NAMES = TypeConverters.toListString

TRAINING = {
    "model": Given("the model to train"),
    "optimizer": Given("its optimizer"),
    "loss": Given("the loss, or one for each label"),
    "loss_weights": Given("how much each label's loss counts", None, TypeConverters.toListFloat),
    "metrics": Given("what is measured besides", []),
    "feature_cols": Given("columns that are the model's inputs, in order", None, _NAMES),
    "label_cols": Given("columns that are its labels, one for each output", None, _NAMES),
    "sample_weight_col": Given("column of each row's weight", None, _TEXT),
    "validation": Given("part of the rows to validate with, 0 to 1, or the name of a column that says which"),
    "batch_size": Given("rows of a batch on each rank", 32, _INT),
    "val_batch_size": Given("the same for validation; none: batch_size", None, _INT),
    "epochs": Given("passes over the data", 1, _INT),
    "train_steps_per_epoch": Given("batches of an epoch; none: all", None, _INT),
    "validation_steps_per_epoch": Given("the same for validation", None, _INT),
    "backward_passes_per_step": Given("batches whose gradients make one step", 1, _INT),
    "callbacks": Given("of the framework", []),
    "transformation_fn": Given("changes each batch, a DataFrame of pandas, before it is trained with"),
    "label_shapes": Given("shape of a batch of each label, with -1 for its rows"),
    "shuffle": Given("whether rows are shuffled", True, _BOOL),
    "shuffle_buffer_size": Given("so many rows are shuffled among themselves", 65536, _INT),
    "random_seed": Given("what everything random follows from", None, _INT),
    "gradient_compression": Given("of ringcore: what is sent of gradients"),
    "use_gpu": Given("whether to train on GPUs where there are", True, _BOOL),
    "verbose": Given("0: prints nothing", 1, _INT),
    "spill": Given("tasks keep the rows on their own disks for the ranks, and write none into the store", False, _BOOL),
    "store": Given("where data and checkpoints are kept: a Store, or its path"),
    "run_id": Given("name of this run in the store; if it has a checkpoint, training goes on from there", None, _TEXT),
    "num_proc": Given("number of ranks; none: as many as fit", None, _INT),
    "backend": Given("a SparkBackend that says more than num_proc"),
}
PREDICTION = {
    "model": Given("the trained model"),
    "feature_columns": Given("columns that are the model's inputs, in order", None, _NAMES),
    "label_columns": Given("columns that were its labels", None, _NAMES),
    "output_cols": Given("names of the columns of predictions; none: those of labels, with __output", None, _NAMES),
    "history": Given("what was measured in each epoch"),
    "run_id": Given("name of the run in the store", None, _TEXT),
    "batch_size": Given("rows that the model sees at a time", 1024, _INT),
    "shapes": Given("shapes of a row's inputs and outputs, where they are known"),
}


def with_params(table: Mapping[str, Given]) -> Callable[[type[C]], type[C]]:
    """Gives a class the params of a table, with `getName` and `setName` for `name`."""

    def decorate(cls: type[C]) -> type[C]:
        for name, given in table.items():
            setattr(cls, name, Param(Params._dummy(), name, given.doc, given.convert))
            word = "".join(part.capitalize() for part in name.split("_"))
            setattr(cls, f"get{word}", _getter(name, given.doc))
            setattr(cls, f"set{word}", _setter(name, given.doc))
        cls.table = {**getattr(cls, "table", {}), **table}  # type: ignore[attr-defined]
        return cls

    return decorate


def _getter(name: str, doc: str) -> Callable[[Any], Any]:
    def get(self: Any) -> Any:
        return self.getOrDefault(name)

    get.__doc__ = f"Param `{name}`: {doc}."
    return get


def _setter(name: str, doc: str) -> Callable[[Any, Any], Any]:
    def set_it(self: Any, value: Any) -> Any:
        return self.setParams(**{name: value})

    set_it.__doc__ = f"Sets param `{name}`: {doc}."
    return set_it


class FromTable(Params):
    """Params of a table, given by keyword.

    Args:
        **params: See `table`.

    Raises:
        TypeError: There is no such param, or it cannot have this value.
    """

    table: Mapping[str, Given] = {}

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self._setDefault(**{name: given.default for name, given in self.table.items()})
        self.setParams(**params)

    def setParams(self, **params: Any) -> Any:  # noqa: N802 - Spark's word
        """Set several params; `None` leaves one as it is."""
        for name in params:
            if name not in self.table:
                close = difflib.get_close_matches(name, self.table, 1)
                hint = f"; is {close[0]} meant?" if close else f": it has {', '.join(self.table)}"
                raise TypeError(f"{type(self).__name__} has no param {name!r}{hint}")
        return self._set(**{name: value for name, value in params.items() if value is not None})

    def value(self, name: str) -> Any:
        """A param's value."""
        return self.getOrDefault(name)
