"""Collectives, messages and groups of torch.distributed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import ONE_ON_A_GPU, THREE, THREE_OVER_TCP, TWO, TWO_ON_GPUS, Start, on

# Not torchrun's own timeout: what waits for something that never comes says so.
UNDER_TORCHRUN = Start(3, launcher="torchrun", variables=(("RINGCORE_TIMEOUT_S", "20"),))
ALL = on(TWO, THREE, THREE_OVER_TCP, TWO_ON_GPUS, UNDER_TORCHRUN)


def reduced(tensor: torch.Tensor, kind: Any) -> Any:
    dist.all_reduce(tensor, kind)
    return tensor.tolist()


@ALL
def test_reductions_of_every_kind() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    op = dist.ReduceOp
    assert reduced(torch.tensor([1 << rank]), op.BOR) == [(1 << size) - 1]
    assert reduced(torch.tensor([7, 1 << rank]), op.BAND) == [7, 0]
    assert reduced(torch.tensor([3]), op.BXOR) == [3 if size % 2 else 0]
    assert reduced(torch.tensor([rank == 0, False]), op.BOR) == [True, False]
    scaled = op.__new__(op)
    scaled.__setstate__((int(op.PREMUL_SUM.value), 0.5))
    assert reduced(torch.tensor([2.0 * rank]), scaled) == [sum(range(size))]
    assert reduced(torch.tensor([-1 - rank]), op.AVG) == [-(size * (size + 1) // 2 // size)]
    assert reduced(torch.tensor([1j * rank]), op.SUM) == [1j * sum(range(size))]


@ALL
def test_tensors_that_do_not_lie_as_they_count() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    turned = torch.arange(6.0).view(2, 3).t()
    dist.all_reduce(turned)
    assert torch.equal(turned, size * torch.arange(6.0).view(2, 3).t())
    negated = torch.empty(2, dtype=torch.int64)
    dist.reduce_scatter_single(negated, torch._neg_view(torch.full((2 * size,), 3 + rank)), dist.ReduceOp.AVG)
    assert negated.tolist() == [-((3 * size + sum(range(size))) // size)] * 2


@ALL
def test_reduce_changes_the_root_alone() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    own = torch.full((3,), float(rank))
    dist.reduce(own, size - 1)
    assert own.tolist() == [float(sum(range(size)) if rank == size - 1 else rank)] * 3


@ALL
def test_sizes_that_differ_between_the_ranks() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.empty(rank + 1)
    dist.reduce_scatter(mine, [torch.ones(index + 1) for index in range(size)])
    assert mine.tolist() == [float(size)] * (rank + 1)
    parts = [torch.empty(index, dtype=torch.complex64) for index in range(size)]
    dist.all_gather(parts, torch.full((rank,), 1j * rank, dtype=torch.complex64))
    assert [part.tolist() for part in parts] == [[1j * index] * index for index in range(size)]


@ALL
def test_results_go_into_a_leaf() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    leaf = torch.nn.Parameter(torch.full((2,), float(rank)))
    dist.reduce(leaf, 0)
    dist.scatter(leaf, [torch.full((2,), 7.0)] * size if rank == 0 else None)
    assert leaf.tolist() == [7.0, 7.0]


@ALL
def test_work_is_polled() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [torch.zeros(2) for _ in range(size)]
    work = dist.all_gather(parts, torch.full((2,), float(rank)), async_op=True)
    while not work.is_completed():
        pass
    assert [part.tolist() for part in parts] == [[float(index)] * 2 for index in range(size)]


@ALL
def test_a_dtype_that_is_only_moved_is_broadcast() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    bytes_only = torch.full((3,), float(rank)).to(torch.float8_e4m3fn)
    dist.broadcast(bytes_only, size - 1)
    assert bytes_only.float().tolist() == [float(size - 1)] * 3


@on(TWO)
def test_the_engine_writes_to_outputs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results in one output of the host's memory are copied by nobody."""
    from ringcore_torch.distributed import flat, process_group

    def result_of(*_: Any) -> Any:
        raise AssertionError("the engine made a result of its own")

    rank, size = dist.get_rank(), dist.get_world_size()
    ranks, row = range(size), torch.arange(float(size)) + 10 * rank
    with monkeypatch.context() as patch:
        patch.setattr(flat, "result_of", result_of)
        patch.setattr(process_group, "result_of", result_of)
        gathered, total, exchanged = torch.empty(2 * size), torch.empty(3), torch.empty(size)
        dist.all_gather_single(gathered, torch.full((2,), float(rank)))
        own_row = torch.full((size,), -1.0, dtype=torch.complex64)  # moved as bytes; its own part lies in it
        own_row[rank] = rank
        dist.all_gather_single(own_row, own_row[rank : rank + 1])
        dist.reduce_scatter_single(total, torch.arange(3.0 * size))
        dist.all_to_all_single(exchanged, row)
    dist.all_to_all_single(row, row)  # on its own memory: by way of a result
    assert gathered.tolist() == [float(each) for each in ranks for _ in range(2)]
    assert own_row.tolist() == list(ranks)
    assert total.tolist() == [size * (3.0 * rank + i) for i in range(3)]
    assert exchanged.tolist() == row.tolist() == [10.0 * each + rank for each in ranks]


@ALL
def test_messages_of_many_tags() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    to, source = (rank + 1) % size, (rank - 1) % size
    sent = [torch.full((1000 * tag + 1,), float(rank * 10 + tag)) for tag in range(5)]
    works = [dist.isend(tensor, to, tag=tag) for tag, tensor in enumerate(sent)]
    got = [torch.empty_like(tensor) for tensor in sent]
    # Tags are received in another order than they were sent in.
    received = [dist.irecv(got[tag], source, tag=tag) for tag in reversed(range(5))]
    for work in [*received, *works]:
        work.wait()
    for tag, tensor in enumerate(got):
        assert (tensor == source * 10 + tag).all()


@ALL
def test_a_future_does_not_wait_for_earlier_operations() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    to, source = (rank + 1) % size, (rank - 1) % size
    late = dist.irecv(torch.empty(1), source, tag=7).get_future()
    early = dist.isend(torch.ones(1), to, tag=6)
    dist.recv(torch.empty(1), source, tag=6)
    early.get_future().wait()
    dist.isend(torch.ones(1), to, tag=7).wait()
    late.wait()


@ALL
def test_messages_that_are_not_contiguous() -> None:
    rank = dist.get_rank()
    again = torch.empty(4, 2).t()
    if rank == 0:
        dist.send(torch.ones(2, 4), 1)
        dist.recv(again, 1)
    elif rank == 1:
        dist.recv(again, 0)
        dist.send(again * 2, 0)
    assert rank > 1 or (again == 2 - rank).all()


@ALL
def test_groups_that_overlap_are_used_in_different_orders() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [(one, other) for one in range(size) for other in range(one + 1, size)]
    everybodys = {pair: dist.new_group(list(pair)) for pair in pairs}
    made = {pair: group for pair, group in everybodys.items() if rank in pair}
    works = []
    for pair in sorted(made, reverse=bool(rank % 2)):
        tensor = torch.full((10_000,), float(rank))
        works.append((pair, tensor, dist.all_reduce(tensor, group=made[pair], async_op=True)))
    for pair, tensor, work in works:
        work.wait()
        assert (tensor == sum(pair)).all()
    for group in made.values():
        dist.destroy_process_group(group)


@ALL
def test_two_groups_of_the_same_ranks() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    both = [dist.new_group(list(range(size))) for _ in range(2)]
    tensors = [torch.full((5,), float(rank + index)) for index in range(2)]
    order = both if rank % 2 else both[::-1]
    works = [dist.all_reduce(tensors[both.index(group)], group=group, async_op=True) for group in order]
    for work in works:
        work.wait()
    assert [tensor[0].item() for tensor in tensors] == [float(sum(range(size)) + index * size) for index in range(2)]


@ALL
def test_a_group_is_made_by_its_members_alone() -> None:
    rank = dist.get_rank()
    if rank < 2:
        tensor = torch.full((3,), float(rank + 1))
        dist.all_reduce(tensor, group=dist.new_group([0, 1], use_local_synchronization=True))
        assert tensor.tolist() == [3.0] * 3


@on(TWO_ON_GPUS, ONE_ON_A_GPU)
def test_streams() -> None:
    """Work that is started, waited for and used in different streams."""
    rank, size = dist.get_rank(), dist.get_world_size()
    made, used, more = (torch.cuda.Stream() for _ in range(3))
    total, count = float(sum(range(1, size + 1))), 1 << 22

    def own() -> torch.Tensor:
        torch.cuda._sleep(20_000_000)  # cycles of the GPU: whoever does not wait for the stream sees other values
        return torch.full((count,), rank + 1.0)

    with torch.cuda.stream(made):
        tensors = [own() for _ in range(4)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        turned = own().view(2, -1).t()  # not contiguous
        works.append(dist.all_reduce(turned, async_op=True))
        gathered = torch.zeros(size * count)
        works.append(dist.all_gather_single(gathered, own(), async_op=True))
    future = works[1].get_future()
    with torch.cuda.stream(used):
        works[0].wait()
        copies = [tensors[0].clone()]
        copies.append(future.wait()[0].clone())
        works[4].wait()
        copies.append(turned.clone())
        works[5].wait()
        parts = gathered.clone()
    with torch.cuda.stream(more):
        works[0].wait()
        copies.append(tensors[0].clone())
        works[4].wait()
        copies.append(turned.clone())
    while not works[2].is_completed():
        pass
    with torch.cuda.stream(torch.cuda.Stream()):  # which has waited for nothing
        copies.append(tensors[2].clone())
    works[3].get_future().then(lambda done: copies.append(done.value()[0].clone())).wait()
    dist.barrier(device_ids=[torch.cuda.current_device()])
    torch.cuda.synchronize()
    assert [bool((copy == total).all()) for copy in copies] == [True] * 7
    assert parts.unique().tolist() == [other + 1.0 for other in range(size)]
    types = dist.distributed_c10d._get_default_group()._device_types
    assert types == [torch.device("cpu"), torch.device("cuda")]
    on_host = torch.ones(3, device="cpu")
    dist.all_reduce(on_host)
    assert on_host.tolist() == [float(size)] * 3
