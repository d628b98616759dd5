"""Where Horovod's TensorFlow interface says something else than ringcore's: what each rank finds, case by case."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


@case
def broadcasts_in_a_session() -> Any:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        first, second = (tf.compat.v1.get_variable(name, initializer=float(hvd.rank())) for name in "ab")
        session.run(tf.compat.v1.global_variables_initializer())
        (value,) = hvd.broadcast_([first], root_rank=1)
        returned = float(session.run(value))
        session.run(hvd.broadcast_variables([second], root_rank=1))
        return [returned, *map(float, session.run([first, second]))]


if __name__ == "__main__":
    hvd.init()
    found = {name: function() for name, function in CASES.items()}
    Path(f"{sys.argv[1]}.{hvd.rank()}").write_text(json.dumps(found))
    hvd.shutdown()
