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


def _values(tensors: Any) -> Any:
    return [tensor.numpy().tolist() for tensor in tensors]


@case
def integers_are_cut_towards_zero() -> Any:
    odd = tf.constant([-7, 3]) + 2 * hvd.rank()  # the sum is [-12, 8]
    return _values(
        [
            hvd.allreduce(odd + hvd.rank(), op=hvd.Average),
            hvd.allreduce(odd, op=hvd.Sum, prescale_factor=0.3),
            hvd.allreduce(odd, op=hvd.Sum, postscale_factor=0.3),
            hvd.reducescatter(odd + hvd.rank(), op=hvd.Average),
            *hvd.grouped_allreduce([odd, tf.ones(1)], op=hvd.Average, prescale_factor=0.5),
        ]
    )


@case
def gradients_are_averages() -> Any:
    def gradient(call: Callable[[Any], Any]) -> Any:
        x = tf.constant([1.0, 1.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(call(x)) * (1.0 + hvd.rank())
        return tape.gradient(loss, x)

    calls = {
        "allgather": hvd.allgather,
        "broadcast": lambda x: hvd.broadcast(x, 1),
        "sum": lambda x: hvd.reducescatter(x, op=hvd.Sum),
        "average": lambda x: hvd.reducescatter(x, op=hvd.Average, prescale_factor=2.0),
    }
    return {name: _values([gradient(call), tf.function(gradient)(call)]) for name, call in calls.items()}


@case
def rows() -> Any:
    def slices(values: Any) -> Any:
        return tf.IndexedSlices(values, tf.constant([hvd.rank(), 1]), tf.constant([4, 1]))

    whole = tf.constant([[1], [2]])
    average, dense, total = hvd.grouped_allreduce([slices(whole), whole, slices(tf.cast(whole, tf.float32))])
    found = [tf.convert_to_tensor(average), dense, tf.convert_to_tensor(total)]
    return {
        "values": _values(found),
        "refused": [
            attempt(lambda options=options: hvd.allreduce(slices(whole), **options))
            for options in ({"op": hvd.Max}, {"prescale_factor": 0.5})
        ],
    }


def attempt(call: Callable[[], Any]) -> list[str]:
    """The classes of what a call raises."""
    try:
        call()
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__]
    return []


@case
def errors() -> Any:
    other = tf.zeros([2 + hvd.rank()])
    calls: dict[str, Callable[[], Any]] = {
        "shapes": lambda: hvd.allreduce(other, name="shapes"),
        "rows": lambda: hvd.alltoall(tf.zeros([3])),
        "splits": lambda: hvd.alltoall(tf.zeros([3]), splits=[2, 2 - hvd.rank()]),
        "scalar": lambda: hvd.reducescatter(tf.constant(1.0)),
        "set": lambda: hvd.allreduce(other, process_set=hvd.ProcessSet([0])),
    }
    found = {}
    for name, call in calls.items():
        found[name] = attempt(call)
        found[f"{name} in a function"] = attempt(tf.function(call))
    return found


@case
def process_sets() -> Any:
    mine = [hvd.ProcessSet(range(1)), hvd.ProcessSet(reversed([0, 1])), hvd.ProcessSet([1]), hvd.ProcessSet([1])]
    found: dict[str, Any] = {"duplicates": attempt(lambda: hvd.init(process_sets=mine))}
    hvd.init(process_sets=[mine[2], mine[0]])
    numbers = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
    found["numbers"] = [number for number, _ in sorted(numbers.items(), key=lambda item: item[1])]
    found["texts"] = [str(hvd.global_process_set), str(mine[0])]
    found["sizes"] = _values([hvd.size_op(mine[0].process_set_id), hvd.process_set_included_op(mine[0].process_set_id)])
    found["twice"] = attempt(lambda: hvd.add_process_set([0]))
    found["removed"] = [hvd.remove_process_set(each) for each in (mine[0], mine[2], mine[1], hvd.global_process_set)]
    found["again"] = str(hvd.add_process_set(mine[0]))
    fake = hvd.ProcessSet([0, 1])
    fake.process_set_id = 99
    found["fake"] = attempt(lambda: tf.function(hvd.allreduce)(tf.zeros(1), process_set=fake))
    hvd.remove_process_set(mine[0])
    return found


if __name__ == "__main__":
    hvd.init()
    found = {name: function() for name, function in CASES.items()}
    Path(f"{sys.argv[1]}.{hvd.rank()}").write_text(json.dumps(found))
    hvd.shutdown()
