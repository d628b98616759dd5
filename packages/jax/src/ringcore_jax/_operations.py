"""The collectives: on arrays at once, and inside `jit`, `grad`, `scan` and `vmap` as calls of the compiled program.

Every verb takes an array or a pytree of arrays. On arrays the engine works at once, and what goes wrong is one of
ringcore's exceptions. In a compiled program XLA runs it, and its exception carries the engine's message: a
`jax.errors.JaxRuntimeError` where the results are waited for, a `ValueError` where the call of the program fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from ringcore import Average, InvalidArgument
from ringcore.adapter import (
    Handle,
    ProcessSet,
    ReduceOp,
    context,
    global_process_set,
    process_set_id_of,
    reduce_compressed,
    root_index,
    title_of,
)

from ringcore_jax._calls import Call, finish_programs, run
from ringcore_jax._host import as_tree, verbs
from ringcore_jax.compression import Compression, Compressor

barrier = verbs.barrier


def _is_traced(leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def _call(collective: str, name: str | None, process_set: ProcessSet, **options: Any) -> Call:
    current = context()
    everybody = process_set is global_process_set
    number = process_set_id_of(process_set, collective, name)
    rank, size = (current.rank, current.size) if everybody else (process_set.rank(), process_set.size())
    return Call(collective, name, number, rank, size, **options)


def _with_rows(leaf: Any) -> Any:
    return jnp.reshape(leaf, (1,)) if jnp.ndim(leaf) == 0 else leaf


# ---- allreduce ----


def _start_allreduce(
    tensor: Any,
    op: ReduceOp,
    name: str | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    *,
    priority: int = 0,
    blocking: bool = False,
    compression: int = 0,
) -> Handle:
    leaves, structure = jax.tree.flatten(tensor)
    if not leaves:
        return Handle.of_nothing(tensor)
    return verbs.start_allreduce_of_copies(
        tuple(leaves), name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        process_set=process_set, priority=priority, blocking=blocking, finish=as_tree(structure),
        compression=compression,
    )  # fmt: skip


def allreduce(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: type[Compressor] | str = Compression.none,
) -> Any:
    """Reduce arrays over all ranks; every rank gets the same bits.

    Args:
        tensor: An array or a pytree of them, which are one operation that runs as a whole or not at all. Of any shape:
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
    compressor = Compression.chosen(compression)
    if compressor.wire_dtype is not None:
        reduce = partial(
            allreduce, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set,
        )  # fmt: skip
        leaves, structure = jax.tree.flatten(tensor)
        return jax.tree.unflatten(structure, reduce_compressed(compressor, leaves, reduce))
    leaves, structure = jax.tree.flatten(tensor)
    code = compressor.code_for(*leaves)
    if not _is_traced(leaves):
        return _start_allreduce(
            tensor, op, name, prescale_factor, postscale_factor, process_set, blocking=True, compression=code
        ).synchronize()
    call = _call(
        "allreduce", name, process_set, op=op, prescale=prescale_factor, postscale=postscale_factor, compression=code
    )
    return jax.tree.unflatten(structure, run(call, leaves))


def allreduce_async(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle:
    """Start an `allreduce` of arrays outside `jit`; `synchronize(handle)` returns the result."""
    return _start_allreduce(tensor, op, name, prescale_factor, postscale_factor, process_set, priority=priority)


def grouped_allreduce(
    tensors: Sequence[Any],
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: type[Compressor] | str = Compression.none,
) -> list[Any]:
    """`allreduce` of a list, by Horovod's name."""
    results: list[Any] = allreduce(
        list(tensors), op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        process_set=process_set, compression=compression,
    )  # fmt: skip
    return results


def grouped_allreduce_async(
    tensors: Sequence[Any],
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle:
    """`allreduce_async` of a list, by Horovod's name."""
    return _start_allreduce(list(tensors), op, name, prescale_factor, postscale_factor, process_set, priority=priority)


# ---- allgather, reducescatter, alltoall ----


def _start_allgather(tensor: Any, name: str | None, process_set: ProcessSet, *, blocking: bool = False) -> Handle:
    leaves, structure = jax.tree.flatten(tensor)
    if not leaves:
        return Handle.of_nothing(tensor)
    return verbs.start_allgather(leaves, name, process_set=process_set, blocking=blocking, finish=as_tree(structure))


def allgather(tensor: Any, *, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate every rank's array along the first dimension; scalars count as one row.

    Args:
        tensor: An array or a pytree of them. Outside `jit` the first dimension may differ between ranks; inside, where
            shapes are known when the program is compiled, all ranks pass as many rows.
        name: See `allreduce`.
        process_set: The ranks that take part.

    Raises:
        MismatchError: Dtypes or other dimensions differ. On every rank.
    """
    leaves, structure = jax.tree.flatten(tensor)
    if not _is_traced(leaves):
        return _start_allgather(tensor, name, process_set, blocking=True).synchronize()
    return jax.tree.unflatten(
        structure, run(_call("allgather", name, process_set), [_with_rows(leaf) for leaf in leaves])
    )


def allgather_async(tensor: Any, *, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Start an `allgather` of arrays outside `jit`."""
    return _start_allgather(tensor, name, process_set)


def grouped_allgather(
    tensors: Sequence[Any], *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """`allgather` of a list, by Horovod's name."""
    results: list[Any] = allgather(list(tensors), name=name, process_set=process_set)
    return results


def grouped_allgather_async(
    tensors: Sequence[Any], *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """`allgather_async` of a list, by Horovod's name."""
    return _start_allgather(list(tensors), name, process_set)


def _start_reducescatter(
    tensor: Any,
    op: ReduceOp,
    name: str | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    *,
    blocking: bool = False,
) -> Handle:
    leaves, structure = jax.tree.flatten(tensor)
    if not leaves:
        return Handle.of_nothing(tensor)
    return verbs.start_reducescatter(
        leaves, name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        process_set=process_set, blocking=blocking, finish=as_tree(structure),
    )  # fmt: skip


def reducescatter(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce over all ranks; each gets its share of the rows (the first ones one more where rows do not divide).

    Args:
        tensor: An array of at least one dimension, or a pytree of them.
        op: See `allreduce`, as for the rest. Not `Adasum`.
        name: Identifies the operation on all ranks.
        prescale_factor: Multiplied into the arrays before the reduction.
        postscale_factor: Multiplied into the results.
        process_set: The ranks that take part.
    """
    leaves, structure = jax.tree.flatten(tensor)
    if not _is_traced(leaves):
        return _start_reducescatter(
            tensor, op, name, prescale_factor, postscale_factor, process_set, blocking=True
        ).synchronize()
    call = _call("reducescatter", name, process_set, op=op, prescale=prescale_factor, postscale=postscale_factor)
    return jax.tree.unflatten(structure, run(call, leaves))


def reducescatter_async(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start a `reducescatter` of arrays outside `jit`."""
    return _start_reducescatter(tensor, op, name, prescale_factor, postscale_factor, process_set)


def grouped_reducescatter(
    tensors: Sequence[Any],
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`reducescatter` of a list, by Horovod's name."""
    results: list[Any] = reducescatter(
        list(tensors), op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        process_set=process_set,
    )  # fmt: skip
    return results


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`reducescatter_async` of a list, by Horovod's name."""
    return _start_reducescatter(list(tensors), op, name, prescale_factor, postscale_factor, process_set)


def _refuse_splits(verb: str, splits: Any, name: str | None) -> None:
    if splits is not None:
        raise InvalidArgument(
            f"{title_of(verb, name)}: splits decide shapes, which a compiled program must know; call it outside jit "
            "and grad, or pad the rows and pass no splits"
        )


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
        return verbs.alltoall(tensor, splits, name=name, process_set=process_set)
    _refuse_splits("alltoall", splits, name)
    (result,) = run(_call("alltoall", name, process_set), [tensor])
    return result


alltoall_async = verbs.alltoall_async


# ---- broadcast ----


def broadcast(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's values.

    Args:
        tensor: An array or a pytree of them, of the same shapes and dtypes on every rank.
        root_rank: Rank of the job whose values win; a member of `process_set`.
        name: See `allreduce`; what identifies a leaf has its path in the tree as well.
        process_set: The ranks that take part.

    Raises:
        MismatchError: Ranks named different roots, shapes or dtypes. On every rank.
    """
    leaves, structure = jax.tree.flatten_with_path(tensor)
    names = [None if name is None else name + jax.tree_util.keystr(path) for path, _ in leaves]
    if not _is_traced([leaf for _, leaf in leaves]):
        handles = [
            broadcast_async(leaf, root_rank, name=leaf_name, process_set=process_set)
            for (_, leaf), leaf_name in zip(leaves, names, strict=True)
        ]
        return jax.tree.unflatten(structure, [handle.synchronize() for handle in handles])
    root = root_index(root_rank, process_set)
    return jax.tree.unflatten(structure, [
        run(_call("broadcast", leaf_name, process_set, root=root), [leaf])[0]
        for (_, leaf), leaf_name in zip(leaves, names, strict=True)
    ])  # fmt: skip


def broadcast_async(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a `broadcast` of an array outside `jit`; of any dtype."""
    structure = jax.tree.structure(0)
    return verbs.start_broadcast(tensor, root_rank, name, process_set=process_set, finish=as_tree(structure))


# ---- reduce, gather, scatter ----


def _refuse_traced(verb: str, tensor: Any, name: str | None) -> None:
    if _is_traced([tensor]):
        raise InvalidArgument(
            f"{title_of(verb, name)}: one rank alone has its result, and a compiled program has the same ones on all; "
            f"call it outside jit and grad, or use all{verb}"
        )


def _start_reduce(
    tensor: Any,
    root_rank: int,
    op: ReduceOp,
    name: str | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    *,
    blocking: bool = False,
) -> Handle:
    _refuse_traced("reduce", tensor, name)
    return verbs.start_reduce(
        tensor, root_rank, name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        process_set=process_set, blocking=blocking, finish=as_tree(jax.tree.structure(0)),
    )  # fmt: skip


def reduce(
    tensor: Any,
    root_rank: int,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce an array over all ranks to one of them, outside `jit` and `grad`.

    Args:
        tensor: An array; see `allreduce`, as for the factors.
        root_rank: Rank of the job that gets the result.
        op: `Average` (floats only), `Sum`, `Min`, `Max`, `Product`; not `Adasum`.
        name: Identifies the operation on all ranks.
        prescale_factor: Multiplied into the array before the reduction.
        postscale_factor: Multiplied into the result.
        process_set: The ranks that take part.

    Returns:
        The result on the root; None elsewhere.

    Raises:
        InvalidArgument: It is called inside `jit` or `grad`, or the root is no member of the process set.
        MismatchError: Ranks named different roots, shapes, dtypes, ops or factors. On every rank.
    """
    return _start_reduce(
        tensor, root_rank, op, name, prescale_factor, postscale_factor, process_set, blocking=True
    ).synchronize()


def reduce_async(
    tensor: Any,
    root_rank: int,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start a `reduce` of an array."""
    return _start_reduce(tensor, root_rank, op, name, prescale_factor, postscale_factor, process_set)


def gather(
    tensor: Any, root_rank: int = 0, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Concatenate every rank's array along the first dimension on one of them, outside `jit` and `grad`.

    Args:
        tensor: An array; its first dimension may differ between ranks.
        root_rank: Rank of the job that gets the result.
        name: Identifies the operation on all ranks.
        process_set: The ranks that take part.

    Returns:
        All rows in the order of the ranks on the root; None elsewhere.

    Raises:
        InvalidArgument: It is called inside `jit` or `grad`, or the root is no member of the process set.
        MismatchError: Ranks named different roots, dtypes or other dimensions. On every rank.
    """
    _refuse_traced("gather", tensor, name)
    return verbs.gather(tensor, root_rank, name=name, process_set=process_set)


gather_async = verbs.gather_async


def scatter(
    tensor: Any,
    root_rank: int = 0,
    splits: Any = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Deal out the rows of one rank's array: each rank gets its own.

    Args:
        tensor: On the root, all ranks' rows in the order of the ranks. Elsewhere its values are not looked at: outside
            `jit` its first dimension may be another one; inside, where shapes are known when the program is compiled,
            all ranks pass as many rows.
        root_rank: Rank of the job whose rows these are.
        splits: On the root, how many rows each rank gets, outside `jit`; without them all get as many.
        name: See `allreduce`.
        process_set: The ranks that take part.

    Returns:
        This rank's rows. Gradients of them are the root's.

    Raises:
        InvalidArgument: `splits` inside `jit`, rows that do not divide evenly, or a root that is no member.
        MismatchError: Ranks named different roots, dtypes or other dimensions, or the splits do not fit. On every rank.
    """
    if not _is_traced([tensor, splits]):
        return verbs.scatter(tensor, root_rank, splits, name=name, process_set=process_set)
    _refuse_splits("scatter", splits, name)
    root = root_index(root_rank, process_set)
    (result,) = run(_call("scatter", name, process_set, root=root), [tensor])
    return result


scatter_async = verbs.scatter_async


def join(*, process_set: ProcessSet = global_process_set) -> int:
    """Take part in the others' allreduces with zeros until all ranks have called `join`; returns the last to join.

    For loops of different length: call it after the loop, outside `jit`. Averages are still divided by all ranks.
    """
    finish_programs()
    return verbs.join(process_set=process_set)
