"""A Spark of this machine, a table, a model, and a step of training."""

import os
import sys

import torch
from pyspark.sql import SparkSession

os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
session = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(sys.path))
    .getOrCreate()
)
df = session.createDataFrame([([1.0, 2.0, 3.0, float(n % 4)], float(n % 4)) for n in range(64)], ["features", "label"])
model = torch.nn.Linear(4, 1)


def step(features, label):
    assert len(features) == len(label)


def leave():
    if "predicted" in globals():
        assert predicted.count() == 64  # noqa: F821
    session.stop()
