"""Draws programs: the same one on every rank, as everything comes from the seed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

Shape = tuple[int, ...]

FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = (*FLOATS, "uint8", "int8", "uint16", "int16", "int32", "int64", "bool")
OPS = ("sum", "average", "min", "max", "product")
REDUCING = ("allreduce", "reducescatter", "reduce")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
VERBS = ("allreduce", "allreduce", "allreduce", "allreduce", "broadcast", "allgather", "reducescatter", "alltoall",
         "reduce", "gather", "scatter")  # fmt: skip
# Bytes at most, and how often: from nothing over the short cut and buckets to pieces of large ones.
SIZES = ((0, 0.05), (512, 0.45), (64 << 10, 0.37), (1 << 20, 0.1), (8 << 20, 0.03))
TAILS: tuple[Shape, ...] = ((), (), (3,), (2, 5))


@dataclass(frozen=True)
class Mistake:
    """One rank calls something else, of another `kind`: dtype, shape, op, root, verb, prescale or postscale."""

    kind: str
    rank: int


@dataclass(frozen=True)
class Call:
    """One operation.

    Attributes:
        name: Identifies it among those that are under way.
        seed: Of its data.
        verb: Of `VERBS`.
        process_set: Index of the set among those that are there; None: all ranks.
        members: The ranks that call it.
        dtype: Of all its tensors.
        shapes: Of each member's tensor; where the verb wants them alike, of all tensors of a group.
        op: How it is reduced.
        factors: Before and after.
        root: Of a broadcast, reduce, gather or scatter.
        splits: Of an alltoall, a row for each member; of a scatter the root's.
        may_be_dropped: A rank may lose its handle: the name is used only once.
        mistake: What one of the ranks does wrong.
    """

    name: str
    seed: int
    verb: str
    process_set: int | None
    members: tuple[int, ...]
    dtype: str
    shapes: tuple[Shape, ...]
    op: str = "sum"
    factors: tuple[float, float] = (1.0, 1.0)
    root: int = 0
    splits: tuple[tuple[int, ...], ...] = ()
    may_be_dropped: bool = False
    mistake: Mistake | None = None


@dataclass(frozen=True)
class Calls:
    """Operations that are under way together, from so many threads."""

    calls: tuple[Call, ...]
    threads: int


@dataclass(frozen=True)
class Join:
    """Loops of different length, and a join behind them: a call for each step of the longest."""

    steps: tuple[int, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class AddSet:
    """A new process set, behind those that are there."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class RemoveSet:
    """The process set of this index goes."""

    index: int


Step = Calls | Join | AddSet | RemoveSet


def draw(seed: int, size: int) -> list[Step]:
    """The program of a seed, for so many ranks."""
    rng = np.random.default_rng([seed, size])
    sets: list[tuple[int, ...]] = []
    steps: list[Step] = []
    for number in range(int(rng.integers(4, 9))):
        kind = rng.choice(["calls", "join", "add", "remove"], p=[0.55, 0.15, 0.2, 0.1])
        if kind == "add" and len(sets) < 3:
            count = int(rng.integers(1, size + 1))
            sets.append(tuple(sorted(int(rank) for rank in rng.choice(size, count, replace=False))))
            steps.append(AddSet(sets[-1]))
        elif kind == "remove" and sets:
            steps.append(RemoveSet(int(rng.integers(len(sets)))))
            del sets[steps[-1].index]
        elif kind == "join":
            steps.append(_draw_join(rng, seed, number, size))
        else:
            dtypes = _draw_dtypes(rng)
            once = [f"{seed}.{number}.{i}" for i in range(int(rng.integers(1, 13)))]
            calls = tuple(_draw_call(rng, name, i, size, sets, dtypes) for i, name in enumerate(once))
            steps.append(Calls(calls, threads=int(rng.integers(1, 4))))
    return [*steps, *(RemoveSet(0) for _ in sets)]


def _draw_dtypes(rng: np.random.Generator) -> list[str]:
    """Few at once: only tensors of one dtype share a bucket."""
    return [str(dtype) for dtype in rng.choice(DTYPES, 2, replace=False)]


def _draw_join(rng: np.random.Generator, seed: int, number: int, size: int) -> Join:
    steps = tuple(int(count) for count in rng.integers(0, 8, size))
    dtypes = _draw_dtypes(rng)[:1]
    calls: list[Call] = []
    for step in range(max(steps)):
        call = _draw_call(rng, f"{seed}.{number}.{step}", step, size, [], dtypes)
        call = replace(call, verb="allreduce", shapes=(_draw_shape(rng, call.dtype),), splits=(), mistake=None)
        call = _reducing(rng, call)
        if calls and rng.random() < 0.7:  # in one bucket with the others
            call = replace(call, op=calls[0].op, factors=calls[0].factors)
        calls.append(call)
    return Join(steps, tuple(calls))


def _draw_call(
    rng: np.random.Generator, single_use: str, index: int, size: int, sets: list[tuple[int, ...]], dtypes: list[str]
) -> Call:
    chosen = int(rng.integers(len(sets))) if sets and rng.random() < 0.4 else None
    members = tuple(range(size)) if chosen is None else sets[chosen]
    verb = str(rng.choice(VERBS))
    dtype = str(rng.choice(dtypes))
    # A set can be removed only when its operations are done.
    may_be_dropped = chosen is None and rng.random() < 0.2
    call = Call(
        name=f"once.{single_use}" if may_be_dropped else f"again.{index}",
        seed=int(rng.integers(1 << 31)),
        verb=verb,
        process_set=chosen,
        members=members,
        dtype=dtype,
        shapes=(_draw_shape(rng, dtype),),
        may_be_dropped=may_be_dropped,
    )
    call = _DETAILS[verb](rng, call)
    if len(members) > 1 and rng.random() < 0.12:
        kinds = ["dtype", *(["op"] if verb in REDUCING else []), *(["root"] if verb in ROOTED else [])]
        kinds += ["prescale", "postscale"] if verb in REDUCING and dtype in FLOATS else []
        kinds += ["shape", "verb"] if verb in ("allreduce", "broadcast") and len(call.shapes) == 1 else []
        call = replace(call, mistake=Mistake(str(rng.choice(kinds)), int(rng.choice(members))))
    return call


def _draw_shape(rng: np.random.Generator, dtype: str) -> Shape:
    limit = int(rng.choice([limit for limit, _ in SIZES], p=[often for _, often in SIZES]))
    tail = TAILS[rng.integers(len(TAILS))]
    row_bytes = item_bytes(dtype) * int(np.prod(tail))
    return (int(rng.integers(limit // row_bytes // 2, limit // row_bytes + 1)), *tail)


def item_bytes(dtype: str) -> int:
    """Of one element."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _reducing(rng: np.random.Generator, call: Call) -> Call:
    ops = OPS if call.dtype in FLOATS else [op for op in OPS if op != "average"]
    op = str(rng.choice(ops))
    factors = (1.0, 1.0)
    if call.dtype in FLOATS and op in ("sum", "average") and rng.random() < 0.5:
        factors = tuple(float(factor) for factor in rng.choice([0.5, 1.0, 2.0], 2))
    return replace(call, op=op, factors=factors)


def _allreduce(rng: np.random.Generator, call: Call) -> Call:
    more = [_draw_shape(rng, call.dtype) for _ in range(int(rng.choice([0, 0, 1, 3])))]
    return replace(_reducing(rng, call), shapes=(*call.shapes, *more))


def _broadcast(rng: np.random.Generator, call: Call) -> Call:
    return replace(call, root=int(rng.choice(call.members)))


def _reduce(rng: np.random.Generator, call: Call) -> Call:
    return replace(_reducing(rng, call), root=int(rng.choice(call.members)))


def _allgather(rng: np.random.Generator, call: Call) -> Call:
    ((rows, *tail),) = call.shapes
    return replace(call, shapes=tuple((int(rng.integers(rows + 1)), *tail) for _ in call.members))


def _gather(rng: np.random.Generator, call: Call) -> Call:
    return replace(_allgather(rng, call), root=int(rng.choice(call.members)))


def _scatter(rng: np.random.Generator, call: Call) -> Call:
    ((rows, *tail),) = call.shapes
    root = int(rng.choice(call.members))
    splits = tuple(int(n) for n in rng.integers(0, rows // len(call.members) + 1, len(call.members)))
    # What the others pass is not looked at.
    shapes = tuple((sum(splits) if member == root else int(rng.integers(3)), *tail) for member in call.members)
    return replace(call, shapes=shapes, root=root, splits=(splits,))


def _alltoall(rng: np.random.Generator, call: Call) -> Call:
    ((rows, *tail),) = call.shapes
    count = len(call.members)
    splits = tuple(tuple(int(n) for n in rng.integers(0, rows // count + 1, count)) for _ in call.members)
    return replace(call, shapes=tuple((sum(row), *tail) for row in splits), splits=splits)


_DETAILS = {
    "allreduce": _allreduce,
    "broadcast": _broadcast,
    "allgather": _allgather,
    "reducescatter": _reducing,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "alltoall": _alltoall,
}
