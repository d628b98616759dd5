"""`horovod.spark.run` by ringcore-spark: `pip install 'ringcore-horovod[spark]'`."""

from horovod.spark.runner import run, run_elastic

__all__ = ["run", "run_elastic"]
