"""Gradients that are averaged over all ranks, and an optax optimizer that averages them before it steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from ringcore import InvalidArgument, adapter
from ringcore.adapter import Exchange, ProcessSet, ReduceOp, global_process_set

from ringcore_jax._operations import allreduce
from ringcore_jax.compression import Compression, Compressor
from ringcore_jax.exchanging import Exchanging, Owner
from ringcore_jax.names import names_of
from ringcore_jax.start import Comparison
from ringcore_jax.tuning import end_ways, taken, way_of_step

if TYPE_CHECKING:
    import optax


def allreduce_gradients(
    gradients: Any,
    *,
    op: ReduceOp = ReduceOp.AVERAGE,
    compression: type[Compressor] | Exchange | str = Compression.none,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    name: str = "gradients",
) -> Any:
    """Reduce a pytree of gradients over all ranks, in operations of some megabytes.

    Args:
        gradients: What `jax.grad` returns.
        op: `Average` or `Sum`.
        compression: `Compression.fp16` or `Compression.bf16` halves what is sent of float32 gradients; `int8` and
            `int4` send a quarter and an eighth between hosts; `powersgd(rank)`, `topk(ratio)`, `onebit()`,
            `blocks(size)` and `error_feedback(kind)` average all gradients themselves, in host memory, and keep what
            is lost: make one before the first step, and pass it in each.
        gradient_predivide_factor: Divide by this before the sum and multiply by it afterwards.
        process_set: The ranks that train together.
        name: Identifies the operations on all ranks.
    """
    compressor = Compression.chosen(compression, exchanges=True, lasts=False, who="allreduce_gradients")
    owner = _owners.setdefault(name, Owner())  # It is called anew in each step, and a name stands for one net.
    return _reduced(
        gradients, compressor, op, gradient_predivide_factor, process_set, name, who="allreduce_gradients", owner=owner
    )


_owners: dict[str, Owner] = {}


def _reduced(
    gradients: Any,
    compressor: type[Compressor] | Exchange,
    op: ReduceOp,
    gradient_predivide_factor: float,
    process_set: ProcessSet,
    name: str,
    who: str,
    owner: Owner,
) -> Any:
    """`allreduce_gradients`, for whoever was made with these arguments."""
    found, structure = jax.tree.flatten_with_path(gradients)
    leaves = [leaf for _, leaf in found]
    # Integer parameters have gradients without values.
    floats = [leaf for leaf in leaves if leaf.dtype != jax.dtypes.float0]
    if isinstance(compressor, Exchange):
        adapter.check_exchange_options(compressor, op, gradient_predivide_factor=gradient_predivide_factor)
        exchanging = Exchanging(compressor, name, process_set, who, {"compression": compressor}, owner)
        paths = [path for path, leaf in found if leaf.dtype != jax.dtypes.float0]
        return _with_floats(structure, leaves, exchanging.average(names_of(paths), floats))
    dealt = adapter.dealt("JAX", name, [leaf.size * leaf.dtype.itemsize for leaf in floats], process_set)
    now = way_of_step(dealt, floats)
    for part in dealt.parts:
        reduce = partial(
            allreduce, op=op, name=f"{name}.{part.number}{part.suffix}", compression=compressor,
            process_set=process_set, prescale_factor=1.0 / gradient_predivide_factor,
            postscale_factor=gradient_predivide_factor,
        )  # fmt: skip
        reduced, now = taken(now, part.way, reduce, [floats[i] for i in part.indices])
        for i, leaf in zip(part.indices, reduced, strict=True):
            floats[i] = leaf
    floats = end_ways(now, floats)
    return _with_floats(structure, leaves, floats)


def _with_floats(structure: Any, leaves: list[Any], floats: list[Any]) -> Any:
    """The tree of these leaves, with others in the places of those that have values."""
    left = iter(floats)
    return jax.tree.unflatten(structure, [leaf if leaf.dtype == jax.dtypes.float0 else next(left) for leaf in leaves])


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    check_weights: bool = True,
    process_set: ProcessSet = global_process_set,
    name: str = "gradients",
    compression: type[Compressor] | Exchange | str = Compression.none,
    error_feedback: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """`jax.value_and_grad` with the gradients, and the value, averaged over all ranks in one operation.

    Args:
        fun: The loss of this rank's part of the batch.
        argnums: See `jax.value_and_grad`.
        has_aux: `fun` returns a pair, whose second half stays this rank's own.
        check_weights: In the first call, compare a hash of the arguments that have gradients on all ranks, and raise
            `MismatchError` where they differ.
        process_set: The ranks that train together.
        name: Identifies the operations on all ranks.
        compression: See `DistributedOptimizer`.
        error_feedback: See there as well.
        options: See `allreduce_gradients`.
    """
    compressor = Compression.chosen(compression, exchanges=True, who="value_and_grad")
    compressor = Compression.with_errors(compressor, error_feedback=error_feedback)
    local = jax.value_and_grad(fun, argnums, has_aux)
    comparison = Comparison(name, process_set) if check_weights else None
    owner = Owner()

    def averages(tree: Any, *, op: ReduceOp = ReduceOp.AVERAGE, gradient_predivide_factor: float = 1.0) -> Any:
        return _reduced(
            tree, compressor, op, gradient_predivide_factor, process_set, name, "allreduce_gradients", owner
        )

    def averaged(*args: Any, **kwargs: Any) -> Any:
        value, gradients = local(*args, **kwargs)
        if comparison is not None:
            params = args[argnums] if isinstance(argnums, int) else [args[number] for number in argnums]
            gradients = comparison.before(params, gradients)
        if not has_aux:
            return averages((value, gradients), **options)
        loss, gradients = averages((value[0], gradients), **options)
        return (loss, value[1]), gradients

    return averaged


def DistributedOptimizer(  # noqa: N802 - the field's name for it
    optimizer: optax.GradientTransformation,
    *,
    op: ReduceOp = ReduceOp.AVERAGE,
    compression: type[Compressor] | Exchange | str = Compression.none,
    backward_passes_per_step: int = 1,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    name: str = "DistributedOptimizer",
    check_weights: bool = True,
    error_feedback: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Wrap an optax optimizer: before it steps, gradients are averaged over all ranks, in one operation.

    Its `update` works inside `jit` and outside. What sees averages, such as clipping, belongs inside:
    `DistributedOptimizer(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)))`.

    Args:
        optimizer: Over a pytree of parameters of float dtypes, the same on every rank. Its state stays its own, unless
            `backward_passes_per_step` adds the sums.
        op: `Average` or `Sum` of the gradients.
        compression: `Compression.fp16` or `Compression.bf16` halves what is sent of float32 gradients; `int8` and
            `int4` send a quarter and an eighth between hosts; `powersgd(rank)`, `topk(ratio)`, `onebit()`,
            `blocks(size)` and `error_feedback(kind)` average all gradients themselves, in host memory, and keep what
            is lost: in their own `state_dict()`, not in the optimizer's state.
        backward_passes_per_step: Calls of `update` whose gradients are summed before they are averaged over the ranks;
            the ones before the last change nothing.
        gradient_predivide_factor: Divide by this before the sum and multiply by it afterwards.
        process_set: The ranks that train together.
        name: Identifies the gradients on all ranks; of several optimizers in one program each may have its own.
        check_weights: When parameters are updated for the first time, compare a hash of them on all ranks, and raise
            `MismatchError` where they differ. An `update` that is given none compares nothing.
        error_feedback: With a compression: keep what is lost of each gradient of this rank, and add it to the next one.
            It is `Compression.error_feedback(kind)`, which has a `state_dict()` that you can keep.

    Raises:
        InvalidArgument: An `op` that is neither `Average` nor `Sum`, less than one backward pass, `error_feedback`
            without a compression.
    """
    import optax

    compressor = Compression.chosen(compression, exchanges=True, who="DistributedOptimizer")
    compressor = Compression.with_errors(compressor, error_feedback=error_feedback)
    adapter.check_gradient_options(op, gradient_predivide_factor=gradient_predivide_factor)
    if isinstance(compressor, Exchange):
        adapter.check_exchange_options(compressor, op, gradient_predivide_factor=gradient_predivide_factor)
    if backward_passes_per_step < 1:
        raise InvalidArgument(f"backward_passes_per_step is at least 1, not {backward_passes_per_step}")
    wrapped = optax.with_extra_args_support(optimizer)
    comparison = Comparison(name, process_set) if check_weights else None
    owner = Owner()

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if comparison is not None and params is not None:
            gradients = comparison.before(params, gradients)
        averaged = _reduced(
            gradients, compressor, op, gradient_predivide_factor, process_set, name, "DistributedOptimizer", owner
        )
        stepped: tuple[Any, Any] = wrapped.update(averaged, state, params, **extra)
        return stepped

    averaging = optax.GradientTransformationExtraArgs(wrapped.init, update)
    return averaging if backward_passes_per_step == 1 else _summing(averaging, backward_passes_per_step)


class Sums(NamedTuple):
    """The state of an optimizer that steps after several backward passes."""

    gradients: Any
    passes: Any
    inner: Any


def _summing(optimizer: optax.GradientTransformationExtraArgs, passes: int) -> optax.GradientTransformationExtraArgs:
    """Sum gradients in their own dtype, and let the optimizer step with the sum of so many."""
    import optax

    def init(params: Any) -> Sums:
        return Sums(jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32), optimizer.init(params))

    def update(gradients: Any, state: Sums, params: Any = None, **extra: Any) -> tuple[Any, Sums]:
        sums = jax.tree.map(jnp.add, state.gradients, gradients)

        def step() -> tuple[Any, Sums]:
            updates, inner = optimizer.update(sums, state.inner, params, **extra)
            return updates, Sums(jax.tree.map(jnp.zeros_like, sums), jnp.zeros_like(state.passes), inner)

        def wait() -> tuple[Any, Sums]:
            updates, _ = jax.eval_shape(step)
            return jax.tree.map(jnp.zeros_like, updates), Sums(sums, state.passes + 1, state.inner)

        is_last = state.passes + 1 == passes
        if not isinstance(is_last, jax.core.Tracer):
            return step() if is_last else wait()  # outside of a program `cond` would compile one in each pass
        stepped: tuple[Any, Sums] = jax.lax.cond(is_last, step, wait)
        return stepped

    return optax.GradientTransformationExtraArgs(init, update)
