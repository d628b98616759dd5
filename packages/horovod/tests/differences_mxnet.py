"""Where Horovod's MXNet interface says something else than ringcore's: what each rank finds, case by case."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx


def integers(*values: int) -> Any:
    return mx.nd.array(values, dtype="int32")


def reductions() -> dict[str, Any]:
    """Of integers, which are scaled in float64 and cut towards zero, and of floats in one group with them."""
    own, floats = (integers(4, -5) if hvd.rank() else integers(3, -4)), mx.nd.array([1.5, 2.5])
    place, first, second = own.copy(), own.copy(), floats.copy()
    hvd.allreduce_(place, op=hvd.Average)
    hvd.grouped_allreduce_([first, second], op=hvd.Sum, postscale_factor=0.5)
    rows, rows_of_floats = hvd.grouped_reducescatter([own, floats], op=hvd.Sum, prescale_factor=0.5)
    found = {
        "min": hvd.allreduce(own, op=hvd.Min),
        "max": hvd.allreduce(own, op=hvd.Max),
        "product": hvd.allreduce(own, op=hvd.Product),
        "average": hvd.allreduce(own),
        "average in place": place,
        "average of a group": hvd.grouped_allreduce([own], op=hvd.Average)[0],
        "average of rows": hvd.reducescatter(own, hvd.Average, "rows", 0, hvd.global_process_set),
        "prescale": hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5),
        "postscale": hvd.allreduce(own, False, postscale_factor=0.5),
        "group": first,
        "group's floats": second,
        "prescale of rows": rows,
        "prescale of rows of floats": rows_of_floats,
    }
    return {name: array.asnumpy().tolist() for name, array in found.items()}


def refusals() -> dict[str, bool]:
    """Whether the call itself raises, as the classes that Horovod raises."""
    calls: dict[str, tuple[Callable[[], Any], tuple[type[Exception], ...]]] = {
        "two ops": (lambda: hvd.allreduce(integers(1), average=True, op=hvd.Sum), (ValueError,)),
        "floats as splits": (lambda: hvd.alltoall(mx.nd.zeros((2,)), mx.nd.ones((2,))), (ValueError,)),
    }
    misfit = mx.nd.zeros((2, 2 + hvd.rank()))
    for verb in (hvd.allgather, hvd.reducescatter, hvd.alltoall):
        calls[verb.__name__] = (lambda verb=verb: verb(misfit)), (mx.MXNetError, RuntimeError)
    for verb in (hvd.grouped_allgather, hvd.grouped_reducescatter):
        calls[verb.__name__] = (lambda verb=verb: verb([misfit])), (mx.MXNetError, RuntimeError)
    found = {}
    for what, (call, kinds) in calls.items():
        try:
            call()
            found[what] = False
        except kinds:
            found[what] = True
    return found


if __name__ == "__main__":
    hvd.init()
    Path(f"{sys.argv[1]}.{hvd.rank()}").write_text(json.dumps({"reductions": reductions(), "refusals": refusals()}))
    hvd.shutdown()
