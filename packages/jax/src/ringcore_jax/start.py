"""Whether all ranks train the same model: their parameters are compared, once.

Of arrays this is known where they are given. In a compiled program it is a call of the program, which does its work
when the program runs for the first time, and once more when others have come to an elastic job, and nothing otherwise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from ringcore import adapter
from ringcore.adapter import ProcessSet

from ringcore_jax._calls import LIBRARY, for_library, lower_behind_the_last

_TARGET = "ringcore_weights"
_REMEDY = "call params = broadcast_parameters(params, root_rank=0) before the first step"


class Comparison:
    """Compares parameters with those of the other ranks when it sees some for the first time.

    Args:
        name: Identifies the operation on all ranks.
        process_set: The ranks that train together.
    """

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        self._name, self._set = name, process_set
        self._done = False
        self._has_compared = False
        # Compiled programs outlive whoever made them.
        self._number = len(_comparisons)
        _comparisons.append(self)
        self._names: list[str] = []
        adapter.after_init(self._on_init)

    def _on_init(self) -> None:
        """The ranks are others: whoever has come compares, and so do all."""
        self._done = False
        LIBRARY.ringcore_jax_compare_again(ctypes.c_int64(self._number))

    def before(self, params: Any, gradients: Any) -> Any:
        """Compare them, once, before their gradients are used.

        Args:
            params: A pytree; what is no array in it is left out.
            gradients: A pytree.

        Returns:
            The gradients, which in a compiled program wait for the comparison.

        Raises:
            MismatchError: They differ. On every rank; in a compiled program as XLA's error with the same text.
        """
        # A program that a rank compiles while it is alone is the one that it runs when others have come.
        if not self._set.included() or (self._set.size() == 1 and not adapter.is_elastic()):
            return gradients
        held = [(path, leaf) for path, leaf in jax.tree.flatten_with_path(params)[0] if _has_bytes(leaf)]
        arrays = [leaf for _, leaf in held]
        if not arrays:
            return gradients
        self._names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in held]
        if any(isinstance(leaf, jax.core.Tracer) for leaf in arrays):
            compared = _compare_p.bind(*arrays, number=self._number)
            gradients, _ = jax.lax.optimization_barrier((gradients, compared))  # type: ignore[no-untyped-call]
            return gradients
        if not self._done and self._set.size() > 1:
            values = [np.ascontiguousarray(leaf) for leaf in arrays]
            self.compare([(value.ctypes.data, value.nbytes) for value in values])
        return gradients

    def compare(self, memory: Sequence[tuple[int, int]]) -> None:
        """Compare what lies there: addresses and sizes."""
        if self._done or self._set.size() == 1:
            return
        self._done = True
        hashes = [adapter.hash_of(address, nbytes) for address, nbytes in memory]
        adapter.check_weights(
            self._names, hashes, self._set, name=f"{self._name}.weights", remedy=_REMEDY, again=self._has_compared
        )
        self._has_compared = True


_comparisons: list[Comparison] = []


def _has_bytes(leaf: Any) -> bool:
    """Whether it is an array, and none of random keys."""
    return isinstance(leaf, jax.Array | np.ndarray) and isinstance(leaf.dtype, np.dtype)


# ---- In compiled programs ----

_Compare = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t),
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t,
)  # fmt: skip


def _compare(number: int, data: Any, sizes: Any, count: int, message: int, capacity: int) -> int:
    return for_library(
        lambda: _comparisons[number].compare([(data[i] or 0, sizes[i]) for i in range(count)]), message, capacity
    )


_compare_for_library = _Compare(_compare)  # as long as the library has it
LIBRARY.ringcore_jax_compare_with(_compare_for_library)
jax.ffi.register_ffi_target(
    _TARGET,
    jax.ffi.pycapsule(LIBRARY.ringcore_jax_weights),  # type: ignore[no-untyped-call]
    platform="cpu",
)
_compare_p: Any = Primitive("ringcore_weights")
_compare_p.def_abstract_eval(lambda *_, **__: jax.core.ShapedArray((), np.dtype(np.float32)))


def _lower(context: Any, *operands: Any, number: int) -> Any:
    lower = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True)
    return lower_behind_the_last(lower, context, operands, number=np.int64(number), count=np.int32(len(operands)))


def _lower_elsewhere(*_: Any, number: int) -> Any:
    """A GPU's memory is not looked at."""
    del number
    return jax.numpy.zeros((), np.float32)


mlir.register_lowering(_compare_p, mlir.lower_fun(_lower_elsewhere, multiple_results=False), cacheable=False)
mlir.register_lowering(_compare_p, _lower, platform="cpu", cacheable=False)


def _jvp(primals: Sequence[Any], _: Sequence[Any], *, number: int) -> tuple[Any, Any]:
    compared = _compare_p.bind(*primals, number=number)
    return compared, ad.Zero(jax.typeof(compared).to_tangent_aval())


ad.primitive_jvps[_compare_p] = _jvp
batching.primitive_batchers[_compare_p] = lambda arrays, _, *, number: (
    _compare_p.bind(*arrays, number=number),
    None,
)
