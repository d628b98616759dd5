"""How a wrapped optimizer reduces gradients."""

from __future__ import annotations

import dataclasses

from ringcore import Average, InvalidArgument
from ringcore.adapter import NoExchanges, ProcessSet, ReduceOp, check_gradient_options, global_process_set


class Compression(NoExchanges):
    """What `compression=` takes.

    `none`; `fp16`: 11 bits of precision, values up to 65504; `bf16`: 8 bits, and float32's range; `int8`, `int4`:
    between hosts, integers in blocks of 128 with a scale each.
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
    compression: str = Compression.none
    gradient_predivide_factor: float = 1.0
    groups: int | None = None
    sparse_as_dense: bool = False
    average_aggregated_gradients: bool = True
    process_set: ProcessSet = global_process_set
    check_weights: bool = True
    broadcast: bool = False

    def __post_init__(self) -> None:
        check_gradient_options(self.op, self.groups, self.gradient_predivide_factor)
        if self.compression not in ("none", "fp16", "bf16", "int8", "int4"):
            raise InvalidArgument(
                f"compression is one of Compression.none, fp16, bf16, int8 and int4, not {self.compression!r}"
            )
