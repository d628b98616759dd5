"""Elastic training of MXNet, see `ringcore.elastic`: a state of Gluon's nets and trainers, samplers and objects."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import DeferredInitializationError
from ringcore import ProcessSet, broadcast_object
from ringcore.elastic import (
    ElasticSampler,
    Handler,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    run,
)

from ringcore_mxnet.local import LocalSGDTrainer
from ringcore_mxnet.parameters import broadcast_parameters

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "MXNetState",
    "ObjectState",
    "State",
    "run",
]


def _has_values(param: Any) -> bool:
    """Not before the first batch, where its shape is not known."""
    try:
        param.data()
    except DeferredInitializationError:
        return False
    return True


def _save_net(net: Any, _kept: Any = None) -> dict[str, Any]:
    return {name: param.data().copy() for name, param in net.collect_params().items() if _has_values(param)}


def _restore_net(net: Any, kept: dict[str, Any]) -> None:
    params = net.collect_params()
    for name, value in kept.items():
        params[name].set_data(value)


def _save_trainer(trainer: Any, _kept: Any = None) -> Any:
    optimizer = trainer.optimizer
    states = trainer._updaters[0].get_states(dump_optimizer=False)
    progress = trainer.progress() if isinstance(trainer, LocalSGDTrainer) else None
    return states, dict(optimizer._index_update_count), optimizer.num_update, progress


def _restore_trainer(trainer: Any, kept: Any) -> None:
    states, counts, updates, progress = kept
    if progress is not None:
        trainer.take_over(progress)
    for updater in trainer._updaters:
        updater.set_states(states)
    trainer.optimizer._index_update_count.clear()
    trainer.optimizer._index_update_count.update(counts)
    trainer.optimizer.num_update = updates


def _sync_net(net: Any, process_set: ProcessSet) -> None:
    params = net.collect_params()
    own = {name: tuple(param.shape) for name, param in params.items() if _has_values(param)}
    shapes = broadcast_object(own, process_set=process_set)
    for name in shapes.keys() - own.keys():  # The others have had a batch.
        params[name].shape = shapes[name]
        params[name]._finish_deferred_init()
    broadcast_parameters({name: params[name] for name in shapes}, process_set=process_set)
    # All ranks get the others with the first batch, when the process set may be gone.
    broadcast_parameters({name: param for name, param in params.items() if name not in shapes})


def _describe_net(net: Any) -> dict[str, str]:
    # Not the shapes, which whoever has had no batch does not know.
    return {name: f"a parameter of {np.dtype(param.dtype).name}" for name, param in net.collect_params().items()}


_OF_NETS = Handler(_save_net, _restore_net, _sync_net, describe=_describe_net)
_OF_TRAINERS = Handler(
    _save_trainer,
    _restore_trainer,
    lambda trainer, process_set: _restore_trainer(
        trainer, broadcast_object(_save_trainer(trainer), process_set=process_set)
    ),
)


class MXNetState(ObjectState):
    """Keeps nets and trainers of Gluon, samplers, and other objects as they are.

    Args:
        net: Or several, by other names.
        trainer: Or several, by other names.
        attributes: By name; they become attributes of the state.
    """

    def __init__(self, net: Any = None, trainer: Any = None, **attributes: Any) -> None:
        super().__init__(**attributes, net=net, trainer=trainer)

    def handler_of(self, value: Any) -> Handler | None:  # noqa: D102
        if isinstance(value, mx.gluon.Block):
            return _OF_NETS
        return _OF_TRAINERS if isinstance(value, mx.gluon.Trainer) else super().handler_of(value)
