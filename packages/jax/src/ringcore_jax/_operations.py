"""The collectives: on arrays at once, and inside `jit`, `grad`, `scan` and `vmap` as calls of the compiled program.

Every verb takes an array or a pytree of arrays. On arrays the engine works at once, and what goes wrong is one of
ringcore's exceptions. In a compiled program XLA runs it, and its exception carries the engine's message: a
`jax.errors.JaxRuntimeError` where the results are waited for, a `ValueError` where the call of the program fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ringcore import Average, InvalidArgument, adapter
from ringcore.adapter import (
    DTYPE_NAMES,
    Buffer,
    Handle,
    ProcessSet,
    ReduceOp,
    as_buffer,
    context,
    empty,
    from_bytes,
    global_process_set,
    name_or_next,
    process_set_id_of,
)

from ringcore_jax._calls import Call, check_dtype, finish_programs, run
from ringcore_jax.compression import Compression, Compressor


def _is_traced(leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def _title(collective: str, name: str | None) -> str:
    return collective if name is None else f"{collective} '{name}'"


def _call(collective: str, name: str | None, process_set: ProcessSet, **options: Any) -> Call:
    current = context()
    everybody = process_set is global_process_set
    number = process_set_id_of(process_set)
    rank, size = (current.rank, current.size) if everybody else (process_set.rank(), process_set.size())
    return Call(collective, name, number, rank, size, **options)


def _as_host_array(leaf: Any, title: str) -> np.ndarray[Any, Any]:
    """A leaf's memory, which may not be written; waits until it is computed."""
    array = leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
    devices = array.devices()
    if len(devices) != 1 or next(iter(devices)).platform != "cpu":
        raise InvalidArgument(
            f"{title}: the array lies on {', '.join(sorted(map(str, devices)))}, and outside jit this version of "
            "ringcore works with one CPU device a process; call it inside jit, pass jax.device_put(x, "
            "jax.devices('cpu')[0]), or set JAX_PLATFORMS=cpu"
        )
    return np.asarray(array, order="C")


def _as_buffer(leaf: Any, title: str) -> Buffer:
    if isinstance(leaf, jax.core.Tracer):
        raise InvalidArgument(
            f"{title}: the _async forms work on arrays; inside jit and grad call the plain one: XLA goes on beside it "
            "with what does not need its result"
        )
    array = _as_host_array(leaf, title)
    check_dtype(array.dtype, title)
    return as_buffer(array)


def _as_buffers(leaves: Sequence[Any], title: str) -> tuple[Buffer, ...]:
    return tuple([_as_buffer(leaf, title) for leaf in leaves])


# ---- allreduce ----


def _start_allreduce(
    tensors: Any,
    op: ReduceOp,
    name: str | None,
    process_set: ProcessSet,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    blocking: bool,
) -> Handle:
    leaves, structure = jax.tree.flatten(tensors)
    if not leaves:
        return Handle.of_nothing(tensors)
    sources = _as_buffers(leaves, _title("allreduce", name))
    results = [empty(source.shape, source.dtype) for source in sources]
    return adapter.allreduce(
        sources, tuple(map(as_buffer, results)), name_or_next(name, "allreduce", process_set), op=op,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set, blocking=blocking,
        finish=lambda _: jax.tree.unflatten(structure, map(jnp.asarray, results)),
    )  # fmt: skip


def allreduce(
    tensors: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """Reduce arrays over all ranks; every rank gets the same bits.

    Args:
        tensors: An array or a pytree of them, which are one operation that runs as a whole or not at all. Of any shape:
            uint8, int8, uint16, int16, int32, int64, float16, bfloat16, float32, float64 or bool (those of 64 bits with
            `jax_enable_x64`). 16-bit floats are summed in float32 and rounded once.
        op: `Average` (floats only), `Sum`, `Min`, `Max` (NaN wins), `Product`; on arrays also `Adasum`. Gradients flow
            through the first two.
        name: Identifies the operation on all ranks. Without one the order of the calls does: of the process for arrays,
            of the program inside `jit`.
        prescale_factor: Multiplied into the arrays before the reduction.
        postscale_factor: Multiplied into the results.
        process_set: The ranks that take part.
        compression: What is sent: see `Compression`.

    Raises:
        InvalidArgument: Another device, an unknown dtype, an average of integers.
        MismatchError: Another rank used this name with another dtype, shape, op or factor. On every rank.
        TimeoutError: A rank did not submit it in time. On every rank.
        PeerLostError: A rank died or left. On every rank.
    """
    if compression is not Compression.none:
        dtypes = jax.tree.map(jnp.result_type, tensors)
        reduced = allreduce(
            jax.tree.map(compression.compress, tensors), op=op, name=name, prescale_factor=prescale_factor,
            postscale_factor=postscale_factor, process_set=process_set,
        )  # fmt: skip
        return jax.tree.map(compression.decompress, reduced, dtypes)
    leaves, structure = jax.tree.flatten(tensors)
    if not _is_traced(leaves):
        return _start_allreduce(
            tensors, op, name, process_set, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            blocking=True,
        ).synchronize()  # fmt: skip
    call = _call("allreduce", name, process_set, op=op, prescale=prescale_factor, postscale=postscale_factor)
    return jax.tree.unflatten(structure, run(call, leaves))


def allreduce_async(
    tensors: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    **options: float,
) -> Handle:
    """Start an `allreduce` of arrays outside `jit`; `synchronize(handle)` returns the result."""
    return _start_allreduce(tensors, op, name, process_set, blocking=False, **options)


def grouped_allreduce(tensors: Sequence[Any], **options: Any) -> list[Any]:
    """`allreduce` of a list, by Horovod's name."""
    return [*allreduce(list(tensors), **options)]


def grouped_allreduce_async(tensors: Sequence[Any], **options: Any) -> Handle:
    """`allreduce_async` of a list, by Horovod's name."""
    return allreduce_async(list(tensors), **options)


# ---- allgather, reducescatter, alltoall ----


def _from_engine(handle: Handle, index: int, source: Buffer, rows: int) -> jax.Array:
    return jnp.asarray(from_bytes(handle.result(index), (rows, *source.shape[1:]), source.dtype))


def _finish_rows(
    sources: Sequence[Buffer], structure: Any, rows_of: Callable[[Handle, int], int]
) -> Callable[[Handle], Any]:
    def finish(handle: Handle) -> Any:
        arrays = [_from_engine(handle, index, source, rows_of(handle, index)) for index, source in enumerate(sources)]
        return jax.tree.unflatten(structure, arrays)

    return finish


def _with_rows(leaf: Any) -> Any:
    return jnp.reshape(leaf, (1,)) if jnp.ndim(leaf) == 0 else leaf


def _start_allgather(tensors: Any, name: str | None, process_set: ProcessSet, *, blocking: bool) -> Handle:
    leaves, structure = jax.tree.flatten(tensors)
    if not leaves:
        return Handle.of_nothing(tensors)
    sources = _as_buffers([_with_rows(leaf) for leaf in leaves], _title("allgather", name))
    finish = _finish_rows(sources, structure, lambda handle, index: sum(handle.rows(index)))
    name = name_or_next(name, "allgather", process_set)
    return adapter.allgather(sources, name, process_set=process_set, blocking=blocking, finish=finish)


def allgather(tensors: Any, *, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate every rank's array along the first dimension; scalars count as one row.

    Args:
        tensors: An array or a pytree of them. Outside `jit` the first dimension may differ between ranks; inside, where
            shapes are known when the program is compiled, all ranks pass as many rows.
        name: See `allreduce`.
        process_set: The ranks that take part.

    Raises:
        MismatchError: Dtypes or other dimensions differ. On every rank.
    """
    leaves, structure = jax.tree.flatten(tensors)
    if not _is_traced(leaves):
        return _start_allgather(tensors, name, process_set, blocking=True).synchronize()
    return jax.tree.unflatten(
        structure, run(_call("allgather", name, process_set), [_with_rows(leaf) for leaf in leaves])
    )


def allgather_async(tensors: Any, *, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Start an `allgather` of arrays outside `jit`."""
    return _start_allgather(tensors, name, process_set, blocking=False)


def grouped_allgather(tensors: Sequence[Any], **options: Any) -> list[Any]:
    """`allgather` of a list, by Horovod's name."""
    return [*allgather(list(tensors), **options)]


def _start_reducescatter(
    tensors: Any, op: ReduceOp, name: str | None, process_set: ProcessSet, *, blocking: bool, **options: float
) -> Handle:
    leaves, structure = jax.tree.flatten(tensors)
    if not leaves:
        return Handle.of_nothing(tensors)
    call = _call("reducescatter", name, process_set)
    sources = _as_buffers(leaves, call.title)
    for source in sources:
        call.result_shape(source.shape)  # refuses scalars
    finish = _finish_rows(sources, structure, lambda _, index: call.share(sources[index].shape[0], call.rank))
    return adapter.reducescatter(
        sources, name_or_next(name, "reducescatter", process_set), op=op, process_set=process_set, blocking=blocking,
        finish=finish, **options,
    )  # fmt: skip


def reducescatter(
    tensors: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce over all ranks; each gets its share of the rows (the first ones one more where rows do not divide).

    Args:
        tensors: An array of at least one dimension, or a pytree of them.
        op: See `allreduce`, as for the rest. Not `Adasum`.
        name: Identifies the operation on all ranks.
        prescale_factor: Multiplied into the arrays before the reduction.
        postscale_factor: Multiplied into the results.
        process_set: The ranks that take part.
    """
    leaves, structure = jax.tree.flatten(tensors)
    if not _is_traced(leaves):
        return _start_reducescatter(
            tensors, op, name, process_set, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            blocking=True,
        ).synchronize()  # fmt: skip
    call = _call("reducescatter", name, process_set, op=op, prescale=prescale_factor, postscale=postscale_factor)
    return jax.tree.unflatten(structure, run(call, leaves))


def reducescatter_async(
    tensors: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    **options: float,
) -> Handle:
    """Start a `reducescatter` of arrays outside `jit`."""
    return _start_reducescatter(tensors, op, name, process_set, blocking=False, **options)


def grouped_reducescatter(tensors: Sequence[Any], **options: Any) -> list[Any]:
    """`reducescatter` of a list, by Horovod's name."""
    return [*reducescatter(list(tensors), **options)]


def alltoall(
    tensor: Any,
    splits: Any = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send `splits[r]` rows to each rank r and receive theirs.

    Args:
        tensor: An array of at least one dimension.
        splits: The numbers of rows, outside `jit`; without them the rows are divided evenly.
        name: See `allreduce`.
        process_set: The ranks that take part.

    Returns:
        The received rows in the order of the ranks; with `splits` a pair (rows, int32 array of how many came from each
        rank).

    Raises:
        InvalidArgument: `splits` inside `jit`, or rows that do not divide evenly.
        MismatchError: A rank's splits do not fit its array or the number of ranks. On every rank.
    """
    if not _is_traced([tensor, splits]):
        return alltoall_async(tensor, splits, name=name, process_set=process_set).synchronize()
    if splits is not None:
        raise InvalidArgument(
            f"{_title('alltoall', name)}: splits decide shapes, which a compiled program must know; call it outside "
            "jit and grad, or pad the rows and pass no splits"
        )
    (result,) = run(_call("alltoall", name, process_set), [tensor])
    return result


def alltoall_async(
    tensor: Any,
    splits: Any = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an `alltoall` of an array outside `jit`."""
    source = _as_buffer(tensor, _title("alltoall", name))

    def finish(handle: Handle) -> Any:
        rows = handle.rows()
        received = _from_engine(handle, 0, source, sum(rows))
        return received if splits is None else (received, jnp.asarray(rows, jnp.int32))

    name = name_or_next(name, "alltoall", process_set)
    rows_to_send = None if splits is None else np.asarray(splits).tolist()
    return adapter.alltoall(source, rows_to_send, name, process_set=process_set, finish=finish)


# ---- broadcast ----


def broadcast(
    tensors: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's values.

    Args:
        tensors: An array or a pytree of them, of the same shapes and dtypes on every rank.
        root_rank: Rank of the job whose values win; a member of `process_set`.
        name: See `allreduce`; what identifies a leaf has its path in the tree as well.
        process_set: The ranks that take part.

    Raises:
        MismatchError: Ranks named different roots, shapes or dtypes. On every rank.
    """
    leaves, structure = jax.tree.flatten_with_path(tensors)
    names = [None if name is None else name + jax.tree_util.keystr(path) for path, _ in leaves]
    if not _is_traced([leaf for _, leaf in leaves]):
        handles = [
            broadcast_async(leaf, root_rank, name=leaf_name, process_set=process_set)
            for (_, leaf), leaf_name in zip(leaves, names, strict=True)
        ]
        return jax.tree.unflatten(structure, [handle.synchronize() for handle in handles])
    members = process_set.ranks
    if root_rank not in members:
        raise InvalidArgument(f"{_title('broadcast', name)}: the root {root_rank} is not among the ranks {members}")
    root = members.index(root_rank)
    return jax.tree.unflatten(structure, [
        run(_call("broadcast", leaf_name, process_set, root=root), [leaf])[0]
        for (_, leaf), leaf_name in zip(leaves, names, strict=True)
    ])  # fmt: skip


def broadcast_async(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a `broadcast` of an array outside `jit`; of any dtype."""
    title = _title("broadcast", name)
    if isinstance(tensor, jax.core.Tracer):
        _as_buffer(tensor, title)  # tells why not
    array = _as_host_array(tensor, title)
    result = np.empty_like(array)
    # It only moves: as bytes, where the engine does not know the dtype.
    known = str(array.dtype) in DTYPE_NAMES.values()
    source, target = (as_buffer(part if known else part.reshape(-1).view(np.uint8)) for part in (array, result))
    return adapter.broadcast(
        source, target, root_rank, name_or_next(name, "broadcast", process_set), process_set=process_set,
        finish=lambda _: jnp.asarray(result),
    )  # fmt: skip


def barrier(*, process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it, outside `jit`."""
    adapter.barrier(name_or_next(None, "barrier", process_set), process_set=process_set)


def join(*, process_set: ProcessSet = global_process_set) -> int:
    """Take part in the others' allreduces with zeros until all ranks have called `join`; returns the last to join.

    For loops of different length: call it after the loop, outside `jit`. Averages are still divided by all ranks.
    """
    finish_programs()
    return adapter.join(process_set=process_set)
