"""Keras on JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ringcore import Average, InvalidArgument, Min, Sum
from ringcore.adapter import Exchange, ProcessSet
from ringcore_jax import Compression, allreduce, allreduce_gradients
from ringcore_jax import allgather as gathered
from ringcore_jax import reducescatter as scattered
from ringcore_jax.exchanging import Exchanging

from ringcore_keras.options import Options


def reduce_gradients(gradients: Sequence[Any], names: Sequence[str], options: Options) -> list[Any]:
    """The gradients of all ranks."""
    if isinstance(options.compression, Exchange):
        exchanging = Exchanging(
            options.compression, f"{options.name}.exchange", options.process_set, "DistributedOptimizer",
            options.arguments,
        )  # fmt: skip
        return exchanging.average(names, gradients)
    title = names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
    reduced: list[Any] = allreduce_gradients(
        list(gradients), op=options.op, name=f"{options.name}.{title}",
        compression=getattr(Compression, options.compression),
        gradient_predivide_factor=options.gradient_predivide_factor, process_set=options.process_set,
    )  # fmt: skip
    return reduced


def divided(gradient: Any, divisor: float) -> Any:
    """A gradient that stays a rank's own, as a part of an average."""
    return gradient / divisor


def allreduce_sum(tensor: Any, name: str, process_set: ProcessSet) -> Any:
    """The sum over the ranks of a process set."""
    return allreduce(tensor, op=Sum, name=name, process_set=process_set)


def reducescatter(row: Any, name: str, process_set: ProcessSet) -> Any:
    """This rank's share of the average of all ranks' rows."""
    return scattered(row, op=Average, name=name, process_set=process_set)


def allgather(share: Any, name: str, process_set: ProcessSet) -> Any:
    """All ranks' shares, in a row."""
    return gathered(share, name=name, process_set=process_set)


def all_true(flag: Any, name: str, process_set: ProcessSet) -> Any:
    """Whether a boolean scalar is true on all ranks."""
    return allreduce(flag.astype(jnp.uint8), op=Min, name=name, process_set=process_set).astype(bool)


def on_host(who: str, function: Callable[..., list[Any]], tensors: Sequence[Any], _like: Any) -> list[Any]:
    """What Python makes of tensors: arrays of the dtypes and shapes of some variables, as tensors."""
    if any(isinstance(tensor, jax.core.Tracer) for tensor in tensors):
        raise InvalidArgument(
            f"{who} waits for updates that JAX makes in a thread beside, and a compiled step would hold the threads "
            "that these need; compile the model with run_eagerly=True"
        )
    return [jnp.array(found) for found in function(*map(np.asarray, tensors))]


def without_gradients() -> AbstractContextManager[Any]:
    """Nothing is recorded in here."""
    return nullcontext()
