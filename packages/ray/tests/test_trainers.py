"""The trainers of Ray Train for PyTorch, Lightning and Keras: scripts for Ray's own run with another class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray.data
import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.v2.api.exceptions import WorkerGroupError
from ringcore_ray.torch import RingTorchTrainer

# Ray's own, and Lightning's.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROWS = 32
X = np.linspace(-1, 1, ROWS, dtype=np.float32).reshape(-1, 1)
Y = 3 * X + 1
TWO = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5})


def linear() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(1, 1)


def weights_of_one_process(epochs: int = 1) -> list[float]:
    """What one process makes of the batches of both ranks together: all rows."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
        optimizer.step()
    return [float(parameter) for parameter in model.parameters()]


def train_torch(config: dict[str, Any]) -> None:
    """As for Ray's TorchTrainer; without ringcore's names, but for the last lines."""
    import ray.train.torch
    import torch.distributed as dist

    model = linear()
    # Rank 0's is taken.
    torch.nn.init.constant_(model.bias, ray.train.get_context().get_world_rank() + float(model.bias))
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=ROWS, dtypes=torch.float):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch["x"]), batch["y"]).backward()
        optimizer.step()
    data = torch.utils.data.TensorDataset(torch.arange(ROWS))
    loader = ray.train.torch.prepare_data_loader(torch.utils.data.DataLoader(data, batch_size=4))
    seen = torch.zeros(ROWS)
    for (ids,) in loader:
        seen[ids] += 1
    dist.all_reduce(seen)
    own = [float(parameter) for parameter in model.parameters()]
    told = {"weights": own, "backend": dist.get_backend(), "seen": seen.tolist(), "rank": os.environ["RANK"]}
    checkpoint = None
    if dist.get_rank() == 0:
        folder = Path(config["folder"])
        folder.mkdir()
        torch.save(told, folder / "state.pt")
        checkpoint = Checkpoint.from_directory(folder)
    ray.train.report({"loss": 0.5}, checkpoint=checkpoint)


def train_lightning() -> None:
    from lightning.pytorch import LightningModule, Trainer
    from ringcore_ray.lightning import (
        RayLightningEnvironment,
        RayRingStrategy,
        RayTrainReportCallback,
        prepare_trainer,
    )

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = linear()

        def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
            x, y = batch
            loss = torch.nn.functional.mse_loss(self.net(x), y)
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    common: dict[str, Any] = {
        "max_epochs": 2, "accelerator": "cpu", "devices": "auto", "strategy": RayRingStrategy(),
        "logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False,
    }  # fmt: skip
    with pytest.raises(RuntimeError, match=r"give it plugins=\[RayLightningEnvironment\(\)\]"):
        prepare_trainer(Trainer(**common))
    common["strategy"] = RayRingStrategy()
    trainer = prepare_trainer(
        Trainer(**common, callbacks=[RayTrainReportCallback()], plugins=[RayLightningEnvironment()])
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=ROWS // 2))


def train_both(config: dict[str, Any]) -> None:
    train_torch(config)
    train_lightning()


@pytest.mark.long
def test_scripts_for_rays_torch_trainer_run_with_another_class_and_lightning_has_a_strategy(tmp_path: Path) -> None:
    from ringcore_ray.lightning import RingLightningTrainer  # here, as the workers import this module

    rows = [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]
    trainer = RingLightningTrainer(  # a RingTorchTrainer
        train_both,
        train_loop_config={"folder": str(tmp_path / "own")},
        scaling_config=TWO,
        datasets={"train": ray.data.from_items(rows, override_num_blocks=2)},
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    (own, metrics), (_, first), (last, second) = trainer.fit().best_checkpoints
    with own.as_directory() as folder:
        told = torch.load(Path(folder, "state.pt"))
    assert (metrics, told["backend"], told["rank"]) == ({"loss": 0.5}, "ring", "0")
    assert told["seen"] == [1.0] * ROWS
    assert told["weights"] == pytest.approx(weights_of_one_process(), abs=1e-6)
    assert (first["epoch"], second["epoch"], second["step"]) == (0, 1, 2)
    with last.as_directory() as folder:
        state = torch.load(Path(folder, "checkpoint.ckpt"), weights_only=False)["state_dict"]
    assert [float(weight) for weight in state.values()] == pytest.approx(weights_of_one_process(2), abs=1e-6)


def train_keras(config: dict[str, Any]) -> None:
    import keras
    import ringcore_keras as ring
    from ringcore_ray.keras import ReportCheckpointCallback, prepare_model

    keras.utils.set_random_seed(ring.rank())
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=r"call compile\(\) before prepare_model"):
        prepare_model(model)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    model.set_weights([weight + ring.rank() for weight in model.get_weights()])  # rank 0's are taken
    np.save(
        Path(config["folder"], f"begin.{ring.rank()}.npy"), np.concatenate([w.ravel() for w in model.get_weights()])
    )
    own = slice(ring.rank(), None, ring.size())
    averages = ring.callbacks.MetricAverageCallback()
    reports = ReportCheckpointCallback(metrics={"error": "loss"})
    prepare_model(model).fit(X[own], Y[own], batch_size=ROWS, epochs=2, verbose=0, callbacks=[averages, reports])
    if ring.rank() == 1:
        raise LookupError("no such row")
    ring.barrier()


def test_keras_reports_what_it_has_made_and_who_fails_is_in_rays_error(tmp_path: Path) -> None:
    import keras
    from ringcore_ray.keras import RingKerasTrainer

    trainer = RingKerasTrainer(
        train_keras, train_loop_config={"folder": str(tmp_path)}, scaling_config=TWO,
        run_config=RunConfig(storage_path=str(tmp_path), name="run"),
    )  # fmt: skip
    with pytest.raises(WorkerGroupError) as caught:
        trainer.fit()
    # Ray need not have heard of both when it ends them; each says it.
    said = {rank: str(error) for rank, error in caught.value.worker_failures.items()}
    assert said and all("no such row" in text for text in said.values())
    assert "rank 1 has left (it raised LookupError" in said.get(0, "rank 1 has left (it raised LookupError")
    kept = ray.train.Result.from_path(str(tmp_path / "run")).best_checkpoints
    assert [list(metrics) for _, metrics in kept] == [["error"], ["error"]]
    with kept[-1][0].as_directory() as folder:
        found = keras.saving.load_model(Path(folder, "model.keras")).get_weights()
    slope, offset = np.load(tmp_path / "begin.0.npy")
    for _ in range(2):
        error = slope * X + offset - Y
        slope, offset = slope - 0.2 * float((error * X).mean()), offset - 0.2 * float(error.mean())
    assert [float(weight.item()) for weight in found] == pytest.approx([slope, offset], abs=1e-5)


def test_what_cannot_be_is_said() -> None:
    from ringcore_ray.keras import ReportCheckpointCallback

    with pytest.raises(ValueError, match=r"torch_config= says how gloo or NCCL meet, and the backend here is ringcore"):
        RingTorchTrainer(train_torch, torch_config=object())
    with pytest.raises(ValueError, match="there is no moment 'epoch'; there are epoch_begin, "):
        ReportCheckpointCallback("epoch")
