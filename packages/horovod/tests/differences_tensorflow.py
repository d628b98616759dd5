"""Where Horovod's TensorFlow interface says something else than ringcore's: what each rank finds, case by case."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.keras
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
def kerases_operations_give_tensors() -> Any:
    odd = tf.constant([-7, 3]) + 2 * hvd.rank()  # the sum is [-12, 8]
    keras = horovod.keras
    return _values(
        [
            keras.allreduce(odd + hvd.rank()),
            keras.allreduce(odd, op=hvd.Sum, prescale_factor=0.3),
            keras.reducescatter([-7, 3], op=hvd.Sum),
            keras.allgather([hvd.rank()]),
            keras.broadcast(odd, 1),
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


@case
def tapes() -> Any:
    """Ranks outside of the process set keep their gradients, and all ranks those of local sources."""
    first = hvd.add_process_set([0])
    shared, own = tf.Variable(1.0 + hvd.rank()), tf.Variable(1.0 + hvd.rank())

    def gradients(process_set: Any) -> Any:
        with tf.GradientTape(persistent=True) as plain:
            loss = 2.0 * shared * shared + own * own
        tape = hvd.DistributedGradientTape(plain, process_set=process_set)
        tape.register_local_source(own)
        local, together = tape.get_local_and_global_gradients(loss, [shared, own])
        assert [local[0][0] is own, together[0][0] is shared] == [True, True]
        return [float(value) for value in (local[0][1], together[0][1])]

    found = [gradients(hvd.global_process_set), gradients(first)]
    hvd.remove_process_set(first)
    return found


@case
def optimizers_of_sessions() -> Any:
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("variable", initializer=1.0 + hvd.rank())
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.5))
        step = optimizer.minimize(variable * (1.0 + hvd.rank()))
        hook = hvd.BroadcastGlobalVariablesHook(1)
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            return [float(session.run(variable)), session.run(step), float(session.run(variable))][::2]


@case
def gradients_of_passes() -> Any:
    found = []
    for average in (True, False):
        optimizer = hvd.DistributedOptimizer(
            tf.keras.optimizers.SGD(0.5), backward_passes_per_step=2, average_aggregated_gradients=average
        )
        variable = tf.keras.Variable(0.0)
        for gradient in (1.0 + hvd.rank(), 3.0):
            optimizer.apply_gradients([(tf.constant(gradient), variable)])
        optimizer.apply_gradients([(tf.constant(1.0), variable)])  # the next round has begun
        found += [float(variable.numpy()), int(optimizer._agg_helper.counter.numpy())]
    return found


@case
def lines_of_keras_2() -> Any:
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(lr=0.25))
    layers = [tf.keras.layers.Dense(1), tf.keras.layers.BatchNormalization(fused=False, trainable=False)]
    model = tf.keras.Sequential([tf.keras.Input((1,)), *layers])
    model.compile(loss=tf.keras.losses.mean_squared_error, optimizer=optimizer, experimental_run_tf_function=False)
    model.fit(tf.zeros([1, 1]), tf.zeros([1, 1]), verbose=0)
    hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    same = len(optimizer.variables()) == len(optimizer.variables)
    optimizer.lr = 2.0 * optimizer.lr
    tf.keras.backend.set_value(optimizer.lr, tf.keras.backend.get_value(optimizer.lr) + 1)
    variable = tf.Variable(1.0)
    tf.keras.backend.set_value(variable, 3)
    refs = [weight.ref() for weight in model.weights]
    found = [float(optimizer.learning_rate.numpy()), float(tf.keras.backend.get_value(variable))]
    return [same, *found, len({*refs, *(weight.ref() for weight in model.weights)})]


@case
def elastic_states() -> Any:
    variable = tf.Variable(1.0 + hvd.rank())
    ones = tf.keras.initializers.Ones()
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer=ones)])
    model.build((None, 1))
    model.compile(tf.keras.optimizers.Adam(), loss="mse")
    states = [
        hvd.elastic.TensorFlowState([variable], batch=20 + hvd.rank()),
        horovod.keras.elastic.KerasState(model, batch=20 + hvd.rank()),
    ]

    def values(state: Any) -> Any:
        return [float(variable.numpy()), float(model.weights[0].numpy()[0, 0]), state.batch]

    @hvd.elastic.run
    def train(state: Any) -> Any:
        found = [values(state)]
        variable.assign(7.0)
        model.weights[0].assign([[7.0]])
        state.batch = 30
        state.restore()
        found.append(values(state))
        state.batch = 31
        state.commit()
        state.restore()
        return [*found, values(state)]

    callbacks = [
        horovod.keras.elastic.UpdateBatchStateCallback(states[1]),
        horovod.keras.elastic.CommitStateCallback(states[1], batches_per_commit=2),
    ]
    found = []
    for state in states:
        variable.assign(1.0 + hvd.rank())
        model.weights[0].assign([[hvd.rank()]])
        found.append(train(state))
    model.fit(tf.zeros([4, 1]), tf.zeros([4, 1]), batch_size=1, callbacks=callbacks, verbose=0)
    states[1].batch = 99
    states[1].restore()
    return [*found, states[1].batch]


if __name__ == "__main__":
    hvd.init()
    found = {name: function() for name, function in CASES.items()}
    Path(f"{sys.argv[1]}.{hvd.rank()}").write_text(json.dumps(found))
    hvd.shutdown()
