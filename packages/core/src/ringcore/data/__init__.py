"""Training data for ranks: each reads its part, and all have the same number of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringcore.data.arrow import ArrowShards
    from ringcore.data.datasets import DatasetShards
    from ringcore.data.parquet import ParquetShards

_HOMES = {"ArrowShards": "arrow", "DatasetShards": "datasets", "ParquetShards": "parquet"}

__all__ = ["ArrowShards", "DatasetShards", "ParquetShards"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ringcore.data' has no attribute {name!r}")
    import importlib  # here, as pyarrow is optional

    return getattr(importlib.import_module(f"ringcore.data.{_HOMES[name]}"), name)
