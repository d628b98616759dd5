"""Ways to send gradients in a compiled program, of which `RINGCORE_AUTOTUNE` tries which is the quickest.

A program cannot be compiled anew for each of them, which takes longer than many steps. So it has the operations of all
ways behind conditions, and asks Python, once in each step, which of them it is to take.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from ringcore import adapter

from ringcore_jax import in_python
from ringcore_jax._calls import LIBRARY, run_behind


def way_of_step(dealt: adapter.Dealt, leaves: Sequence[Any]) -> Any:
    """The index of the way in which these gradients are sent; of traced ones what gives it when the program runs."""
    if dealt.tuner is None or not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return dealt.begin_step()
    (way,) = _way_p.bind(jnp.zeros((), np.int32), number=in_python.number_of(_Asking(dealt.tuner)))
    return way


def taken(
    now: Any, way: int, function: Callable[[list[Any]], list[Any]], leaves: list[Any]
) -> tuple[list[Any], Any]:  # fmt: skip
    """What a function makes of arrays where its way is the one that is taken; the arrays elsewhere.

    Args:
        now: Of `way_of_step`, or what this returned for the operation before: on all ranks a program keeps their order.
        way: The function's.
        function: Has one result for each array, of its kind.
        leaves: The arrays.
    """
    if isinstance(now, int):
        return function(leaves) if now == way else leaves, now

    def take(leaves: list[Any], now: Any) -> Any:
        results = function(leaves)
        return results, _passed_p.bind(now, results[0])

    found: tuple[list[Any], Any] = jax.lax.cond(now == way, take, lambda *unchanged: unchanged, leaves, now)
    return found


def end_ways(now: Any, leaves: list[Any]) -> list[Any]:
    """The same arrays; calls of the program that are made from here on run behind these operations.

    A call cannot be told to run behind one that stands in a condition. JAX leaves out what has no result that is used.
    """
    if isinstance(now, int):
        return leaves
    unchanged: list[Any] = _behind_p.bind(*leaves, now)
    return unchanged


@dataclasses.dataclass(frozen=True)
class _Asking:
    tuner: adapter.Tuner[Any]

    def __call__(self, addresses: Sequence[int]) -> None:
        """Write which way it is to the one number that lies there."""
        ctypes.c_int32.from_address(addresses[0]).value = self.tuner.begin_step()


def _first_way(first: Any, *, number: int) -> list[Any]:
    """On a GPU, where the condition would have to be brought to the host: XLA then leaves all other ways out."""
    del number
    adapter.tell_untuned("JAX on GPUs", "a program that does not wait for the host cannot ask which way is next")
    return [first]


_way_p: Any = Primitive("ringcore_way")
_way_p.multiple_results = True
_way_p.def_impl(lambda _, *, number: [np.int32(in_python.call_of(number).tuner.begin_step())])  # see below
_way_p.def_abstract_eval(lambda first, **_: [first])
mlir.register_lowering(_way_p, mlir.lower_fun(_first_way, multiple_results=True), cacheable=False)
mlir.register_lowering(_way_p, in_python.lower, platform="cpu", cacheable=False)


# The number of a way, behind the way's operations. XLA would see that other arithmetic changes nothing, and let what
# comes behind a condition begin before it.
_passed_p: Any = Primitive("ringcore_pass")
_passed_p.def_impl(lambda now, _: now)
_passed_p.def_abstract_eval(lambda now, _: now)
ad.primitive_jvps[_passed_p] = lambda primals, tangents: (_passed_p.bind(*primals), tangents[0])
batching.primitive_batchers[_passed_p] = lambda operands, dims: (_passed_p.bind(*operands), dims[0])
mlir.register_lowering(_passed_p, lambda _, now, _behind: [now])
jax.ffi.register_ffi_target(
    "ringcore_pass",
    jax.ffi.pycapsule(LIBRARY.ringcore_jax_pass),  # type: ignore[no-untyped-call]
    platform="cpu",
)
mlir.register_lowering(_passed_p, jax.ffi.ffi_lowering("ringcore_pass"), platform="cpu")

_barrier = mlir.lower_fun(lambda now: [jax.lax.optimization_barrier(now)])  # type: ignore[no-untyped-call]


def _lower_behind(context: Any, *operands: Any) -> Any:
    *leaves, now = operands
    behind: Any = _barrier(context.replace(avals_in=context.avals_in[-1:], avals_out=context.avals_in[-1:]), now)
    run_behind(context, behind[0].owner.operation)
    return leaves


_behind_p: Any = Primitive("ringcore_behind")
_behind_p.multiple_results = True
_behind_p.def_impl(lambda *operands: list(operands[:-1]))  # in a derivative outside of programs
_behind_p.def_abstract_eval(lambda *operands: list(operands[:-1]))
ad.primitive_jvps[_behind_p] = lambda primals, tangents: (_behind_p.bind(*primals), list(tangents[:-1]))
batching.primitive_batchers[_behind_p] = lambda operands, dims: (_behind_p.bind(*operands), list(dims[:-1]))
mlir.register_lowering(_behind_p, _lower_behind, cacheable=False)
