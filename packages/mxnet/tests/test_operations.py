"""The verbs on arrays: whatever layout they are in, whoever still writes them, and what is told of mistakes."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import ringcore
import ringcore_mxnet as ring
from support import ranks
from support.on_ranks import THREE_OVER_TCP, TWO, Start, on
from support.values import distance, of

import mxnet as mx  # isort: skip
from mxnet import gluon
from mxnet.base import _LIB

# MXNet's engine for debugging, which does each thing at once.
NAIVE = Start(2, variables=(("MXNET_ENGINE_TYPE", "NaiveEngine"),))


def floats(rank: int, *shape: int) -> Any:
    return of(rank, *shape).astype(np.float32)


def is_foreign(array: Any) -> bool:
    """Whether an array lies in a layout of oneDNN now."""
    array.wait_to_read()
    ask = _LIB["_ZNK5mxnet7NDArray5Chunk8IsMKLDNNEv"]
    ask.restype, ask.argtypes = ctypes.c_bool, [ctypes.c_void_p]
    return bool(ask(ctypes.cast(array.handle.value, ctypes.POINTER(ctypes.c_void_p))[0]))


@on(TWO, THREE_OVER_TCP)
def test_arrays_in_layouts_of_onednn_in_place_and_not_while_others_read_them_and_views() -> None:
    me, n = ring.rank(), ring.size()
    x, weight = mx.nd.array(floats(me, 2, 8, 12, 12)), mx.nd.array(floats(99, 16, 8, 3, 3))

    def convolved() -> Any:
        return mx.nd.Convolution(x, weight, no_bias=True, kernel=(3, 3), num_filter=16)

    assert is_foreign(convolved())  # else this tests nothing
    expected = ring.allreduce(mx.nd.array(convolved().asnumpy()), op=ring.Sum).asnumpy()
    own = convolved().asnumpy()
    out = convolved()
    before, result, after = out * 1.0, ring.allreduce(out, op=ring.Sum), out * 2.0
    assert max(distance(before, own), distance(result, expected), distance(after, own * 2)) == 0.0
    assert distance(ring.allreduce_(convolved(), op=ring.Sum), expected) == 0.0
    assert distance(ring.allreduce(convolved()[1:2], op=ring.Sum), expected[1:2]) == 0.0
    out = convolved()
    ring.allreduce_(out[0:1], op=ring.Sum)
    assert distance(out, np.concatenate([expected[:1], own[1:]])) == 0.0
    flat = ring.allreduce_(convolved().reshape((-1,)), op=ring.Sum)
    assert distance(flat, expected.reshape(-1)) == 0.0
    assert distance(ring.allgather(convolved())[me * 2 : me * 2 + 2], own) == 0.0
    assert distance(ring.broadcast(convolved(), n - 1), ring.allgather(convolved())[-2:]) == 0.0


@on(TWO)
def test_results_go_into_given_arrays_views_of_others_too_and_what_does_not_fit_changes_nothing() -> None:
    me, n = ring.rank(), ring.size()
    own = mx.nd.array(floats(me, 3, 2))
    everything = np.concatenate([floats(rank, 3, 2) for rank in range(n)])
    # In place: this rank's rows where they belong, in an array that another operation still writes.
    whole = mx.nd.zeros((2 * n * 3, 2))
    given = whole[n * 3 :]
    given[me * 3 : me * 3 + 3] = own
    assert ring.allgather(given[me * 3 : me * 3 + 3], out=given) is given
    assert distance(whole, np.concatenate([np.zeros_like(everything), everything])) == 0.0
    for out, why in ((mx.nd.zeros((3, 3)), "one dtype"), (mx.nd.zeros((3, 2), dtype="float64"), "one dtype")):
        with pytest.raises(ringcore.InvalidArgument, match=why):
            ring.allreduce(own, name="misfit", out=out)
        mx.nd.waitall()
    with pytest.raises(ringcore.InvalidArgument, match="an NDArray is needed"):
        ring.alltoall(own, [3] + [0] * (n - 1), out=everything)
    # One rank is wrong, and all are told.
    short = mx.nd.full((n * 3 - (me == 1), 2), 7.0)
    with pytest.raises(ringcore.MismatchError, match="rank 1 gave an output of 5 rows, and its result has 6"):
        ring.allgather(own, name="short", out=short).wait_to_read()
    assert distance(ring.allreduce(own, out=own, op=ring.Sum), sum(floats(rank, 3, 2) for rank in range(n))) == 0.0


@on(TWO, THREE_OVER_TCP, NAIVE)
def test_parts_of_one_array_and_the_same_array_twice_in_one_operation() -> None:
    me, n = ring.rank(), ring.size()
    total = n * (n + 1) / 2
    whole = mx.nd.full((6, 4), me + 1.0)
    ring.grouped_allreduce_([whole[0:2], whole[3:5]], op=ring.Sum)
    rows = np.array([total, total, me + 1, total, total, me + 1], np.float32)
    assert distance(whole, np.repeat(rows, 4).reshape(6, 4)) == 0.0
    one = mx.nd.full((5,), me + 1.0)
    for array in ring.grouped_allreduce([one, one], op=ring.Sum):
        assert distance(array, np.full(5, total)) == 0.0


@on(TWO, THREE_OVER_TCP, NAIVE)
def test_arrays_that_operators_still_write_and_that_die_before_they_are_reduced() -> None:
    me, n = ring.rank(), ring.size()
    slow = mx.nd.array(floats(me, 300, 300))
    for _ in range(5):
        slow = mx.nd.dot(slow, slow) * 1e-2
    # Signs, whose sums are exact: what the first one is packed with, and so in which order it is summed, is open.
    signs = mx.nd.sign(slow)
    reduced = ring.allreduce(signs, op=ring.Sum)
    assert distance(reduced, ring.allreduce(mx.nd.array(signs.asnumpy()), op=ring.Sum)) == 0.0
    for step in range(50):
        ring.allreduce_(mx.nd.full((1000,), 1.0), name=f"forgotten {step}")
    for array in [ring.allreduce(mx.nd.full((1000,), me + 1.0), op=ring.Sum) for _ in range(50)]:
        assert distance(array, np.full(1000, n * (n + 1) / 2)) == 0.0


def run_program(number: int, waits: bool) -> list[Any]:
    """The same steps on every rank, on other values."""
    me = ring.rank()
    choose = np.random.default_rng(number)
    arrays = [mx.nd.array(floats(me + 10 * i, 6, 4)) for i in range(4)]

    def wait() -> None:
        if waits:
            mx.nd.waitall()

    for step in range(8):
        kind = int(choose.integers(9))
        a, b = (arrays[i] for i in choose.choice(4, 2, replace=False))
        name = f"program {step}"
        if kind == 0:
            a[:] = mx.nd.dot(mx.nd.softmax(a), b, transpose_b=True).slice_axis(axis=1, begin=0, end=4)
        elif kind == 1:
            a += 0.5 * b
        elif kind == 2:
            a[1:3] = b[2:4] * 2
        elif kind == 3:
            ring.allreduce_(a, name=name, priority=-step)
        elif kind == 4:
            b[:] = ring.allreduce(a, op=ring.Max, name=name)
        elif kind == 5:
            ring.grouped_allreduce_([a[0:2], b], name=name)
        elif kind == 6:
            ring.broadcast_(a, step % ring.size(), name=name)
        elif kind == 7:
            ring.allreduce_(b[2:5], op=ring.Sum, name=name, prescale_factor=0.25)
        else:
            a[:] = mx.nd.tanh(a - ring.broadcast(b, 0, name=name))
        wait()
    mx.nd.waitall()
    return [array.asnumpy() for array in arrays]


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("programs", [300, pytest.param(1000, marks=pytest.mark.long)])
def test_programs_of_updates_and_collectives_do_without_waits_what_they_do_with_waits(programs: int) -> None:
    for number in range(programs):
        if number % 100 == 0:
            ring.barrier()
        # The engine remembers names: the programs share theirs.
        results = [run_program(number, waits) for waits in (True, False)]
        for waited, free in zip(*results, strict=True):
            assert distance(waited, free) == 0.0, f"program {number}"


@on(TWO, THREE_OVER_TCP)
def test_row_sparse_arrays() -> None:
    me = ring.rank()
    dense = np.zeros((10, 3), np.float32)
    dense[[me, 5]] = floats(me, 2, 3)
    sparse = ring.allreduce(mx.nd.array(dense).tostype("row_sparse"), op=ring.Sum)
    assert distance(sparse, ring.allreduce(mx.nd.array(dense), op=ring.Sum)) == 0.0
    assert sparse.stype == "row_sparse"
    empty = ring.allreduce(mx.nd.sparse.zeros("row_sparse", (4, 2)), op=ring.Average)
    assert distance(empty, np.zeros((4, 2))) == 0.0
    whole = mx.nd.array(dense * 8).astype("int32").tostype("row_sparse")
    counted = sum(ringcore.allgather_object((dense * 8).astype("int32")))
    assert distance(ring.allreduce(whole, op=ring.Sum), counted) == 0
    with pytest.raises(ringcore.InvalidArgument, match="a row-sparse array of int32 takes op=Sum"):
        ring.allreduce(whole)


@on(TWO, THREE_OVER_TCP, NAIVE)
def test_arrays_that_differ_between_ranks() -> None:
    me, n = ring.rank(), ring.size()
    for function in (
        lambda: ring.allreduce(mx.nd.zeros((2 + me,)), name="shapes"),
        lambda: ring.allreduce_(mx.nd.zeros((2 + me,)), name="shapes").asnumpy(),
        lambda: ring.reduce(mx.nd.zeros((2 + me,)), 0, name="shapes"),  # the others wait for everything
    ):
        with pytest.raises(ringcore.MismatchError, match=r"^'shapes' was submitted differently: rank 0:") as caught:
            function()
            mx.nd.waitall()
        assert "Remedy" in str(caught.value)
    ring.allreduce(mx.nd.zeros((2,)), name="afterwards").asnumpy()
    with pytest.raises(ringcore.MismatchError, match=r"^'tails'"):
        ring.allgather(mx.nd.zeros((2, 2 + me)), name="tails").asnumpy()
    with pytest.raises(ringcore.RingcoreError, match="the splits of rank 0 do not fit"):
        ring.alltoall(mx.nd.zeros((n,)), [1] * n if me else [n] * n)
        mx.nd.waitall()
    mx.nd.waitall()


@on(TWO, THREE_OVER_TCP, NAIVE)
def test_arrays_and_arguments_that_are_refused() -> None:
    n = ring.size()
    for told, function in {
        "convert the tensor to a float dtype": lambda: ring.allreduce(mx.nd.array([1, 2], dtype="int32")),
        r"use mx.nd.array\(x\)": lambda: ring.allreduce([1.0]),
        r"tostype\('default'\)": lambda: ring.allreduce(mx.nd.sparse.zeros("csr", (2, 2))),
        "pass a root_rank of the process set": lambda: ring.broadcast(mx.nd.zeros((2,)), 99),
        "give one number of rows for each": lambda: ring.alltoall(mx.nd.zeros((3,)), [1] * n + [7]),
        "the splits of rank 0 do not fit its tensor": lambda: ring.scatter(mx.nd.zeros((3,)), 0, [1] * n + [7]),
        "must divide evenly": lambda: ring.alltoall(mx.nd.zeros((n + 1,))),
    }.items():
        with pytest.raises(Exception, match=told) as caught:
            function()
            mx.nd.waitall()
        assert isinstance(caught.value, type(ring.as_ringcore_error(caught.value))), told


@on(TWO, THREE_OVER_TCP)
def test_joins_adasum_priorities_and_a_fork_while_operations_are_under_way() -> None:
    me, n = ring.rank(), ring.size()
    for step in range(me + 1):
        ring.allreduce(mx.nd.ones((4,)), op=ring.Sum, name=f"uneven {step}")
    assert ring.join() == n - 1
    assert distance(ring.allreduce(mx.nd.full((3,), 2.0), op=ring.Adasum), np.full(3, 2.0)) < 1e-6
    for array in [ring.allreduce(mx.nd.full((100,), 1.0), op=ring.Sum, priority=p, name=f"p{p}") for p in (-2, 0, 5)]:
        assert distance(array, np.full(100, n)) == 0.0
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(floats(1, 40, 3)), batch_size=10, num_workers=1)
    under_way = [ring.allreduce(mx.nd.ones((10000,)), op=ring.Sum, name=f"fork {i}") for i in range(20)]
    assert sum(len(ring.allreduce(batch)) for batch in data) == 40
    for array in under_way:
        assert distance(array, np.full(10000, n)) == 0.0


@on(TWO, NAIVE)
def test_bfloat16_is_rounded_to_the_nearest_value() -> None:
    generator = np.random.default_rng(1)
    halfway = (np.arange(2**16, dtype=np.uint32) << 16) | 0x8000
    bits = np.concatenate([generator.integers(0, 2**32, 50_000, np.uint32), halfway, halfway - 1, halfway + 1])
    values = bits.view(np.float32)
    for own in (mx.nd.array(values)[3:-3], mx.np.array(values)[3:-3], mx.nd.array(values, dtype="float64")[3:-3]):
        sent, dtype = ring.Compression.bf16.compress(own)
        assert dtype == own.dtype
        assert sent.shape == own.shape
        with np.errstate(invalid="ignore"):
            expected = values[3:-3].astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(sent.astype("float32").asnumpy(), expected)
    for shape in ((), (0, 2)):
        with mx.util.np_shape(True):
            own = mx.np.ones(shape)
        sent, _ = ring.Compression.bf16.compress(own)
        assert sent.shape == shape


@on(TWO)
def test_adasum_refuses_what_it_would_leave_undone() -> None:
    array = mx.nd.ones((3,))
    for kind in ("int8", "int4", "bf16"):
        for reduce in (ring.allreduce, ring.allreduce_):
            with pytest.raises(ringcore.InvalidArgument, match=rf"op=Adasum .* {kind}.*Compression\.fp16"):
                reduce(array, op=ring.Adasum, compression=kind)
    assert distance(ring.allreduce(array, op=ring.Adasum, compression="fp16"), np.ones(3)) < 1e-3
    for kind in ("fp16", "bf16"):
        assert distance(ring.allreduce_(mx.nd.full((3,), 1 + 2**-12), compression=kind), np.ones(3)) == 0.0


def test_a_killed_rank_is_told_to_whoever_waits_and_all_starts_anew(tmp_path: Path) -> None:
    def lost() -> dict[str, object]:
        """Rank 1 is killed while arrays of the others wait in MXNet's engine; afterwards the process starts anew."""
        import ringcore_mxnet as ring  # first: it helps the import of MXNet

        import mxnet as mx  # isort: skip

        ring.init()
        ring.allreduce(mx.nd.ones((3,))).wait_to_read()
        net = mx.gluon.nn.Dense(1, in_units=2)
        net.initialize()
        trainer = ring.DistributedTrainer(net.collect_params(), "sgd")
        if ring.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # noqa: F821 - of the program's head
        # So many that MXNet's list of errors, which no lock guards, grows often while they are told.
        results = [ring.allreduce_(mx.nd.ones((10,)), name=f"w{i}") * 2 for i in range(20_000)]
        found = {"asnumpy": caught(results[50].asnumpy), "waitall": caught(mx.nd.waitall)}  # noqa: F821
        with mx.autograd.record():
            net(mx.nd.ones((1, 2))).sum().backward()
        found["step"] = caught(trainer.step, 1)  # noqa: F821
        ring.shutdown()
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
        ring.init()
        return {"told": found, "again": ring.allreduce(mx.nd.ones((3,))).asnumpy().tolist()}

    with ranks.started(lost, 2, tmp_path) as job:
        survivor, _ = job.wait(300)
    assert survivor.exit_code == 0, survivor.stderr
    for told in survivor.result["told"].values():
        assert told["type"] == "PeerLostError"
        assert "rank 1" in told["message"]
    assert survivor.result["again"] == [1.0, 1.0, 1.0]
