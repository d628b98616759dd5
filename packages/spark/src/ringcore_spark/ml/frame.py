"""A DataFrame becomes Parquet that ranks read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.ml.functions import vector_to_array
from pyspark.sql import functions as sql
from pyspark.sql import types as kinds

# The name must not be a column's.
VALIDATION = "ringcore_validation"


def ready(frame: Any, columns: Sequence[str], validation: float | str | None, seed: int) -> Any:
    """The frame's columns as numbers and lists of them, with one more that says which rows are for validation.

    Raises:
        ValueError: A column is not there or not numeric, or `validation` is wrong.
    """
    fields = {field.name: field.dataType for field in frame.schema.fields}
    for name in [*columns, *([validation] if isinstance(validation, str) else [])]:
        if name not in fields:
            raise ValueError(f"the DataFrame has no column {name!r}: it has {', '.join(fields)}")
    chosen = [number(name, fields[name]).alias(name) for name in dict.fromkeys(columns)]
    return frame.select(*chosen, _held_out(validation, seed).alias(VALIDATION))


def number(name: str, kind: Any) -> Any:
    """A column as Arrow makes tensors of it.

    Raises:
        ValueError: It is not numeric.
    """
    column = sql.col(f"`{name}`")
    if isinstance(kind, kinds.UserDefinedType) and "Vector" in type(kind).__name__:
        return vector_to_array(column)
    inner = kind
    while isinstance(inner, kinds.ArrayType):
        inner = inner.elementType
    if isinstance(kind, kinds.DecimalType):
        return column.cast("double")
    numeric = isinstance(inner, (kinds.NumericType, kinds.BooleanType)) and not isinstance(inner, kinds.DecimalType)
    if not numeric:
        raise ValueError(
            f"column {name!r} has the type {kind.simpleString()}, which is not numeric: the model needs numbers, "
            "booleans, vectors or arrays of them. Index it (StringIndexer), assemble it (VectorAssembler) or cast it"
        )
    return column


def _held_out(validation: float | str | None, seed: int) -> Any:
    if validation is None:
        return sql.lit(False)
    if isinstance(validation, str):
        return sql.coalesce(sql.col(f"`{validation}`").cast("double") > 0, sql.lit(False))
    if not 0 <= validation < 1:
        raise ValueError(f"validation={validation} is neither a part of the rows, from 0 to below 1, nor a column")
    return sql.rand(seed) < validation
