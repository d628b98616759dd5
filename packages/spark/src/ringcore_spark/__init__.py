"""ringcore on Spark: a function on the executors of a cluster, each with a rank."""

from ringcore.launcher.external import LaunchError, RankError

from ringcore_spark.partition import partition
from ringcore_spark.runner import run

__all__ = ["LaunchError", "RankError", "partition", "run"]
