"""Keras on PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from keras.ops import convert_to_numpy, convert_to_tensor
from ringcore import Average, InvalidArgument, Min, Sum, adapter
from ringcore.adapter import Exchange, ProcessSet, is_elastic, reduce_compressed, tell_untuned
from ringcore_torch import (
    Compression,
    allreduce,
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    synchronize,
)
from ringcore_torch import allgather as gathered
from ringcore_torch import reducescatter as scattered
from ringcore_torch.exchanging import array_of

from ringcore_keras.options import Options


def reduce_gradients(gradients: Sequence[Any], names: Sequence[str], options: Options) -> list[Any]:
    """The gradients of all ranks, in place where they are not compressed."""
    if isinstance(options.compression, Exchange):
        tell_untuned("Keras on PyTorch", f"{type(options.compression).__name__} sends in a way of its own")
        return _exchanged(options.compression, gradients, names, options)
    compression = getattr(Compression, options.compression)
    title = names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
    dealt = adapter.dealt(
        "Keras on PyTorch", f"{options.name}.{title}",
        [gradient.numel() * gradient.element_size() for gradient in gradients], options.process_set,
        whole=True, at_once=True, why_not="integers go in one operation" if compression.quantised else "",
    )  # fmt: skip
    now = dealt.begin_step()
    parts = [part for part in dealt.parts if part.way == now]
    arguments: dict[str, Any] = {
        "op": options.op, "prescale_factor": 1.0 / options.gradient_predivide_factor,
        "postscale_factor": options.gradient_predivide_factor, "process_set": options.process_set,
    }  # fmt: skip
    # In an elastic job what the sums are made of stays: they are made again when a rank is lost.
    start = grouped_allreduce_async if is_elastic() else grouped_allreduce_async_

    def name_of(part: adapter.Part) -> str:
        number = "" if part.siblings == 1 else f".{part.number}"
        return f"{options.name}.{title}{part.suffix}{number}"

    def reduce(sent: list[Any]) -> list[Any]:
        # Of equal priorities the first released is the most urgent.
        handles = [
            start(
                [sent[i] for i in part.indices], name=name_of(part),
                priority=adapter.priority_of(0) if part.at_once else 0, **arguments,
            )
            for part in parts
        ]  # fmt: skip
        results = list(sent)
        for part, handle in zip(parts, handles, strict=True):
            for i, result in zip(part.indices, synchronize(handle), strict=True):
                results[i] = result
        return results

    with torch.no_grad():
        if compression.quantised:
            return grouped_allreduce(gradients, name=name_of(parts[0]), compression=compression, **arguments)
        return reduce_compressed(compression, gradients, reduce)


def _exchanged(exchange: Exchange, gradients: Sequence[Any], names: Sequence[str], options: Options) -> list[Any]:
    """What stands for their averages, where they lie."""
    held = [gradient.detach().contiguous() for gradient in gradients]
    if on_gpu := [name for name, gradient in zip(names, held, strict=True) if not gradient.is_cpu]:
        raise InvalidArgument(
            f"the gradient of '{on_gpu[0]}' lies on a GPU, and {type(exchange).__name__} works in host memory; use "
            "Compression.fp16 or bf16 there"
        )
    arrays = {name: array_of(exchange, name, gradient) for name, gradient in zip(names, held, strict=True)}
    name = f"{options.name}.exchange"
    exchange.average_of_step(arrays, name, options.process_set, who="DistributedOptimizer", arguments=options.arguments)
    return held


def divided(gradient: Any, divisor: float) -> Any:
    """A gradient that stays a rank's own, as a part of an average."""
    return gradient / divisor


def allreduce_sum(tensor: Any, name: str, process_set: ProcessSet) -> Any:
    """The sum over the ranks of a process set."""
    return allreduce(tensor, op=Sum, name=name, process_set=process_set)


def reducescatter(row: Any, name: str, process_set: ProcessSet) -> Any:
    """This rank's share of the average of all ranks' rows."""
    with torch.no_grad():
        return scattered(row, op=Average, name=name, process_set=process_set)


def allgather(share: Any, name: str, process_set: ProcessSet) -> Any:
    """All ranks' shares, in a row."""
    with torch.no_grad():
        return gathered(share, name=name, process_set=process_set)


def all_true(flag: Any, name: str, process_set: ProcessSet) -> Any:
    """Whether a boolean scalar is true on all ranks."""
    return allreduce(flag.to(torch.uint8), op=Min, name=name, process_set=process_set).bool()


def on_host(who: str, function: Callable[..., list[Any]], tensors: Sequence[Any], _like: Any) -> list[Any]:
    """What Python makes of tensors: arrays of the dtypes and shapes of some variables, as tensors."""
    held = [tensor.detach() for tensor in tensors]
    if any(not tensor.is_cpu for tensor in held):
        raise InvalidArgument(f"the gradients lie on a GPU, and {who} steps in host memory; use DistributedOptimizer")
    return [convert_to_tensor(found) for found in function(*map(convert_to_numpy, held))]


def without_gradients() -> AbstractContextManager[Any]:
    """Nothing is recorded in here."""
    return torch.no_grad()
