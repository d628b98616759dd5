"""Batch normalisation over the batches of all ranks: forward, backward and running statistics are those of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import ringcore_torch as ring
import torch
from support.on_ranks import TWO, TWO_ON_GPUS, on


@on(TWO, TWO_ON_GPUS)
def test_it_is_one_batch_norm_over_all_batches(drawn: Callable[..., torch.Tensor]) -> None:
    rank, size = ring.rank(), ring.size()
    batches = [drawn(3 + 2 * r, 4, 5, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    torch.manual_seed(0)
    ours, reference = ring.SyncBatchNorm(4).double(), torch.nn.BatchNorm1d(4).double()

    def check(own: torch.Tensor, expected: torch.Tensor) -> None:
        assert (own - expected).abs().max().item() < 1e-12

    for _ in range(2):
        x, everything = batches[rank].clone().requires_grad_(), torch.cat(batches).requires_grad_()
        out, expected = ours(x), reference(everything)
        begin = sum(len(batch) for batch in batches[:rank])
        mine = slice(begin, begin + len(x))
        (out**3).sum().backward()
        (expected**3).sum().backward()
        check(out, expected[mine])
        check(x.grad, everything.grad[mine])
        check(ours.running_mean, reference.running_mean)
        check(ours.running_var, reference.running_var)
        check(ring.allreduce(ours.weight.grad, op=ring.Sum), reference.weight.grad)
        ours.zero_grad()
        reference.zero_grad()
    assert ours.num_batches_tracked.item() == 2
    ours.eval(), reference.eval()
    check(ours(batches[0]), reference(batches[0]))


@on(TWO, TWO_ON_GPUS)
@pytest.mark.parametrize(("dtype", "distance"), [(torch.float16, 2**-8), (torch.bfloat16, 2**-5)], ids=str)
def test_sums_of_16_bit_floats_are_wider(
    dtype: torch.dtype, distance: float, drawn: Callable[..., torch.Tensor]
) -> None:
    # More values of a channel than a 16-bit float counts, and whose sum it cannot hold.
    size = ring.size()
    x = (drawn(size * 8, 2, 50, 50, generator=torch.Generator().manual_seed(0)) + 30).to(dtype)
    out = ring.SyncBatchNorm(2)(x.chunk(size)[ring.rank()])
    expected = torch.nn.BatchNorm2d(2)(x.float()).chunk(size)[ring.rank()]
    assert out.dtype is dtype
    # Values up to 5 with 11 and with 8 bits: less than from one to the next.
    assert (out.float() - expected).abs().max().item() < distance
