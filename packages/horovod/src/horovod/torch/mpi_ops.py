"""Horovod's operations on tensors: a table of them, by the arguments that they take and what carries them out."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import ringcore_torch as ring
import torch
from ringcore import (
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from ringcore.adapter import ReduceOp
from ringcore_torch import Adasum, Average, Max, Min, Product, Sum

from horovod.common.basics import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from horovod.common.operations import chosen_op
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.timeline import start_timeline, stop_timeline
from horovod.torch import _differentiable as differentiable
from horovod.torch._operations import (
    ALLGATHER,
    ALLREDUCE,
    ALLREDUCE_,
    ALLTOALL,
    BROADCAST,
    BROADCAST_,
    REDUCESCATTER,
    Handle,
    Options,
    Verb,
    start,
)
from horovod.torch.compression import Compression

__all__ = [
    "Adasum",
    "Average",
    "Handle",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

_P = ParamSpec("_P")
_Run = Callable[[list[Any], Options], Any]


def _named(function: Callable[..., Any], options: Callable[..., Options], first: str) -> Callable[..., Any]:
    """Show the arguments of `options` behind the tensors."""
    behind = inspect.signature(options)
    tensors = inspect.Parameter(first, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    function.__signature__ = behind.replace(  # type: ignore[attr-defined]
        parameters=[tensors, *behind.parameters.values()], return_annotation=inspect.Signature.empty
    )
    function.__doc__ = options.__doc__
    return function


def _of_one(options: Callable[_P, Options], run: _Run) -> Callable[Concatenate[Any, _P], Any]:
    """A function that takes a tensor, and behind it what `options` takes."""

    def call(tensor: Any, *args: _P.args, **named: _P.kwargs) -> Any:
        found = run([tensor], options(*args, **named))
        if isinstance(found, list):
            return found[0]
        found.is_group = False
        return found

    return _named(call, options, "tensor")


def _of_group(options: Callable[_P, Options], run: _Run) -> Callable[Concatenate[Any, _P], Any]:
    """A function that takes several tensors, of which all are reduced or none, and behind them what `options` takes."""

    def call(tensors: Any, *args: _P.args, **named: _P.kwargs) -> Any:
        return run(list(tensors), options(*args, **named))

    return _named(call, options, "tensors")


def _started(verb: Verb) -> _Run:
    return functools.partial(start, verb)


def _done(verb: Verb) -> _Run:
    return lambda tensors, options: start(verb, tensors, options, waits=True).results()


def _reduction(
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Options:
    """Reduce by `op`, or `average`, its old name; factors are multiplied into the tensors and into the results."""
    own = {"op": chosen_op(op, average), "prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return Options(name, process_set, own)


def _compressed_reduction(
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Options:
    """Reduce by `op`, or `average`, its old name; sent as `compression` says; differentiable."""
    options = _reduction(average, name, op, prescale_factor, postscale_factor, process_set)
    return dataclasses.replace(options, compression=compression)


def _scatter(
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Options:
    """Reduce, and give each rank its share of the rows."""
    return _reduction(None, name, op, prescale_factor, postscale_factor, process_set)


def _compressed_scatter(
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Options:
    """Reduce, and give each rank its share of the rows; sent as `compression` says; differentiable."""
    return _compressed_reduction(None, name, compression, op, prescale_factor, postscale_factor, process_set)


def _gather(name: str | None = None, process_set: ProcessSet = global_process_set) -> Options:
    """All ranks' rows."""
    return Options(name, process_set)


def _of_root(root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Options:
    """The root's values."""
    return Options(name, process_set, {"root_rank": root_rank})


def _split(splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> Options:
    """Send rows to every rank: `splits` of them, with which a pair is returned, or an equal share."""
    return Options(name, process_set, {"splits": splits})


def _exchange(tensors: list[Any], options: Options) -> list[Any]:
    pairs = differentiable.alltoall(tensors, options)
    return pairs if options.own["splits"] is not None else [rows for rows, _ in pairs]


allreduce = _of_one(_compressed_reduction, differentiable.allreduce)
allreduce_ = _of_one(_reduction, _done(ALLREDUCE_))
allreduce_async = _of_one(_reduction, _started(ALLREDUCE))
allreduce_async_ = _of_one(_reduction, _started(ALLREDUCE_))
grouped_allreduce = _of_group(_compressed_reduction, differentiable.allreduce)
grouped_allreduce_ = _of_group(_reduction, _done(ALLREDUCE_))
grouped_allreduce_async = _of_group(_reduction, _started(ALLREDUCE))
grouped_allreduce_async_ = _of_group(_reduction, _started(ALLREDUCE_))
allgather = _of_one(_gather, differentiable.allgather)
allgather_async = _of_one(_gather, _started(ALLGATHER))
grouped_allgather = _of_group(_gather, differentiable.allgather)
grouped_allgather_async = _of_group(_gather, _started(ALLGATHER))
broadcast = _of_one(_of_root, differentiable.broadcast)
broadcast_ = _of_one(_of_root, _done(BROADCAST_))
broadcast_async = _of_one(_of_root, _started(BROADCAST))
broadcast_async_ = _of_one(_of_root, _started(BROADCAST_))
alltoall = _of_one(_split, _exchange)
alltoall_async = _of_one(_split, _started(ALLTOALL))
reducescatter = _of_one(_compressed_scatter, differentiable.reducescatter)
reducescatter_async = _of_one(_scatter, _started(REDUCESCATTER))
grouped_reducescatter = _of_group(_compressed_scatter, differentiable.reducescatter)
grouped_reducescatter_async = _of_group(_scatter, _started(REDUCESCATTER))


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: ReduceOp | None, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start the reduction of a sparse tensor; returns a function that waits for it."""
    return ring.sparse_allreduce_async(tensor, op=chosen_op(op, None), name=name, process_set=process_set)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it."""
    ring.barrier(process_set=process_set)


def join(device: int = -1) -> int:  # noqa: ARG001 - for scripts that pass it
    """Take part in the others' allreduces with zeros until all ranks have called it; returns the last to join."""
    return ring.join()


def poll(handle: Handle) -> bool:
    """Whether an operation has ended, so that `synchronize` will not block."""
    return handle.done()


def synchronize(handle: Handle) -> Any:
    """Wait for an operation and return its result."""
    return handle.synchronize()
