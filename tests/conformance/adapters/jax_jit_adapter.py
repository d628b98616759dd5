"""JAX: the same inside compiled programs, where the shapes of a program's results are known before it runs."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import jax
import ringcore_jax as ring

from conformance.adapters.jax_adapter import array, tensor

__all__ = ["array", "collectives", "dtypes", "tensor"]

dtypes = ("int32", "bfloat16", "float32")  # each case of each is a program to compile


def _compiled(verb):
    def run(tensors, *args, **options):
        return jax.jit(functools.partial(verb, **options), static_argnums=range(1, 1 + len(args)))(tensors, *args)

    return run


_IN_PROGRAMS = ("allreduce", "grouped_allreduce", "broadcast", "reducescatter", "reduce", "gather", "scatter")
_ON_ARRAYS = {name: getattr(ring, name) for name in ring.__all__}
collectives = SimpleNamespace(
    **{
        **_ON_ARRAYS,
        **{name: _compiled(_ON_ARRAYS[name]) for name in _IN_PROGRAMS},
    }
)
