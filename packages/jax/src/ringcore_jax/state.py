"""Give all ranks the same start: the parameters, and whatever else is a pytree, of one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from ringcore.adapter import ProcessSet, global_process_set

from ringcore_jax._operations import broadcast_async


def broadcast_parameters(params: Any, root_rank: int = 0, *, process_set: ProcessSet = global_process_set) -> Any:
    """The root's parameters, optimizer state or random keys; called outside `jit`.

    Args:
        params: A pytree of arrays of any dtype, of the same structure, shapes and dtypes on every rank. Leaves that are
            no arrays, such as functions, stay as they are; numbers become arrays.
        root_rank: Rank whose values win.
        process_set: The ranks that take part.

    Returns:
        A tree of the same structure.

    Raises:
        MismatchError: The trees of the ranks differ; it names the leaf. On every rank.
    """

    def start(path: Any, leaf: Any) -> Callable[[], Any]:
        name = f"broadcast_parameters{jax.tree_util.keystr(path)}"
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            key = broadcast_async(jax.random.key_data(leaf), root_rank, name=name, process_set=process_set)
            return lambda: jax.random.wrap_key_data(key.synchronize(), impl=jax.random.key_impl(leaf))
        if hasattr(leaf, "__array__") or isinstance(leaf, bool | int | float | complex):
            return broadcast_async(leaf, root_rank, name=name, process_set=process_set).synchronize
        return lambda: leaf

    leaves, structure = jax.tree.flatten_with_path(params)
    ends = [start(path, leaf) for path, leaf in leaves]
    return jax.tree.unflatten(structure, [end() for end in ends])
