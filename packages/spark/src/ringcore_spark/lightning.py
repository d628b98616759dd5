"""`LightningEstimator`: a module of Lightning, trained on ranks by `fit(df)`."""

from __future__ import annotations

import copy
import importlib
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from pyspark.ml.param import TypeConverters
from ringcore.adapter import unpickle

from ringcore_spark.ml.backend import SparkBackend
from ringcore_spark.ml.estimator import RingEstimator, Trained
from ringcore_spark.ml.params import Given, with_params
from ringcore_spark.ml.work import Batches, Checkpoint, Work
from ringcore_spark.torch import TorchModel

__all__ = ["LightningEstimator", "LightningModel", "SparkBackend"]


class LightningModel(TorchModel):
    """A Transformer around a trained module of Lightning: its `forward` gets the feature columns."""


@with_params(
    {
        "input_shapes": Given("shape of a batch of each feature, with -1 for its rows"),
        "logger": Given("of Lightning; True: its own, whose files are thrown away at the end", True),
        "log_every_n_steps": Given("how often it logs", 50),
        "trainer_args": Given("more arguments of Lightning's Trainer", {}),
        "profiler": Given("of Lightning, or its name"),
        "terminate_on_nan": Given("whether a loss that is not finite is an error", False, TypeConverters.toBoolean),
        "data_module": Given("makes the LightningDataModule of a rank, in the place of batches: see `data_module_of`"),
    }
)
class LightningEstimator(RingEstimator):
    """Trains a LightningModule. Its steps get a batch as a dictionary of tensors, by the names of columns.

    Args:
        **params: See `table`; the module itself has the optimizer and the loss.
    """

    def payload(self) -> bytes:
        """See RingEstimator."""
        module = self.value("model")
        if _package_of(module) is None:
            raise ValueError(f"model= is a {type(module).__name__}, and not a LightningModule")
        for name in ("optimizer", "loss", "loss_weights", "metrics"):
            if self.value(name):
                raise ValueError(f"{name}= is the module's own: see configure_optimizers, training_step and log")
        if self.value("data_module") is not None and self.value("spill"):
            raise ValueError("data_module= reads the rows from the store, and spill=True writes none: leave one out")
        data: bytes = cloudpickle.dumps((module, self.value("callbacks")))
        return data

    def trained_model(self, trained: Trained, run_id: str) -> LightningModel:
        """See RingEstimator."""
        module = copy.deepcopy(self.value("model"))
        module.load_state_dict(torch.load(io.BytesIO(trained.state), map_location="cpu", weights_only=True))
        return LightningModel(
            model=module.eval(), history=trained.history, run_id=run_id, input_shapes=self.value("input_shapes"),
            feature_columns=self.value("feature_cols"), label_columns=self.value("label_cols"),
        )  # fmt: skip

    @staticmethod
    def train(work: Work, payload: bytes) -> Trained | None:
        """See RingEstimator."""
        import ringcore_torch as ring
        from ringcore_lightning import strategies_of

        ring.init()
        torch.manual_seed(work.seed)
        module, callbacks = unpickle(payload)
        package = _package_of(module)
        lightning = importlib.import_module(f"{package}")
        (strategy,) = (one for one in strategies_of(f"{package}.strategies") if one.strategy_name == "ring")
        compression = work.params["gradient_compression"]
        training, validating = work.training(), work.validating()
        saved = work.saved()
        keeper = _keeper(lightning, work, saved.history if saved else [])
        gpu = work.params["use_gpu"] and torch.cuda.is_available()
        options = {
            "accelerator": "gpu" if gpu else "cpu", "devices": ring.local_size(), "num_nodes": ring.cross_size(),
            "strategy": strategy(**({"compression": compression} if compression else {})),
            "max_epochs": work.params["epochs"], "logger": work.params["logger"],
            "log_every_n_steps": work.params["log_every_n_steps"], "enable_checkpointing": True,
            "enable_progress_bar": False, "enable_model_summary": False, "use_distributed_sampler": False,
            "num_sanity_val_steps": 0, "accumulate_grad_batches": work.params["backward_passes_per_step"],
            "profiler": work.params["profiler"],
        }  # fmt: skip
        callbacks = [*callbacks, *([_finite(lightning)] if work.params["terminate_on_nan"] else []), keeper]
        with tempfile.TemporaryDirectory() as folder:
            options["default_root_dir"] = folder
            trainer = lightning.Trainer(**{**options, **work.params["trainer_args"]}, callbacks=callbacks)
            path = None
            if saved is not None:
                training.skip(saved.epochs)
                path = Path(folder, "checkpoint")
                path.write_bytes(saved.state)
            if work.params["data_module"] is not None:
                data = {
                    "datamodule": data_module_of(work, training.steps, None if validating is None else validating.steps)
                }
            else:
                data = {"train_dataloaders": _Loader(work, training)}
                data |= {} if validating is None else {"val_dataloaders": _Loader(work, validating)}
            trainer.fit(module, **data, ckpt_path=path, weights_only=False)
        return Trained(_bytes_of(module.state_dict()), keeper.history, None) if ring.rank() == 0 else None


def data_module_of(work: Work, steps: int, validation_steps: int | None) -> Any:
    """What `data_module=` makes on a rank. It is called with what Horovod's is called with, and is of use here.

    Args:
        work: Of this rank.
        steps: Batches of an epoch.
        validation_steps: The same for validation; None: there is none.
    """
    import ringcore

    params = work.params
    columns = [*params["feature_cols"], *params["label_cols"], params["sample_weight_col"]]
    return params["data_module"](
        train_dir=work.url(work.train), val_dir=work.url(work.validation), has_val=validation_steps is not None,
        num_train_epochs=params["epochs"], train_batch_size=params["batch_size"],
        val_batch_size=params["val_batch_size"] or params["batch_size"], shuffle=params["shuffle"],
        transformation=params["transformation_fn"], schema_fields=[name for name in columns if name],
        cur_shard=ringcore.rank(), shard_count=ringcore.size(), seed=work.seed, verbose=params["verbose"],
        steps_per_epoch_train=steps, steps_per_epoch_val=validation_steps,
    )  # fmt: skip


class _Loader:
    """Batches as Lightning takes them."""

    def __init__(self, work: Work, batches: Batches) -> None:
        self._params = work.params
        self._batches = batches

    def __len__(self) -> int:
        return self._batches.steps

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        params = self._params
        for batch in self._batches.epoch():
            arrays = [*batch.features, *batch.labels, *([] if batch.weights is None else [batch.weights])]
            names = [*params["feature_cols"], *params["label_cols"], params["sample_weight_col"]]
            yield {name: _tensor(array) for name, array in zip(names, arrays, strict=False)}


def _tensor(array: Any) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor


def _keeper(lightning: Any, work: Work, history: list[Any]) -> Any:
    """A callback of this package of Lightning that keeps a checkpoint after each epoch."""

    class Keeper(lightning.callbacks.Checkpoint):
        def __init__(self) -> None:
            self.history = history

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            told = {name: float(value) for name, value in trainer.callback_metrics.items()}
            self.history.append({"epoch": trainer.current_epoch, **told})
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "checkpoint")
                trainer.save_checkpoint(path)  # All ranks call it, and rank 0 writes.
                if trainer.global_rank == 0:
                    work.tell(trainer.current_epoch, told)
                    work.save(Checkpoint(trainer.current_epoch + 1, self.history, path.read_bytes()))

    return Keeper()


def _finite(lightning: Any) -> Any:
    """A callback of this package of Lightning that ends the training at a loss that is not finite."""

    class Finite(lightning.callbacks.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            loss = outputs["loss"] if isinstance(outputs, dict) else outputs
            if loss is not None and not torch.isfinite(loss).all():
                raise ValueError(
                    f"the loss of batch {batch_idx} of epoch {trainer.current_epoch} is {loss}, which is not finite "
                    "(terminate_on_nan=True): look at that batch, or take a smaller learning rate"
                )

    return Finite()


def _package_of(module: Any) -> str | None:
    """Which of Lightning's two packages a module is of."""
    names = {f"{kind.__module__}." for kind in type(module).__mro__ if kind.__name__ == "LightningModule"}
    packages = ("lightning.pytorch", "pytorch_lightning")
    return next((package for package in packages for name in names if name.startswith(f"{package}.")), None)


def _bytes_of(state: Any) -> bytes:
    stream = io.BytesIO()
    torch.save({name: value.cpu() for name, value in state.items()}, stream)
    return stream.getvalue()
