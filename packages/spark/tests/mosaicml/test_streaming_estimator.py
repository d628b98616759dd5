"""A StreamingDataset of mosaicml-streaming as an estimator's data. `nox -s mosaicml_streaming` runs this."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringcore
import ringcore_torch as ring
import torch
from pyspark.sql import SparkSession
from ringcore.data import DatasetShards
from ringcore_spark.torch import TorchEstimator

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
DECLARED: list[Any] = []  # What is declared is there as long as its library is.


def library() -> Any:
    """The module, which imports torchvision whatever it is to read."""
    if torch.version.cuda is None and not DECLARED:
        # PyPI's torchvision is compiled for PyTorch with CUDA. Beside another one it has no operators, and yet wants
        # to say of these two what they return.
        DECLARED.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            DECLARED[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import streaming

    return streaming


class Source:
    """Makes the data set on a rank."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self) -> Any:
        torch.distributed.init_process_group("ring")
        streaming = library()
        return streaming.StreamingDataset(local=str(self._folder), batch_size=8, shuffle=True, shuffle_seed=5)


class Recorded:
    """Writes down which rows a rank trains with, a line for each batch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, batch: Any) -> Any:
        with Path(self._folder, os.environ["RINGCORE_RANK"]).open("a") as file:
            print(*(batch["x"] * 100).round().astype(int), file=file)
        return batch


def test_every_sample_is_used_once_an_epoch_and_ranks_have_as_many_batches(spark: SparkSession, tmp_path: Path) -> None:
    samples = tmp_path / "samples"
    with library().MDSWriter(out=str(samples), columns={"x": "float64", "y": "float64"}, size_limit=400) as writer:
        for number in range(101):
            writer.write({"x": number / 100, "y": number / 50 + 1})
    assert len(list(samples.glob("*.mds"))) > 2
    in_memory = sorted(os.listdir("/dev/shm"))
    recorded = tmp_path / "recorded"
    recorded.mkdir()

    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    fitted = TorchEstimator(
        model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1), loss=torch.nn.MSELoss(),
        feature_cols=["x"], label_cols=["y"], input_shapes=[[-1, 1]], batch_size=8, epochs=20, num_proc=2, verbose=0,
        store=str(tmp_path / "store"), transformation_fn=Recorded(recorded),
    ).fit(Source(samples))  # fmt: skip

    ranks = [
        [list(map(int, line.split())) for line in (recorded / str(rank)).read_text().splitlines()] for rank in range(2)
    ]
    assert [[len(batch) for batch in rank] for rank in ranks] == [([8] * 6 + [3]) * 20] * 2
    epochs = [
        [number for rank in ranks for batch in rank[begin : begin + 7] for number in batch]
        for begin in range(0, 140, 7)
    ]
    for numbers in epochs:
        # The library has an odd one repeated, so that ranks have as many.
        assert len(numbers) == 102 and set(numbers) == set(range(101))
    assert epochs[0] != epochs[1]
    learned = [float(weight.detach()) for weight in fitted.getModel().parameters()]
    np.testing.assert_allclose(learned, [2, 1], atol=0.1)
    assert sorted(os.listdir("/dev/shm")) == in_memory


def left_and_entered_again(samples: str, times: int) -> list[list[int]]:
    """Of each epoch the numbers that this rank saw, where it leaves after every batch."""
    ring.init()
    torch.distributed.init_process_group("ring")
    streaming = library()
    shards = DatasetShards(
        lambda: streaming.StreamingDataset(local=samples, batch_size=8, shuffle=True, shuffle_seed=5), 8
    )
    seen: list[list[int]] = []
    for _ in range(times):
        numbers: list[int] = []
        for _ in range(len(shards)):
            numbers += map(int, (next(iter(shards))["x"] * 100).round())
        assert not list(shards)  # ends the epoch
        seen.append(numbers)
    return seen


def test_ranks_that_leave_an_epoch_after_every_batch_go_on_where_they_were(tmp_path: Path) -> None:
    samples = tmp_path / "samples"
    with library().MDSWriter(out=str(samples), columns={"x": "float64"}, size_limit=400) as writer:
        for number in range(101):
            writer.write({"x": number / 100})
    in_memory = sorted(os.listdir("/dev/shm"))

    ranks = ringcore.run(left_and_entered_again, (str(samples), 10), np=2)

    epochs = [sorted(first + second) for first, second in zip(*ranks, strict=True)]
    for numbers in epochs:
        assert len(numbers) == 102 and set(numbers) == set(range(101))
    assert ranks[0][0] != ranks[0][1]
    assert sorted(os.listdir("/dev/shm")) == in_memory
