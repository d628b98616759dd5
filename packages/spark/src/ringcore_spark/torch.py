"""`TorchEstimator`: a model of PyTorch, trained on ranks by `fit(df)`."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable
from typing import Any

import cloudpickle
import torch
from ringcore.adapter import unpickle

from ringcore_spark.ml.backend import SparkBackend
from ringcore_spark.ml.estimator import RingEstimator, Trained
from ringcore_spark.ml.model import Predict, RingModel, shapes_of
from ringcore_spark.ml.params import Given, with_params
from ringcore_spark.ml.work import Arrays, Batch, Batches, Checkpoint, Work

__all__ = ["SparkBackend", "TorchEstimator", "TorchModel"]

_SHAPES = {"input_shapes": Given("shape of a batch of each feature, with -1 for its rows")}


@with_params(_SHAPES)
class TorchModel(RingModel):
    """A Transformer around a trained `torch.nn.Module`."""

    def predictor(self) -> Callable[[], Predict]:
        """See RingModel."""
        data, shapes = cloudpickle.dumps(self.value("model")), self.value("input_shapes")

        def make() -> Predict:
            from ringcore_spark.torch import predict_with

            return predict_with(unpickle(data), shapes)

        return make


@with_params(
    {
        **_SHAPES,
        "loss_constructors": Given("functions that make the losses, on the ranks"),
        "train_minibatch_fn": Given("replaces a training step: f(model, optimizer, loss, inputs, labels, weights)"),
    }
)
class TorchEstimator(RingEstimator):
    """Trains a `torch.nn.Module`: its inputs are the feature columns, its outputs are compared with the label columns.

    The learning rate is what the optimizer has; it is not multiplied by the number of ranks.

    Args:
        **params: See `table`.
    """

    def payload(self) -> bytes:
        """See RingEstimator."""
        model, optimizer = self.value("model"), self.value("optimizer")
        losses, makers = self.value("loss"), self.value("loss_constructors")
        if not isinstance(model, torch.nn.Module):
            raise ValueError(f"model= is a {type(model).__name__}, and not a torch.nn.Module")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer= is a {type(optimizer).__name__}, and not an optimizer of torch.optim")
        own = {id(parameter) for parameter in model.parameters()}
        if any(id(parameter) not in own for group in optimizer.param_groups for parameter in group["params"]):
            raise ValueError(
                "the optimizer has parameters that the model does not have: make it of this model's, as in "
                "torch.optim.SGD(model.parameters(), lr=0.1)"
            )
        if (losses is None) == (makers is None):
            raise ValueError("give one of loss= and loss_constructors=")
        for loss in _several(losses if makers is None else makers) or ():
            if not callable(loss):
                raise ValueError(
                    f"a loss is {loss!r}, and no function: take one of PyTorch, such as torch.nn.functional.mse_loss"
                )
        # In one pickle, in which the optimizer's parameters stay the model's.
        data: bytes = cloudpickle.dumps((model, optimizer, _several(losses), _several(makers), self.value("metrics")))
        return data

    def trained_model(self, trained: Trained, run_id: str) -> TorchModel:
        """See RingEstimator."""
        model = copy.deepcopy(self.value("model"))
        model.load_state_dict(torch.load(io.BytesIO(trained.state), map_location="cpu", weights_only=True))
        return TorchModel(
            model=model.eval(), history=trained.history, run_id=run_id, shapes=trained.shapes,
            feature_columns=self.value("feature_cols"), label_columns=self.value("label_cols"),
            input_shapes=self.value("input_shapes"),
        )  # fmt: skip

    @staticmethod
    def train(work: Work, payload: bytes) -> Trained | None:
        """See RingEstimator."""
        return _Training(work, payload).run()


class _Training:
    """The training on one rank."""

    def __init__(self, work: Work, payload: bytes) -> None:
        import ringcore_torch as ring

        ring.init()
        torch.manual_seed(work.seed)
        self._ring, self._work = ring, work
        self._model, self._plain, losses, makers, self._metrics = unpickle(payload)
        self._kind = kind_of(self._model)
        self._losses = losses or [make() for make in makers]
        count = len(work.params["label_cols"])
        self._losses = self._losses * count if len(self._losses) == 1 else self._losses
        self._loss_weights = work.params["loss_weights"] or [1.0 / count] * count
        if not len(self._losses) == len(self._loss_weights) == count:
            raise ValueError(
                f"there are {count} label(s), {len(self._losses)} loss(es) and {len(self._loss_weights)} weight(s)"
            )
        gpu = work.params["use_gpu"] and torch.cuda.is_available()
        self._device = torch.device("cuda", ring.local_rank() % torch.cuda.device_count()) if gpu else "cpu"
        self._step = work.params["train_minibatch_fn"] or _Step(work.params["backward_passes_per_step"])
        self._history: list[dict[str, Any]] = []
        self._shapes: Any = None

    def run(self) -> Trained | None:
        """All epochs."""
        ring, work = self._ring, self._work
        training, validating = work.training(), work.validating()
        saved = work.saved()
        state = self._plain.state_dict()
        if saved is not None:
            self._history, state = saved.history, saved.state["optimizer"]
            self._model.load_state_dict(saved.state["model"])
            training.skip(saved.epochs)
        self._model.to(self._device)
        self._plain.load_state_dict(state)  # to where the parameters are now
        ring.broadcast_parameters(self._model.state_dict(), root_rank=0)
        ring.broadcast_optimizer_state(self._plain, root_rank=0)
        compression = work.params["gradient_compression"]
        optimizer = ring.DistributedOptimizer(
            self._plain,
            named_parameters=self._model.named_parameters(),
            backward_passes_per_step=work.params["backward_passes_per_step"],
            **({"compression": compression} if compression else {}),
        )
        for epoch in range(len(self._history), work.params["epochs"]):
            told = {"epoch": epoch, "train": self._epoch(training, optimizer)}
            if validating is not None:
                with torch.no_grad():
                    told["validation"] = self._epoch(validating, None)
            self._history.append(told)
            if ring.rank() == 0:
                work.tell(epoch, _flat(told))
                work.save(Checkpoint(epoch + 1, self._history, self._state(optimizer)))
        return Trained(_bytes_of(self._model.state_dict()), self._history, self._shapes) if ring.rank() == 0 else None

    def _state(self, optimizer: Any) -> dict[str, Any]:
        return {"model": self._model.state_dict(), "optimizer": optimizer.state_dict()}

    def _epoch(self, batches: Batches, optimizer: Any) -> dict[str, Any]:
        """Train or validate; the averages of all ranks."""
        self._model.train(optimizer is not None)
        rows, total, measured = 0, 0.0, torch.zeros(len(self._metrics), dtype=torch.float64)
        for batch in batches.epoch():
            inputs, labels, weights = self._tensors(batch)
            if optimizer is not None:
                outputs, loss = self._step(self._model, optimizer, self._loss, inputs, labels, weights)
            else:
                outputs = _outputs(self._model(*inputs))
                loss = self._loss(outputs, labels, weights)
            count = len(batch.labels[0])
            rows += count
            total += count * float(torch.as_tensor(loss).detach())
            if self._metrics:
                measured += count * self._measure(outputs, labels)
            if self._shapes is None:
                self._shapes = shapes_of([output.detach().cpu().numpy() for output in outputs])
        sums = torch.tensor([rows, total, *measured.tolist()], dtype=torch.float64)
        rows, loss, *averages = self._ring.allreduce(sums, op=self._ring.Sum).tolist()
        names = [getattr(metric, "__name__", type(metric).__name__) for metric in self._metrics]
        return {"loss": loss / rows, "all_metrics": {n: a / rows for n, a in zip(names, averages, strict=True)}}

    @torch.no_grad()
    def _measure(self, outputs: list[torch.Tensor], labels: list[torch.Tensor]) -> torch.Tensor:
        """What the metrics say of a batch, of several outputs the mean."""
        pairs = list(zip(outputs, _fitting(outputs, labels), strict=True))
        return torch.tensor(
            [
                torch.stack([torch.as_tensor(metric(*pair)) for pair in pairs]).double().mean()
                for metric in self._metrics
            ],
            dtype=torch.float64,
        )

    def _tensors(self, batch: Batch) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor | None]:
        kind = self._kind
        inputs = [torch.from_numpy(array).to(self._device, kind) for array in batch.features]
        labels = [torch.from_numpy(array).to(self._device) for array in batch.labels]
        weights = None if batch.weights is None else torch.from_numpy(batch.weights).to(self._device, kind)
        return inputs, labels, weights

    def _loss(self, outputs: list[torch.Tensor], labels: list[torch.Tensor], weights: torch.Tensor | None) -> Any:
        each = zip(self._losses, outputs, _fitting(outputs, labels), strict=True)
        losses = [_one_loss(loss, output, label, weights) for loss, output, label in each]
        if self._loss_weights == [1.0]:  # Backward has two operations less.
            return losses[0]
        return sum(factor * loss for factor, loss in zip(self._loss_weights, losses, strict=True))


class _Step:
    """One batch: forward, backward, and the optimizer's step after so many of them."""

    def __init__(self, passes: int) -> None:
        self._passes = passes
        self._had = 0

    def __call__(
        self, model: Any, optimizer: Any, loss_of: Any, inputs: Any, labels: Any, weights: Any
    ) -> tuple[Any, Any]:
        if not self._had:
            optimizer.zero_grad()
        outputs = _outputs(model(*inputs))
        loss = loss_of(outputs, labels, weights)
        loss.backward()
        self._had = (self._had + 1) % self._passes
        if not self._had:
            optimizer.step()
        return outputs, loss


def _one_loss(loss: Any, output: torch.Tensor, label: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """The mean over rows; of each row's loss times its weight, if rows have weights."""
    if weights is None:
        mean: torch.Tensor = loss(output, label)
        return mean
    if isinstance(loss, torch.nn.Module):
        loss = copy.copy(loss)
        loss.reduction = "none"
        of_rows = loss(output, label)
    else:
        of_rows = loss(output, label, reduction="none")
    weighted: torch.Tensor = (of_rows.reshape(len(weights), -1).mean(1) * weights).mean()
    return weighted


def _fitting(outputs: list[torch.Tensor], labels: list[torch.Tensor]) -> list[torch.Tensor]:
    """Labels as losses want them: like the output where it has as many values, or else numbers of classes."""
    if len(outputs) != len(labels):
        raise ValueError(f"the model has {len(outputs)} output(s), and there are {len(labels)} label column(s)")
    return [
        label.reshape(output.shape).to(output.dtype) if label.numel() == output.numel() else label.long()
        for output, label in zip(outputs, labels, strict=True)
    ]


def _outputs(found: Any) -> list[torch.Tensor]:
    return list(found) if isinstance(found, (tuple, list)) else [found]


def kind_of(model: Any) -> torch.dtype:
    """The type of numbers that a model takes: that of its parameters."""
    return next((value.dtype for value in model.parameters() if value.is_floating_point()), torch.get_default_dtype())


def predict_with(model: Any, input_shapes: Any) -> Predict:
    """A function from features to outputs."""
    kind = kind_of(model)

    def predict(features: Arrays) -> Arrays:
        shaped = features if not input_shapes else [a.reshape(s) for a, s in zip(features, input_shapes, strict=True)]
        with torch.no_grad():
            found = _outputs(model(*(torch.as_tensor(array).to(kind) for array in shaped)))
        return [output.numpy() for output in found]

    return predict


def _flat(told: dict[str, Any]) -> dict[str, float]:
    """What was measured, by names: what is of the validation begins with `val_`."""
    parts = [(prefix, told[part]) for prefix, part in (("", "train"), ("val_", "validation")) if part in told]
    return {
        f"{prefix}{name}": value
        for prefix, part in parts
        for name, value in {"loss": part["loss"], **part["all_metrics"]}.items()
    }


def _several(value: Any) -> list[Any] | None:
    if value is None:
        return None
    several = isinstance(value, Iterable) and not callable(value) and not isinstance(value, str)
    return list(value) if several else [value]


def _bytes_of(state: Any) -> bytes:
    stream = io.BytesIO()
    torch.save({name: value.cpu() for name, value in state.items()}, stream)
    return stream.getvalue()
