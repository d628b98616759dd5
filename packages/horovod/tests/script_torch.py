"""What Horovod's operations on tensors of PyTorch give, as Horovod gives it: rank 0 writes what it found."""

import json
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch

os.environ["HOROVOD_CYCLE_TIME"] = "0"
hvd.init()
rank = hvd.rank()
CHECKS: list[Callable[[], Any]] = []


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    CHECKS.append(function)
    return function


def own(*rows: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A tensor that requires a gradient."""
    return torch.tensor(rows, dtype=dtype, requires_grad=True)


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


def gradient(result: torch.Tensor, tensor: torch.Tensor, weights: list[float]) -> list[float]:
    """Of the tensor, where that of the result is `weights`, times 1 and 2 on the ranks."""
    (found,) = torch.autograd.grad(result, [tensor], torch.tensor(weights, dtype=tensor.dtype) * (rank + 1))
    return found.tolist()


@check
def integers() -> Any:
    x = torch.tensor([3, -3]) * rank
    both = hvd.grouped_allreduce([x, x / 2])
    scaled = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=2.5)
    share = hvd.reducescatter(torch.tensor([5, -5]), op=hvd.Average, prescale_factor=0.5)
    in_place = x.clone()
    assert hvd.allreduce_(in_place, average=False, prescale_factor=0.5) is in_place
    handle = hvd.grouped_reducescatter_async([x, x], postscale_factor=0.7)
    shares = [part.tolist() for part in hvd.synchronize(handle)]
    small = hvd.allreduce(torch.tensor([100], dtype=torch.uint8), average=True, prescale_factor=0.5)
    found = hvd.allreduce(x), *both, scaled, share, in_place, small
    return [tensor.tolist() for tensor in found] + shares


@check
def arguments() -> Any:
    ones = torch.ones(2)
    named = hvd.allreduce(tensor=ones, average=False), hvd.broadcast(tensor=ones * rank, root_rank=1)
    behind = hvd.grouped_allgather([ones], "behind"), hvd.reducescatter(ones, "share", hvd.Compression.fp16, hvd.Sum)
    rows, counts = hvd.synchronize(hvd.alltoall_async(ones * rank))
    return [tensor.tolist() for tensor in (*named, *behind[0], behind[1], rows, counts)]


@check
def gradient_of_allgather() -> Any:
    x = own(*[1.0] * (rank + 1))
    return gradient(hvd.allgather(x), x, [2.0, 4.0, 6.0])


@check
def gradients_of_grouped_allgather() -> Any:
    x, y = own(1.0), own(2.0, 3.0)
    gathered = hvd.grouped_allgather([x, y])
    return gradient(gathered[0], x, [2.0, 4.0]), gradient(gathered[1], y, [1.0, 2.0, 3.0, 4.0])


@check
def gradient_of_broadcast() -> Any:
    x = own(1.0)
    return gradient(hvd.broadcast(x, 0), x, [2.0]), gradient(hvd.broadcast(x, 1), x, [2.0])


@check
def gradient_of_allreduce() -> Any:
    x = own(1.0)
    return [gradient(hvd.allreduce(x, op=op, prescale_factor=3.0), x, [2.0]) for op in (hvd.Average, hvd.Sum, hvd.Max)]


@check
def gradient_of_reducescatter() -> Any:
    x = own(1.0, 2.0)
    found = [gradient(hvd.reducescatter(x, op=op, postscale_factor=3.0), x, [1.0]) for op in (hvd.Average, hvd.Sum)]
    (share,) = hvd.grouped_reducescatter([x], op=hvd.Sum)
    return [*found, gradient(share, x, [1.0])]


@check
def gradient_of_alltoall() -> Any:
    x = own(1.0, 2.0, 3.0)
    rows, counts = hvd.alltoall(x, torch.tensor([1, 2], dtype=torch.int32))
    return gradient(rows, x, [1.0] * (2 * (rank + 1))), counts.tolist(), str(counts.dtype)


@check
def second_derivatives() -> Any:
    def of(run: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
        x = own(1.0, 2.0)
        (first,) = torch.autograd.grad(run(x * x * x).square().sum(), [x], create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), [x])
        return second.tolist()

    return [
        of(lambda x: hvd.allreduce(x, op=hvd.Sum)),
        of(hvd.allgather),
        of(lambda x: hvd.broadcast(x, 0)),
        of(hvd.alltoall),
        of(lambda x: hvd.reducescatter(x, op=hvd.Average)),
    ]


@check
def a_cycle_is_not_over_at_once() -> Any:
    os.environ["HOROVOD_CYCLE_TIME"] = "1e6"
    handle = hvd.allreduce_async(torch.ones(2), name="twice")
    hvd.barrier()
    polled = hvd.poll(handle)
    try:
        hvd.allreduce_async(torch.ones(2), name="twice")
        refused = ""
    except ValueError as error:
        refused = str(error)
    gathered = hvd.synchronize(hvd.allgather_async(torch.ones(1), name="twice"))
    hvd.synchronize(handle)
    try:
        hvd.reducescatter_async(torch.tensor(1.0), name="again")
    except ValueError:
        hvd.synchronize(hvd.reducescatter_async(torch.ones(2), name="again"))
    again = hvd.allreduce(torch.ones(1), name="twice")
    os.environ["HOROVOD_CYCLE_TIME"] = "0"
    handle = hvd.allreduce_async(torch.ones(2), name="poll")
    return polled, refused[:19], gathered.tolist(), again.tolist(), eventually(lambda: hvd.poll(handle))


@check
def splits_of_another_dtype() -> Any:
    try:
        hvd.alltoall(torch.ones(2), torch.ones(2))
    except ValueError as error:
        return str(error)


@check
def sparse_gradients() -> Any:
    found = []
    for as_dense in (False, True):
        model = torch.nn.Embedding(3, 2, sparse=True)
        optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, sparse_as_dense=as_dense)
        model(torch.tensor([rank])).sum().backward()
        optimizer.step()
        grad = model.weight.grad
        found.append((grad.is_sparse, grad.to_dense().tolist()))
    return found


@check
def the_optimizer() -> Any:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.1, momentum=0.9)
    try:
        hvd.DistributedOptimizer(optimizer, [("same", model.weight), ("same", model.bias)])
    except ValueError as error:
        assert "same" in str(error)
    else:
        raise AssertionError("two parameters have one name")
    optimizer = hvd.DistributedOptimizer(optimizer)
    names = sorted(optimizer._parameter_names.values())
    hvd.broadcast_optimizer_state(optimizer, 0)
    before = model.weight.grad.tolist()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    return names, before, [str(warning.message)[:63] for warning in caught]


@check
def timeline() -> Any:
    path = sys.argv[1] + ".timeline"
    hvd.start_timeline(path, mark_cycles=True)
    hvd.allreduce(torch.ones(3), name="seen")
    assert rank == 1 or eventually(lambda: "CYCLE_START" in pathlib.Path(path).read_text())
    hvd.barrier()
    hvd.stop_timeline()
    if rank == 0:
        events = json.loads(pathlib.Path(path).read_text())
        (row,) = [event["pid"] for event in events if event.get("args", {}).get("name") == "allreduce.seen"]
        labels = {event["name"] for event in events if event["ph"] == "X" and event["pid"] == row}
        return sorted(labels & {"NEGOTIATE_ALLREDUCE", "ALLREDUCE"}), events[0]["name"]


found = {function.__name__: function() for function in CHECKS}
if rank == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)
hvd.shutdown()
