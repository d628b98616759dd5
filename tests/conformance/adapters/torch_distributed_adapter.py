"""torch.distributed with the backend "ring": the names that all adapters share, as calls of torch.distributed.

What the others do natively is written as a PyTorch user would: scaling by hand, sizes exchanged before uneven gathers.
"""

from __future__ import annotations

from types import SimpleNamespace

import ringcore
import torch
import torch.distributed as dist
from ringcore import ReduceOp

from conformance.adapters.torch_adapter import array, dtypes, tensor

__all__ = ["array", "collectives", "dtypes", "tensor"]

dist.init_process_group(  # the working directory is the job's
    "ring", store=dist.FileStore("store", ringcore.size()), rank=ringcore.rank(), world_size=ringcore.size()
)
_OPS = {
    ReduceOp.SUM: dist.ReduceOp.SUM, ReduceOp.AVERAGE: dist.ReduceOp.AVG, ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX, ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
}  # fmt: skip


class _Group:
    """A process set."""

    def __init__(self, ranks: list[int]) -> None:
        self.group = dist.new_group(ranks)
        self.ranks = ranks

    def included(self) -> bool:
        return dist.get_rank() in self.ranks


class _Done:
    """A handle: the work, and what it makes."""

    def __init__(self, work: dist.Work | None, result) -> None:
        self.work = work
        self.result = result


def synchronize(handle: _Done):
    if handle.work is not None:
        handle.work.wait()
    return handle.result()


def _of(process_set: _Group | None):
    return None if process_set is None else process_set.group


def allreduce_async_(
    tensor, *, op=ReduceOp.AVERAGE, name=None, prescale_factor=1.0, postscale_factor=1.0, process_set=None
) -> _Done:
    if prescale_factor != 1.0:
        tensor.mul_(prescale_factor)
    work = dist.all_reduce(tensor, _OPS[op], group=_of(process_set), async_op=True)
    return _Done(work, lambda: tensor.mul_(postscale_factor) if postscale_factor != 1.0 else tensor)


def allreduce_async(tensor, **options) -> _Done:
    return allreduce_async_(tensor.clone(), **options)


def allreduce_(tensor, **options):
    return synchronize(allreduce_async_(tensor, **options))


def allreduce(tensor, **options):
    return synchronize(allreduce_async(tensor, **options))


def grouped_allreduce_async_(tensors, *, op=ReduceOp.AVERAGE, name=None) -> _Done:
    with dist._coalescing_manager(async_ops=True) as coalesced:
        for tensor in tensors:
            dist.all_reduce(tensor, _OPS[op])
    return _Done(None, lambda: coalesced.wait() or tensors)


def grouped_allreduce_async(tensors, **options) -> _Done:
    return grouped_allreduce_async_([tensor.clone() for tensor in tensors], **options)


def allgather_async(tensor, *, name=None, process_set=None) -> _Done:
    group = _of(process_set)
    shapes = [None] * dist.get_world_size(group)
    dist.all_gather_object(shapes, tuple(tensor.shape), group=group)
    outputs = [tensor.new_empty(shape) for shape in shapes]
    return _Done(dist.all_gather(outputs, tensor, group=group, async_op=True), lambda: torch.cat(outputs))


def broadcast_async_(tensor, root_rank, *, name=None, process_set=None) -> _Done:
    return _Done(dist.broadcast(tensor, root_rank, group=_of(process_set), async_op=True), lambda: tensor)


def reduce_async(tensor, root_rank, *, op=ReduceOp.AVERAGE, name=None, process_set=None) -> _Done:
    total = tensor.clone()
    work = dist.reduce(total, root_rank, _OPS[op], group=_of(process_set), async_op=True)
    return _Done(work, lambda: total if dist.get_rank() == root_rank else None)


def gather_async(tensor, root_rank=0, *, name=None) -> _Done:
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([tensor.shape[0]]))
    is_root = dist.get_rank() == root_rank
    outputs = [tensor.new_empty((int(count), *tensor.shape[1:])) for count in counts] if is_root else None
    work = dist.gather(tensor, outputs, root_rank, async_op=True)
    return _Done(work, lambda: torch.cat(outputs) if is_root else None)


def scatter_async(tensor, root_rank=0, splits=None, *, name=None) -> _Done:
    size, is_root = dist.get_world_size(), dist.get_rank() == root_rank
    rows = torch.zeros(size, dtype=torch.int64)
    if is_root:
        rows[:] = tensor.shape[0] // size if splits is None else splits
    dist.broadcast(rows, root_rank)
    output = tensor.new_empty((int(rows[dist.get_rank()]), *tensor.shape[1:]))
    shares = list(tensor.split(rows.tolist())) if is_root else None
    return _Done(dist.scatter(output, shares, root_rank, async_op=True), lambda: output)


def reducescatter_async(tensor, *, op=ReduceOp.AVERAGE, name=None, process_set=None) -> _Done:
    group = _of(process_set)
    size, rows = dist.get_world_size(group), tensor.shape[0]
    shares = list(tensor.split([rows // size + (rank < rows % size) for rank in range(size)]))
    output = torch.empty_like(shares[dist.get_rank(group)])
    return _Done(dist.reduce_scatter(output, shares, _OPS[op], group=group, async_op=True), lambda: output)


def alltoall(tensor, splits=None, *, name=None):
    if splits is None:
        output = torch.empty_like(tensor)
        dist.all_to_all_single(output, tensor)
        return output
    received = torch.empty_like(splits)
    dist.all_to_all_single(received, splits)
    output = tensor.new_empty((int(received.sum()), *tensor.shape[1:]))
    dist.all_to_all_single(output, tensor, received.tolist(), splits.tolist())
    return output, received


def broadcast_object(value, root):
    objects = [value]
    dist.broadcast_object_list(objects, root)
    return objects[0]


def allgather_object(value):
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, value)
    return objects


def remove_process_set(process_set: _Group) -> None:
    if process_set.included():
        dist.destroy_process_group(process_set.group)


collectives = SimpleNamespace(
    add_process_set=_Group,
    allgather=lambda tensor, **options: synchronize(allgather_async(tensor, **options)),
    allgather_async=allgather_async,
    allgather_object=allgather_object,
    allreduce=allreduce,
    allreduce_=allreduce_,
    allreduce_async=allreduce_async,
    allreduce_async_=allreduce_async_,
    alltoall=alltoall,
    barrier=dist.barrier,
    broadcast=lambda tensor, root, **options: synchronize(broadcast_async_(tensor.clone(), root, **options)),
    broadcast_=lambda tensor, root, **options: synchronize(broadcast_async_(tensor, root, **options)),
    broadcast_async=lambda tensor, root, **options: broadcast_async_(tensor.clone(), root, **options),
    broadcast_async_=broadcast_async_,
    broadcast_object=broadcast_object,
    gather=lambda tensor, root=0: synchronize(gather_async(tensor, root)),
    gather_async=gather_async,
    grouped_allreduce=lambda tensors, **options: synchronize(grouped_allreduce_async(tensors, **options)),
    grouped_allreduce_=lambda tensors, **options: synchronize(grouped_allreduce_async_(tensors, **options)),
    grouped_allreduce_async=grouped_allreduce_async,
    grouped_allreduce_async_=grouped_allreduce_async_,
    join=ringcore.join,
    reduce=lambda tensor, root, **options: synchronize(reduce_async(tensor, root, **options)),
    reduce_async=reduce_async,
    reducescatter=lambda tensor, **options: synchronize(reducescatter_async(tensor, **options)),
    reducescatter_async=reducescatter_async,
    remove_process_set=remove_process_set,
    scatter=lambda tensor, root=0, splits=None: synchronize(scatter_async(tensor, root, splits)),
    scatter_async=scatter_async,
    synchronize=synchronize,
)
