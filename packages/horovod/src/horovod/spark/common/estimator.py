"""Params of Horovod's estimators that nothing here needs."""

from __future__ import annotations

import warnings
from typing import Any

from ringcore_spark.ml.params import Given

# Of petastorm, which read the data, and of how Horovod started its ranks.
WITHOUT_EFFECT = {
    name: Given("of Horovod; changes nothing")
    for name in (
        "compress_sparse_cols", "debug_data_loader", "inmemory_cache_all", "loader_num_epochs", "mp_start_method",
        "num_gpus", "partitions_per_process", "reader_pool_type", "tensorflow_dataset_prefetch_buffer_size",
        "train_async_data_loader_queue_size", "train_reader_num_workers", "transformation_edit_fields",
        "transformation_removed_fields", "val_async_data_loader_queue_size", "val_reader_num_workers",
    )
}  # fmt: skip


class HorovodParams:
    """Says that they change nothing, where they are given.

    Args:
        **params: Of the estimator, and they.
    """

    def __init__(self, **params: Any) -> None:
        needless = sorted(name for name in WITHOUT_EFFECT if params.get(name) is not None)
        if needless:
            warnings.warn(
                f"{', '.join(needless)} changes nothing in ringcore's estimators: data is read without petastorm",
                stacklevel=2,
            )
        super().__init__(**params)
