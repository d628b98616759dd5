"""The cases: each a function of an adapter that runs on every rank. Nothing here knows a framework."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import ringcore
from ringcore.job.state import context

from conformance.adapters import Adapter
from conformance.checks import Checks
from conformance.payload import FLOATS, HALVES, SHAPES, fractions, payload, reduced

# Adasum is no element-wise reduction: its tests are those of the adapters.
OPS = {op.name.lower(): op for op in ringcore.ReduceOp if op is not ringcore.ReduceOp.ADASUM}
Case = Callable[[Adapter, Checks], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def _ops(dtype: str) -> list[str]:
    return [op for op in OPS if op != "average" or dtype in FLOATS]


def _of(adapter: Adapter, dtypes: tuple[str, ...]) -> list[str]:
    return [dtype for dtype in dtypes if dtype in adapter.dtypes]


def _parts(shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    return [payload(rank, shape, dtype) for rank in range(ringcore.size())]


# ---- allreduce ----

# How an allreduce of several tensors can be called; each returns the results.
MODES = {
    "sync": lambda c, tensors, **o: [c.allreduce(tensor, **o) for tensor in tensors],
    "in place": lambda c, tensors, **o: [c.allreduce_(tensor, **o) for tensor in tensors],
    "async": lambda c, tensors, **o: _all(c, [c.allreduce_async(tensor, **o) for tensor in tensors]),
    "async in place": lambda c, tensors, **o: _all(c, [c.allreduce_async_(tensor, **o) for tensor in tensors]),
    "grouped": lambda c, tensors, **o: c.grouped_allreduce(tensors, **o),
    "grouped in place": lambda c, tensors, **o: c.grouped_allreduce_(tensors, **o),
    "grouped async": lambda c, tensors, **o: c.synchronize(c.grouped_allreduce_async(tensors, **o)),
    "grouped async in place": lambda c, tensors, **o: c.synchronize(c.grouped_allreduce_async_(tensors, **o)),
}


def _works_in_place(collectives) -> bool:
    return hasattr(collectives, "allreduce_")


def _all(collectives, handles):
    # Waited for in another order than submitted.
    return [collectives.synchronize(handle) for handle in reversed(handles)][::-1]


@case
def allreduce(adapter: Adapter, checks: Checks) -> None:
    for dtype in adapter.dtypes:
        parts = [_parts(shape, dtype) for shape in SHAPES]
        # How it is called makes no difference to the reduction: all ways with one operation, the plain one with all.
        plain = [(op, "sync") for op in _ops(dtype) if op != "sum"]
        modes = [mode for mode in MODES if "in place" not in mode or _works_in_place(adapter.collectives)]
        for op, mode in [*plain, *(("sum", mode) for mode in modes)]:
            call = MODES[mode]
            tensors = [adapter.tensor(part[ringcore.rank()]) for part in parts]
            results = call(adapter.collectives, tensors, op=OPS[op])
            for tensor, result, part in zip(tensors, results, parts, strict=True):
                what = f"{mode} allreduce {op} of {dtype} {list(part[0].shape)}"
                # The sum is exact; dividing it by three is not.
                ulps = 1.0 if op == "average" and ringcore.size() == 3 else 0.0
                expected = reduced(part, op)
                checks.equal(what, adapter.array(result), expected, ulps=ulps)
                left = expected if "in place" in mode else part[ringcore.rank()]
                checks.equal(f"{what}, the tensor itself", adapter.array(tensor), left, ulps=ulps, common=False)


@case
def sums_of_16_bits_are_rounded_once(adapter: Adapter, checks: Checks) -> None:
    for dtype, count in itertools.product(_of(adapter, HALVES), (3, 1000, 100003)):
        parts = [fractions(rank, count, dtype) for rank in range(ringcore.size())]
        result = adapter.collectives.allreduce(adapter.tensor(parts[ringcore.rank()]), op=OPS["sum"])
        checks.equal(f"sum of {count} {dtype}", adapter.array(result), reduced(parts, "sum"))


@case
def scaled_allreduce(adapter: Adapter, checks: Checks) -> None:
    for dtype, shape in itertools.product(_of(adapter, FLOATS), SHAPES):
        parts = _parts(shape, dtype)
        for before, after in ((0.5, 1.0), (1.0, 4.0), (0.25, 8.0)):
            result = adapter.collectives.allreduce(
                adapter.tensor(parts[ringcore.rank()]), op=OPS["sum"], prescale_factor=before, postscale_factor=after
            )
            expected = np.asarray(reduced(parts, "sum") * np.asarray(before * after, parts[0].dtype))
            checks.equal(f"allreduce of {dtype} {shape} scaled by {before}, {after}", adapter.array(result), expected)


@case
def random_sums_are_the_same_bits_on_all_ranks(adapter: Adapter, checks: Checks) -> None:
    for dtype, count in itertools.product(("float32", "float64"), (1, 7, 1000, 65537, 1 << 20)):
        parts = [np.random.default_rng(rank).standard_normal(count).astype(dtype) for rank in range(ringcore.size())]
        result = adapter.array(
            adapter.collectives.allreduce(adapter.tensor(parts[ringcore.rank()]), op=OPS["sum"], name="repeats")
        )
        checks.equal(f"random sum of {count} {dtype}", result, result)  # the digest compares the ranks
        near = np.allclose(result, np.sum(parts, axis=0), rtol=1e-4, atol=1e-5)
        checks.that(f"random sum of {count} {dtype} is near numpy's", near)


@case
def quantised_sums_are_near_and_the_same_bits(adapter: Adapter, checks: Checks) -> None:
    """Between hosts, which ranks are to each other over TCP; inside of one they are exact."""
    transports = set(context().runtime.transports()) - {"self"}
    parts = [np.random.default_rng(rank).uniform(-1, 1, 20_000).astype("float32") for rank in range(ringcore.size())]
    own, exact, collectives = parts[ringcore.rank()], np.sum(parts, axis=0, dtype=np.float64), adapter.collectives
    for kind, most in (("int8", 127), ("int4", 7)):
        options = {"op": OPS["sum"], "compression": getattr(collectives.Compression, kind)}
        single = adapter.array(collectives.allreduce(adapter.tensor(own), **options))
        options["compression"] = kind  # its name means the same
        both = collectives.grouped_allreduce([adapter.tensor(own), adapter.tensor(own[:5000])], **options)
        first, second = map(adapter.array, both)
        for what, got in (("alone", single), ("first of two", first), ("second of two", second)):
            off = np.abs(got - exact[: len(got)]).max()
            checks.equal(f"{kind}, {what}", got, got)  # the digest compares the ranks
            checks.that(f"{kind}, {what}: off by {off}", off <= ringcore.size() ** 2 * 0.51 / most)
            if transports in ({"tcp"}, {"tls"}):
                checks.that(f"{kind}, {what}: it was quantised", off > 1e-5)
            elif transports == {"shm"}:
                checks.that(f"{kind}, {what}: it was not quantised", off < 1e-5)


@case
def values_are_rounded_to_16_bits_once_on_each_rank(adapter: Adapter, checks: Checks) -> None:
    collectives, size = adapter.collectives, ringcore.size()
    for kind, bits in (("fp16", 11), ("bf16", 8)):
        # Of those in the middle between two either will do.
        ulp = 2.0 ** (1 - bits)
        wide = np.array([1 + 0.75 * ulp, 1 + 0.51 * ulp, 1 + 0.49 * ulp, 1 + 0.5 * ulp, -1 - 0.75 * ulp, 0.0, np.inf])
        rounded = np.array([1 + ulp, 1 + ulp, 1.0, np.nan, -1 - ulp, 0.0, np.inf])
        for dtype in ("float32", "float64"):
            options = {"op": OPS["average"], "compression": kind}
            got = adapter.array(collectives.allreduce(adapter.tensor(wide.astype(dtype)), **options))
            integers = np.arange(5, dtype=np.int32)
            options["op"] = OPS["max"]
            both = collectives.grouped_allreduce(
                [adapter.tensor(wide.astype(dtype)), adapter.tensor(integers)], **options
            )
            for what, each in (("alone", got), ("one of two", adapter.array(both[0]))):
                checks.equal(f"{dtype} by {kind}, {what}", each, each)  # the digest compares the ranks
                checks.that(f"{dtype} by {kind}, {what}: {each.dtype}", each.dtype == dtype and each.shape == (7,))
                tie = each[3] in (1.0, 1 + ulp)
                others = np.delete(each == rounded, 3).all()
                checks.that(f"{dtype} by {kind} of {size} ranks, {what}: {each}", bool(tie and others))
            checks.equal(f"integers beside {kind}", adapter.array(both[1]), integers)


@case
def a_repeated_sequence(adapter: Adapter, checks: Checks) -> None:
    """The same names over and over, as a training loop has them, with other values each time."""
    collectives = adapter.collectives
    start = collectives.allreduce_async_ if _works_in_place(collectives) else collectives.allreduce_async
    for step in range(50):
        handles = [
            start(
                adapter.tensor(np.full(1 + 37 * layer, (step + layer + 1) * 2.0 ** ringcore.rank(), np.float32)),
                op=OPS["sum"],
                name=f"layer{layer}",
            )
            for layer in range(12)
        ]
        for layer, handle in enumerate(handles):
            expected = np.full(1 + 37 * layer, (step + layer + 1) * (2.0 ** ringcore.size() - 1), np.float32)
            checks.equal(f"step {step} layer {layer}", adapter.array(collectives.synchronize(handle)), expected)


# ---- the other collectives ----


@case
def allgather(adapter: Adapter, checks: Checks) -> None:
    me, size, collectives = ringcore.rank(), ringcore.size(), adapter.collectives
    for dtype in adapter.dtypes:
        for rows in ([3] * size, list(range(size)), [0] * size, [1000 * (rank + 1) for rank in range(size)]):
            for tail in ((), (5,), (2, 3)):
                parts = [payload(rank, (rows[rank], *tail), dtype) for rank in range(size)]
                for result in (
                    collectives.allgather(adapter.tensor(parts[me])),
                    collectives.synchronize(collectives.allgather_async(adapter.tensor(parts[me]))),
                ):
                    what = f"allgather of {dtype}, rows {rows}, {tail}"
                    checks.equal(what, adapter.array(result), np.concatenate(parts))


@case
def broadcast(adapter: Adapter, checks: Checks) -> None:
    me, size, c = ringcore.rank(), ringcore.size(), adapter.collectives
    for dtype, shape, root in itertools.product(adapter.dtypes, SHAPES, range(size)):
        parts = _parts(shape, dtype)
        own = adapter.tensor(parts[me])
        results = [c.broadcast(own, root)]
        if root == size - 1:  # How it is called makes no difference to whose values are sent.
            results += [c.synchronize(c.broadcast_async(own, root))]
        checks.equal("broadcast leaves its input", adapter.array(own), parts[me], common=False)
        if root == size - 1 and _works_in_place(c):
            results += [c.broadcast_(adapter.tensor(parts[me]), root)]
            results += [c.synchronize(c.broadcast_async_(adapter.tensor(parts[me]), root))]
        for result in results:
            checks.equal(f"broadcast of {dtype} {shape} from {root}", adapter.array(result), parts[root])


@case
def reducescatter(adapter: Adapter, checks: Checks) -> None:
    me, size, c = ringcore.rank(), ringcore.size(), adapter.collectives
    for dtype in adapter.dtypes:
        # How rows are dealt out makes no difference to the reduction: all shapes with one operation, some with all.
        shapes = [*itertools.product(["sum"], (0, 1, size, 100, 5001), ((), (7,)))]
        for op, rows, tail in [*shapes, *((op, 100, (7,)) for op in _ops(dtype) if op != "sum")]:
            parts = _parts((rows, *tail), dtype)
            begin = sum(rows // size + (rank < rows % size) for rank in range(me))
            expected = reduced(parts, op)[begin : begin + rows // size + (me < rows % size)]
            ulps = 1.0 if op == "average" and size == 3 else 0.0
            for result in (
                c.reducescatter(adapter.tensor(parts[me]), op=OPS[op]),
                c.synchronize(c.reducescatter_async(adapter.tensor(parts[me]), op=OPS[op])),
            ):
                what = f"reducescatter {op} of {dtype} ({rows}, {tail})"
                checks.equal(what, adapter.array(result), expected, ulps=ulps, common=False)


@case
def reduce(adapter: Adapter, checks: Checks) -> None:
    me, size, c = ringcore.rank(), ringcore.size(), adapter.collectives
    for dtype, root in itertools.product(adapter.dtypes, range(size)):
        # One tensor that plans carry in pieces; what it is made of makes no difference to them, nor its root to the
        # reduction: all roots with one operation, one of them with all.
        large = [("sum", (300_001,))] if dtype == "float32" else []
        ops = _ops(dtype) if root == size - 1 else ["sum"]
        for op, shape in [*itertools.product(ops, SHAPES), *large]:
            parts = _parts(shape, dtype)
            own = adapter.tensor(parts[me])
            ulps = 1.0 if op == "average" and size == 3 else 0.0
            for result in (c.reduce(own, root, op=OPS[op]), c.synchronize(c.reduce_async(own, root, op=OPS[op]))):
                what = f"reduce {op} of {dtype} {list(shape)} to {root}"
                checks.that(f"{what} has a result on its root", (result is not None) == (me == root))
                if me == root:
                    checks.equal(what, adapter.array(result), reduced(parts, op), ulps=ulps, common=False)
            checks.equal("reduce leaves its input", adapter.array(own), parts[me], common=False)


@case
def gather(adapter: Adapter, checks: Checks) -> None:
    me, size, c = ringcore.rank(), ringcore.size(), adapter.collectives
    tables = ([3] * size, list(range(size)), [0] * size, [1000 * (rank + 1) for rank in range(size)])
    for dtype, rows, tail in itertools.product(adapter.dtypes, tables, ((), (2, 3))):
        parts = [payload(rank, (rows[rank], *tail), dtype) for rank in range(size)]
        root = sum(rows) % size
        own = adapter.tensor(parts[me])
        for result in (c.gather(own, root), c.synchronize(c.gather_async(own, root))):
            what = f"gather of {dtype}, rows {rows}, {tail} to {root}"
            checks.that(f"{what} has a result on its root", (result is not None) == (me == root))
            if me == root:
                checks.equal(what, adapter.array(result), np.concatenate(parts), common=False)
        checks.equal("gather leaves its input", adapter.array(own), parts[me], common=False)


@case
def scatter(adapter: Adapter, checks: Checks) -> None:
    me, size, c = ringcore.rank(), ringcore.size(), adapter.collectives
    tables = ([3] * size, list(range(size)), [0] * size, [1000 * (rank + 1) for rank in range(size)])
    for dtype, rows, tail in itertools.product(adapter.dtypes, tables, ((), (2, 3))):
        root = sum(rows) % size
        all_rows = payload(root, (sum(rows), *tail), dtype)
        expected = np.split(all_rows, np.cumsum(rows)[:-1])[me]
        # Elsewhere than on the root neither the rows nor the splits are looked at.
        own = adapter.tensor(all_rows if me == root else payload(me, (1, *tail), dtype))
        splits = _splits(adapter, rows) if me == root else None
        for result in (c.scatter(own, root, splits), c.synchronize(c.scatter_async(own, root, splits))):
            what = f"scatter of {dtype}, rows {rows}, {tail} from {root}"
            checks.equal(what, adapter.array(result), expected, common=False)


@case
def scatter_of_as_many_rows(adapter: Adapter, checks: Checks) -> None:
    """Without splits, and with an array of the same shape on every rank, as programs need it."""
    me, size, c = ringcore.rank(), ringcore.size(), adapter.collectives
    for dtype, rows, root in itertools.product(adapter.dtypes, (0, 3, 1001), range(size)):
        parts = _parts((rows * size, 3), dtype)
        result = c.scatter(adapter.tensor(parts[me]), root)
        expected = parts[root][rows * me : rows * (me + 1)]
        checks.equal(f"scatter of {rows} rows of {dtype} from {root}", adapter.array(result), expected, common=False)


@case
def programs_refuse_what_one_rank_alone_gets(adapter: Adapter, checks: Checks) -> None:
    c, own = adapter.collectives, adapter.tensor(payload(ringcore.rank(), (3,), "float32"))
    for verb, call in {"reduce": c.reduce, "gather": c.gather}.items():
        told = _error_of(partial(call, own, 0, name="alone"))
        checks.that(f"it names the verb: {told}", f"{verb} 'alone'" in told)
        checks.that(f"it says what to do: {told}", "call it outside" in told and f"use all{verb}" in told)


@case
def alltoall(adapter: Adapter, checks: Checks) -> None:
    me, size, c = ringcore.rank(), ringcore.size(), adapter.collectives
    tables = {
        "even": [[4] * size] * size,
        "nothing": [[0] * size] * size,
        "uneven": [[(source + 2 * target) % 4 for target in range(size)] for source in range(size)],
        "one to all": [[1000] * size] + [[0] * size] * (size - 1),
    }
    for dtype, (kind, table), tail in itertools.product(adapter.dtypes, tables.items(), ((), (3,))):
        parts = [payload(rank, (sum(table[rank]), *tail), dtype) for rank in range(size)]
        expected = np.concatenate(
            [parts[rank][sum(table[rank][:me]) : sum(table[rank][: me + 1])] for rank in range(size)]
        )
        rows, received = c.alltoall(adapter.tensor(parts[me]), _splits(adapter, table[me]))
        checks.equal(f"{kind} alltoall of {dtype} {tail}", adapter.array(rows), expected, common=False)
        received = [int(count) for count in received]
        checks.that(f"{kind} alltoall: received {received}", received == [table[rank][me] for rank in range(size)])
        if kind == "even":
            rows = c.alltoall(adapter.tensor(parts[me]))
            checks.equal(f"alltoall of {dtype} without splits", adapter.array(rows), expected, common=False)


def _splits(adapter: Adapter, splits: list[int]):
    return splits if adapter.collectives is ringcore else adapter.tensor(np.array(splits, np.int64))


@case
def results_go_where_the_caller_says(adapter: Adapter, checks: Checks) -> None:
    me, size, c = ringcore.rank(), ringcore.size(), adapter.collectives
    for dtype, rows in itertools.product(adapter.dtypes, (0, 1, 30_000)):
        parts = [payload(rank, (rows, 2), dtype) for rank in range(size)]
        own, everything = adapter.tensor(parts[me]), np.concatenate(parts)
        longer = [payload(rank, (rows * size + 1, 2), dtype) for rank in range(size)]
        first = rows * me + min(me, 1)
        share = reduced(longer, "max")[first : first + rows + (me == 0)]
        exchanged = np.concatenate([part[:-1].reshape(size, rows, 2)[me] for part in longer])
        sent = adapter.tensor(np.ascontiguousarray(longer[me][:-1]))
        dealt = longer[size - 1][:-1].reshape(size, rows, 2)[me]
        # Places of other values, as the framework makes them.
        places = {
            "allreduce": c.allreduce(own, op=OPS["min"]),
            "broadcast": c.allreduce(own, op=OPS["min"]),
            "allgather": c.allgather(own),
            "reducescatter": c.reducescatter(adapter.tensor(longer[me]), op=OPS["min"]),
            "alltoall": c.alltoall(sent),
            "gather": c.allgather(own),
            "scatter": c.reducescatter(sent, op=OPS["min"]),
        }
        calls = {
            "allreduce": (reduced(parts, "max"), partial(c.allreduce, own, op=OPS["max"])),
            "broadcast": (parts[size - 1], partial(c.broadcast, own, size - 1)),
            "allgather": (everything, partial(c.allgather, own)),
            "reducescatter": (share, partial(c.reducescatter, adapter.tensor(longer[me]), op=OPS["max"])),
            "alltoall": (exchanged, partial(c.alltoall, sent)),
            "gather": (everything, partial(c.gather, own, size - 1)),
            "scatter": (dealt, partial(c.scatter, sent, size - 1)),
        }
        for verb, (expected, call) in calls.items():
            out = places[verb]
            common = verb not in ("reducescatter", "alltoall", "gather", "scatter")
            gets_nothing = verb == "gather" and me != size - 1
            returned = call(out=out)
            checks.that(f"{verb} of {rows} {dtype} returns its output", returned is (None if gets_nothing else out))
            if gets_nothing:
                continue
            checks.equal(f"{verb} of {rows} {dtype} into an output", adapter.array(out), expected, common=common)
        out = places["allgather"]
        results = c.grouped_allgather([own, own], out=[out, c.allgather(own)])
        checks.that("a group returns its outputs", results[0] is out)
        checks.equal(f"group of {rows} {dtype}", adapter.array(results[1]), everything)
        handle = c.reducescatter_async(adapter.tensor(longer[me]), op=OPS["max"], out=places["reducescatter"])
        checks.that("a handle returns its output", c.synchronize(handle) is places["reducescatter"])
        rows_and_counts = c.alltoall(sent, _splits(adapter, [rows] * size), out=places["alltoall"])
        checks.that("rows into an output", rows_and_counts[0] is places["alltoall"])
        checks.that("their numbers", [int(count) for count in rows_and_counts[1]] == [rows] * size)


@case
def barrier_and_objects(adapter: Adapter, checks: Checks) -> None:
    c, size = adapter.collectives, ringcore.size()
    for root in range(size):
        c.barrier()
        got = c.broadcast_object({"from": ringcore.rank(), "text": "x" * 100_000}, root)
        checks.that(f"the object of rank {root}", got == {"from": root, "text": "x" * 100_000})
    gathered = c.allgather_object(list(range(ringcore.rank())))
    checks.that("everybody's object", gathered == [list(range(rank)) for rank in range(size)])


# ---- process sets and join ----


@case
def process_sets(adapter: Adapter, checks: Checks) -> None:
    me, size, c = ringcore.rank(), ringcore.size(), adapter.collectives
    groups = [list(g) for n in range(1, size + 1) for g in itertools.combinations(range(size), n)]
    sets = [c.add_process_set(group) for group in groups]
    tensor = adapter.tensor(payload(me, (1000,), "float32"))
    # A collective of all ranks is under way all the time.
    world = c.allreduce_async(tensor, op=OPS["sum"], name="world")
    for group, process_set in zip(groups, sets, strict=True):
        if me not in group:
            continue
        parts = [payload(rank, (1000,), "float32") for rank in group]
        own = parts[group.index(me)]
        for op in ("sum", "average", "max"):
            result = c.allreduce(adapter.tensor(own), op=OPS[op], process_set=process_set, name=f"{op}{group}")
            exact = 0.0 if len(group) < 3 or op != "average" else 1.0
            checks.equal(f"{op} in {group}", adapter.array(result), reduced(parts, op), ulps=exact, common=False)
        result = c.allgather(adapter.tensor(own), process_set=process_set, name=f"gather{group}")
        checks.equal(f"allgather in {group}", adapter.array(result), np.concatenate(parts), common=False)
        for root in group:
            result = c.broadcast(adapter.tensor(own), root, process_set=process_set, name=f"root{root}{group}")
            checks.equal(f"from {root} in {group}", adapter.array(result), parts[group.index(root)], common=False)
        share = c.reducescatter(adapter.tensor(own), op=OPS["sum"], process_set=process_set, name=f"scatter{group}")
        index, count = group.index(me), len(group)
        begin = sum(1000 // count + (i < 1000 % count) for i in range(index))
        rows = reduced(parts, "sum")[begin : begin + 1000 // count + (index < 1000 % count)]
        checks.equal(f"reducescatter in {group}", adapter.array(share), rows, common=False)
    expected = reduced(_parts((1000,), "float32"), "sum")
    checks.equal("the world beside them", adapter.array(c.synchronize(world)), expected)
    for process_set in sets:
        c.remove_process_set(process_set)


@case
def join(adapter: Adapter, checks: Checks) -> None:
    """Loops of different length: rank r has r + 2 steps; who has joined counts as zeros."""
    me, size, c = ringcore.rank(), ringcore.size(), adapter.collectives
    for op in ("sum", "average"):
        for step in range(me + 2):
            tensor = adapter.tensor(payload(me, (100,), "float64"))
            result = c.allreduce(tensor, op=OPS[op], name=f"joined {op} {step}")
            running = [payload(rank, (100,), "float64") for rank in range(size) if step < rank + 2]
            expected = reduced(running, "sum") / (size if op == "average" else 1)
            checks.equal(f"{op} in step {step}", adapter.array(result), expected, ulps=1.0, common=False)
        last = c.join()
        # Only the last rank works alone, so it joins last.
        checks.that(f"the last to join is {last}", last == size - 1)
    c.barrier()


@case
def join_in_a_process_set(adapter: Adapter, checks: Checks) -> None:
    me, size, c = ringcore.rank(), ringcore.size(), adapter.collectives
    pair = c.add_process_set([0, size - 1])
    if pair.included():
        for step in range(2 if me == 0 else 5):
            result = c.allreduce(
                adapter.tensor(payload(me, (10,), "float32")), op=OPS["sum"], process_set=pair, name=f"pair {step}"
            )
            running = [0, size - 1] if step < 2 else [size - 1]
            expected = reduced([payload(rank, (10,), "float32") for rank in running], "sum")
            checks.equal(f"step {step} of the pair", adapter.array(result), expected, common=False)
        last = c.join(process_set=pair)
        checks.that(f"the pair's last is {last}", last == size - 1)
    result = c.allreduce(adapter.tensor(payload(me, (10,), "float32")), op=OPS["sum"], name="all again")
    checks.equal("all ranks afterwards", adapter.array(result), reduced(_parts((10,), "float32"), "sum"))
    c.remove_process_set(pair)


@case
def process_sets_at_work_at_the_same_time(adapter: Adapter, checks: Checks) -> None:
    c, me, size = adapter.collectives, ringcore.rank(), ringcore.size()
    groups = [list(range(size)), list(range(size)), list(range(max(size - 1, 1)))]
    sets = [c.add_process_set(group) for group in groups[1:]]
    for round_ in range(20):
        handles = []
        for index in range(24):
            # Each rank serves the sets in an order of its own.
            for which in np.random.default_rng([me, round_, index]).permutation(len(groups)):
                if me not in groups[which]:
                    continue
                part = np.full(5000 + 100 * index, float((me + 1) * (which + 1)), np.float32)
                options = {"process_set": sets[which - 1]} if which > 0 else {}
                handle = c.allreduce_async(
                    adapter.tensor(part), op=OPS["sum"], name=f"{round_} {index} {which}", **options
                )
                handles.append((which, part.size, handle))
        for which, count, handle in handles:
            expected = np.full(count, float((which + 1) * sum(rank + 1 for rank in groups[which])), np.float32)
            checks.equal(f"set {which} in round {round_}", adapter.array(c.synchronize(handle)), expected, common=False)
    for process_set in sets:
        c.remove_process_set(process_set)


@case
def what_one_rank_refuses_is_told_to_all(adapter: Adapter, checks: Checks) -> None:
    """Without names: the operations that follow are still the same ones on all ranks."""
    c, me, size = adapter.collectives, ringcore.rank(), ringcore.size()
    for refusing in ([size - 1], list(range(size))):
        part = np.ones(3, "int32" if me in refusing else "float32")
        for verb in (c.allreduce, c.reducescatter):
            told = _error_of(lambda verb=verb, part=part: verb(adapter.tensor(part), op=OPS["average"]))
            checks.that(f"ranks {refusing} refuse an average: {told}", "average" in told)
            checks.that(f"it says who: {told}", me in refusing or f"rank {size - 1} refused" in told)
            parts = _parts((10,), "float32")
            result = c.allreduce(adapter.tensor(parts[me]), op=OPS["sum"])
            checks.equal("the next sum", adapter.array(result), reduced(parts, "sum"))


def _error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return str(error)
    return "no error"
