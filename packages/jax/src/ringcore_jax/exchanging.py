"""Gradients that an `adapter.Exchange` averages: one of those that send very little of them.

It works in Python, on memory of the host. Of arrays it is called at once; in a compiled program for the CPU by a call
of the program, which waits for the other ranks, behind the call before it and before the one behind it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from ringcore import InvalidArgument, adapter
from ringcore.adapter import Exchange, ProcessSet

from ringcore_jax import in_python
from ringcore_jax._host import HostArrays


class Owner:
    """Stands for one trainer: the arrays that it trains are others in each step."""


@dataclasses.dataclass(frozen=True)
class Exchanging:
    """What averages the gradients of one trainer.

    Attributes:
        exchange: Does it.
        name: Identifies the operations on all ranks.
        process_set: The ranks that train together.
        who: Trains, in the words of the user.
        arguments: That it was made with, by name.
        owner: The trainer, which the names of gradients are unique in; None: somebody else looks after that.
    """

    exchange: Exchange
    name: str
    process_set: ProcessSet
    who: str
    arguments: Mapping[str, object]
    owner: Owner | None = None

    def average(self, names: Sequence[str], leaves: Sequence[Any]) -> list[Any]:
        """The averages of gradients, whose names are the same on every rank.

        Raises:
            InvalidArgument: Two have one name, by which an exchange tells them apart.
        """
        if repeated := [name for name, times in Counter(names).items() if times > 1]:
            raise InvalidArgument(
                f"{type(self.exchange).__name__} knows gradients by their names, and several are called "
                f"'{repeated[0]}'; give each its own"
            )
        if self.owner is not None:
            self.exchange.claim(dict.fromkeys(names, self.owner))
        if not leaves or (self.process_set.size() == 1 and not adapter.is_elastic()):
            return list(leaves)
        adapter.tell_untuned(self.who, f"{type(self.exchange).__name__} sends in a way of its own")
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            arrays = [np.array(HostArrays().contiguous(leaf)) for leaf in leaves]
            self.average_in_place(names, arrays)
            adapter.followed()  # the step is that of these ranks
            return [jnp.asarray(array) for array in arrays]
        program = _InProgram(
            self, tuple(names), tuple(leaf.shape for leaf in leaves), tuple(np.dtype(leaf.dtype) for leaf in leaves)
        )
        averages: list[Any] = _exchange_p.bind(*leaves, number=in_python.number_of(program))
        return averages

    def average_in_place(self, names: Sequence[str], arrays: Sequence[Any]) -> None:
        """Of arrays of numpy."""
        gradients = dict(zip(names, arrays, strict=True))
        self.exchange.average_of_step(gradients, self.name, self.process_set, who=self.who, arguments=self.arguments)


# ---- In compiled programs ----


@dataclasses.dataclass(frozen=True)
class _InProgram:
    exchanging: Exchanging
    names: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    dtypes: Sequence[np.dtype[Any]]

    def __call__(self, addresses: Sequence[int]) -> None:
        """Average what lies there."""
        arrays = []
        for address, shape, dtype in zip(addresses, self.shapes, self.dtypes, strict=True):
            nbytes = math.prod(shape) * dtype.itemsize
            memory = (ctypes.c_char * nbytes).from_address(address) if nbytes > 0 else bytearray()
            arrays.append(np.ndarray(shape, dtype, memoryview(memory)))
        self.exchanging.average_in_place(self.names, arrays)


_exchange_p: Any = Primitive("ringcore_exchange")
_exchange_p.multiple_results = True
_exchange_p.def_abstract_eval(lambda *gradients, **_: list(gradients))


def _refused(number: int, why: str) -> InvalidArgument:
    kind = type(in_python.call_of(number).exchanging.exchange).__name__
    return InvalidArgument(f"{kind} {why}")


def _refuse_platform(context: Any, *_: Any, number: int) -> NoReturn:
    platforms = ", ".join(context.module_context.platforms)
    raise _refused(
        number,
        f"works in host memory, and was called in a program for {platforms}; use Compression.fp16 or bf16 there, or "
        "set JAX_PLATFORMS=cpu",
    )


mlir.register_lowering(_exchange_p, _refuse_platform, cacheable=False)
mlir.register_lowering(_exchange_p, in_python.lower, platform="cpu", cacheable=False)


def _refuse_transform(*_: Any, number: int) -> NoReturn:
    raise _refused(
        number,
        "averages the gradients of a step, which is done outside of grad and vmap; use Compression.int8 or int4 inside",
    )


ad.primitive_jvps[_exchange_p] = _refuse_transform
batching.primitive_batchers[_exchange_p] = _refuse_transform
