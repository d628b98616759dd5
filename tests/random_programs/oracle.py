"""What ranks put in, and what must come out: in numpy alone."""

from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np

from random_programs.program import REDUCING, Call

_REPEATED = 4093  # a prime: what lands in another piece of a tensor is seen


def inputs(call: Call, rank: int) -> list[np.ndarray]:
    """A member's tensors: values whose sums and products over a few ranks are exact in 8 bits."""
    shapes = call.shapes
    if call.verb in ("allgather", "alltoall", "gather", "scatter"):
        shapes = (shapes[call.members.index(rank)],)
    rng = np.random.default_rng([call.seed, rank])
    return [_values(rng, shape, call) for shape in shapes]


def _values(rng: np.random.Generator, shape: tuple[int, ...], call: Call) -> np.ndarray:
    if call.dtype == "bool":
        few = rng.integers(0, 2, _REPEATED)
    elif call.op == "product":
        few = rng.choice([1, 1, 2], _REPEATED)
    else:
        few = rng.integers(0, 6, _REPEATED)
    return (
        np.resize(few.astype(dtype_of(call.dtype)), shape) if np.prod(shape) else np.empty(shape, dtype_of(call.dtype))
    )


def dtype_of(name: str) -> np.dtype:
    """Numpy's."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def expected(call: Call, rank: int, joined: tuple[int, ...] = ()) -> list[np.ndarray]:
    """What a member gets; ranks that have joined put nothing in."""
    parts = [inputs(call, member) for member in call.members if member not in joined]
    index = call.members.index(rank)
    if call.verb == "broadcast":
        return parts[call.members.index(call.root)]
    if call.verb in ("reduce", "gather") and rank != call.root:
        return []
    if call.verb in ("allgather", "gather"):
        return [np.concatenate([part[0] for part in parts])]
    if call.verb == "alltoall":
        ends = [np.cumsum(row) for row in call.splits]
        pieces = [
            part[0][end[index] - row[index] : end[index]]
            for part, row, end in zip(parts, call.splits, ends, strict=True)
        ]
        return [np.concatenate(pieces)]
    if call.verb == "scatter":
        return [np.split(parts[call.members.index(call.root)][0], np.cumsum(call.splits[0])[:-1])[index]]
    sums = [_reduced([part[i] for part in parts], call) for i in range(len(call.shapes))]
    if call.verb in ("allreduce", "reduce"):
        return sums
    return [np.array_split(sums[0], len(call.members))[index]]  # the first ones get one row more


def _reduced(parts: list[np.ndarray], call: Call) -> np.ndarray:
    wide = np.stack([part.astype(np.float64) for part in parts])
    if call.op in ("sum", "average"):
        scale = call.factors[0] * call.factors[1] / (len(call.members) if call.op == "average" else 1)
        return np.asarray(wide.sum(0) * scale).astype(parts[0].dtype)
    function = {"min": np.min, "max": np.max, "product": np.prod}[call.op]
    return np.asarray(function(wide, axis=0)).astype(parts[0].dtype)


def difference(got: np.ndarray, want: np.ndarray, call: Call) -> str:
    """What is wrong with a result; empty if nothing. An average of three is rounded, all else is exact."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype} {got.shape} instead of {want.dtype} {want.shape}"
    if got.tobytes() == want.tobytes():
        return ""
    wrong = got.reshape(-1).astype(np.float64) != want.reshape(-1).astype(np.float64)
    if call.op == "average" and call.verb in REDUCING:
        near = np.abs(np.spacing(want.reshape(-1))).astype(np.float64)
        wrong = np.abs(got.reshape(-1).astype(np.float64) - want.reshape(-1).astype(np.float64)) > near
    if not wrong.any():
        return ""
    first = int(np.flatnonzero(wrong)[0])
    flat = (got.reshape(-1)[first], want.reshape(-1)[first])
    return f"{int(wrong.sum())} of {got.size} are wrong, [{first}] is {flat[0]} instead of {flat[1]}"


def mistaken(call: Call) -> Call:
    """What the rank calls that makes the mistake."""
    assert call.mistake is not None
    before, after = call.factors
    if call.mistake.kind == "dtype":
        # What a rank would refuse by itself is no mistake that the others hear of.
        other = "int32" if call.dtype != "int32" else "int64"
        return replace(call, dtype=other, op="sum" if call.op == "average" else call.op, factors=(1.0, 1.0))
    if call.mistake.kind == "op":
        return replace(call, op="max" if call.op != "max" else "min")
    if call.mistake.kind == "root":
        return replace(call, root=next(rank for rank in call.members if rank != call.root))
    if call.mistake.kind == "prescale":
        return replace(call, factors=(4 * before, after))
    if call.mistake.kind == "postscale":
        return replace(call, factors=(before, 4 * after))
    if call.mistake.kind == "shape":
        ((rows, *tail),) = call.shapes
        return replace(call, shapes=((rows + 1, *tail),))
    return replace(call, verb="broadcast" if call.verb == "allreduce" else "allreduce", root=call.members[0])


def misses(call: Call, message: str) -> list[str]:
    """What an error about the mistake does not name, and should."""
    assert call.mistake is not None
    other = mistaken(call)
    pairs = {
        "dtype": (call.dtype, other.dtype), "op": (call.op, other.op), "root": ("root",),
        "prescale": ("prescale",), "postscale": ("postscale",),
        "shape": tuple(str(list(one.shapes[0])) for one in (call, other)), "verb": (call.verb, other.verb),
    }  # fmt: skip
    words = [call.name, *pairs[call.mistake.kind], "Remedy"]
    missing = [word for word in words if word not in message]
    return missing + ([] if re.search(rf"\b{call.mistake.rank}\b", message) else [f"rank {call.mistake.rank}"])
