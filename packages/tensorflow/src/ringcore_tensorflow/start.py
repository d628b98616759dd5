"""Whether all ranks train the same model: their variables are compared, once.

A tape is made anew in every step, and variables may be made, and broadcast, in the first one. So what counts is for
which variables there are gradients, and they are compared when there are some for the second time. In a `tf.function`
this is decided when it runs, and no thread of TensorFlow waits for other ranks.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from ringcore import Max, adapter
from ringcore.adapter import ProcessSet

from ringcore_tensorflow import _operations
from ringcore_tensorflow._graph import as_written, runs_in_session
from ringcore_tensorflow.gradients import Reduction, is_variable

_REMEDY = "call broadcast_variables(model.weights, root_rank=0) before the second step"
_MOMENT = 2
# Of variables that are trained together, by what they are.
_comparisons: dict[tuple[int, ...], _Comparison] = {}


@as_written
def compare_once(sources: Sequence[tuple[Any, str]], reduction: Reduction) -> None:
    """To be called once a step, on all ranks: when it is the second one, compare what they have.

    Args:
        sources: What has gradients, and its name; what is no variable is left out.
        reduction: Of the gradients: among whom, and under which name.

    Raises:
        MismatchError: They differ. On every rank; in a `tf.function` as TensorFlow's error with the same text.
    """
    process_set = reduction.process_set
    held = {name: source for source, name in sources if is_variable(source)}
    # A function that a rank traces while it is alone is the one that it calls when others have come.
    is_alone = process_set.size() == 1 and not adapter.is_elastic()
    if not held or runs_in_session() or not process_set.included() or is_alone:
        return
    key = tuple(id(variable) for variable in held.values())
    if key not in _comparisons:
        _comparisons[key] = _Comparison(list(held), f"{reduction.name}.weights", process_set)
        weakref.finalize(next(iter(held.values())), _comparisons.pop, key, None)
    _comparisons[key].step(list(held.values()))


def _hashes(values: Sequence[Any]) -> list[int]:
    held = [np.ascontiguousarray(value) for value in values]
    return [adapter.hash_of(each.ctypes.data, each.nbytes) for each in held]


class _Comparison:
    def __init__(self, names: list[str], name: str, process_set: ProcessSet) -> None:
        self._names, self._name, self._set = names, name, process_set
        self._done = False
        self._has_compared = False
        with tf.init_scope():  # what functions count outlives them
            self._steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        adapter.after_init(self._on_init)

    def _on_init(self) -> None:
        """The ranks are others: whoever has come compares, and so do all."""
        self._done = False
        self._steps.assign(0)

    def step(self, variables: list[Any]) -> None:
        if self._done and not adapter.is_elastic():
            return
        now = tf.equal(self._steps.assign_add(1), _MOMENT)
        if not tf.executing_eagerly():
            tf.cond(now, lambda: self._compare_in_graph(variables), lambda: tf.constant(False))
        elif now:
            self._done = True
            hashes = _hashes(variables)
            adapter.check_weights(
                self._names, hashes, self._set, name=self._name, remedy=_REMEDY, again=self._has_compared
            )
            self._has_compared = True

    def _compare_in_graph(self, variables: list[Any]) -> Any:
        values = [tf.convert_to_tensor(variable) for variable in variables]
        own = tf.ensure_shape(tf.numpy_function(self._comparable, values, tf.int64), [2 * len(values)])
        maxima = _operations.allreduce(own, op=Max, name=self._name, process_set=self._set)
        differs = tf.numpy_function(self._first_wrong, [maxima], tf.int64)
        differs = tf.ensure_shape(differs, [])

        def tell() -> Any:
            name = f"{self._name}.differ"
            theirs = _operations.allgather(own[differs, tf.newaxis], name=name, process_set=self._set)
            return tf.ensure_shape(tf.numpy_function(self._fail, [maxima, theirs], tf.bool), [])

        return tf.cond(differs >= 0, tell, lambda: tf.constant(False))

    def _comparable(self, *values: Any) -> Any:
        if adapter.abstains(self._set, again=self._has_compared):
            return np.zeros(2 * len(values), np.int64)
        return np.array(adapter.comparable(_hashes(values)), np.int64)

    def _first_wrong(self, maxima: Any) -> Any:
        self._done = True  # functions that are traced from now on do not ask
        wrong = adapter.differing(maxima.tolist())
        self._has_compared = not wrong
        return np.int64(wrong[0] if wrong else -1)

    def _fail(self, maxima: Any, theirs: Any) -> Any:
        wrong = adapter.differing(maxima.tolist())
        told = [each or theirs[0] for each in theirs.tolist()]  # Who abstains has what the first one has.
        raise adapter.different_weights(self._names, wrong, told, self._set, _REMEDY)
