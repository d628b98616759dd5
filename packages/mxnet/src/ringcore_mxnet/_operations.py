"""The collectives on NDArrays, of `mx.nd` and of `mx.np`: tasks in MXNet's engine.

They return before they have begun, as MXNet's operators do; whoever waits for their results raises what went wrong.
Where a result's shape depends on the other ranks (allgather, alltoall, gather, scatter), the call waits until all of
them have told their numbers of rows, though not for the arrays themselves.
"""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
import ringcore
from ringcore import Average, InvalidArgument, Sum, adapter
from ringcore.adapter import (
    COLLECTIVE_CODES,
    ProcessSet,
    ReduceOp,
    check_op,
    global_process_set,
    name_or_next,
    process_set_id_of,
    refusing,
    root_index,
    share_of,
)

from ringcore_mxnet._shim import push
from ringcore_mxnet.compression import Compression, Compressor

_ALLREDUCE, _ALLGATHER, _BROADCAST, _REDUCESCATTER, _ALLTOALL, _REDUCE, _GATHER, _SCATTER = (
    COLLECTIVE_CODES[name]
    for name in ("allreduce", "allgather", "broadcast", "reducescatter", "alltoall", "reduce", "gather", "scatter")
)


def _check(tensor: Any, op: ReduceOp = Sum) -> None:
    if not isinstance(tensor, mx.nd.NDArray):
        raise InvalidArgument(f"an NDArray is needed, not {type(tensor).__name__}; use mx.nd.array(x)")
    if op is Average and tensor.dtype not in _FLOATS:
        raise InvalidArgument(
            f"{np.dtype(tensor.dtype)} cannot hold an average; convert the tensor to a float dtype, or use op=Sum"
        )


_FLOATS = (np.float16, np.float32, np.float64)


def _empty(shape: tuple[int, ...], like: Any) -> Any:
    """A new array of the same kind and dtype."""
    kind = mx.np.ndarray if isinstance(like, mx.np.ndarray) else mx.nd.NDArray
    if kind is mx.nd.NDArray and all(shape):
        return mx.nd.empty(shape, like.context, like.dtype)
    with mx.util.np_shape(True):  # else a dimension of 0 says that it is unknown
        made = mx.nd.empty(shape, like.context, like.dtype)
    return made if kind is mx.nd.NDArray else made.as_np_ndarray()


def _shape(tensor: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = tensor.shape
    return shape


def _alone(out: Any) -> list[Any] | None:
    return None if out is None else [out]


def _check_places(out: Sequence[Any] | None, tensors: Sequence[Any], *, has_own_rows: bool) -> None:
    """What the caller gave for results; whether rows of their own fit, all ranks find out together."""
    if out is None:
        return
    if len(out) != len(tensors):
        raise InvalidArgument(f"out: there are {len(out)} arrays for {len(tensors)} tensors; pass one for each")
    for place, tensor in zip(out, tensors, strict=True):
        if not isinstance(place, mx.nd.NDArray):
            raise InvalidArgument(f"out: an NDArray is needed, not {type(place).__name__}; use mx.nd.empty(shape)")
        first = 1 if has_own_rows else 0
        same = place.dtype == tensor.dtype and len(_shape(place)) == len(_shape(tensor))
        if not same or _shape(place)[first:] != _shape(tensor)[first:]:
            rows = ", but for the first dimension, which is that of the result" if has_own_rows else ""
            raise InvalidArgument(
                f"out: it is {np.dtype(place.dtype)} {list(_shape(place))}, the tensor {np.dtype(tensor.dtype)} "
                f"{list(_shape(tensor))}; give them one dtype and one shape{rows}"
            )


def allreduce(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Any = None,
    compression: type[Compressor] | str = Compression.none,
) -> Any:
    """Reduce an array over all ranks; every rank gets the same bits in a new array.

    Args:
        tensor: Of any shape, in host memory: uint8, int8, int32, int64, float16, float32, float64, bool. 16-bit floats
            are summed in float32 and rounded once. Row-sparse: see `sparse.allreduce`.
        op: `Average` (floats only), `Sum`, `Min`, `Max` (NaN wins), `Product`. `Adasum` (Maleki et al., MLSys 2021)
            waits for the result.
        name: Identifies the tensor on all ranks; without one the order of the calls does.
        prescale_factor: Multiplied into the tensor before the reduction.
        postscale_factor: Multiplied into the result.
        process_set: The ranks that take part.
        priority: The larger, the sooner, in MXNet's engine and in ringcore's, where it overtakes what has begun.
        out: Where the result goes, of the tensor's dtype and shape; it is returned.
        compression: What is sent: see `Compression`.

    Raises:
        InvalidArgument: No NDArray, an average of integers, an `out` that does not fit. At once; what follows when the
            result is waited for.
        MismatchError: Another rank used this name with another dtype, shape, op or factor. On every rank.
        TimeoutError: A rank did not submit it in time. On every rank.
        PeerLostError: A rank died or left. On every rank.
    """
    (result,) = grouped_allreduce(
        [tensor], op=op, name=name_or_next(name, "mxnet.allreduce", process_set), prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set, priority=priority, out=_alone(out),
        compression=compression,
    )  # fmt: skip
    return result


def allreduce_(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    compression: type[Compressor] | str = Compression.none,
) -> Any:
    """`allreduce` in place: the tensor gets the result and is returned."""
    grouped_allreduce_(
        [tensor], op=op, name=name_or_next(name, "mxnet.allreduce", process_set), prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set, priority=priority, compression=compression,
    )  # fmt: skip
    return tensor


def grouped_allreduce(
    tensors: Sequence[Any],
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Sequence[Any] | None = None,
    compression: type[Compressor] | str = Compression.none,
) -> list[Any]:
    """`allreduce` of several tensors that are released together: all of them run, or none."""
    if not tensors:
        return []
    name = name_or_next(name, "mxnet.grouped_allreduce", process_set)
    factor = prescale_factor * postscale_factor
    if len(tensors) == 1 and getattr(tensors[0], "stype", "default") == "row_sparse":
        from ringcore_mxnet import sparse

        if out is None:
            return [sparse.allreduce(tensors[0], op=op, name=name, factor=factor, process_set=process_set)]
    with refusing("allreduce", name, process_set):
        compressor = Compression.chosen(compression)
        check_op(op)
        if op is ReduceOp.ADASUM and (compressor.quantised or compressor.wire_dtype not in (None, "float16")):
            raise InvalidArgument(
                f"op=Adasum combines arrays whole, and {Compression.name_of(compressor)} is for sums; use "
                "Compression.fp16, or op=Average"
            )
        for tensor in tensors:
            _check(tensor, op)
        _check_places(out, tensors, has_own_rows=False)
    results = list(out) if out is not None else [_empty(_shape(tensor), tensor) for tensor in tensors]
    pairs = [compressor.compress(tensor) for tensor in tensors]
    sent = [tensor for tensor, _ in pairs]
    if op is ReduceOp.ADASUM:
        return _adasum(sent, results, name, factor, process_set)
    landed = [
        result if dtype is None else _empty(_shape(tensor), tensor)
        for result, (tensor, dtype) in zip(results, pairs, strict=True)
    ]
    push(
        _ALLREDUCE, name, sent, landed, op=op, prescale=prescale_factor, postscale=postscale_factor,
        process_set=process_set_id_of(process_set), priority=priority, compression=compressor.code_for(*tensors),
    )  # fmt: skip
    _copy_back(landed, results)
    return results


def _copy_back(sources: Sequence[Any], targets: Sequence[Any]) -> None:
    """Into arrays of their own dtypes, where others were sent."""
    for source, target in zip(sources, targets, strict=True):
        if source is target:
            continue
        # An array of bfloat16 is one of mx.nd, whatever it was made of; this is a view.
        is_other = isinstance(target, mx.np.ndarray) and not isinstance(source, mx.np.ndarray)
        source.copyto(target.as_nd_ndarray() if is_other else target)


def grouped_allreduce_(
    tensors: Sequence[Any],
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    compression: type[Compressor] | str = Compression.none,
) -> list[Any]:
    """`grouped_allreduce` in place."""
    if not tensors:
        return []
    name = name_or_next(name, "mxnet.grouped_allreduce", process_set)
    is_sparse = any(isinstance(tensor, mx.nd.sparse.BaseSparseNDArray) for tensor in tensors)
    if op is ReduceOp.ADASUM or is_sparse:
        results = grouped_allreduce(
            tensors, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, compression=compression,
        )  # fmt: skip
        for tensor, result in zip(tensors, results, strict=True):
            result.copyto(tensor)
        return list(tensors)
    with refusing("allreduce", name, process_set):
        compressor = Compression.chosen(compression)
        check_op(op)
        for tensor in tensors:
            _check(tensor, op)
    sent = [compressor.compress(tensor)[0] for tensor in tensors]
    push(
        _ALLREDUCE, name, sent, op=op, prescale=prescale_factor, postscale=postscale_factor,
        process_set=process_set_id_of(process_set), priority=priority, compression=compressor.code_for(*tensors),
    )  # fmt: skip
    _copy_back(sent, tensors)
    return list(tensors)


def _adasum(tensors: Sequence[Any], results: list[Any], name: str, factor: float, process_set: ProcessSet) -> list[Any]:
    arrays = ringcore.grouped_allreduce(
        [tensor.asnumpy() for tensor in tensors], op=ReduceOp.ADASUM, name=name, prescale_factor=factor,
        process_set=process_set,
    )  # fmt: skip
    return [_filled(result, found) for result, found in zip(results, arrays, strict=True)]


def _filled(tensor: Any, values: Any) -> Any:
    tensor[:] = values
    return tensor


def _from_all(numbers: Sequence[int], name: str, process_set: ProcessSet) -> list[list[int]]:
    """Every rank's numbers, of which all ranks have equally many; waits for them."""
    sent = array.array("q", numbers)
    found = ringcore.allgather(sent, name=name, process_set=process_set)
    everybody, width = [int(number) for number in found], len(numbers)
    return [everybody[begin : begin + width] for begin in range(0, len(everybody), width)]


def allgather(
    tensor: Any,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Any = None,
) -> Any:
    """Concatenate every rank's array along the first dimension, which may differ between ranks.

    Args:
        tensor: See `allreduce`.
        name: Identifies the tensor on all ranks.
        process_set: The ranks that take part.
        priority: Larger is more urgent.
        out: Where the result goes, of the tensor's dtype, with the rows of all ranks; it is returned.

    Raises:
        MismatchError: Dtypes or other dimensions differ, or an `out` has not the rows of the result. On every rank,
            when the result is waited for.
    """
    (result,) = grouped_allgather(
        [tensor], name=name_or_next(name, "mxnet.allgather", process_set), process_set=process_set, priority=priority,
        out=_alone(out),
    )  # fmt: skip
    return result


def grouped_allgather(
    tensors: Sequence[Any],
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Sequence[Any] | None = None,
) -> list[Any]:
    """`allgather` of several tensors that are released together: all of them run, or none."""
    if not tensors:
        return []
    name = name_or_next(name, "mxnet.grouped_allgather", process_set)
    with refusing("allgather", f"{name}.rows", process_set):
        for tensor in tensors:
            _check(tensor)
            _require_rows(tensor)
        _check_places(out, tensors, has_own_rows=True)
    everybody = _from_all([_shape(tensor)[0] for tensor in tensors], f"{name}.rows", process_set)
    shapes = [(sum(rows[i] for rows in everybody), *_shape(tensor)[1:]) for i, tensor in enumerate(tensors)]
    results = list(out) if out is not None else list(map(_empty, shapes, tensors))
    push(_ALLGATHER, name, tensors, results, process_set=process_set_id_of(process_set), priority=priority)
    return results


def _require_rows(tensor: Any) -> None:
    if not _shape(tensor):
        raise InvalidArgument("it works along the first dimension, and the tensor is a scalar; use reshape(1)")


def broadcast(
    tensor: Any,
    root_rank: int,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Any = None,
) -> Any:
    """A new array with the root's values.

    Args:
        tensor: Of the same shape and dtype on every rank.
        root_rank: Rank of the job whose values win.
        name: Identifies the tensor on all ranks.
        process_set: The ranks that take part.
        priority: Larger is more urgent.
        out: Where the values go; see `allreduce`.

    Raises:
        InvalidArgument: The root is no member of the process set.
        MismatchError: Ranks named different roots, shapes or dtypes. On every rank, when the result is waited for.
    """
    name = _check_broadcast(tensor, root_rank, name, process_set, out)
    result = out if out is not None else _empty(_shape(tensor), tensor)
    _broadcast([tensor], [result], root_rank, name, process_set, priority)
    return result


def broadcast_(
    tensor: Any,
    root_rank: int,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Any:
    """`broadcast` in place."""
    name = _check_broadcast(tensor, root_rank, name, process_set)
    _broadcast([tensor], [], root_rank, name, process_set, priority)
    return tensor


def _check_broadcast(tensor: Any, root: int, name: str | None, process_set: ProcessSet, out: Any = None) -> str:
    """Its name."""
    name = name_or_next(name, "mxnet.broadcast", process_set)
    with refusing("broadcast", name, process_set):
        _check(tensor)
        _check_places(_alone(out), [tensor], has_own_rows=False)
        root_index(root, process_set)  # nobody would hear of it before the results are waited for
    return name


def _broadcast(
    sources: list[Any], targets: list[Any], root: int, name: str, process_set: ProcessSet, priority: int
) -> None:
    push(
        _BROADCAST, name, sources, targets, root=root_index(root, process_set),
        process_set=process_set_id_of(process_set), priority=priority,
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
    priority: int = 0,
    out: Any = None,
) -> Any:
    """Reduce an array over all ranks to one of them.

    Args:
        tensor: See `allreduce`, as for the factors.
        root_rank: Rank of the job that gets the result.
        op: `Average` (floats only), `Sum`, `Min`, `Max`, `Product`; not `Adasum`.
        name: Identifies the tensor on all ranks.
        prescale_factor: Multiplied into the tensor before the reduction.
        postscale_factor: Multiplied into the result.
        process_set: The ranks that take part.
        priority: Larger is more urgent.
        out: Where the result goes on the root: the tensor itself, if you like.

    Returns:
        A new array, or `out`, on the root; None elsewhere.

    Raises:
        InvalidArgument: The root is no member of the process set, or see `allreduce`.
        MismatchError: Ranks named different roots, shapes, dtypes, ops or factors. On every rank: the root when it
            waits for the result, the others in `mx.nd.waitall`.
    """
    name = name_or_next(name, "mxnet.reduce", process_set)
    with refusing("reduce", name, process_set):
        check_op(op)
        if op is ReduceOp.ADASUM:
            raise InvalidArgument("Adasum is an allreduce; use op=Sum or op=Average")
        _check(tensor, op)
        root = root_index(root_rank, process_set)
        is_root = process_set.rank() == root
        _check_places(_alone(out) if is_root else None, [tensor], has_own_rows=False)
    # Who has no result still hears of errors, in `mx.nd.waitall`: through an array that the task writes.
    result = _empty((0,), tensor) if not is_root else out if out is not None else _empty(_shape(tensor), tensor)
    push(
        _REDUCE, name, [tensor], [result], op=op, root=root, prescale=prescale_factor, postscale=postscale_factor,
        process_set=process_set_id_of(process_set), priority=priority,
    )  # fmt: skip
    return result if is_root else None


def gather(
    tensor: Any,
    root_rank: int = 0,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Any = None,
) -> Any:
    """Concatenate every rank's array along the first dimension, which may differ between ranks, on one of them.

    Args:
        tensor: See `allreduce`.
        root_rank: Rank of the job that gets the result.
        name: Identifies the tensor on all ranks.
        process_set: The ranks that take part.
        priority: Larger is more urgent.
        out: Where the result goes on the root, of the tensor's dtype, with the rows of all ranks.

    Returns:
        A new array, or `out`, on the root, with the rows in the order of the ranks; None elsewhere.

    Raises:
        InvalidArgument: The root is no member of the process set.
        MismatchError: Ranks named different roots, dtypes or other dimensions, or the root's `out` has not the rows
            that come. On every rank: the root when it waits for the result, the others in `mx.nd.waitall`.
    """
    name = name_or_next(name, "mxnet.gather", process_set)
    with refusing("gather", f"{name}.rows", process_set):
        _check(tensor)
        _require_rows(tensor)
        root = root_index(root_rank, process_set)
        is_root = process_set.rank() == root
        _check_places(_alone(out) if is_root else None, [tensor], has_own_rows=True)
    rows = sum(count for (count,) in _from_all([_shape(tensor)[0]], f"{name}.rows", process_set))
    if not is_root:
        rows, out = 0, None
    result = out if out is not None else _empty((rows, *_shape(tensor)[1:]), tensor)
    push(_GATHER, name, [tensor], [result], root=root, process_set=process_set_id_of(process_set), priority=priority)
    return result if is_root else None


def scatter(
    tensor: Any,
    root_rank: int = 0,
    splits: Any = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Any = None,
) -> Any:
    """Deal out the rows of one rank's array: each rank gets its own.

    Args:
        tensor: On the root, all ranks' rows in the order of the ranks. Elsewhere any array of its dtype and of its
            shape but for the first dimension: its values are not looked at.
        root_rank: Rank of the job whose rows these are.
        splits: On the root, how many rows each rank gets; none: all get as many. Elsewhere it is not looked at.
        name: Identifies the tensor on all ranks.
        process_set: The ranks that take part.
        priority: Larger is more urgent.
        out: Where this rank's rows go, of the tensor's dtype, and apart from it.

    Raises:
        InvalidArgument: The root is no member of the process set, or its splits do not fit its tensor or the number of
            ranks. On every rank.
        MismatchError: Ranks named different roots, dtypes or other dimensions, or an `out` has not the rows that come.
            On every rank, when the result is waited for.
    """
    name = name_or_next(name, "mxnet.scatter", process_set)
    with refusing("scatter", f"{name}.rows", process_set):
        _check(tensor)
        _require_rows(tensor)
        root = root_index(root_rank, process_set)
        _check_places(_alone(out), [tensor], has_own_rows=True)
    index, members = process_set.rank(), process_set.size()
    wanted = _as_splits(splits, _shape(tensor)[0], members) if index == root else [0] * members
    # A root with wrong splits says so too: the others must not wait for it.
    dealt = _from_all(wanted or [-1] * members, f"{name}.rows", process_set)[root]
    if min(dealt) < 0:
        raise InvalidArgument(
            f"scatter '{name}': the splits of rank {root_rank} do not fit its tensor. Remedy: {_fitting(members)}"
        )
    result = out if out is not None else _empty((dealt[index], *_shape(tensor)[1:]), tensor)
    push(
        _SCATTER, name, [tensor], [result], root=root, process_set=process_set_id_of(process_set), priority=priority,
        splits=wanted,
    )  # fmt: skip
    return result


def _fitting(members: int) -> str:
    """What splits are to be."""
    return (
        f"give one number of rows for each of the {members} ranks, which add up to the tensor's rows; without splits "
        "they must divide evenly"
    )


def reducescatter(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Any = None,
) -> Any:
    """Reduce over all ranks; each gets its share of the rows (the first ones one more where rows do not divide).

    Args and errors are those of `allreduce`; `out` has this rank's rows.
    """
    (result,) = grouped_reducescatter(
        [tensor], op=op, name=name_or_next(name, "mxnet.reducescatter", process_set), prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set, priority=priority, out=_alone(out),
    )  # fmt: skip
    return result


def grouped_reducescatter(
    tensors: Sequence[Any],
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Sequence[Any] | None = None,
) -> list[Any]:
    """`reducescatter` of several tensors that are released together: all of them run, or none."""
    if not tensors:
        return []
    name = name_or_next(name, "mxnet.grouped_reducescatter", process_set)
    with refusing("reducescatter", name, process_set):
        check_op(op)
        if op is ReduceOp.ADASUM:
            raise InvalidArgument("Adasum is an allreduce; use op=Sum or op=Average")
        for tensor in tensors:
            _check(tensor, op)
            _require_rows(tensor)
        _check_places(out, tensors, has_own_rows=True)
    shapes = [(share_of(_shape(tensor)[0], process_set), *_shape(tensor)[1:]) for tensor in tensors]
    results = list(out) if out is not None else list(map(_empty, shapes, tensors))
    push(
        _REDUCESCATTER, name, tensors, results, op=op, prescale=prescale_factor, postscale=postscale_factor,
        process_set=process_set_id_of(process_set), priority=priority,
    )  # fmt: skip
    return results


def alltoall(
    tensor: Any,
    splits: Any = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Any = None,
) -> Any:
    """Send `splits[r]` rows to each rank r and receive theirs; without splits the rows are divided evenly.

    Args:
        tensor: See `allreduce`.
        splits: Numbers of rows, one for each rank.
        name: Identifies the tensor on all ranks.
        process_set: The ranks that take part.
        priority: Larger is more urgent.
        out: Where the received rows go, of the tensor's dtype, and apart from it.

    Returns:
        The received rows in the order of the ranks; with `splits` a pair (rows, int32 array of how many came from each
        rank).

    Raises:
        InvalidArgument: A rank's splits do not fit its tensor or the number of ranks. On every rank.
    """
    name = name_or_next(name, "mxnet.alltoall", process_set)
    with refusing("alltoall", f"{name}.rows", process_set):
        _check(tensor)
        _require_rows(tensor)
        _check_places(_alone(out), [tensor], has_own_rows=True)
    index, members = process_set.rank(), process_set.size()
    rows = _shape(tensor)[0]
    wanted = _as_splits(splits, rows, members)
    # A rank with wrong splits says so too: the others must not wait for it.
    everybody = _from_all(wanted or [-1] * members, f"{name}.rows", process_set)
    if wrong := [rank for rank, sent in zip(process_set.ranks, everybody, strict=True) if min(sent) < 0]:
        own = f"here {rows} rows, splits {'None' if splits is None else list(np.asarray(_as_numpy(splits)))}"
        raise InvalidArgument(
            f"alltoall '{name}': the splits of rank {', '.join(map(str, wrong))} do not fit ({own}). Remedy: "
            f"{_fitting(members)}"
        )
    received = [sent[index] for sent in everybody]
    result = out if out is not None else _empty((sum(received), *_shape(tensor)[1:]), tensor)
    push(
        _ALLTOALL, name, [tensor], [result], process_set=process_set_id_of(process_set), priority=priority,
        splits=wanted,
    )  # fmt: skip
    if splits is None:
        return result
    kind = mx.np if isinstance(tensor, mx.np.ndarray) else mx.nd
    return result, kind.array(received, dtype="int32")


def _as_numpy(value: Any) -> Any:
    return value.asnumpy() if isinstance(value, mx.nd.NDArray) else value


def _as_splits(splits: Any, rows: int, members: int) -> list[int] | None:
    """One number for each rank, or None where they do not fit."""
    if splits is None:
        return [rows // members] * members if rows % members == 0 else None
    given = [int(count) for count in _as_numpy(splits)]
    return given if len(given) == members and min(given) >= 0 and sum(given) == rows else None


def barrier(*, process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it. Waits for the arrays of this rank too."""
    mx.nd.waitall()
    adapter.barrier(name_or_next(None, "mxnet.barrier", process_set), process_set=process_set)


def join(*, process_set: ProcessSet = global_process_set) -> int:
    """Take part in the others' allreduces with zeros until all ranks have called `join`; returns the last to join."""
    mx.nd.waitall()  # what this rank still takes part in itself
    return adapter.join(process_set=process_set)
