"""What one rank trains in a test: `python scenarios.py STRATEGY FOLDER [PACKAGE [SCENARIO ...]]`.

It runs one scenario after the other; rank 0 writes what came of them to FOLDER/STRATEGY.json. All is seeded: with "ddp"
and with "ring" the same comes out, to the bit, since the sum of two ranks has one rounding.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

STRATEGY, FOLDER = sys.argv[1], Path(sys.argv[2])
PACKAGE = sys.argv[3] if len(sys.argv) > 3 else "lightning.pytorch"
pl = importlib.import_module(PACKAGE)
callbacks = importlib.import_module(f"{PACKAGE}.callbacks")
loggers = importlib.import_module(f"{PACKAGE}.loggers")

# "cuda": two ranks share a GPU where there is only one.
DEVICE = os.environ.get("TEST_DEVICE", "cpu")

SCENARIOS: dict[str, Callable[[], Any]] = {}


def scenario(function: Callable[[], Any]) -> Callable[[], Any]:
    SCENARIOS[function.__name__] = function
    return function


class Data(torch.utils.data.Dataset):
    """Inputs whose sum is the target."""

    def __init__(self, count: int = 64) -> None:
        self.inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.inputs[index].sum(0, keepdim=True)


def loader(count: int = 64) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(Data(count), batch_size=4, shuffle=True)


class Model(pl.LightningModule):
    """A net with batch norm, wide enough for a bucket of registered memory."""

    def __init__(self, optimizer: str = "SGD", *, batch_norm: bool = False, width: int = 2000) -> None:
        super().__init__()
        self.save_hyperparameters()
        norm = torch.nn.BatchNorm1d(width) if batch_norm else torch.nn.Identity()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, width), norm, torch.nn.Tanh(), torch.nn.Linear(width, 1))
        self.losses: list[float] = []

    def loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.item())
        self.log("loss", loss, sync_dist=True, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("validation", self.loss(batch), sync_dist=True)
        self.log("samples", float(len(batch[0])), sync_dist=True, reduce_fx="sum")

    def test_step(self, batch: Any, _: int) -> None:
        self.log("test", self.loss(batch), sync_dist=True)

    def predict_step(self, batch: Any, _: int) -> torch.Tensor:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        if self.hparams.optimizer == "SGD":
            return torch.optim.SGD(self.parameters(), 1e-3, momentum=0.9)
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


def trainer(**options: Any) -> Any:
    settings = {
        "max_epochs": 2, "accelerator": "cpu", "devices": 2, "strategy": STRATEGY, "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
        "default_root_dir": FOLDER / STRATEGY,
    }  # fmt: skip
    if DEVICE == "cuda":
        settings |= {"accelerator": "gpu", "devices": "auto", "strategy": on_gpus()}
    return pl.Trainer(**{**settings, **options})


def on_gpus() -> Any:
    """The strategy with two ranks, whatever GPUs there are."""
    strategies = importlib.import_module(f"{PACKAGE}.strategies")
    devices = [torch.device("cuda", rank % torch.cuda.device_count()) for rank in range(2)]
    if STRATEGY == "ddp":
        return strategies.DDPStrategy(parallel_devices=devices, process_group_backend="gloo")
    return strategies.StrategyRegistry[STRATEGY]["strategy"](parallel_devices=devices)


def outcome(model: torch.nn.Module, runner: Any, **more: Any) -> dict[str, Any]:
    """What two strategies must agree on."""
    state = torch.cat([value.detach().double().reshape(-1) for value in model.state_dict().values()])
    states = runner.strategy.all_gather(state)
    metrics = {name: float(value) for name, value in runner.callback_metrics.items()}
    return {
        "steps": runner.global_step, "checksum": state.sum().item(), "norm": state.norm().item(), "metrics": metrics,
        "losses": getattr(model, "losses", None), "equal": bool((states[0] == states[1]).all()), **more,
    }  # fmt: skip


def fitted(model: Any, **options: Any) -> dict[str, Any]:
    runner = trainer(**options)
    runner.fit(model, loader(), loader(16))
    return outcome(model, runner)


@scenario
def sgd() -> Any:
    return fitted(Model())


@scenario
def adamw_with_a_schedule() -> Any:
    return fitted(Model("AdamW"), max_epochs=3)


@scenario
def gradient_accumulation() -> Any:
    return fitted(Model(), accumulate_grad_batches=3)


@scenario
def clipping_by_norm() -> Any:
    return fitted(Model(), gradient_clip_val=0.1)


@scenario
def clipping_by_value() -> Any:
    return fitted(Model(), gradient_clip_val=0.01, gradient_clip_algorithm="value")


@scenario
def mixed_bfloat16() -> Any:
    return fitted(Model(), precision="bf16-mixed")


@scenario
def true_bfloat16() -> Any:
    return fitted(Model(), precision="bf16-true")


@scenario
def double() -> Any:
    return fitted(Model(), precision="64-true")


@scenario
def batch_norm() -> Any:
    found = fitted(Model(batch_norm=True), accumulate_grad_batches=2)
    found.pop("equal")  # running averages are those of each rank's last batch
    found.pop("checksum")
    found.pop("norm")
    return found


@scenario
def mixed_float16() -> Any:
    """On GPUs only: the scaler's first scales make infinities, and all ranks skip those steps."""
    return fitted(Model(), precision="16-mixed")


@scenario
def batch_norm_of_all_ranks() -> Any:
    return fitted(Model(batch_norm=True), sync_batchnorm=True)


@scenario
def stochastic_weight_averaging() -> Any:
    return fitted(Model(), max_epochs=4, callbacks=[callbacks.StochasticWeightAveraging(1e-3, swa_epoch_start=2)])


@scenario
def early_stopping() -> Any:
    # Only rank 0's metric gets worse: all ranks stop with it.
    class Worse(Model):
        def validation_step(self, batch: Any, index: int) -> None:
            self.log("worse", float(self.current_epoch) if self.global_rank == 0 else 0.0, sync_dist=True)

    stop = callbacks.EarlyStopping("worse", patience=1)
    return fitted(Worse(), max_epochs=10, callbacks=[stop])


@scenario
def manual_optimisation_of_two_nets() -> Any:
    class Pair(pl.LightningModule):
        """Two nets that are trained in turn, one of them with two passes a step."""

        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.first, self.second = torch.nn.Linear(8, 5000), torch.nn.Linear(5000, 1)
            self.losses: list[float] = []

        def training_step(self, batch: Any, index: int) -> None:
            for which, optimizer in enumerate(self.optimizers()):
                self.toggle_optimizer(optimizer)
                for _ in range(1 + which):
                    loss = (self.second(self.first(batch[0])) - batch[1]).square().mean()
                    self.manual_backward(loss)
                self.losses.append(loss.item())
                optimizer.step()
                optimizer.zero_grad()
                self.untoggle_optimizer(optimizer)

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(net.parameters(), 1e-4) for net in (self.first, self.second)]

    # DistributedDataParallel has to be told that half of the parameters get no gradient.
    options = {"strategy": "ddp_find_unused_parameters_true"} if STRATEGY == "ddp" else {}
    model, runner = Pair(), trainer(**options)
    runner.fit(model, loader())
    return outcome(model, runner)


@scenario
def checkpoint_and_resume() -> Any:
    """Two epochs; a new trainer goes on from the first one's checkpoint, which rank 0 alone has written."""
    folder = FOLDER / STRATEGY / "checkpoints"
    keep = callbacks.ModelCheckpoint(folder, monitor="validation", save_top_k=-1, filename="{epoch}")
    runner = trainer(callbacks=[keep], enable_checkpointing=True, logger=loggers.CSVLogger(FOLDER / STRATEGY))
    runner.fit(Model(), loader(), loader(16))
    runner.strategy.barrier()
    files = sorted(path.name for path in folder.iterdir())
    model, resumed = Model(), trainer(max_epochs=4)
    resumed.fit(model, loader(), loader(16), ckpt_path=folder / "epoch=0.ckpt", weights_only=False)
    return outcome(model, resumed, files=files, logs=len(list((FOLDER / STRATEGY).rglob("metrics.csv"))))


@scenario
def the_other_strategys_checkpoint() -> Any:
    """`STRATEGY` goes on from what the other one has left; the first to come has only its own."""
    left = FOLDER.glob("*/checkpoints/epoch=1.ckpt")
    others = sorted(left, key=lambda path: path.parts[-3] == STRATEGY)
    model, runner = Model(), trainer(max_epochs=3)
    runner.fit(model, loader(), loader(16), ckpt_path=others[0], weights_only=False)
    return outcome(model, runner)


@scenario
def validate_test_predict() -> Any:
    model, runner = Model(), trainer()
    found = {"validate": runner.validate(model, loader(16), verbose=False)}
    found["test"] = runner.test(model, loader(16), verbose=False)
    found["predict"] = float(sum(batch.sum() for batch in runner.predict(model, loader(16))))
    return found


def main() -> None:
    """Run all scenarios."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = {}
    on_gpus_only = {"mixed_float16", "batch_norm_of_all_ranks"}
    for name in sys.argv[4:] or (name for name in SCENARIOS if name not in on_gpus_only):
        pl.seed_everything(7, verbose=False)
        found[name] = SCENARIOS[name]()
    if int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0:
        (FOLDER / f"{STRATEGY}.json").write_text(json.dumps(found, indent=1))
    sys.stdout.flush()
    os._exit(0)  # with torch 2.13 a process group of gloo sometimes aborts when it is destroyed


if __name__ == "__main__":
    main()
