"""`save` and `load` of estimators and models, in pipelines too."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pyspark
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter
from ringcore.adapter import unpickle

# They belong to a cluster, and are given anew.
_LEFT_OUT = {"store", "backend"}


def _for_metadata(session: Any) -> Any:
    """What Spark's readers and writers of metadata want: Spark 3 the context, later ones the session."""
    return session.sparkContext if pyspark.__version__.startswith("3.") else session


class Writer(MLWriter):
    """Writes Spark's metadata, and all params as one pickle beside it, on whatever file system Spark has there."""

    def __init__(self, instance: Any) -> None:
        super().__init__()
        self.instance = instance

    def saveImpl(self, path: str) -> None:  # noqa: N802 - Spark's word
        """Write; MLWriter.save calls it."""
        DefaultParamsWriter.saveMetadata(self.instance, path, _for_metadata(self.sparkSession), paramMap={})
        given = {param.name: value for param, value in self.instance._paramMap.items() if param.name not in _LEFT_OUT}
        data = bytearray(cloudpickle.dumps(self.instance.packed(given)))
        frame = self.sparkSession.createDataFrame([(data,)], "params binary")
        frame.coalesce(1).write.parquet(f"{path}/params")


class Reader(MLReader):
    """Reads what `Writer` wrote. It is a pickle: load only what you trust."""

    def __init__(self, cls: Any) -> None:
        super().__init__()
        self.cls = cls

    def load(self, path: str) -> Any:
        """Make the estimator or model again."""
        metadata = DefaultParamsReader.loadMetadata(path, _for_metadata(self.sparkSession))
        row = self.sparkSession.read.parquet(f"{path}/params").first()
        instance = self.cls()
        instance.setParams(**instance.unpacked(unpickle(bytes(row[0]))))
        instance._resetUid(metadata["uid"])
        return instance


class Saved(MLWritable, MLReadable):
    """Gives a class `save`, `write`, `load` and `read`."""

    def write(self) -> Writer:
        """The writer: `write().overwrite().save(path)`."""
        return Writer(self)

    def save(self, path: str) -> None:
        """Save at a path that is not there yet."""
        self.write().save(path)

    @classmethod
    def read(cls) -> Reader:
        """The reader."""
        return Reader(cls)

    @classmethod
    def load(cls, path: str) -> Any:
        """Load what `save` wrote. It is a pickle: load only what you trust."""
        return cls.read().load(path)

    def packed(self, params: dict[str, Any]) -> dict[str, Any]:
        """Params as cloudpickle can take them."""
        return params

    def unpacked(self, params: dict[str, Any]) -> dict[str, Any]:
        """What `packed` was given."""
        return params
