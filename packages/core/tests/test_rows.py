"""What every reduction of rows asks of its arguments."""

from __future__ import annotations

import pytest
import ringcore
from ringcore import adapter


@pytest.mark.parametrize(
    ("dtype", "op", "factor", "told"),
    [
        ("float32", ringcore.Max, 1.0, "rows takes op=Average or op=Sum, not MAX"),
        ("int32", ringcore.Average, 1.0, "rows of int32 takes op=Sum and no factors"),
        ("int64", ringcore.Sum, 0.5, "rows of int64 takes op=Sum and no factors"),
    ],
)
def test_rows_that_cannot_be_reduced(dtype: str, op: adapter.ReduceOp, factor: float, told: str) -> None:
    with pytest.raises(ringcore.InvalidArgument, match=told):
        adapter.check_rows("rows", dtype, op, factor)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_floats_are_averaged_and_multiplied(dtype: str) -> None:
    adapter.check_rows("rows", dtype, ringcore.Average, 0.5)
