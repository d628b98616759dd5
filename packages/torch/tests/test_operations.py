"""The verbs on tensors, on several ranks."""

from __future__ import annotations

import pytest
import ringcore
import ringcore_torch as ring
import torch
from support.on_ranks import DEVICE, ONE_ON_A_GPU, THREE, THREE_OVER_TCP, TWO, TWO_ON_GPUS, TWO_OVER_TCP, on
from torch.testing._internal.two_tensor import TwoTensor

DTYPES = [
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
]  # fmt: skip
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3, 5), (40, 1000)]


def mark(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Rank r's contribution: 2^r everywhere (True on rank 0 alone for bool)."""
    values = (
        torch.full(shape, 2 ** ring.rank(), device="cpu").to(dtype)
        if dtype is not torch.bool
        else torch.full(shape, ring.rank() == 0, device="cpu")
    )
    return values.to(DEVICE)


@on(TWO, THREE, TWO_OVER_TCP, TWO_ON_GPUS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_operation_on_every_dtype(dtype: torch.dtype) -> None:
    rank, size = ring.rank(), ring.size()
    for shape in SHAPES:
        total = torch.full(shape, 2**size - 1, device="cpu").to(dtype)
        mine = mark(shape, dtype)
        for result in (
            ring.allreduce(mine, op=ring.Sum),
            ring.synchronize(ring.allreduce_async(mine, op=ring.Sum)),
            ring.allreduce_(mine.clone(), op=ring.Sum),
            ring.synchronize(ring.allreduce_async_(mine.clone(), op=ring.Sum)),
            *ring.grouped_allreduce([mine, mine], op=ring.Sum),
        ):
            assert torch.equal(result.cpu(), total)
            assert result.dtype is dtype
            assert result.device == mine.device
        for root in range(size):
            got = ring.broadcast(mine, root)
            assert root != rank or torch.equal(got.cpu(), mine.cpu())
        if not shape:
            continue
        gathered = ring.allgather(mine[: rank + 1])
        assert gathered.shape == (sum(min(shape[0], r + 1) for r in range(size)), *shape[1:])
        assert gathered.dtype is dtype
        share = ring.reducescatter(mine, op=ring.Sum)
        assert not share.numel() or bool((share.cpu() == total.flatten()[0]).all())
        splits = [shape[0] - shape[0] // 2, shape[0] // 2] + [0] * (size - 2)
        received, counts = ring.alltoall(mine, splits)
        assert received.shape[0] == int(counts.sum())
        assert counts.tolist() == [splits[rank]] * size


@on(TWO, THREE, TWO_OVER_TCP, TWO_ON_GPUS)
def test_ranks_send_other_numbers_of_rows() -> None:
    rank, size = ring.rank(), ring.size()
    splits = torch.tensor([rank + 1] * size)
    received, counts = ring.alltoall(torch.full((size * (rank + 1), 2), rank), splits)
    assert counts.tolist() == list(range(1, size + 1))
    assert counts.device == splits.device
    assert received[:, 0].bincount().tolist() == counts.tolist()


@on(TWO, THREE, TWO_OVER_TCP, TWO_ON_GPUS)
def test_a_transposed_tensor_in_place_and_a_parameter() -> None:
    reduced = ring.allreduce_(torch.arange(12.0).reshape(3, 4).t(), op=ring.Sum)
    assert torch.equal(reduced, torch.arange(12.0).reshape(3, 4).t() * ring.size())
    assert torch.equal(ring.broadcast_(torch.nn.Parameter(torch.ones(3)), 0).detach(), torch.ones(3))


@on(TWO, TWO_OVER_TCP, TWO_ON_GPUS)
def test_negated_views_and_handles_that_are_waited_for_twice() -> None:
    turned = torch.complex(torch.ones(1), torch.ones(1)).conj().imag  # -1, stored as 1
    assert ring.allreduce(turned, op=ring.Sum).item() == -ring.size()
    assert ring.allgather(turned)[0].item() == -1.0
    handle = ring.allreduce_async_(torch.ones(3, 2)[:, :1], op=ring.Sum)
    assert ring.synchronize(handle) is ring.synchronize(handle)


@on(TWO, TWO_ON_GPUS)
def test_grouped_rows() -> None:
    rank, size = ring.rank(), ring.size()
    gathered = ring.grouped_allgather([torch.full((rank + 1,), float(rank)), torch.full((1, 2), rank)])
    assert [tensor.flatten().tolist() for tensor in gathered] == [[0.0, 1.0, 1.0], [0, 0, 1, 1]]
    shares = ring.grouped_reducescatter([torch.arange(6.0), torch.ones(size, 2)], op=ring.Sum)
    own = [0.0, 2.0, 4.0] if rank == 0 else [6.0, 8.0, 10.0]
    assert [tensor.flatten().tolist() for tensor in shares] == [own, [2.0, 2.0]]


@on(TWO)
def test_adasum() -> None:
    own = torch.tensor([1.0, 0.0]) if ring.rank() == 0 else torch.tensor([1.0, 1.0])
    # a.b = 1, |a|^2 = 1, |b|^2 = 2: a / 2 + b * 3 / 4; of the first columns alone, which are equal, their average.
    expected = [1.25, 0.75]
    assert ring.allreduce(own, op=ring.Adasum).tolist() == expected
    assert ring.allreduce_(own.clone().bfloat16(), op=ring.Adasum).tolist() == expected
    assert [one.tolist() for one in ring.grouped_allreduce([own, own.double()], op=ring.Adasum)] == [expected] * 2
    column = own[None].repeat(2, 1)[:, :1]
    assert ring.synchronize(ring.allreduce_async_(column, op=ring.Adasum)).tolist() == [[1.0], [1.0]]
    with pytest.raises(ringcore.InvalidArgument, match="Adasum takes floats"):
        ring.allreduce(torch.ones(2, dtype=torch.int32), op=ring.Adasum)


@on(TWO, TWO_ON_GPUS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", [3.0, 3 + 3 * 2**-9, 3000.0]),
        # 1 + 2^-9 and the sums fit float16's eleven bits; of bfloat16's eight, 1000 and 2000 need all, 3000 one more.
        ("fp16", [3.0, 3 + 3 * 2**-9, 3000.0]),
        ("bf16", [3.0, 3.0, 3008.0]),
    ],
)
def test_compression_sends_16_bits(name: str, expected: list[float]) -> None:
    own = torch.tensor([1.0, 1 + 2**-9, 1000.0]) * (ring.rank() + 1)
    for result in (
        ring.allreduce(own, op=ring.Sum, compression=getattr(ring.Compression, name)),
        *ring.grouped_allreduce([own, own], op=ring.Sum, compression=getattr(ring.Compression, name)),
    ):
        assert result.tolist() == expected
        assert result.dtype is torch.float32


@on(THREE_OVER_TCP)
def test_sparse_tensors() -> None:
    def rows_of(rank: int) -> torch.Tensor:
        return torch.sparse_coo_tensor(torch.tensor([[rank, 3]]), torch.tensor([[1.0, 2.0], [10.0, 20.0]]), (5, 2))

    own, expected = rows_of(ring.rank()), sum(rows_of(rank).to_dense() for rank in range(ring.size()))
    assert torch.equal(ring.sparse_allreduce_async(own, op=ring.Sum, name="rows")().to_dense(), expected)
    assert torch.allclose(ring.sparse_allreduce_async(own)().to_dense(), expected / ring.size(), rtol=1e-6)
    assert ring.sparse_allreduce_async(own.int(), op=ring.Sum)().to_dense().tolist() == expected.int().tolist()
    with pytest.raises(ringcore.InvalidArgument, match="sparse_allreduce_async of int32 takes op=Sum"):
        ring.sparse_allreduce_async(own.int())


@on(TWO, TWO_OVER_TCP, TWO_ON_GPUS)
def test_tensors_that_cannot_be_reduced() -> None:
    def refused(told: str) -> pytest.RaisesExc[ringcore.InvalidArgument]:
        return pytest.raises(ringcore.InvalidArgument, match=told)

    with refused("float32"):
        ring.allreduce(torch.ones(3, dtype=torch.complex64))
    with refused("float32"):
        ring.reduce(torch.ones(3, dtype=torch.complex64), 0)
    with refused("meta"):
        ring.allreduce(torch.ones(3, device="meta"))
    with refused("a tensor of PyTorch is needed, not list"):
        ring.allreduce([1.0])  # type: ignore[arg-type]
    with refused("a tensor of PyTorch is needed, not str"):
        ring.grouped_allreduce_async([torch.ones(1), "x"])
    with refused("no memory"):
        ring.allreduce_(TwoTensor(torch.ones(2), torch.ones(2)))


@on(TWO_ON_GPUS, ONE_ON_A_GPU)
def test_streams_in_which_tensors_are_made_waited_for_and_used() -> None:
    rank, size = ring.rank(), ring.size()
    made, used, more = (torch.cuda.Stream() for _ in range(3))
    total, count = float(sum(range(1, size + 1))), 1 << 22

    def own() -> torch.Tensor:
        torch.cuda._sleep(20_000_000)  # cycles of the GPU: whoever does not wait for the stream sees other values
        return torch.full((count,), rank + 1.0)

    with torch.cuda.stream(made):
        reduced = ring.allreduce_async(own(), op=ring.Sum, name="reduced")
        rows = ring.allgather_async(own(), name="gathered")
        turned = own().view(2, -1).t()
        in_place = ring.allreduce_async_(turned, op=ring.Sum, name="turned")
        # Nobody waits for these, and their memory is free for others as soon as the GPU is done with it.
        for index in range(10):
            ring.allreduce_async_(own(), op=ring.Sum, name=f"dropped {index}")
    with torch.cuda.stream(used):
        copies = [ring.synchronize(handle).clone() for handle in (reduced, rows, in_place)]
    with torch.cuda.stream(more):
        again = ring.synchronize(reduced).clone()
    torch.cuda.synchronize()
    assert bool((copies[0] == total).all())
    assert copies[1].unique().tolist() == [other + 1.0 for other in range(size)]
    assert bool((copies[2] == total).all())
    assert bool((again == total).all()), "waited for in two streams"
