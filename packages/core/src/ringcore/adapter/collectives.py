"""The collectives on raw memory.

An adapter hands arrays to the functions here, or a `Buffer` of each where its framework speaks neither the buffer
protocol nor DLPack, and waits for the operation in the way of its framework. It has no collective logic of its own.
Nothing is copied; an operation keeps its arrays alive, also when it is dropped before it is done.
"""

from __future__ import annotations

import enum
import importlib.metadata
from collections.abc import Callable
from typing import Any

from ringcore import _native
from ringcore._errors import InvalidArgument
from ringcore._native import Buffer, Handle, UnsupportedArray
from ringcore._version import __version__
from ringcore.adapter.buffer import as_buffer, nbytes_of
from ringcore.adapter.refusals import refusing
from ringcore.job.handover import Handover
from ringcore.job.process_sets import ProcessSet, global_process_set, process_set_id_of
from ringcore.job.state import context


def require_same_version(distribution: str) -> None:
    """For an adapter's import: it works with the core of its own version only.

    Args:
        distribution: The adapter's, such as "ringcore-torch".

    Raises:
        ImportError: The core has another version; the message tells what to install.
    """
    try:
        installed = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return  # run from a source tree
    if installed != __version__:
        raise ImportError(
            f"{distribution} {installed} works with ringcore {installed}, but ringcore {__version__} is installed. "
            f"Remedy: pip install ringcore=={installed} {distribution}=={installed}"
        )


class ReduceOp(enum.IntEnum):
    """How the ranks' values become one.

    `AVERAGE` divides the sum by the number of ranks; floats only. `ADASUM` adds what is orthogonal and averages what is
    parallel (Maleki et al., MLSys 2021); floats only, each tensor by itself, and every rank needs memory for those of
    all.
    """

    SUM = _native.REDUCE_OPS["sum"]
    AVERAGE = _native.REDUCE_OPS["average"]
    MIN = _native.REDUCE_OPS["min"]
    MAX = _native.REDUCE_OPS["max"]
    PRODUCT = _native.REDUCE_OPS["product"]
    ADASUM = -1  # not the engine's: see `_adasum`


DTYPE_CODES: dict[str, int] = dict(_native.DTYPES)
COLLECTIVE_CODES: dict[str, int] = dict(_native.COLLECTIVES)
KINDS: dict[int, str] = {code: kind for kind, code in COLLECTIVE_CODES.items()}
_FLOATS = {code for name, code in DTYPE_CODES.items() if "float" in name}
_ALLREDUCE: int = COLLECTIVE_CODES["allreduce"]
_ALLGATHER: int = COLLECTIVE_CODES["allgather"]
_BROADCAST: int = COLLECTIVE_CODES["broadcast"]
_REDUCESCATTER: int = COLLECTIVE_CODES["reducescatter"]
_ALLTOALL: int = COLLECTIVE_CODES["alltoall"]
_REDUCE: int = COLLECTIVE_CODES["reduce"]
_GATHER: int = COLLECTIVE_CODES["gather"]
_SCATTER: int = COLLECTIVE_CODES["scatter"]
_BARRIER: int = COLLECTIVE_CODES["barrier"]

# copy(source, target): arrays of one dtype and number of elements, into memory that is reduced later, past the caches
# where that is quicker.
# `UnsupportedArray` for arrays that the engine does not take.
copy = _native.copy

# capi(): the address of the functions of native/capi/ringcore.h, for the compiled half of an adapter.
capi = _native.capi


def name_or_next(name: str | None, kind: str, process_set: ProcessSet | None) -> str:
    """The caller's name for an operation, or the next one of its kind in the process set; None: the world."""
    if isinstance(name, str):
        return name
    if name is not None:
        raise InvalidArgument(f"{kind}: the name is {name!r}; pass a str, or none")
    return context().next_name(kind, 0 if process_set is None else process_set_id_of(process_set, kind))


# Makes the result of a handle that has ended.
Finish = Callable[[Handle], Any]

_NOTHING = Buffer(0, (0,), 0, None)


def allreduce(
    sources: tuple[Any, ...],
    targets: tuple[Any, ...],
    name: str,
    *,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    blocking: bool = False,
    result: object = None,
    finish: Finish | None = None,
    again: Handle | None = None,
    compression: int = 0,
) -> Handle:
    """Reduce an array over all ranks; several as a group, which runs as a whole or not at all.

    Args:
        sources: Contiguous arrays, all on one device: a `Buffer`, an array of numpy, or an object of a type with
            DLPack's C exchange, such as PyTorch's tensors. On a GPU the operation has ended when it was launched; what
            the caller's stream is given after `wait` or `synchronize` runs behind it.
        targets: Where the results go, of the same shapes and dtypes; may be the same arrays.
        name: Identifies the operation on all ranks.
        op: Of `ReduceOp`.
        prescale_factor: Multiplied into the inputs before they are reduced.
        postscale_factor: Multiplied into the results.
        process_set: The ranks that take part.
        priority: The larger, the sooner; on the CPU, and not over MPI, it overtakes what has begun.
        blocking: Return when it is done: quicker than `wait`.
        result: What `Handle.synchronize` returns.
        finish: Makes that instead, from the handle.
        again: The handle of the same group's last use, which nobody needs any more: what has the same name, dtypes and
            shapes, in whatever memory, is not described once more.
        compression: `Compressor.quantised`: how it may be sent between hosts.

    Raises:
        UnsupportedArray: A source or target is no such array; `as_buffer` tells what is wrong with it.
        InvalidArgument: An average of integers, or targets that do not fit the sources; a compression of anything but
            sums and averages of float32 and float64.
        DuplicateNameError: The name is in use by an operation that is not done.
        RingcoreError: Where `blocking`, what `Handle.wait` raises.
    """
    if op < 0:
        if compression != 0:
            raise InvalidArgument(f"'{name}': Adasum takes no compression to integers; leave out one of the two")
        return _adasum(
            sources, targets, name, prescale_factor * postscale_factor, process_set, result=result, finish=finish,
            blocking=blocking,
        )  # fmt: skip
    set_id = 0 if process_set is global_process_set else process_set_id_of(process_set, "allreduce", name)
    return context().runtime.submit(
        _ALLREDUCE, name, sources, targets, op, 0, prescale_factor, postscale_factor, set_id, priority, (), blocking,
        result, finish, again=again, compression=compression,
    )  # fmt: skip


def allreduce_in_place(
    array: Any,
    name: str,
    *,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> None:
    """`allreduce` of one array into itself, `blocking`: the quickest there is for a small one.

    Args and errors are those of `allreduce`.
    """
    if op < 0:
        arrays = (array,)
        _adasum(
            arrays, arrays, name, prescale_factor * postscale_factor, process_set, result=None, finish=None,
            blocking=True,
        )  # fmt: skip
        return
    set_id = 0 if process_set is global_process_set else process_set_id_of(process_set, "allreduce", name)
    context().runtime.allreduce_in_place(array, name, op, prescale_factor, postscale_factor, set_id)


def _adasum(
    sources: tuple[Any, ...], targets: tuple[Any, ...], name: str, scale: float, process_set: ProcessSet, *,
    result: object, finish: Finish | None, blocking: bool,
) -> Handle:  # fmt: skip
    """Gathers everybody's tensors; each rank combines them in the same way."""
    with refusing("allreduce", name, process_set):
        rows = [_row_of(source, source is target) for source, target in zip(sources, targets, strict=True)]

    def combine(handle: Handle) -> Any:
        for index, target in enumerate(targets):
            handle.adasum_into(index, target, scale)
        return result if finish is None else finish(handle)

    pairs = zip(rows, sources, strict=True)
    of_this_rank = tuple(Buffer(row.address, (1, *row.shape), row.dtype, source) for row, source in pairs)
    handle = allgather(of_this_rank, name, process_set=process_set, finish=combine)
    if not blocking:
        return handle
    return Handle.of_nothing(handle.synchronize())


def _row_of(array: Any, writable: bool) -> Buffer:
    try:
        row = _native.describe(array, writable=writable)
    except TypeError:
        raise UnsupportedArray("not an array in memory of the host that may be written") from None
    if row.dtype < 0 or not row.contiguous:
        raise UnsupportedArray("not a contiguous array of a dtype that ringcore knows")
    if row.device >= 0:
        raise InvalidArgument("Adasum works in host memory; pass a copy of the tensor there")
    if row.dtype not in _FLOATS:
        raise InvalidArgument("Adasum takes floats; convert the tensor to a float dtype")
    return row


def allgather(
    sources: tuple[Any, ...],
    name: str,
    *,
    process_set: ProcessSet = global_process_set,
    targets: tuple[Any, ...] = (),
    priority: int = 0,
    blocking: bool = False,
    result: object = None,
    finish: Finish | None = None,
) -> Handle:
    """Concatenate every rank's rows. The first dimension may differ between ranks, the others not.

    The results are in `targets`, where there are any: in host memory, with the rows of all ranks. Else they are in
    `handle.result(index)`, on a GPU in `handle.device_result(index)`. The rows of each rank: `handle.rows(index)`.
    `priority` is that of `allreduce`.
    """
    return _submit(
        _ALLGATHER, name, sources, targets, process_set=process_set, priority=priority, blocking=blocking,
        result=result, finish=finish,
    )  # fmt: skip


def broadcast(
    source: Any,
    target: Any,
    root_rank: int,
    name: str,
    *,
    process_set: ProcessSet = global_process_set,
    blocking: bool = False,
    result: object = None,
    finish: Finish | None = None,
) -> Handle:
    """Give every rank the root's values. `root_rank` is a rank of the job, and must be a member of `process_set`."""
    if isinstance(process_set, Handover):
        own = source if isinstance(source, Buffer) else as_buffer(source)
        place = own if target is source else target if isinstance(target, Buffer) else as_buffer(target, writable=True)
        return process_set.start(own, place, nbytes_of(own), name, result, finish)
    root = root_of(root_rank, name, process_set)
    sources = (source,)
    targets = sources if target is source else (target,)
    return _submit(
        _BROADCAST, name, sources, targets, root=root, process_set=process_set, blocking=blocking, result=result,
        finish=finish,
    )  # fmt: skip


def root_index(root_rank: int, process_set: ProcessSet) -> int:
    """A root's index in the process set.

    Raises:
        InvalidArgument: It is no member.
    """
    if process_set is global_process_set and type(root_rank) is int and 0 <= root_rank < context().size:
        return root_rank
    members = process_set.ranks
    if root_rank in members:
        return members.index(root_rank)
    among = f"ranks 0 to {len(members) - 1}" if process_set is global_process_set else f"the ranks {members}"
    raise InvalidArgument(f"root_rank {root_rank!r} is not among {among}; pass a root_rank of the process set")


def root_of(root_rank: int, name: str, process_set: ProcessSet, kind: str = "broadcast") -> int:
    """`root_index` for what is submitted now: the other ranks are told of a root that is none."""
    try:
        return root_index(root_rank, process_set)
    except InvalidArgument:
        with refusing(kind, name, process_set):
            raise


def reduce(
    source: Any,
    target: Any,
    root_rank: int,
    name: str,
    *,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    blocking: bool = False,
    result: object = None,
    finish: Finish | None = None,
) -> Handle:
    """Reduce over all ranks to one: `root_rank`, a rank of the job, gets the result in `target`.

    On the root `target` has the source's shape and dtype, and may be the source; elsewhere it is None, and the source
    stays as it is.
    """
    root = root_of(root_rank, name, process_set, "reduce")
    with refusing("reduce", name, process_set):
        check_op(op)
        if op < 0:
            raise InvalidArgument("Adasum is an allreduce; use op=Sum or op=Average")
    return _submit(
        _REDUCE, name, (source,), () if target is None else (target,), op=op, root=root, prescale=prescale_factor,
        postscale=postscale_factor, process_set=process_set, blocking=blocking, result=result, finish=finish,
    )  # fmt: skip


def gather(
    source: Any,
    root_rank: int,
    name: str,
    *,
    process_set: ProcessSet = global_process_set,
    target: Any = None,
    blocking: bool = False,
    result: object = None,
    finish: Finish | None = None,
) -> Handle:
    """Concatenate every rank's rows on `root_rank`, a rank of the job. The first dimension may differ between ranks.

    The root's result is in `target`, where there is one, else in `handle.result()`, which has no rows elsewhere; the
    rows that came from each rank in `handle.rows()`.
    """
    root = root_of(root_rank, name, process_set, "gather")
    return _submit(
        _GATHER, name, (source,), () if target is None else (target,), root=root, process_set=process_set,
        blocking=blocking, result=result, finish=finish,
    )  # fmt: skip


def scatter(
    source: Any,
    root_rank: int,
    splits: Any,
    name: str,
    *,
    process_set: ProcessSet = global_process_set,
    target: Any = None,
    blocking: bool = False,
    result: object = None,
    finish: Finish | None = None,
) -> Handle:
    """Send `splits[r]` rows of `root_rank`, a rank of the job, to each rank r. Without splits they are divided evenly.

    Elsewhere than on the root the source tells a dtype and the shape of a row, and neither its rows nor the splits are
    looked at. The result is in `target`, where there is one, else in `handle.result()`.
    """
    root = root_of(root_rank, name, process_set, "scatter")
    with refusing("scatter", name, process_set):
        rows = () if splits is None else _rows_of(splits)
    return _submit(
        _SCATTER, name, (source,), () if target is None else (target,), root=root, process_set=process_set, splits=rows,
        blocking=blocking, result=result, finish=finish,
    )  # fmt: skip


def check_op(op: object) -> None:
    """Refuse what is no operation.

    Raises:
        InvalidArgument: It is something else than a `ReduceOp`.
    """
    if not isinstance(op, int):
        raise InvalidArgument(f"op is {op!r}; pass Average, Sum, Min, Max, Product or Adasum, such as op=Sum")


def reducescatter(
    sources: tuple[Any, ...],
    name: str,
    *,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    targets: tuple[Any, ...] = (),
    blocking: bool = False,
    result: object = None,
    finish: Finish | None = None,
) -> Handle:
    """Reduce over all ranks and deal out the rows: the first ranks get one more where they do not divide evenly.

    The results are in `targets`, where there are any, else in `handle.result(index)`.
    """
    with refusing("reducescatter", name, process_set):
        check_op(op)
        if op < 0:
            raise InvalidArgument("Adasum is an allreduce; use op=Sum or op=Average")
    return _submit(
        _REDUCESCATTER, name, sources, targets, op=op, prescale=prescale_factor, postscale=postscale_factor,
        process_set=process_set, blocking=blocking, result=result,
        finish=finish,
    )  # fmt: skip


def alltoall(
    source: Any,
    splits: Any,
    name: str,
    *,
    process_set: ProcessSet = global_process_set,
    target: Any = None,
    blocking: bool = False,
    result: object = None,
    finish: Finish | None = None,
) -> Handle:
    """Send `splits[r]` rows to each rank r. Without splits the rows are divided evenly.

    The result is in `target`, where there is one, else in `handle.result()`; the rows that came from each rank in
    `handle.rows()`.
    """
    with refusing("alltoall", name, process_set):
        rows = () if splits is None else _rows_of(splits)
    return _submit(
        _ALLTOALL, name, (source,), () if target is None else (target,), process_set=process_set, splits=rows,
        blocking=blocking, result=result, finish=finish,
    )  # fmt: skip


def _rows_of(splits: Any) -> tuple[int, ...]:
    rows = tuple([int(number) for number in (splits.tolist() if hasattr(splits, "tolist") else splits)])
    if not rows:
        raise InvalidArgument("there are no splits; pass one for each rank, or None to divide evenly")
    if min(rows) < 0:
        raise InvalidArgument(f"splits are numbers of rows, not {list(rows)}")
    return rows


def barrier(name: str, *, process_set: ProcessSet = global_process_set, blocking: bool = True) -> Handle:
    """Ends when all ranks have called it."""
    return _submit(_BARRIER, name, (_NOTHING,), (), process_set=process_set, blocking=blocking)


def join(*, process_set: ProcessSet = global_process_set) -> int:
    """Contribute nothing to the allreduces of the others until all ranks have joined; returns the last one to join."""
    handle = context().runtime.join(process_set_id_of(process_set, "join"))
    handle.wait()
    context().joins += 1
    return int(handle.last_joined)


def _submit(
    collective: int,
    name: str,
    sources: tuple[Any, ...],
    targets: tuple[Any, ...],
    *,
    op: ReduceOp = ReduceOp.SUM,
    root: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet,
    priority: int = 0,
    splits: tuple[int, ...] = (),
    blocking: bool,
    result: object = None,
    finish: Finish | None = None,
) -> Handle:
    set_id = process_set_id_of(process_set, KINDS[collective], name)
    return context().runtime.submit(
        collective, name, sources, targets, op, root, prescale, postscale, set_id, priority, splits, blocking, result,
        finish,
    )  # fmt: skip


def allocate(nbytes: int) -> Any | None:
    """Registered memory: the other ranks of the host reduce from and into it without a copy.

    Returns:
        An object with `address`, `nbytes` and `view()` (a memoryview that keeps it alive), or None where ranks of this
        host do not share memory.
    """
    memory = context().memory
    return None if memory is None else memory.allocate(nbytes)


def check() -> None:
    """For a framework that goes on with what it cannot know to have failed: raises why the engine has, if it has.

    Raises:
        RingcoreError: A rank was lost, or memory is short; nothing works any more until `shutdown` and `init`.
    """
    context().runtime.check()
