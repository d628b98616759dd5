"""What misuse of torch.distributed says; the group goes on afterwards."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest
import ringcore
import torch
import torch.distributed as dist
from support.on_ranks import TWO, TWO_ON_GPUS, on

BOTH = on(TWO, TWO_ON_GPUS)


@BOTH
def test_outputs_of_other_sizes() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    with pytest.raises(
        ringcore.MismatchError, match=rf"rank 0 sent 2 elements, and rank {rank} has an output of 3 for them; give"
    ) as caught:
        dist.all_gather([torch.empty(3)] * size, torch.ones(2))
    assert "'torch.0.all_gather." in str(caught.value)
    with pytest.raises(RuntimeError, match="needs an output of 4 elements, not 3"):
        dist.all_gather_single(torch.empty(3), torch.ones(2))
    with pytest.raises(RuntimeError, match="are not 3 rows for 2 ranks"):
        dist.all_to_all_single(torch.ones(3), torch.ones(3), [1] * size, [2] * size)


@BOTH
def test_shapes_that_differ_between_the_ranks() -> None:
    with pytest.raises(ringcore.MismatchError) as caught:
        dist.all_reduce(torch.ones(2 + dist.get_rank()))
    assert "[2]" in str(caught.value) and "[3]" in str(caught.value)


@BOTH
def test_a_receiver_that_names_no_sender() -> None:
    with pytest.raises(RuntimeError, match="pass src="):
        dist.recv(torch.ones(1))


@BOTH
def test_dtypes_and_devices_that_cannot_be() -> None:
    size = dist.get_world_size()
    group = dist.distributed_c10d._get_default_group()
    with pytest.raises(RuntimeError, match=r"the tensor has dtype torch\.complex64; convert it to one of"):
        group.reduce_scatter_single(torch.ones(1, dtype=torch.complex64), torch.ones(size, dtype=torch.complex64))
    with pytest.raises(RuntimeError, match=r"of torch\.float32 needs an output of that dtype, not torch\.int32"):
        dist.reduce_scatter_single(torch.ones(1, dtype=torch.int32), torch.ones(size))
    with pytest.raises(RuntimeError, match="takes integers and bools"):
        dist.all_reduce(torch.ones(2), dist.ReduceOp.BOR)
    with pytest.raises(RuntimeError, match="is on meta"):
        dist.all_reduce(torch.ones(2, device="meta"))
    with pytest.raises(RuntimeError, match="needs an output on that device, not on meta"):
        dist.all_gather_single(torch.ones(size, device="meta"), torch.ones(1))
    with pytest.raises(RuntimeError, match="takes tensors of cpu and cuda, not of mps"):
        group._get_backend(torch.device("mps"))


@BOTH
def test_the_others_are_told_what_one_rank_refused() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    wrong = int(rank == 1)
    for call in (
        lambda: dist.all_gather([torch.empty(1)] * (size - wrong), torch.ones(1)),
        lambda: dist.all_gather_single(torch.empty(size + wrong), torch.ones(1)),
        lambda: dist.reduce_scatter_single(torch.empty(1 + wrong), torch.ones(size)),
        lambda: dist.all_to_all_single(torch.empty(size + wrong), torch.ones(size)),
    ):
        with pytest.raises(RuntimeError) as caught:
            call()
        if wrong:
            assert type(caught.value) is ringcore.InvalidArgument
        else:
            assert "rank 1 refused" in str(caught.value)


@BOTH
def test_ranks_and_messages_that_do_not_come_in_time() -> None:
    rank = dist.get_rank()
    group = dist.distributed_c10d._get_default_group()
    group.monitored_barrier(datetime.timedelta(seconds=60))
    if rank == 0:
        with pytest.raises(ringcore.TimeoutError, match=r"monitored_barrier: ranks \[1\] did not come within 0\.2 s"):
            group.monitored_barrier(datetime.timedelta(seconds=0.2))
        work = dist.irecv(torch.ones(1), 1, tag=9)
        with pytest.raises(
            ringcore.TimeoutError,
            match=r"'torch\.0\.1to0\.tag9\..*' has not ended on rank 0 within 0\.1 s, and goes on; wait again",
        ):
            work.wait(datetime.timedelta(seconds=0.1))
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.send(torch.ones(1), 0, tag=9)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2.0


@on(TWO)
def test_a_monitored_barrier_by_way_of_a_file_names_who_is_missing(new_default_group: Callable[[], None]) -> None:
    new_default_group()
    if dist.get_rank() == 0:
        with pytest.raises(ringcore.TimeoutError, match=r"monitored_barrier: ranks \[1\] did not come within 0\.2 s"):
            dist.distributed_c10d._get_default_group().monitored_barrier(datetime.timedelta(seconds=0.2))
    dist.barrier()
