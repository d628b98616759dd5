"""A script with `horovod.spark.run`, on a real Spark."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import horovod.spark
import numpy as np
import pytest
from horovod.spark.task import get_available_devices
from pyspark.sql import SparkSession

# Py4J's own sockets, and what Spark says of versions of pandas.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def spark() -> Iterator[SparkSession]:
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def train(value: float, *, more: float) -> tuple[int, float, list[str]]:
    import ringcore as hvd

    hvd.init()
    print("rank", hvd.rank())
    total = hvd.allreduce(np.full(4, value + more), op=hvd.Sum)
    return hvd.rank(), float(total[0]), get_available_devices()


def fails() -> None:
    raise LookupError("no such row")


def test_a_script_for_horovod_runs_as_it_is() -> None:
    out = io.StringIO()
    env = {"CUDA_VISIBLE_DEVICES": "3"}
    results = horovod.spark.run(
        train, args=(1.0,), kwargs={"more": 2.0}, num_proc=2, use_mpi=True, env=env, stdout=out, verbose=2
    )
    assert results == [(0, 6.0, ["3"]), (1, 6.0, ["3"])]
    assert sorted(out.getvalue().splitlines()) == ["[0]<stdout>:rank 0", "[1]<stdout>:rank 1"]
    out = io.StringIO()
    horovod.spark.run(train, (1.0,), {"more": 2.0}, 1, env=env, stdout=out, prefix_output_with_timestamp=True)
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:rank 0\n", out.getvalue())
    with pytest.raises(RuntimeError, match="raised LookupError: no such row") as caught:
        horovod.spark.run(fails, num_proc=1)
    assert isinstance(caught.value.original, LookupError)


def train_elastic(folder: str) -> tuple[int, int, float]:
    import ringcore as hvd
    from ringcore import elastic

    hvd.init()

    @elastic.run
    def steps(state: elastic.ObjectState) -> tuple[int, int, float]:
        while state.step < 6 or hvd.size() < 2:
            if (hvd.rank(), state.step) == (1, 3) and not Path(folder, "killed").exists():
                Path(folder, "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            state.total += float(hvd.allreduce(np.ones(3), op=hvd.Average)[0])
            state.step += 1
            state.commit()
        return hvd.rank(), hvd.size(), state.total - state.step

    return steps(elastic.ObjectState(step=0, total=0.0))


def test_an_elastic_job_goes_on_without_a_rank_that_is_killed(tmp_path: Path) -> None:
    err = io.StringIO()
    results = horovod.spark.run_elastic(train_elastic, (str(tmp_path),), min_num_proc=1, max_num_proc=2, stderr=err)
    assert results == [(0, 2, 0.0), (1, 2, 0.0)]
    assert "was killed by SIGKILL" in err.getvalue()


def test_what_horovod_can_and_this_cannot_is_said() -> None:
    with pytest.raises(ValueError, match=r"has no extra_mpi_args, executable: leave it out"):
        horovod.spark.run(fails, use_mpi=True, extra_mpi_args="--bind-to none", executable="python3")


def test_horovods_estimators_are_ringcores(tmp_path: Path) -> None:
    import keras
    import ringcore_spark.keras
    import ringcore_spark.lightning
    import ringcore_spark.torch
    import torch
    from horovod.spark.common.backend import SparkBackend
    from horovod.spark.common.store import LocalStore, Store
    from horovod.spark.keras import KerasEstimator, KerasModel
    from horovod.spark.lightning import TorchEstimator as LightningEstimator
    from horovod.spark.torch import TorchEstimator, TorchModel

    model = torch.nn.Linear(1, 1)
    with pytest.warns(UserWarning, match="partitions_per_process, reader_pool_type changes nothing"):
        estimator = TorchEstimator(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=torch.nn.MSELoss(), epochs=3,
            store=Store.create(str(tmp_path)), backend=SparkBackend(2), reader_pool_type="thread",
            partitions_per_process=2, feature_cols=["x"], label_cols=["y"],
        )  # fmt: skip
    assert estimator.copy({estimator.epochs: 5}).getEpochs() == 5 and estimator.getEpochs() == 3
    assert estimator.setBatchSize(8).getBatchSize() == 8
    assert (
        estimator.getReaderPoolType() == "thread" and estimator.setMpStartMethod("spawn").getMpStartMethod() == "spawn"
    )
    assert isinstance(estimator.getStore(), LocalStore)
    assert isinstance(estimator, ringcore_spark.torch.TorchEstimator)
    assert issubclass(LightningEstimator, ringcore_spark.lightning.LightningEstimator)
    one = keras.callbacks.Callback()
    assert KerasEstimator(checkpoint_callback=one).getCallbacks() == [one]
    with pytest.warns(UserWarning, match="tensorflow_dataset_prefetch_buffer_size changes nothing"):
        KerasEstimator(tensorflow_dataset_prefetch_buffer_size=1)
    assert (KerasModel, TorchModel) == (ringcore_spark.keras.KerasModel, ringcore_spark.torch.TorchModel)
