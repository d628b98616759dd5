"""A table of 32 rows, and a step of training."""

import numpy
import pyarrow
import pyarrow.parquet
import ringcore

ringcore.init()
if ringcore.rank() == 0:
    columns = {"features": list(numpy.ones((32, 4), numpy.float32)), "label": numpy.ones(32, numpy.float32)}
    pyarrow.parquet.write_to_dataset(pyarrow.table(columns), "table")
ringcore.barrier()
rows = 0


def train(features, label):
    global rows
    rows += len(label)


def leave():
    assert rows == 3 * 16, rows
