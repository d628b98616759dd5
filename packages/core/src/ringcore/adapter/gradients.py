"""What the wrappers of optimizers have in common: their options, how gradients are dealt out, and when overlap pays."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

from ringcore import _native
from ringcore._errors import InvalidArgument
from ringcore.adapter.collectives import ReduceOp, check_op
from ringcore.job.state import context, is_elastic, is_initialized


def check_gradient_options(op: ReduceOp, groups: int | None = None, gradient_predivide_factor: float = 1.0) -> None:
    """What every wrapper of an optimizer asks of its arguments.

    Raises:
        InvalidArgument: An `op` that is neither `AVERAGE` nor `SUM`, less than one group, or a sum to be divided.
    """
    check_op(op)
    if op is ReduceOp.ADASUM:
        raise InvalidArgument(
            "op=Adasum combines the steps that ranks have made, and here their gradients are reduced before there is a "
            "step; use op=Average, or train with ringcore_torch's DistributedOptimizer"
        )
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise InvalidArgument(f"gradients are reduced with op=Average or op=Sum, not {op.name}")
    if groups is not None and groups < 1:
        raise InvalidArgument(f"groups is at least 1, not {groups}")
    if gradient_predivide_factor != 1.0 and op is not ReduceOp.AVERAGE:
        raise InvalidArgument("gradient_predivide_factor divides an average in two steps; use op=Average")


# Smaller gradients the engine packs, more quickly than they can be given a place in registered memory, one Python call
# after the other; from so much on it reduces them where they lie.
SMALL_BYTES: int = _native.DIRECT_BYTES

# A bucket is full when it has so much.
BUCKET_BYTES = 4 << 20
_MOST_IN_BUCKET = 2000  # a group is described in one record


def buckets(sizes: Sequence[int], groups: int | None = None, *, bucket_bytes: int | None = None) -> list[list[int]]:
    """Deal gradients out to operations: those that go together are still in the caches when they are reduced.

    In an elastic job they all go together. An operation runs as a whole, so that a step is the work of the same ranks,
    whenever one is lost.

    Args:
        sizes: Of the gradients, in bytes, in the order of their parameters; on every rank the same.
        groups: As many operations as the user wants; None: by size.
        bucket_bytes: By size, a bucket is full when it has so much; None: some megabytes.

    Returns:
        Indices of the gradients, the last ones first: that is the order in which backward makes them.
    """
    if is_elastic():
        return dealt_out(len(sizes), -(-len(sizes) // _MOST_IN_BUCKET))
    if groups is not None:
        return dealt_out(len(sizes), groups)
    found: list[list[int]] = []
    full = BUCKET_BYTES if bucket_bytes is None else bucket_bytes
    filled = full
    for index in reversed(range(len(sizes))):
        if filled >= full:
            found.append([])
            filled = 0
        found[-1].insert(0, index)
        filled += sizes[index]
    return found


def dealt_out(count: int, groups: int) -> list[list[int]]:
    """Deal gradients out to as many operations as the user wants.

    Args:
        count: Number of gradients.
        groups: Number of operations; fewer where there are fewer gradients.

    Returns:
        Indices of the gradients, neighbours together; the sizes of the groups differ by one at most.
    """
    groups = min(groups, count)
    return [list(range(i * count // groups, (i + 1) * count // groups)) for i in range(groups)]


def dealt_evenly(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Deal tensors out to parts of about the same size, neighbours together.

    Args:
        sizes: Of the tensors, in whatever unit.
        parts: How many.

    Returns:
        Indices of the tensors of each part: at least one, or none in the last parts where there are fewer tensors.
    """
    ends = list(itertools.accumulate(sizes, initial=0))
    borders = [0]
    for part in range(1, parts):
        wanted = ends[-1] * part / parts
        nearest = min(range(len(ends)), key=lambda end: abs(ends[end] - wanted))
        most = len(sizes) - (parts - part)
        borders.append(min(max(nearest, borders[-1] + 1), max(most, borders[-1] + 1), len(sizes)))
    return [list(range(*pair)) for pair in itertools.pairwise([*borders, len(sizes)])]


def check_outer_steps(every: int, fragments: int, delay: int, alpha: float) -> None:
    """What DiLoCo asks of its arguments in every framework.

    Raises:
        InvalidArgument: They do not fit each other.
    """
    if not 1 <= fragments <= every:
        raise InvalidArgument(f"fragments is at least 1 and at most every = {every}, not {fragments}")
    if not 0 <= delay < every:
        raise InvalidArgument(f"delay is at least 0 and below every = {every}, not {delay}")
    if not 0 <= alpha <= 1:
        raise InvalidArgument(f"alpha is from 0 to 1, not {alpha}")


def priority_of(place: int) -> int:
    """How urgent a gradient is: the sooner the next forward needs its parameter, the more.

    All of them are less urgent than what has no priority, such as the statistics of a layer that waits for them.

    Args:
        place: Of the parameter, in the order in which a forward needs them; 0 is the first. Of several gradients that
            go together, the first one's.
    """
    return -1 - place


def has_room_to_overlap(threads: int) -> bool:
    """Whether a reduction that is started during backward runs beside it, and does not only take turns with it.

    Over a network it waits for the wire most of the time. In shared memory it needs a core: where each one computes,
    a reduction in the background costs its own time and what it evicts from the caches.

    Args:
        threads: That the framework computes with in this process.
    """
    current = context()
    if {"tcp", "tls", "mpi"}.intersection(current.runtime.transports()):
        return True
    allowed = len(os.sched_getaffinity(0))
    if allowed == os.cpu_count():  # shared with the other ranks of the host; else taken for this rank's own
        allowed //= current.local_size
    return allowed > threads


_LARGEST_BLOCK_BYTES = 32 << 20
_TOUCHED_BLOCK_BYTES = 16 << 20
_kept_bytes = 0


def keep_freed_memory(gradient_bytes: int = 0) -> None:
    """Let the C allocator keep what a backward pass frees, for the next one.

    glibc gives freed memory at the top of its heap back to the system, and gets it again zeroed, page by page, when the
    next gradient is made: up to a quarter of a training step on CPUs. This raises its thresholds for the whole process
    (blocks of up to 32 MiB come from the heap; 64 MiB stay free there, and as much as the gradients, but no more than 1
    GiB), unless `MALLOC_*` variables or `GLIBC_TUNABLES` set them. With another allocator it does nothing.

    Args:
        gradient_bytes: Of all gradients of the model on the CPU, where that is known. The largest model counts.
    """
    global _kept_bytes
    if any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    wanted = min(gradient_bytes + (64 << 20), 1 << 30)
    if wanted > _kept_bytes:
        _kept_bytes = wanted
        _native.keep_freed_memory(_LARGEST_BLOCK_BYTES, wanted)
        if gradient_bytes > 0 and is_initialized() and context().is_newcomer:
            # Nobody waits for this rank yet; the first touch of the memory would be a part of its first step, and of
            # what it is given before. One block more than the gradients, which are in other blocks; of the state as
            # many as Adam keeps, below those of the step: what is freed at the top of the heap goes back to the system.
            blocks = min(gradient_bytes, wanted) // _TOUCHED_BLOCK_BYTES + 2
            context().touched_for_state = [b"\1" * _TOUCHED_BLOCK_BYTES for _ in range(2 * blocks)]
            context().touched_for_step = [b"\1" * _TOUCHED_BLOCK_BYTES for _ in range(blocks)]
