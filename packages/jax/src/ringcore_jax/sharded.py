"""An optax optimizer whose state is dealt out to the ranks (ZeRO's first stage: Rajbhandari et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from ringcore import Average, InvalidArgument, Sum, adapter
from ringcore.adapter import ProcessSet, global_process_set

from ringcore_jax._operations import allgather, allreduce, reducescatter
from ringcore_jax.compression import Compression, Compressor
from ringcore_jax.elements import why_not_by_element
from ringcore_jax.start import Comparison

if TYPE_CHECKING:
    import optax


def ShardedOptimizer(  # noqa: N802 - the field's name for it
    optimizer: optax.GradientTransformation,
    *,
    max_norm: float | None = None,
    compression: type[Compressor] | str = Compression.none,
    process_set: ProcessSet = global_process_set,
    name: str = "ShardedOptimizer",
    check_weights: bool = True,
    by_element: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Wrap an optax optimizer: each rank keeps the state of a share of the parameters, and makes their updates.

    Gradients are reduce-scattered and averaged, each rank makes the updates of what it owns, and these are gathered: as
    many bytes as an allreduce, and 1/ranks of the optimizer's memory. `init` and `update` work inside `jit` and
    outside. The state is this rank's own: every rank keeps its file, or `gather_state` makes the whole one of it.

    Args:
        optimizer: That works by element: sgd, adam, adamw, adagrad, rmsprop, lion and others. It is tried on small
            arrays whether it does.
        max_norm: Scale the averages so that their norm, over all parameters, is at most this; in the place of
            `optax.clip_by_global_norm`, for which no rank has all averages.
        compression: What is sent of gradients: `Compression.fp16` or `bf16` halves float32. Updates are gathered as
            they are.
        process_set: The ranks that train together.
        name: Identifies the operations on all ranks; of several optimizers in one program each may have its own.
        check_weights: When parameters are updated for the first time, compare a hash of them on all ranks, and raise
            `MismatchError` where they differ. An `update` that is given none compares nothing.
        by_element: The optimizer works by element, though on trial it seems that it does not, or cannot be tried.

    Raises:
        InvalidArgument: An optimizer that does not work by element; an elastic job, where the state of a lost rank
            would be lost; a compression that a reduce-scatter cannot have. From `init` and `update`:
            a parameter of a dtype that is no float.
    """
    import optax

    if adapter.is_elastic():
        raise InvalidArgument("in an elastic job the share of a lost rank would be lost; use DistributedOptimizer")
    if not by_element and (reason := why_not_by_element(optimizer)):
        raise InvalidArgument(
            f"the optimizer does not work by element: {reason}. A share of a parameter would be updated otherwise than "
            "the whole. Use DistributedOptimizer; or pass max_norm in the place of clip_by_global_norm, or "
            "by_element=True if it does"
        )
    compressor = Compression.chosen_for_shares(compression, who="ShardedOptimizer")
    inner = optax.with_extra_args_support(optimizer)
    comparison = Comparison(name, process_set) if check_weights else None

    def init(params: Any) -> Any:
        return inner.init(Rows(params, process_set).own(params))

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if comparison is not None and params is not None:
            gradients = comparison.before(params, gradients)
        # Gradients may have another dtype than the parameters, of which the state is.
        rows = Rows(gradients if params is None else params, process_set)
        whole = rows.of(gradients)
        shares = partial(reducescatter, op=Average, name=f"{name}.gradients", process_set=process_set)
        own = dict(zip(whole, adapter.reduce_compressed(compressor, list(whole.values()), shares), strict=True))
        if max_norm is not None:
            own = _clipped(own, max_norm, name, process_set)
        updates, state = inner.update(own, state, None if params is None else rows.own(params), **extra)
        return rows.tree(allgather(updates, name=f"{name}.updates", process_set=process_set)), state

    return optax.GradientTransformationExtraArgs(init, update)


def _clipped(own: dict[str, Any], max_norm: float, name: str, process_set: ProcessSet) -> dict[str, Any]:
    squares = sum(jnp.sum(jnp.square(row)).astype(jnp.float32 if row.dtype.itemsize < 4 else row.dtype)
                  for row in own.values())  # fmt: skip
    norm = jnp.sqrt(allreduce(squares, op=Sum, name=f"{name}.norm", process_set=process_set))
    return {
        kind: jnp.where(norm < max_norm, row, (row / norm.astype(row.dtype)) * max_norm) for kind, row in own.items()
    }


def gather_state(
    optimizer: optax.GradientTransformation, state: Any, params: Any, *, process_set: ProcessSet = global_process_set
) -> Any:
    """Make of every rank's share the state that the optimizer would have alone; outside `jit`, on all ranks.

    Args:
        optimizer: The one that was wrapped.
        state: This rank's, of `ShardedOptimizer`.
        params: The parameters, or as many arrays of the same shapes.
        process_set: The ranks that train together.

    Returns:
        The state that `optimizer.init(params)` has the structure of, on every rank: for a checkpoint that a job of
        another size can use.

    Raises:
        InvalidArgument: A state of another optimizer, or one whose parts cannot be told from the parameters.
    """
    rows = Rows(params, process_set)
    name = adapter.name_or_next(None, "gather_state", process_set)

    def gathered(number: int, part: Any) -> Any:
        return rows.tree(allgather(part, name=f"{name}.{number}", process_set=process_set))

    return _with_parts(optimizer, state, gathered)


def shard_state(
    optimizer: optax.GradientTransformation, state: Any, params: Any, *, process_set: ProcessSet = global_process_set
) -> Any:
    """Take this rank's share of a whole state: of `gather_state`, or of a run without `ShardedOptimizer`.

    Args:
        optimizer: The one that was wrapped.
        state: That `optimizer.init(params)` has the structure of.
        params: The parameters, or as many arrays of the same shapes.
        process_set: The ranks that train together.

    Raises:
        InvalidArgument: See `gather_state`.
    """
    rows = Rows(params, process_set)
    return _with_parts(optimizer, state, lambda _, part: rows.own(part))


class Rows:
    """A pytree of arrays, laid one behind the other in one row a dtype, of which each rank owns an equal share.

    Zeros fill up the last share. Shapes and this rank's place are known when a program is compiled.

    Args:
        tree: Of floats.
        process_set: The ranks.

    Raises:
        InvalidArgument: An array in it has no float dtype.
    """

    def __init__(self, tree: Any, process_set: ProcessSet) -> None:
        found, structure = jax.tree.flatten_with_path(tree)
        self._structure: Any = structure
        self._shapes = [leaf.shape for _, leaf in found]
        self._kinds: dict[str, list[int]] = {}
        for number, (path, leaf) in enumerate(found):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                place = jax.tree_util.keystr(path, simple=True, separator=".")
                raise InvalidArgument(
                    f"'{place}' has the dtype {leaf.dtype}, and a ShardedOptimizer updates floats; keep it out of the "
                    "parameters, or use DistributedOptimizer"
                )
            self._kinds.setdefault(str(leaf.dtype), []).append(number)
        self._rank, self._size = process_set.rank(), process_set.size()

    def of(self, tree: Any) -> dict[str, jax.Array]:
        """The rows, of a tree of these shapes."""
        leaves = self._structure.flatten_up_to(tree)
        rows = {}
        for kind, numbers in self._kinds.items():
            row = jnp.concatenate([jnp.ravel(leaves[number]) for number in numbers])
            rows[kind] = jnp.pad(row, (0, -row.size % self._size))
        return rows

    def own(self, tree: Any) -> dict[str, jax.Array]:
        """This rank's share of them."""
        rows = self.of(tree)
        shares = {kind: row.size // self._size for kind, row in rows.items()}
        return {kind: row[self._rank * shares[kind] : (self._rank + 1) * shares[kind]] for kind, row in rows.items()}

    def tree(self, rows: dict[str, jax.Array]) -> Any:
        """The tree that whole rows are of."""
        leaves: list[Any] = [None] * len(self._shapes)
        for kind, numbers in self._kinds.items():
            at = 0
            for number in numbers:
                count = math.prod(self._shapes[number])
                leaves[number] = rows[kind][at : at + count].reshape(self._shapes[number])
                at += count
        return self._structure.unflatten(leaves)


class _Parameters:
    """Stands for the parameters in a state: a pytree without leaves."""


jax.tree_util.register_pytree_node(_Parameters, lambda _: ((), None), lambda *_: _Parameters())


def _with_parts(
    optimizer: optax.GradientTransformation, state: Any, change: Callable[[int, Any], Any]
) -> Any:  # fmt: skip
    """A state with what is by element in it changed; the rest, such as counts of steps, is the same on all ranks."""
    structure: Any
    try:
        skeleton = optimizer.init(_Parameters())
        parts, structure = jax.tree.flatten(skeleton, is_leaf=lambda part: isinstance(part, _Parameters))
        given = structure.flatten_up_to(state)
    except Exception as error:
        raise InvalidArgument(
            f"which parts of the optimizer's state belong to parameters cannot be told: {error}; keep each rank's own "
            "state"
        ) from error
    changed = [
        change(number, each) if isinstance(part, _Parameters) else each
        for number, (part, each) in enumerate(zip(parts, given, strict=True))
    ]
    return structure.unflatten(changed)
