"""`transform` of all frameworks: predictions as new columns."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.model_cache import ModelCache
from pyspark.sql import functions as sql
from pyspark.sql import types as kinds

from ringcore_spark.ml.frame import number
from ringcore_spark.ml.params import PREDICTION, FromTable, with_params
from ringcore_spark.ml.saving import Saved
from ringcore_spark.ml.work import Arrays

Predict = Callable[[Arrays], Arrays]


@with_params(PREDICTION)
class RingModel(Saved, FromTable, Model):
    """A Transformer of Spark ML around a trained model. A subclass is of a framework.

    Args:
        **params: See `table`.
    """

    def predictor(self) -> Callable[[], Predict]:
        """Makes, on an executor, the function that predicts; cloudpickle takes it there."""
        raise NotImplementedError

    def output_columns(self) -> list[str]:
        """Names of the columns of predictions."""
        return self.value("output_cols") or [f"{name}__output" for name in self.value("label_columns")]

    def _transform(self, dataset: Any) -> Any:
        fields = {field.name: field.dataType for field in dataset.schema.fields}
        missing = [name for name in self.value("feature_columns") if name not in fields]
        if missing:
            raise ValueError(f"the DataFrame has no column {missing[0]!r}: it has {', '.join(fields)}")
        inputs = [number(name, fields[name]) for name in self.value("feature_columns")]
        shapes = self.value("shapes") or self._shapes_of(dataset.select(*inputs))
        names = self.output_columns()
        if len(names) != len(shapes):
            raise ValueError(
                f"the model has {len(shapes)} output(s), and {len(names)} column(s) are named: {', '.join(names)}. "
                "Give one name for each (output_cols)"
            )
        struct = kinds.StructType(
            [
                kinds.StructField(str(index), kinds.ArrayType(kinds.DoubleType()) if shape else kinds.DoubleType())
                for index, shape in enumerate(shapes)
            ]
        )
        predict = sql.pandas_udf(_predictions(self.predictor(), self.value("batch_size"), shapes), struct)
        together = "__ringcore_outputs"
        found = dataset.withColumn(together, predict(*inputs))
        for index, (name, shape) in enumerate(zip(names, shapes, strict=True)):
            output = sql.col(together)[str(index)]
            found = found.withColumn(name, array_to_vector(output) if shape else output)
        return found.drop(together)

    def _shapes_of(self, inputs: Any) -> list[tuple[int, ...]]:
        """The shapes of the outputs for one row; they are not known of a model that was made by hand."""
        rows = inputs.limit(1).collect()
        if not rows:
            return [()] * len(self.output_columns())
        return shapes_of(self.predictor()()([np.asarray([value]) for value in rows[0]]))


def shapes_of(outputs: Arrays) -> list[tuple[int, ...]]:
    """Shapes of a row; one number is a scalar."""
    return [tuple(array.shape[1:]) if np.prod(array.shape[1:], dtype=int) != 1 else () for array in outputs]


def _whole(rows: list[Any]) -> np.ndarray[Any, Any]:
    """Rows of arrays as one array; of arrays of arrays pandas has arrays of objects."""
    whole: np.ndarray[Any, Any] = np.stack(rows)
    if whole.dtype == object and whole.ndim > 1:
        inner = _whole(list(whole.ravel()))
        whole = inner.reshape(whole.shape + inner.shape[1:])
    return whole


def _predictions(
    make: Callable[[], Predict], batch_size: int, shapes: list[tuple[int, ...]]
) -> Callable[..., Iterator[pd.DataFrame]]:
    """What Spark calls for each partition.

    Spark's own `predict_batch_udf` wants to know on the driver how long the arrays of a column are, which only its rows
    tell, takes the number of columns from the function's signature, and hands back a DataFrame for each batch, where
    this one does so for all rows that Arrow has brought together. Its cache of models is used here too.
    """
    key = uuid.uuid4()  # Another `transform` has another one: the model may have been changed meanwhile.

    def predictions(parts: Any) -> Any:
        predict = ModelCache.get(key)
        if predict is None:  # Once for a Python worker, which Spark uses for many partitions.
            predict = make()
            ModelCache.add(key, predict)
        for part in parts:
            columns = part if isinstance(part, tuple) else (part,)  # Spark hands out a single one as it is.
            arrays = [_whole(column.to_list()) if column.dtype == object else column.to_numpy() for column in columns]
            rows = len(arrays[0])
            pieces = [
                predict([array[start : start + batch_size] for array in arrays]) for start in range(0, rows, batch_size)
            ]
            found: dict[str, Any] = {}
            for index, shape in enumerate(shapes):
                whole = np.concatenate([piece[index] for piece in pieces]).astype(np.float64).reshape(rows, -1)
                found[str(index)] = list(whole) if shape else whole[:, 0]
            yield pd.DataFrame(found)

    # Spark reads them, to know what kind of function this is.
    predictions.__annotations__ = {"parts": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.DataFrame]}
    return predictions
