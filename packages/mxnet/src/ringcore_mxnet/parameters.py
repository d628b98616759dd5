"""Give all ranks the same start: the parameters of one of them."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import DeferredInitializationError, Parameter
from ringcore import InvalidArgument, adapter
from ringcore.adapter import ProcessSet, global_process_set

from ringcore_mxnet._operations import broadcast_


def broadcast_parameters(
    params: Mapping[str, Any],
    root_rank: int = 0,
    prefix: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite parameters with the root's, in place, and wait for them.

    Those whose shape is not known yet are overwritten when the first batch initialises them.

    Args:
        params: `net.collect_params()` of Gluon, or a dict of arrays such as `arg_params` and `aux_params` of
            `module.get_params()`, which goes back with `module.set_params(arg_params, aux_params)`.
        root_rank: Rank whose values win.
        prefix: Put before the names; tells two models with the same names apart.
        process_set: The ranks that take part.

    Raises:
        InvalidArgument: `params` is no dict of parameters.
        MismatchError: The models of the ranks differ. On every rank.
    """
    if not isinstance(params, Mapping | mx.gluon.ParameterDict):
        raise InvalidArgument(
            f"broadcast_parameters takes net.collect_params() or a dict of arrays, not {type(params).__name__}"
        )
    if process_set.size() == 1:
        return
    arrays: list[Any] = []
    for name, param in params.items():
        full = f"broadcast_parameters.{prefix or ''}{name}"
        if isinstance(param, mx.nd.NDArray):
            arrays.append(broadcast_(param, root_rank, name=full, process_set=process_set))
        elif isinstance(param, Parameter):
            try:
                arrays += _broadcast_all(param, root_rank, full, process_set)
            except DeferredInitializationError:
                _broadcast_when_initialised(param, root_rank, full, process_set)
        else:
            raise InvalidArgument(f"broadcast_parameters: '{name}' is no parameter, but {type(param).__name__}")
    for array in arrays:
        array.wait_to_read()


def _broadcast_all(param: Parameter, root_rank: int, name: str, process_set: ProcessSet) -> list[Any]:
    return [
        broadcast_(data, root_rank, name=f"{name}.{i}" if i else name, process_set=process_set)
        for i, data in enumerate(param.list_data())
    ]


def _broadcast_when_initialised(param: Parameter, root_rank: int, name: str, process_set: ProcessSet) -> None:
    initialise = type(param)._init_impl

    def initialise_and_broadcast(self: Parameter, *args: Any, **options: Any) -> None:
        del self._init_impl  # once; a parameter that is initialised anew is the caller's business
        initialise(self, *args, **options)
        with mx.autograd.pause():
            _broadcast_all(self, root_rank, name, process_set)

    param._init_impl = types.MethodType(initialise_and_broadcast, param)


def check_weights(
    weights: Mapping[str, Any], process_set: ProcessSet, *, name: str, remedy: str, again: bool = False
) -> None:
    """Compare arrays of all ranks by their hashes. See `adapter.check_weights`."""
    held = [np.ascontiguousarray(weight.asnumpy()) for weight in weights.values()]
    hashes = [adapter.hash_of(each.ctypes.data, each.nbytes) for each in held]
    adapter.check_weights(list(weights), hashes, process_set, name=name, remedy=remedy, again=again)
