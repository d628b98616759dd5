"""For authors of adapters: collectives on raw memory.

An adapter makes a `Buffer` of each tensor, calls the functions here, and waits for the handle in the way of its
framework. It has no collective logic of its own. Nothing is copied; the handle keeps the buffers' owners alive.
"""

from __future__ import annotations

import contextlib
import enum
import importlib.metadata
import math
from collections.abc import Sequence
from typing import Any

from ringcore import _native
from ringcore._buffer import DTYPE_NAMES, Buffer, as_buffer
from ringcore._context import ProcessSet, context, global_process_set, is_alone, process_set_id_of
from ringcore._errors import InvalidArgument, RingcoreError
from ringcore._version import __version__

__all__ = [
    "DTYPE_CODES",
    "Buffer",
    "Handle",
    "ReduceOp",
    "allgather",
    "allocate",
    "allreduce",
    "allreduce_now",
    "alltoall",
    "as_buffer",
    "barrier",
    "broadcast",
    "join",
    "reducescatter",
    "require_same_version",
]


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


class ReduceOp(enum.Enum):
    """How the ranks' values become one. `AVERAGE` divides the sum by the number of ranks; floats only."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"


DTYPE_CODES: dict[str, int] = dict(_native.DTYPES)
_FLOATS = {code for name, code in DTYPE_CODES.items() if "float" in name}
_OPS = {op: _native.REDUCE_OPS[op.value] for op in ReduceOp}
_ALLREDUCE: int = _native.COLLECTIVES["allreduce"]
_ALLGATHER: int = _native.COLLECTIVES["allgather"]
_BROADCAST: int = _native.COLLECTIVES["broadcast"]
_REDUCESCATTER: int = _native.COLLECTIVES["reducescatter"]
_ALLTOALL: int = _native.COLLECTIVES["alltoall"]
_BARRIER: int = _native.COLLECTIVES["barrier"]


class _NeverDone:
    """Stands for an interrupted blocking call, of which nobody can tell when the engine is done with it."""

    done = False


_NEVER_DONE: Any = _NeverDone()


class Handle:
    """One submitted operation, or a group of them.

    Attributes:
        operations: The engine's operations; read `result`, `result_rows`, `last_joined` from them when done.
    """

    __slots__ = ("_context", "_keep", "_runtime", "operations")

    def __init__(self, operations: list[Any], keep: object) -> None:
        self._context = context()
        self._runtime = self._context.runtime
        self.operations = operations
        self._keep = keep

    def __del__(self) -> None:
        # Dropped without `wait`, or its wait was interrupted: the engine still reads and writes the buffers.
        if self._keep is not None and not all(operation.done for operation in self.operations):
            self._context.abandon(self.operations, self._keep)

    def done(self) -> bool:
        """Whether it has ended, successfully or not. Never blocks; `wait` raises what made it fail."""
        for operation in self.operations:
            if not operation.done:
                # Somebody is interested: let an open bucket go.
                with contextlib.suppress(RingcoreError):
                    self._runtime.wait(operation, 0.0, False)
        return all(operation.done for operation in self.operations)

    def wait(self, timeout_s: float = math.inf) -> bool:
        """Wait until it has ended.

        Args:
            timeout_s: Give up waiting (not the operation) after this many seconds.

        Returns:
            True when it has ended, False when `timeout_s` has passed.

        Raises:
            RingcoreError: Why it failed: `MismatchError`, `PeerLostError`, `TimeoutError`, ... the same on every rank.
        """
        failure: Exception | None = None
        for operation in self.operations:
            try:
                if not self._runtime.wait(operation, timeout_s, not operation.done and is_alone()):
                    return False
            except Exception as error:  # the others of the group must end before their memory is free
                failure = failure or error
        self._keep = None
        if failure is not None:
            raise failure
        return True


def _submit(
    collective: int,
    name: str,
    source: Buffer,
    target_address: int,
    *,
    op: ReduceOp = ReduceOp.SUM,
    root: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    splits: Sequence[int] = (),
    group: str = "",
    group_size: int = 0,
    blocking: bool = False,
) -> Any:
    current = context()
    set_id = process_set_id_of(process_set)
    if blocking and not group and priority == 0:
        try:
            return current.runtime.run(
                collective, name, source.dtype, _OPS[op], source.shape, source.address, target_address, root,
                prescale, postscale, set_id, splits, is_alone(),
            )  # fmt: skip
        except KeyboardInterrupt:
            current.abandon((_NEVER_DONE,), (source, target_address))
            raise
    return current.runtime.submit(
        collective, name, source.dtype, _OPS[op], source.shape, source.address, target_address, root,
        prescale, postscale, set_id, priority, splits, group, group_size,
    )  # fmt: skip


def _check_op(op: ReduceOp, source: Buffer, name: str) -> None:
    if op is ReduceOp.AVERAGE and "float" not in DTYPE_NAMES[source.dtype]:
        raise InvalidArgument(
            f"'{name}': the average of {DTYPE_NAMES[source.dtype]} is not defined without rounding; "
            "use op=Sum and divide, or convert the tensor to a float dtype"
        )


def allreduce_now(
    source: Buffer,
    target: Buffer,
    name: str,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> None:
    """`allreduce` of one tensor, blocking: the shortest way through Python, for when every microsecond counts.

    `target` has the shape and dtype of `source`. Raises what `allreduce` and `Handle.wait` raise.
    """
    if op is ReduceOp.AVERAGE and source.dtype not in _FLOATS:
        _check_op(op, source, name)
    current = context()
    set_id = 0 if process_set is global_process_set else process_set_id_of(process_set)
    try:
        current.runtime.run(
            _ALLREDUCE, name, source.dtype, _OPS[op], source.shape, source.address, target.address, 0,
            prescale_factor, postscale_factor, set_id, (), is_alone(),
        )  # fmt: skip
    except KeyboardInterrupt:
        current.abandon((_NEVER_DONE,), (source, target))
        raise


def allreduce(
    pairs: Sequence[tuple[Buffer, Buffer]],
    names: Sequence[str],
    *,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle:
    """Reduce tensors over all ranks; several are released together, all or nothing.

    Args:
        pairs: (input, output) of each tensor, of equal shape and dtype; they may be the same memory.
        names: One a tensor; identify the tensors on all ranks.
        op: Of `ReduceOp`.
        prescale_factor: Multiplied into the inputs before they are reduced.
        postscale_factor: Multiplied into the results.
        process_set: The ranks that take part.
        priority: Above 0: urgent, overtakes bulk data.

    Raises:
        InvalidArgument: An average of integers, or outputs that do not fit the inputs.
        DuplicateNameError: A name is in use by an operation that is not done.
    """
    for (source, target), name in zip(pairs, names, strict=True):
        _check_op(op, source, name)
        if target.shape != source.shape or target.dtype != source.dtype:
            raise InvalidArgument(
                f"'{name}': the output is {DTYPE_NAMES[target.dtype]} {list(target.shape)}, "
                f"the input {DTYPE_NAMES[source.dtype]} {list(source.shape)}; they must agree"
            )
    group = names[0] if len(pairs) > 1 else ""
    handle = Handle([], pairs)  # first: if a later submission fails, the earlier ones still have their memory
    for (source, target), name in zip(pairs, names, strict=True):
        operation = _submit(
            _ALLREDUCE, name, source, target.address, op=op, prescale=prescale_factor, postscale=postscale_factor,
            process_set=process_set, priority=priority, group=group, group_size=len(pairs) if group else 0,
        )  # fmt: skip
        handle.operations.append(operation)
    return handle


def allgather(
    source: Buffer,
    name: str,
    *,
    process_set: ProcessSet = global_process_set,
    blocking: bool = False,
    group: str = "",
    group_size: int = 0,
) -> Handle:
    """Concatenate every rank's rows. The first dimension may differ between ranks, the others not.

    The result is in `handle.operations[0].result`, the rows of each rank in `.result_rows`. Operations of one `group`
    (`group_size` of them, submitted one after the other) run all or none.
    """
    if not source.shape:
        source = source._replace(shape=(1,))
    operation = _submit(
        _ALLGATHER, name, source, 0, process_set=process_set, blocking=blocking, group=group, group_size=group_size
    )
    return Handle([operation], source)


def broadcast(
    source: Buffer,
    target: Buffer,
    root_rank: int,
    name: str,
    *,
    process_set: ProcessSet = global_process_set,
    blocking: bool = False,
) -> Handle:
    """Give every rank the root's values. `root_rank` is a rank of the job, and must be a member of `process_set`."""
    members = process_set.ranks
    root = members.index(root_rank) if root_rank in members else -1
    operation = _submit(_BROADCAST, name, source, target.address, root=root, process_set=process_set, blocking=blocking)
    return Handle([operation], (source, target))


def reducescatter(
    source: Buffer,
    name: str,
    *,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    blocking: bool = False,
    group: str = "",
    group_size: int = 0,
) -> Handle:
    """Reduce over all ranks and deal out the rows: the first ranks get one more where they do not divide evenly.

    The result is in `handle.operations[0].result`. `group`: see `allgather`.
    """
    _check_op(op, source, name)
    if not source.shape:
        raise InvalidArgument(f"'{name}': a scalar has no rows to deal out; pass at least one dimension")
    operation = _submit(
        _REDUCESCATTER, name, source, 0, op=op, prescale=prescale_factor, postscale=postscale_factor,
        process_set=process_set, blocking=blocking, group=group, group_size=group_size,
    )  # fmt: skip
    return Handle([operation], source)


def alltoall(
    source: Buffer,
    splits: Sequence[int] | None,
    name: str,
    *,
    process_set: ProcessSet = global_process_set,
    blocking: bool = False,
) -> Handle:
    """Send `splits[r]` rows to each rank r. Without splits the rows are divided evenly.

    The result is in `handle.operations[0].result`, the rows that came from each rank in `.result_rows`.
    """
    if not source.shape:
        raise InvalidArgument(f"'{name}': a scalar has no rows to send; pass at least one dimension")
    if splits is None:
        members = process_set.size()
        if source.shape[0] % members:
            raise InvalidArgument(
                f"'{name}': {source.shape[0]} rows cannot be divided evenly among {members} ranks; pass splits"
            )
        splits = [source.shape[0] // members] * members
    operation = _submit(_ALLTOALL, name, source, 0, process_set=process_set, splits=list(splits), blocking=blocking)
    return Handle([operation], source)


def barrier(name: str, *, process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it."""
    _submit(_BARRIER, name, Buffer(0, (0,), 0, None), 0, process_set=process_set, blocking=True)


def join(*, process_set: ProcessSet = global_process_set) -> int:
    """Contribute nothing to the allreduces of the others until all ranks have joined; returns the last one to join."""
    current = context()
    operation = current.runtime.join(process_set_id_of(process_set))
    Handle([operation], None).wait()
    return int(operation.last_joined)


def allocate(nbytes: int) -> Any | None:
    """Registered memory: the other ranks of the host reduce from and into it without a copy.

    Returns:
        An object with `address`, `nbytes` and `view()` (a memoryview that keeps it alive), or None where ranks of this
        host do not share memory.
    """
    memory = context().memory
    return None if memory is None else memory.allocate(nbytes)
