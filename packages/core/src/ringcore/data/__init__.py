"""Training data for ranks: each reads its part, and all have the same number of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringcore.data.arrow import ArrowShards
    from ringcore.data.parquet import ParquetShards

__all__ = ["ArrowShards", "ParquetShards"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ringcore.data' has no attribute {name!r}")
    from ringcore.data import arrow, parquet  # here, as pyarrow is optional

    return parquet.ParquetShards if name == "ParquetShards" else arrow.ArrowShards
