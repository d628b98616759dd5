"""`KerasEstimator`: a model of Keras 3 on any of its backends, trained on ranks by `fit(df)`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import keras
import numpy as np
from ringcore.adapter import unpickle

from ringcore_spark.ml.backend import SparkBackend
from ringcore_spark.ml.estimator import RingEstimator, Trained
from ringcore_spark.ml.model import Predict, RingModel
from ringcore_spark.ml.params import Given, with_params
from ringcore_spark.ml.work import Arrays, Batches, Checkpoint, Work

__all__ = ["KerasEstimator", "KerasModel", "SparkBackend"]

_OBJECTS = {"custom_objects": Given("names and classes of what is not Keras' own", {})}


@with_params(_OBJECTS)
class KerasModel(RingModel):
    """A Transformer around a trained model of Keras."""

    def predictor(self) -> Callable[[], Predict]:
        """See RingModel."""
        data, objects, backend = file_of(self.value("model")), self.value("custom_objects"), keras.config.backend()

        def make() -> Predict:
            import os

            os.environ["KERAS_BACKEND"] = backend  # before this process imports Keras
            from ringcore_spark.keras import predict_with

            return predict_with(data, objects)

        return make

    def packed(self, params: dict[str, Any]) -> dict[str, Any]:
        """See Saved: models of Keras are files."""
        return _packed(params)

    def unpacked(self, params: dict[str, Any]) -> dict[str, Any]:
        """See Saved."""
        return _unpacked(params)


@with_params({**_OBJECTS, "backend_env": Given("variables for the ranks", {})})
class KerasEstimator(RingEstimator):
    """Trains a model of Keras: its inputs are the feature columns, its outputs are compared with the label columns.

    With no `loss`, the model is compiled already. The learning rate is what the optimizer has; it is not multiplied by
    the number of ranks.

    Args:
        **params: See `table`.
    """

    def payload(self) -> bytes:
        """See RingEstimator."""
        model, optimizer = self.value("model"), self.value("optimizer")
        if not isinstance(model, keras.Model):
            raise ValueError(f"model= is a {type(model).__name__}, and not a keras.Model (of Keras 3)")
        if optimizer is not None and not isinstance(optimizer, (str, keras.optimizers.Optimizer)):
            raise ValueError(f"optimizer= is a {type(optimizer).__name__}, and not an optimizer of Keras 3")
        if self.value("loss") is None and not model.compiled:
            raise ValueError("the model is not compiled: give loss= and optimizer=, or call model.compile(...)")
        if self.value("loss") is not None and optimizer is None and not model.compiled:
            raise ValueError("give an optimizer= too, or a model that is compiled")
        names = ("optimizer", "loss", "loss_weights", "metrics")
        parts = {name: _configured(self.value(name)) for name in names}
        told = _Payload(file_of(model), parts, self.value("callbacks"), self.value("custom_objects"))
        data: bytes = cloudpickle.dumps(told)
        return data

    def environ(self) -> Mapping[str, str]:
        """See RingEstimator: ranks have the backend of the driver."""
        return {"KERAS_BACKEND": keras.config.backend(), **self.value("backend_env")}

    def trained_model(self, trained: Trained, run_id: str) -> KerasModel:
        """See RingEstimator."""
        model = _model_of(file_of(self.value("model")), self.value("custom_objects"))
        model.set_weights(trained.state)
        return KerasModel(
            model=model, history=trained.history, run_id=run_id, custom_objects=self.value("custom_objects"),
            feature_columns=self.value("feature_cols"), label_columns=self.value("label_cols"),
        )  # fmt: skip

    def packed(self, params: dict[str, Any]) -> dict[str, Any]:
        """See Saved: models of Keras are files, and optimizers are their configuration."""
        return _packed(params)

    def unpacked(self, params: dict[str, Any]) -> dict[str, Any]:
        """See Saved."""
        return _unpacked(params)

    @staticmethod
    def train(work: Work, payload: bytes) -> Trained | None:
        """See RingEstimator."""
        import ringcore_keras as ring

        ring.init()
        keras.utils.set_random_seed(work.seed)
        told: _Payload = unpickle(payload)
        model = _compiled(told, work)
        training, validating, keeper = work.training(), work.validating(), _Keeper(work, ring.rank())
        saved = work.saved()
        if saved is not None:
            keeper.take(saved, model)
            training.skip(saved.epochs)
        model.fit(
            _fed(training, model), steps_per_epoch=training.steps, shuffle=False,
            initial_epoch=saved.epochs if saved else 0, epochs=work.params["epochs"],
            validation_data=None if validating is None else _fed(validating, model),
            validation_steps=None if validating is None else validating.steps,
            verbose=0,
            callbacks=[
                ring.callbacks.BroadcastGlobalVariablesCallback(0), ring.callbacks.MetricAverageCallback(),
                *told.callbacks, keeper,
            ],
        )  # fmt: skip
        return Trained(model.get_weights(), keeper.history, None) if ring.rank() == 0 else None


class _Payload(NamedTuple):
    model: bytes
    parts: dict[str, Any]
    callbacks: list[Any]
    custom_objects: dict[str, Any]


class _Keeper(keras.callbacks.Callback):
    """Keeps a checkpoint after each epoch."""

    def __init__(self, work: Work, rank: int) -> None:
        super().__init__()
        self._work = work
        self._rank = rank
        self.history: dict[str, list[float]] = {}

    def take(self, saved: Checkpoint, model: Any) -> None:
        """Go on from one."""
        self.history = saved.history
        model.set_weights(saved.state["model"])
        model.optimizer.build(model.trainable_variables)
        for variable, value in zip(model.optimizer.variables, saved.state["optimizer"], strict=True):
            variable.assign(value)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keep one."""
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(float(value))
        if self._rank == 0:
            self._work.tell(epoch, {name: float(value) for name, value in (logs or {}).items()})
            values = [keras.ops.convert_to_numpy(variable) for variable in self.model.optimizer.variables]
            state = {"model": self.model.get_weights(), "optimizer": values}
            self._work.save(Checkpoint(epoch + 1, self.history, state))


def _compiled(told: _Payload, work: Work) -> Any:
    """The model with a distributed optimizer."""
    import ringcore_keras as ring

    model = _model_of(told.model, told.custom_objects)
    parts = {name: _made(value, told.custom_objects) for name, value in told.parts.items()}
    optimizer = parts.pop("optimizer") or model.optimizer
    compression = work.params["gradient_compression"]
    wrapped = ring.DistributedOptimizer(
        optimizer,
        backward_passes_per_step=work.params["backward_passes_per_step"],
        **({"compression": compression} if compression else {}),
    )
    if parts["loss"] is None:
        model.optimizer = wrapped
    else:
        model.compile(optimizer=wrapped, **parts)
    return model


def _fed(batches: Batches, model: Any) -> Iterator[Any]:
    """Batches as `fit` takes them."""
    while True:
        for batch in batches.epoch():
            features, labels = tuple(_like_inputs(model, batch.features)), tuple(batch.labels)
            pair = (_alone(features), _alone(labels))
            yield pair if batch.weights is None else (*pair, batch.weights)


def _alone(arrays: tuple[Any, ...]) -> Any:
    return arrays[0] if len(arrays) == 1 else arrays


def _like_inputs(model: Any, arrays: Arrays) -> Arrays:
    """Arrays with the shapes that the model wants of them."""
    shapes = [tuple(given.shape[1:]) for given in getattr(model, "inputs", None) or ()]
    if len(shapes) != len(arrays):
        return arrays
    return [a if None in shape else a.reshape(-1, *shape) for a, shape in zip(arrays, shapes, strict=True)]


def predict_with(data: bytes, custom_objects: Mapping[str, Any]) -> Predict:
    """A function from features to outputs."""
    model = _model_of(data, custom_objects)

    def predict(features: Arrays) -> Arrays:
        found = model(_alone(tuple(_like_inputs(model, features))), training=False)
        several = found if isinstance(found, (tuple, list)) else [found]
        return [np.asarray(keras.ops.convert_to_numpy(output)) for output in several]

    return predict


def file_of(model: Any) -> bytes:
    """A model as the bytes of a `.keras` file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        model.save(path)
        return path.read_bytes()


def _model_of(data: bytes, custom_objects: Mapping[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        path.write_bytes(data)
        return keras.saving.load_model(path, custom_objects=dict(custom_objects))


class _Configuration(NamedTuple):
    """An object of Keras, which is pickled as what it is made of."""

    of: Any


def _configured(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_configured(one) for one in value]
    if isinstance(value, dict):
        return {name: _configured(one) for name, one in value.items()}
    return _Configuration(keras.saving.serialize_keras_object(value)) if hasattr(value, "get_config") else value


def _made(value: Any, custom_objects: Mapping[str, Any]) -> Any:
    if isinstance(value, _Configuration):
        return keras.saving.deserialize_keras_object(value.of, custom_objects=dict(custom_objects))
    if isinstance(value, list):
        return [_made(one, custom_objects) for one in value]
    if isinstance(value, dict):
        return {name: _made(one, custom_objects) for name, one in value.items()}
    return value


def _packed(params: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {
        name: _configured(params[name]) for name in ("optimizer", "loss", "metrics") if name in params
    }
    return {**params, **kept, **({"model": file_of(params["model"])} if "model" in params else {})}


def _unpacked(params: dict[str, Any]) -> dict[str, Any]:
    objects = params.get("custom_objects", {})
    made: dict[str, Any] = {
        name: _made(params[name], objects) for name in ("optimizer", "loss", "metrics") if name in params
    }
    return {**params, **made, **({"model": _model_of(params["model"], objects)} if "model" in params else {})}
