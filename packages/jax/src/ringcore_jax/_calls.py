"""The collectives as a primitive of JAX: its shapes, derivatives and batches, and the custom call that XLA makes of it.

Reverse and forward mode, `vmap`, `scan` and `jit` follow from the rules here.

Ranks agree on a call by its name, not by when XLA runs it. The name is made when a program is compiled, from the
program's name and the calls before it, and so is the same on all ranks that trace the same program, however often they
do. No thread waits in a call, so that others may overtake it. But XLA runs parts of a program one after the other, in
an order that it chooses by the sizes of the arrays, which may differ between ranks (the last batch); so a call also
depends on the one before it, and all ranks keep the order of the trace.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from ringcore import InvalidArgument, adapter
from ringcore.adapter import COLLECTIVE_CODES, DTYPE_CODES, ReduceOp, title_of

_TARGET = "ringcore"


LIBRARY = ctypes.CDLL(str(Path(__file__).with_name("libringcore_jax.so")))


def _register() -> None:
    LIBRARY.ringcore_jax_use(ctypes.c_void_p(adapter.capi()))
    handlers = {"cpu": LIBRARY.ringcore_jax_collective, "CUDA": LIBRARY.ringcore_jax_collective_on_gpu}
    for platform, handler in handlers.items():
        capsule = jax.ffi.pycapsule(handler)  # type: ignore[no-untyped-call]
        jax.ffi.register_ffi_target(_TARGET, capsule, platform=platform)


_register()
# XLA has a thread that warns of compilations of more than two minutes. It sleeps for that time, also when they have
# ended, and nothing that it does then lets a program go on.
adapter.add_bystanders("libjax_common.so", "_ZN3xla18SlowOperationAlarm9AlarmLoopEv")


def for_library(call: Callable[[], None], message: int, capacity: int) -> int:
    """Do what the library asks for on a thread of XLA.

    Returns:
        The length of the message that says what is wrong, or 0. It tells of an interrupt as well: from what ctypes
        lets out of a call of Python the library gets any length.
    """
    try:
        call()
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".encode()[:capacity]
        ctypes.memmove(message, text, len(text))
        return len(text)
    return 0


@dataclasses.dataclass(frozen=True)
class Call:
    """An operation on one array, or on several as a group.

    Attributes:
        collective: Its name.
        name: The caller's; None: made when the program is compiled.
        process_set: The engine's number of it.
        rank: This process's index among its members.
        size: The number of its members.
        op: Of the reductions.
        root: Of a broadcast or a scatter: its index among the members.
        prescale: Factor of the inputs of a reduction.
        postscale: Factor of its results.
        compression: Of an allreduce: the engine's code of how it may be sent between hosts.
    """

    collective: str
    name: str | None
    process_set: int
    rank: int
    size: int
    op: ReduceOp = ReduceOp.SUM
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    compression: int = 0

    @property
    def title(self) -> str:
        """For messages."""
        return title_of(self.collective, self.name)

    def share(self, rows: int, rank: int) -> int:
        """Of so many rows that are dealt out, how many a member gets."""
        return rows // self.size + (rank < rows % self.size)

    def named(self, suffix: str) -> str | None:
        """The name of an operation that belongs to this one."""
        return None if self.name is None else self.name.removesuffix(".tangent") + suffix

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of an array's result, where all ranks pass arrays of the same shape."""
        if self.collective in ("allreduce", "broadcast"):
            return shape
        if not shape:
            raise InvalidArgument(f"{self.title}: a scalar has no rows; pass an array of at least one dimension")
        if self.collective == "allgather":
            return shape[0] * self.size, *shape[1:]
        if self.collective == "reducescatter":
            return self.share(shape[0], self.rank), *shape[1:]
        if shape[0] % self.size != 0:
            raise InvalidArgument(
                f"{self.title}: {shape[0]} rows cannot be divided evenly among {self.size} ranks; outside jit pass "
                "splits, inside pad the rows"
            )
        return (shape[0] // self.size if self.collective == "scatter" else shape[0]), *shape[1:]


def check_dtype(dtype: Any) -> None:
    """Refuse dtypes that the engine does not know.

    Raises:
        InvalidArgument: With the dtypes that there are.
    """
    if str(dtype) not in DTYPE_CODES:
        raise InvalidArgument(f"the array has dtype {dtype}; convert it to one of {', '.join(DTYPE_CODES)}")


collective_p: Any = Primitive("ringcore")
collective_p.multiple_results = True


def run(call: Call, arrays: Sequence[Any]) -> list[Any]:
    """The results of an operation on arrays, of which some may be traced."""
    if call.op is ReduceOp.ADASUM:
        raise InvalidArgument(
            f"{call.title}: op=Adasum works on arrays, outside jit and grad; use op=Sum or op=Average"
        )
    for array in arrays:
        try:
            check_dtype(array.dtype)
        except InvalidArgument as error:
            raise InvalidArgument(f"{call.title}: {error}") from None
        if call.op is ReduceOp.AVERAGE and not jnp.issubdtype(array.dtype, jnp.floating):
            raise InvalidArgument(f"{call.title}: the average of {array.dtype} is not defined; use op=Sum and divide")
    results: list[Any] = collective_p.bind(*arrays, call=call)
    return results


@functools.partial(jax.jit, static_argnames="call")
def ringcore(*arrays: jax.Array, call: Call) -> list[Any]:  # its name begins that of the operation
    results: list[Any] = collective_p.bind(*arrays, call=call)
    return results


def _shapes(*arrays: Any, call: Call) -> list[Any]:
    return [jax.core.ShapedArray(call.result_shape(array.shape), array.dtype) for array in arrays]


collective_p.def_impl(ringcore)
collective_p.def_abstract_eval(_shapes)


@jax.jit
def _negated(value: Any) -> Any:
    return -value


def finish_programs() -> None:
    """Wait until the programs that this thread has begun are done, also those whose results nobody holds."""
    # XLA runs the programs of a thread one after the other.
    _negated(np.float32(0)).block_until_ready()


adapter.before_shutdown.append(finish_programs)


# ---- Derivatives ----
# The loss of the job is the sum of the losses of its ranks: what went to several ranks gets the sum of what they send
# back. All collectives but the minimum, maximum and product are linear, so their tangents are collectives as well.


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> tuple[list[Any], list[Any]]:
    if call.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise InvalidArgument(
            f"{call.title} with op={call.op.name} has no gradient; use op=Sum or op=Average, or "
            "jax.lax.stop_gradient on what it takes"
        )
    results = collective_p.bind(*primals, call=call)
    changes = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    moving = [index for index, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    tangent_call = dataclasses.replace(call, name=call.named(".tangent"))
    moved = collective_p.bind(*(tangents[index] for index in moving), call=tangent_call)
    for index, change in zip(moving, moved, strict=True):
        changes[index] = change
    return results, changes


def _transpose(cotangents: Sequence[Any], *arrays: Any, call: Call) -> list[Any]:
    given = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]  # type: ignore[no-untyped-call]
    back = dataclasses.replace(call, name=call.named(".gradient"))
    shapes = [array.aval.shape for array in arrays]
    return [*_TRANSPOSED[call.collective](back, given, shapes)]


def _back_to_root(call: Call, cotangents: list[Any], _: list[tuple[int, ...]]) -> list[Any]:
    sent_back = "allgather" if call.collective == "scatter" else "allreduce"
    totals = collective_p.bind(*cotangents, call=dataclasses.replace(call, collective=sent_back))
    # Who is the root, the engine says when the program runs: a constant would make programs of the ranks that XLA
    # simplifies differently, and then runs in different orders.
    chosen = jnp.asarray(np.arange(call.size) == call.root, jnp.int32)
    deal = dataclasses.replace(call, collective="reducescatter", name=call.named(".root"))
    (is_root,) = collective_p.bind(chosen, call=deal)
    return [jnp.where(is_root[0] > 0, total, jnp.zeros_like(total)) for total in totals]


def _back_from_reducescatter(call: Call, cotangents: list[Any], shapes: list[tuple[int, ...]]) -> list[Any]:
    factor = call.prescale * call.postscale / (call.size if call.op is ReduceOp.AVERAGE else 1)
    gather = dataclasses.replace(call, collective="allgather", op=ReduceOp.SUM, prescale=1.0, postscale=1.0)
    padded, rows = [], []
    for cotangent, shape in zip(cotangents, shapes, strict=True):
        most = call.share(shape[0], 0)
        padding = [(0, most - cotangent.shape[0]), *[(0, 0)] * (cotangent.ndim - 1)]
        padded.append(jnp.pad(cotangent, padding))
        rows.append(np.concatenate([np.arange(call.share(shape[0], r)) + r * most for r in range(call.size)]))
    gathered = collective_p.bind(*padded, call=gather)
    return [array[index] * np.asarray(factor, array.dtype) for array, index in zip(gathered, rows, strict=True)]


_TRANSPOSED: dict[str, Any] = {
    "allreduce": lambda call, cotangents, _: collective_p.bind(*cotangents, call=call),
    "allgather": lambda call, cotangents, _: collective_p.bind(
        *cotangents, call=dataclasses.replace(call, collective="reducescatter", op=ReduceOp.SUM)
    ),
    "broadcast": _back_to_root,
    "reducescatter": _back_from_reducescatter,
    "alltoall": lambda call, cotangents, _: collective_p.bind(*cotangents, call=call),
    "scatter": _back_to_root,
}

ad.primitive_jvps[collective_p] = _jvp
ad.primitive_transposes[collective_p] = _transpose


# ---- vmap ----


def _batch(arrays: Sequence[Any], dims: Sequence[Any], *, call: Call) -> tuple[list[Any], list[Any]]:
    if call.collective in ("allreduce", "broadcast"):
        return collective_p.bind(*arrays, call=call), list(dims)
    # The first dimension holds the rows; the batch goes behind it.
    moved = [array if dim is None else jnp.moveaxis(array, dim, 1) for array, dim in zip(arrays, dims, strict=True)]
    return collective_p.bind(*moved, call=call), [dim if dim is None else 1 for dim in dims]


batching.primitive_batchers[collective_p] = _batch


# ---- Compilation ----


def _unique_name(context: Any, call: Call) -> str:
    module = context.module_context
    base = call.name
    if base is None:
        base = f"{module.module.operation.attributes['sym_name'].value}.{call.collective}"
    # A dict of the module that is being compiled; kept for things like this.
    used = module.cached_primitive_lowerings
    number = used[_TARGET, base] = used.get((_TARGET, base), -1) + 1
    return f"{base}.{number}" if call.name is None or number > 0 else base


def _after_the_last(context: Any, operands: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """The operands, and the smallest result of the call before, of which only the dependence counts."""
    last = context.module_context.cached_primitive_lowerings.get(_TARGET)
    here = mlir.ir.InsertionPoint.current.block
    # A loop or a branch with the last call in it stands for it.
    while last is not None and last.parent is not None and last.block != here:
        last = last.parent.operation
    if last is None or last.parent is None or not last.results:
        return context, operands
    result = min(last.results, key=lambda result: math.prod(result.type.shape))
    shape = jax.core.ShapedArray(tuple(result.type.shape), np.dtype(np.float32))
    return context.replace(avals_in=[*context.avals_in, shape]), [*operands, result]


def _lower(context: Any, *operands: Any, call: Call) -> Any:
    placement = context.module_context.axis_context
    mesh = getattr(placement, "mesh", None)
    devices = mesh.size if mesh is not None else placement.num_devices
    if devices is not None and devices > 1:
        raise InvalidArgument(
            f"{call.title} was called in a program for {devices} devices (pmap, shard_map, or arrays that lie on "
            "several); ringcore works with one process a device: start more ranks, each with one device"
        )
    attributes = {
        "name": _unique_name(context, call), "collective": np.int32(COLLECTIVE_CODES[call.collective]),
        "op": np.int32(call.op), "root": np.int32(call.root), "process_set": np.int32(call.process_set),
        "prescale": np.float64(call.prescale), "postscale": np.float64(call.postscale),
        "compression": np.int32(call.compression),
        "dtypes": np.array([DTYPE_CODES[str(array.dtype)] for array in context.avals_in], np.int32),
    }  # fmt: skip
    # In place where XLA can, which spares it memory that nobody has touched yet; not where it may have to be reduced
    # again, without a rank that was lost.
    in_place = call.collective == "broadcast" or (call.collective == "allreduce" and not adapter.is_elastic())
    aliases = {i: i for i in range(len(operands))} if in_place else {}
    lower = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True, operand_output_aliases=aliases)
    return lower_behind_the_last(lower, context, operands, **attributes)


def lower_behind_the_last(lower: Any, context: Any, operands: Sequence[Any], **attributes: Any) -> Any:
    """Make a call of the program which runs behind the one before it."""
    context, arguments = _after_the_last(context, operands)
    results: Any = lower(context, *arguments, **attributes)
    run_behind(context, results[0].owner.operation)
    return results


def run_behind(context: Any, operation: Any) -> None:
    """Let the next call of the program run behind an operation of it, which has a result."""
    context.module_context.cached_primitive_lowerings[_TARGET] = operation


def _refuse_platform(context: Any, *_: Any, call: Call) -> Any:
    raise InvalidArgument(
        f"{call.title} was called in a program for {', '.join(context.module_context.platforms)}, and this version of "
        "ringcore works on CPUs and NVIDIA's GPUs; set JAX_PLATFORMS=cpu, or jit the function that calls it with "
        "arrays that lie there"
    )


# Not cached: every call of a program gets a name of its own.
mlir.register_lowering(collective_p, _refuse_platform, cacheable=False)
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(collective_p, _lower, platform=_platform, cacheable=False)
