"""Whether an optax optimizer works by element. It is a pair of functions that tell nothing: it is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    import optax

# Adafactor takes matrices apart from 128 rows and columns on.
_SHAPES = {"matrix": (130, 129), "vector": (8,)}
# Of the gradients, step by step: what clips by a norm does so to some of them.
_SIZES = (1e-3, 1.0, 1e3, 1e6)
_ROUNDING = 1e-4


def why_not_by_element(optimizer: optax.GradientTransformation) -> str:
    """Update small arrays, and the same values as two halves of one row.

    Returns:
        What differs; nothing where both are the same.
    """
    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return _what_differs(optimizer)
    except Exception as error:  # of whatever the optimizer asks for that is not there
        return f"it cannot be tried ({type(error).__name__}: {error})"


def _what_differs(optimizer: optax.GradientTransformation) -> str:
    draw = np.random.default_rng(0)
    params = {key: _drawn(draw, shape, 1.0) for key, shape in _SHAPES.items()}
    update = jax.jit(optimizer.update)
    state, states = optimizer.init(params), [optimizer.init({"row": half}) for half in _halves(params)]
    for size in _SIZES:
        gradients = {key: _drawn(draw, shape, size) for key, shape in _SHAPES.items()}
        updates, state = update(gradients, state, params)
        pieces = []
        for number, (gradient, half) in enumerate(zip(_halves(gradients), _halves(params), strict=True)):
            piece, states[number] = update({"row": gradient}, states[number], {"row": half})
            pieces.append(piece["row"])
        expected, got = np.concatenate(_halves(updates)), np.concatenate(pieces)
        if not np.allclose(got, expected, rtol=_ROUNDING, atol=_ROUNDING * float(np.abs(expected).max())):
            return f"gradients of about {size:g} give a matrix and a vector other updates than the same values in a row"
    return ""


def _drawn(draw: np.random.Generator, shape: tuple[int, ...], size: float) -> jax.Array:
    return jnp.asarray(draw.standard_normal(shape, dtype=np.float32) * np.float32(size))


def _halves(tree: dict[str, Any]) -> list[Any]:
    row = jnp.concatenate([jnp.ravel(tree[key]) for key in _SHAPES])
    return [row[: row.size // 2], row[row.size // 2 :]]
