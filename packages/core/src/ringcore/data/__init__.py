"""Training data for ranks: each reads its part, and all have the same number of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringcore.data.parquet import ParquetShards

__all__ = ["ParquetShards"]


def __getattr__(name: str) -> Any:
    if name != "ParquetShards":
        raise AttributeError(f"module 'ringcore.data' has no attribute {name!r}")
    from ringcore.data.parquet import ParquetShards  # here, as pyarrow is optional

    return ParquetShards
