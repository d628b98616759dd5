"""`horovod.spark.run` by ringcore-spark: `pip install 'ringcore-horovod[spark]'`."""

from ringcore.adapter import import_framework as _import_framework

_import_framework("ringcore_spark", "horovod.spark", {"ringcore_spark": "'ringcore-horovod[spark]'"})

from horovod.spark.runner import run, run_elastic

__all__ = ["run", "run_elastic"]
