"""How a wrapped optimizer reduces gradients."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import keras
from ringcore import Average, InvalidArgument
from ringcore.adapter import (
    Exchange,
    Exchanges,
    ProcessSet,
    ReduceOp,
    check_exchange_options,
    check_gradient_options,
    exchange_of,
    fed_back,
    global_process_set,
)

_NAMES = ("none", "fp16", "bf16", "int8", "int4")


class Compression(Exchanges):
    """What `compression=` takes.

    `none`; `fp16`: 11 bits of precision, values up to 65504; `bf16`: 8 bits, and float32's range; `int8`, `int4`:
    between hosts, integers in blocks of 128 with a scale each. `powersgd(rank)`, `topk(ratio)`, `onebit()`,
    `blocks(size)` and `error_feedback(kind)` have a memory of their own, which is no variable of the optimizer:
    `state_dict()` gives it, `load_state_dict()` takes it.
    """

    none = "none"
    fp16 = "fp16"
    bf16 = "bf16"
    int8 = "int8"
    int4 = "int4"


@dataclasses.dataclass(frozen=True)
class Options:
    """See `DistributedOptimizer`."""

    name: str
    op: ReduceOp = Average
    compression: str | Exchange = Compression.none
    gradient_predivide_factor: float = 1.0
    groups: int | None = None
    sparse_as_dense: bool = False
    average_aggregated_gradients: bool = True
    process_set: ProcessSet = global_process_set
    check_weights: bool = True
    broadcast: bool = False
    error_feedback: bool = False
    overlap: str = "backward"

    def __post_init__(self) -> None:
        check_gradient_options(self.op, self.groups, self.gradient_predivide_factor)
        chosen = _chosen(self.compression)
        kind = chosen if isinstance(chosen, str) else ""
        chosen = fed_back(chosen, kind, error_feedback=self.error_feedback)
        object.__setattr__(self, "compression", chosen)
        if isinstance(chosen, Exchange):
            check_exchange_options(chosen, self.op, self.groups, self.gradient_predivide_factor)
        _check_overlap(self.overlap, chosen)

    @property
    def arguments(self) -> dict[str, object]:
        """Those that decide what ranks send each other, by name."""
        names = ("op", "compression", "gradient_predivide_factor", "groups", "sparse_as_dense", "overlap")
        return {name: getattr(self, name) for name in names}


def _check_overlap(overlap: str, compression: str | Exchange) -> None:
    if overlap not in ("backward", "forward"):
        raise InvalidArgument(f'overlap is "backward" or "forward", not {overlap!r}')
    if overlap == "backward":
        return
    if (name := keras.config.backend()) != "torch":
        raise InvalidArgument(
            f'overlap="forward" cannot be had in Keras on {name}: there a step of `fit` is one program, which ends '
            "when all weights are updated. Remedy: leave overlap out, or set KERAS_BACKEND=torch"
        )
    if isinstance(compression, Exchange):
        what = type(compression).__name__
        raise InvalidArgument(f'{what} begins when all gradients are there; leave out overlap="forward"')


def _chosen(compression: Any) -> str | Exchange:
    if inspect.isroutine(compression):
        name = compression.__name__
        raise InvalidArgument(
            f"compression=Compression.{name} is the function that makes one; call it: Compression.{name}()"
        )
    if (exchange := exchange_of(compression)) is not None:
        return exchange
    if compression not in _NAMES:
        raise InvalidArgument(f"compression is one of Compression.none, fp16, bf16, int8 and int4, not {compression!r}")
    return str(compression)
