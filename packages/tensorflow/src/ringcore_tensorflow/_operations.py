"""The collectives on tensors: in eager mode, in `tf.function`, in loops and conditions, and their gradients.

The loss of the job is the sum of the losses of its ranks. A tensor that went to several ranks has a part in each of
them, so that its gradient is the sum of what those ranks send back.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import ringcore
import tensorflow as tf
from ringcore import Average, InvalidArgument, Sum, adapter
from ringcore.adapter import (
    DTYPE_CODES,
    ProcessSet,
    ReduceOp,
    as_ringcore_error,
    check_op,
    global_process_set,
    process_set_id_of,
    reduce_compressed,
    refusing,
    root_index,
)

from ringcore_tensorflow._graph import as_written, gradient_of, refuse_xla, run_independently, runs_in_session
from ringcore_tensorflow._shim import ops
from ringcore_tensorflow.compression import Compression, Compressor
from ringcore_tensorflow.naming import Mode, as_key, key_of_gradient, mode_of, text_of

_EVEN_SPLITS: list[int] = []


def _bits(value: float) -> int:
    """A double as an attribute of an op: TensorFlow's float attributes have 32 bits."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


def _as_tensor(value: Any) -> tf.Tensor:
    if isinstance(value, tf.IndexedSlices):
        raise InvalidArgument("a dense tensor is needed; only allreduce takes tf.IndexedSlices")
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype.name not in DTYPE_CODES:
        raise InvalidArgument(
            f"the tensor has dtype {tensor.dtype.name}; convert it to one of {', '.join(DTYPE_CODES)}"
        )
    return tensor


@contextlib.contextmanager
def _prepared(kind: str, name: str | None, process_set: ProcessSet) -> Iterator[tuple[str, Mode]]:
    """The name of an operation, and how the ops use it; while its tensors are made."""
    text, mode = text_of(name, kind, process_set), mode_of(name)
    # A program that cannot be made is run by nobody.
    with refusing(kind, text, process_set, tell=mode is Mode.EAGER):
        yield text, mode


def call(
    function: Callable[..., Any], key: tf.Tensor, mode: Mode, *inputs: Any, process_set: int, **attributes: int
) -> Any:
    """Run one of the ops, or put it into the graph that is being made."""
    if mode is not Mode.EAGER:
        refuse_xla(function.__name__)
    try:
        result = function(key, *inputs, mode=int(mode), process_set=process_set, **attributes)
    except tf.errors.OpError as error:
        typed = as_ringcore_error(error)
        if typed is None:
            raise
        raise typed from None
    if mode is not Mode.EAGER:
        run_independently(result)
    return result


def _start(
    function: Callable[..., Any], name: str, mode: Mode, process_set: ProcessSet, *inputs: Any, **attributes: int
) -> Any:
    return call(function, as_key(name), mode, *inputs, process_set=process_set_id_of(process_set), **attributes)


def _reduction(op: ReduceOp, prescale_factor: float, postscale_factor: float) -> dict[str, int]:
    return {"op": int(op), "prescale": _bits(prescale_factor), "postscale": _bits(postscale_factor)}


@as_written
def allreduce(
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
    """Reduce a tensor over all ranks; every rank gets the same bits in a new tensor.

    Args:
        tensor: Of any shape: uint8, int8, uint16, int16, int32, int64, float16, bfloat16, float32, float64 or bool.
            16-bit floats are summed in float32 and rounded once. `tf.IndexedSlices`: see `sparse.allreduce`.
        op: `Average` (floats only), `Sum`, `Min`, `Max` (NaN wins), `Product`; `Average` and `Sum` have gradients.
            `Adasum` (Maleki et al., MLSys 2021), in eager mode.
        name: Identifies the tensor on all ranks; without one the place in the program does.
        prescale_factor: Multiplied into the tensor before the reduction.
        postscale_factor: Multiplied into the result.
        process_set: The ranks that take part.
        priority: The larger, the sooner, of operations of a graph that are under way at once; on the CPU, and not over
            MPI, it overtakes what has begun.
        compression: What is sent: see `Compression`.

    Raises:
        InvalidArgument: An unknown dtype, an average of integers.
        MismatchError: Another rank used this name with another dtype, shape, op or factor. On every rank.
        TimeoutError: A rank did not submit it in time. On every rank.
        PeerLostError: A rank died or left. On every rank.

        In a `tf.function` these come as exceptions of TensorFlow with the same text; see `as_ringcore_error`.
    """
    if isinstance(tensor, tf.IndexedSlices):
        from ringcore_tensorflow import sparse

        factor = prescale_factor * postscale_factor
        return sparse.allreduce(tensor, op=op, name=name, factor=factor, process_set=process_set)
    (result,) = _reduce(
        [tensor], "allreduce", op, name, prescale_factor, postscale_factor, process_set, compression, priority
    )
    return result


@as_written
def grouped_allreduce(
    tensors: Sequence[Any],
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    compression: type[Compressor] | str = Compression.none,
) -> list[tf.Tensor]:
    """`allreduce` of several tensors that are released together: all of them run, or none."""
    if not tensors:
        return []
    return _reduce(
        tensors, "grouped_allreduce", op, name, prescale_factor, postscale_factor, process_set, compression, priority
    )


def _reduce(
    tensors: Sequence[Any],
    kind: str,
    op: ReduceOp,
    name: str | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    compression: type[Compressor] | str,
    priority: int,
) -> list[tf.Tensor]:
    with _prepared(kind, name, process_set) as (text, mode):
        given = [_as_tensor(tensor) for tensor in tensors]
        compressor = Compression.chosen(compression)
        check_op(op)
        if op is ReduceOp.ADASUM and mode is not Mode.EAGER:
            raise InvalidArgument("op=Adasum works in eager mode only; in a graph use op=Average or op=Sum")
        if op is ReduceOp.ADASUM and compressor.quantised:
            raise InvalidArgument("Adasum takes no compression to integers; leave out one of the two")

    def reduce(sent: list[tf.Tensor]) -> list[tf.Tensor]:
        if op is ReduceOp.ADASUM:
            return _adasum(sent, text, prescale_factor * postscale_factor, process_set)
        options = {
            **_reduction(op, prescale_factor, postscale_factor), "compression": compressor.code_for(*sent),
            "priority": priority,
            "keeps_inputs": int(adapter.is_elastic()),  # to be reduced again when a rank is lost
        }  # fmt: skip
        results: list[tf.Tensor] = _start(ops.ringcore_allreduce, text, mode, process_set, sent, **options)
        return results

    return reduce_compressed(compressor, given, reduce)


def _adasum(tensors: list[tf.Tensor], name: str, factor: float, process_set: ProcessSet) -> list[tf.Tensor]:
    arrays = ringcore.grouped_allreduce(
        [tensor.numpy() for tensor in tensors], op=ReduceOp.ADASUM, name=name, prescale_factor=factor,
        process_set=process_set,
    )  # fmt: skip
    return [tf.constant(array) for array in arrays]


@gradient_of("RingcoreAllreduce")
def _gradient_of_allreduce(node: Any, *gradients: tf.Tensor) -> list[Any]:
    op = _differentiable_op(node, "allreduce")
    results = call(
        ops.ringcore_allreduce, key_of_gradient(node.inputs[0]), _mode_of_gradient(), list(gradients),
        process_set=node.get_attr("process_set"), op=int(op), prescale=node.get_attr("prescale"),
        postscale=node.get_attr("postscale"), compression=node.get_attr("compression"),
        keeps_inputs=node.get_attr("keeps_inputs"),
    )  # fmt: skip
    return [None, *results]


def _differentiable_op(node: Any, what: str) -> ReduceOp:
    op = ReduceOp(node.get_attr("op"))
    if op not in (Average, Sum):
        raise InvalidArgument(f"{what} with op={op.name} has no gradient; use op=Sum or op=Average")
    return op


def _mode_of_gradient() -> Mode:
    """Of an operation's gradient: it may be taken in a graph though the operation was not, and more than once."""
    return Mode.EAGER if tf.executing_eagerly() else Mode.QUALIFIED


@as_written
def allgather(tensor: Any, *, name: str | None = None, process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Concatenate every rank's tensor along the first dimension, which may differ between ranks.

    Raises:
        MismatchError: Dtypes or other dimensions differ. On every rank.
    """
    (result,) = _gather([tensor], "allgather", name, process_set)
    return result


@as_written
def grouped_allgather(
    tensors: Sequence[Any], *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[tf.Tensor]:
    """`allgather` of several tensors that are released together: all of them run, or none."""
    return _gather(tensors, "grouped_allgather", name, process_set) if tensors else []


def _gather(tensors: Sequence[Any], kind: str, name: str | None, process_set: ProcessSet) -> list[tf.Tensor]:
    with _prepared(kind, name, process_set) as (text, mode):
        sources = [_as_tensor(tensor) for tensor in tensors]
    results, _ = _start(ops.ringcore_allgather, text, mode, process_set, sources)
    for source, result in zip(sources, results, strict=True):
        if not tf.executing_eagerly() and source.shape.rank is not None:
            result.set_shape([None, *source.shape[1:]])
    return list(results)


@gradient_of("RingcoreAllgather")
def _gradient_of_allgather(node: Any, *gradients: tf.Tensor) -> list[Any]:
    *of_results, _ = gradients  # the numbers of rows have none
    process_set = node.get_attr("process_set")
    totals = call(
        ops.ringcore_allreduce, key_of_gradient(node.inputs[0]), _mode_of_gradient(), of_results,
        process_set=process_set, **_reduction(Sum, 1.0, 1.0),
    )  # fmt: skip
    me, rows = rank_op(process_set), node.outputs[-1]
    parts = []
    for i, total in enumerate(totals):
        begin = tf.reduce_sum(rows[i, :me])
        parts.append(tf.reshape(total[begin : begin + rows[i, me]], tf.shape(node.inputs[1 + i])))
    return [None, *parts]


@as_written
def broadcast(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """A new tensor with the root's values.

    Args:
        tensor: Of the same shape and dtype on every rank.
        root_rank: Rank of the job whose values win.
        name: Identifies the tensor on all ranks.
        process_set: The ranks that take part.

    Raises:
        MismatchError: Ranks named different roots, shapes or dtypes. On every rank.
    """
    with _prepared("broadcast", name, process_set) as (text, mode):
        source, root = _as_tensor(tensor), root_index(root_rank, process_set)
    return _start(ops.ringcore_broadcast, text, mode, process_set, source, root=root)


@gradient_of("RingcoreBroadcast")
def _gradient_of_broadcast(node: Any, gradient: tf.Tensor) -> list[Any]:
    process_set = node.get_attr("process_set")
    (total,) = call(
        ops.ringcore_allreduce, key_of_gradient(node.inputs[0]), _mode_of_gradient(), [gradient],
        process_set=process_set, **_reduction(Sum, 1.0, 1.0),
    )  # fmt: skip
    is_root = tf.equal(rank_op(process_set), node.get_attr("root"))
    return [None, tf.where(is_root, total, tf.zeros_like(total))]


def broadcast_(
    variable: tf.Variable, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tf.Variable:
    """Give a variable the root's value.

    Returns:
        The variable. In a graph that a session runs it is a view of the variable whose reads come after the broadcast:
        there nothing else orders them.
    """
    assigned = variable.assign(broadcast(variable, root_rank, name=name, process_set=process_set))
    return assigned if runs_in_session() else variable


@as_written
def reducescatter(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Reduce over all ranks; each gets its share of the rows (the first ones one more where rows do not divide)."""
    (result,) = _scatter([tensor], "reducescatter", op, name, prescale_factor, postscale_factor, process_set)
    return result


@as_written
def grouped_reducescatter(
    tensors: Sequence[Any],
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """`reducescatter` of several tensors that are released together: all of them run, or none."""
    if not tensors:
        return []
    return _scatter(tensors, "grouped_reducescatter", op, name, prescale_factor, postscale_factor, process_set)


def _scatter(
    tensors: Sequence[Any],
    kind: str,
    op: ReduceOp,
    name: str | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    with _prepared(kind, name, process_set) as (text, mode):
        check_op(op)
        if op is ReduceOp.ADASUM:
            raise InvalidArgument("Adasum is an allreduce; use op=Sum or op=Average")
        sources = [_as_tensor(tensor) for tensor in tensors]
    results = _start(
        ops.ringcore_reducescatter, text, mode, process_set, sources,
        **_reduction(op, prescale_factor, postscale_factor),
    )  # fmt: skip
    for source, result in zip(sources, results, strict=True):
        if not tf.executing_eagerly() and source.shape.rank is not None:
            result.set_shape([None, *source.shape[1:]])
    return list(results)


@gradient_of("RingcoreReducescatter")
def _gradient_of_reducescatter(node: Any, *gradients: tf.Tensor) -> list[Any]:
    op, process_set = _differentiable_op(node, "reducescatter"), node.get_attr("process_set")
    gathered, _ = call(
        ops.ringcore_allgather, key_of_gradient(node.inputs[0]), _mode_of_gradient(), list(gradients),
        process_set=process_set,
    )  # fmt: skip
    (prescale, postscale) = struct.unpack(
        "<dd", struct.pack("<qq", node.get_attr("prescale"), node.get_attr("postscale"))
    )
    results = []
    for total in gathered:
        factor = tf.constant(prescale * postscale, total.dtype)
        results.append(total * (factor / tf.cast(size_op(process_set), total.dtype) if op is Average else factor))
    return [None, *results]


def _as_splits(splits: Any) -> tf.Tensor:
    wanted = tf.cast(tf.reshape(_EVEN_SPLITS if splits is None else splits, [-1]), tf.int64)
    if splits is not None and wanted.shape[0] == 0:
        raise InvalidArgument("there are no splits; pass one for each rank, or None to divide evenly")
    return wanted


@as_written
def alltoall(
    tensor: Any,
    splits: Any = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send `splits[r]` rows to each rank r and receive theirs; without splits the rows are divided evenly.

    Returns:
        The received rows in the order of the ranks; with `splits` a pair (rows, int32 tensor of how many came from
        each rank).

    Raises:
        MismatchError: A rank's splits do not fit its tensor or the number of ranks. On every rank.
    """
    with _prepared("alltoall", name, process_set) as (text, mode):
        source = _as_tensor(tensor)
        wanted = _as_splits(splits)
    result, rows = _start(ops.ringcore_alltoall, text, mode, process_set, source, wanted)
    if not tf.executing_eagerly() and source.shape.rank is not None:
        result.set_shape([None, *source.shape[1:]])
    return result if splits is None else (result, tf.cast(rows[0], tf.int32))


@gradient_of("RingcoreAlltoall")
def _gradient_of_alltoall(node: Any, gradient: tf.Tensor, _: Any) -> list[Any]:
    back, _ = call(
        ops.ringcore_alltoall, key_of_gradient(node.inputs[0]), _mode_of_gradient(), gradient, node.outputs[1][0],
        process_set=node.get_attr("process_set"),
    )  # fmt: skip
    return [None, back, None]


def _refuse_in_graph(verb: str, mode: Mode) -> None:
    if mode is not Mode.EAGER:
        raise InvalidArgument(
            "one rank alone has its result, and a graph has the same ones on all; call it outside of tf.function, or "
            f"use all{verb}"
        )


@as_written
def reduce(
    tensor: Any,
    root_rank: int,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | None:
    """Reduce a tensor over all ranks to one of them, in eager mode; gradients do not go through it.

    Args:
        tensor: See `allreduce`, as for the factors.
        root_rank: Rank of the job that gets the result.
        op: `Average` (floats only), `Sum`, `Min`, `Max`, `Product`; not `Adasum`.
        name: Identifies the tensor on all ranks.
        prescale_factor: Multiplied into the tensor before the reduction.
        postscale_factor: Multiplied into the result.
        process_set: The ranks that take part.

    Returns:
        A new tensor on the root; None elsewhere.

    Raises:
        InvalidArgument: It is called in a `tf.function`, or the root is no member of the process set.
        MismatchError: Ranks named different roots, shapes, dtypes, ops or factors. On every rank.
    """
    with _prepared("reduce", name, process_set) as (text, mode):
        _refuse_in_graph("reduce", mode)
        array = np.asarray(_as_tensor(tensor).numpy())
    result = ringcore.reduce(
        array, root_rank, op=op, name=text, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        process_set=process_set,
    )  # fmt: skip
    return None if result is None else tf.constant(result)


@as_written
def gather(
    tensor: Any, root_rank: int = 0, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tf.Tensor | None:
    """Concatenate every rank's tensor along the first dimension, which may differ between ranks, on one of them.

    In eager mode; gradients do not go through it.

    Args:
        tensor: Of one dtype on all ranks, and of one shape but for the first dimension.
        root_rank: Rank of the job that gets the result.
        name: Identifies the tensor on all ranks.
        process_set: The ranks that take part.

    Returns:
        A new tensor on the root, with the rows in the order of the ranks; None elsewhere.

    Raises:
        InvalidArgument: It is called in a `tf.function`, or the root is no member of the process set.
        MismatchError: Ranks named different roots, dtypes or other dimensions. On every rank.
    """
    with _prepared("gather", name, process_set) as (text, mode):
        _refuse_in_graph("gather", mode)
        array = np.asarray(_as_tensor(tensor).numpy())
    result = ringcore.gather(array, root_rank, name=text, process_set=process_set)
    return None if result is None else tf.constant(result)


@as_written
def scatter(
    tensor: Any,
    root_rank: int = 0,
    splits: Any = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Deal out the rows of one rank's tensor: each rank gets its own.

    Gradients of the rows are the root's; those of the other ranks' tensors are zeros, and these ask for them, too.

    Args:
        tensor: On the root, all ranks' rows in the order of the ranks. Elsewhere any tensor of its dtype and of its
            shape but for the first dimension: its values are not looked at.
        root_rank: Rank of the job whose rows these are.
        splits: On the root, how many rows each rank gets; without them all get as many. Elsewhere they do not count.
        name: Identifies the tensor on all ranks.
        process_set: The ranks that take part.

    Raises:
        MismatchError: Ranks named different roots, dtypes or other dimensions, or the splits do not fit the root's
            tensor or the number of ranks. On every rank.
    """
    with _prepared("scatter", name, process_set) as (text, mode):
        source, root, wanted = _as_tensor(tensor), root_index(root_rank, process_set), _as_splits(splits)
    result, _ = _start(ops.ringcore_scatter, text, mode, process_set, source, wanted, root=root)
    if not tf.executing_eagerly() and source.shape.rank is not None:
        result.set_shape([None, *source.shape[1:]])
    return result


@gradient_of("RingcoreScatter")
def _gradient_of_scatter(node: Any, gradient: tf.Tensor, _: Any) -> list[Any]:
    process_set, source = node.get_attr("process_set"), node.inputs[1]
    (rows,), _ = call(
        ops.ringcore_allgather, key_of_gradient(node.inputs[0]), _mode_of_gradient(), [gradient],
        process_set=process_set,
    )  # fmt: skip
    is_root = tf.equal(rank_op(process_set), node.get_attr("root"))
    # Zeros elsewhere, of other shapes, and made of the rows all the same: second gradients go through them there, too.
    chosen = tf.where(is_root, rows, tf.zeros_like(rows))
    return [None, tf.concat([chosen, tf.zeros_like(source)], 0)[: tf.shape(source)[0]], None]


@as_written
def barrier(*, process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it; in a graph, an op that ends then."""
    _start(ops.ringcore_barrier, text_of(None, "barrier", process_set), mode_of(None), process_set)


@as_written
def join(*, process_set: ProcessSet = global_process_set) -> int:
    """Take part in the others' allreduces with zeros until all ranks have called `join`; returns the last to join."""
    if not tf.executing_eagerly():
        raise InvalidArgument("join is for the end of a loop in Python; call it outside of tf.function")
    return adapter.join(process_set=process_set)


# ---- Where this process stands, looked up when the graph runs ----

_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _INCLUDED = range(5)


@as_written
def _place(what: int, process_set: ProcessSet | int = global_process_set) -> tf.Tensor:
    number = process_set if isinstance(process_set, int) else process_set.process_set_id
    if number is None:
        raise InvalidArgument(f"{process_set} is not registered; call add_process_set on every rank first")
    mode = Mode.EAGER if tf.executing_eagerly() else Mode.NAMED
    value = call(ops.ringcore_place, tf.constant([], tf.uint8), mode, process_set=number, what=what)
    if mode is not Mode.EAGER:
        value.set_shape([])
    return value


def rank_op(process_set: ProcessSet | int = global_process_set) -> tf.Tensor:
    """This rank's index in a process set, as an int32 scalar that a graph looks up when it runs."""
    return _place(_RANK, process_set)


def size_op(process_set: ProcessSet | int = global_process_set) -> tf.Tensor:
    """The number of ranks of a process set, as `rank_op`."""
    return _place(_SIZE, process_set)


def local_rank_op() -> tf.Tensor:
    """This process's number among those of its host, as `rank_op`."""
    return _place(_LOCAL_RANK)


def local_size_op() -> tf.Tensor:
    """The number of the job's processes on this host, as `rank_op`."""
    return _place(_LOCAL_SIZE)


def process_set_included_op(process_set: ProcessSet | int = global_process_set) -> tf.Tensor:
    """1 where this process is a member of a process set, else 0; as `rank_op`."""
    return _place(_INCLUDED, process_set)
