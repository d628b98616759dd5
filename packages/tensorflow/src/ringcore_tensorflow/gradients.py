"""Reduces the gradients of a step: what the tape and Keras' optimizers have in common."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from ringcore import Average, adapter
from ringcore.adapter import ProcessSet, ReduceOp, global_process_set

from ringcore_tensorflow import _operations as dense
from ringcore_tensorflow import sparse
from ringcore_tensorflow._graph import as_written, refuse_xla, runs_in_session, taken
from ringcore_tensorflow.compression import Compression, Compressor
from ringcore_tensorflow.naming import once_in_graph


@dataclasses.dataclass(frozen=True)
class Reduction:
    """How gradients become those of all ranks.

    Args:
        name: Of the operations; two models that are trained at once in two threads need two names, unless their
            variables have different ones.
        op: `Average` or `Sum`.
        compression: `Compression.fp16` or `Compression.bf16` halves what is sent of float32 gradients; `int8` and
            `int4` send a quarter and an eighth between hosts; an `Exchange` averages them itself, in host memory.
        gradient_predivide_factor: Divide by this before the sum and multiply by it afterwards.
        groups: How many operations the gradients are dealt out to; None: by size.
        sparse_as_dense: Reduce `tf.IndexedSlices` as dense tensors.
        process_set: The ranks that train together.
        check_weights: Compare the variables of all ranks, once, when they have gradients for the second time.
        has_order: In a graph let the gradients of the first variables overtake those of the last ones: where it has
            several steps, the next one needs these first.
        who: Asks for it, in the words of the user.
        lasts: Whether that lasts as long as the training.
    """

    name: str = "gradients"
    op: ReduceOp = Average
    compression: type[Compressor] | adapter.Exchange | str = Compression.none
    gradient_predivide_factor: float = 1.0
    groups: int | None = None
    sparse_as_dense: bool = False
    process_set: ProcessSet = global_process_set
    check_weights: bool = False
    has_order: bool = False
    who: str = "DistributedOptimizer"
    lasts: bool = True

    def __post_init__(self) -> None:
        compressor = Compression.chosen(self.compression, exchanges=True, lasts=self.lasts, who=self.who)
        object.__setattr__(self, "compression", compressor)
        if isinstance(compressor, adapter.Exchange):
            adapter.check_exchange_options(compressor, self.op, self.groups, self.gradient_predivide_factor)
        adapter.check_gradient_options(self.op, self.groups, self.gradient_predivide_factor)
        adapter.keep_freed_memory()

    @as_written
    def apply(self, gradients: Sequence[Any], names: Sequence[str], sources: Sequence[Any] = ()) -> list[Any]:
        """The gradients of all ranks.

        Args:
            gradients: Tensors, `tf.IndexedSlices`, or None, which stays None. On every rank the same kinds of the same
                shapes. In the order in which a forward needs the variables.
            names: Of the variables, for errors; the same on every rank.
            sources: The variables, where an `Exchange` is to know that it has no others of these names.
        """
        results = list(gradients)
        whole: list[int] = []
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense:
                name = once_in_graph(f"{self.name}.{names[i]}")
                results[i] = sparse.allreduce(gradient, op=self.op, name=name, process_set=self.process_set)
            elif gradient is not None:
                results[i] = tf.convert_to_tensor(gradient)
                whole.append(i)
        if isinstance(self.compression, adapter.Exchange):
            adapter.tell_untuned(self.who, f"{type(self.compression).__name__} sends in a way of its own")
            if len(set(names)) < len(names):  # TensorFlow gives a name to as many variables as are made with it
                names = [f"{i}.{name}" for i, name in enumerate(names)]
            # A tensor is another one in each step.
            kept = {name: source for name, source in zip(names, sources, strict=False) if is_variable(source)}
            self.compression.claim({names[i]: kept[names[i]] for i in whole if names[i] in kept})
            averages = self._exchange(self.compression, {names[i]: results[i] for i in whole})
            for i, average in zip(whole, averages, strict=True):
                results[i] = average
            return results
        return self._reduce(whole, results, names, self.compression)

    def _reduce(
        self, whole: list[int], results: list[Any], names: Sequence[str], compression: type[Compressor] | str
    ) -> list[Any]:
        """Let the results at these places be those of all ranks."""
        # In eager mode each one is waited for before the next one begins, and a single one has nobody to overtake.
        several = not tf.executing_eagerly()
        dealt = self._dealt([results[i] for i in whole], [names[i] for i in whole], several=several)
        now = self._way(dealt, results[whole[-1]]) if whole else 0
        for part in dealt.parts:
            bucket = [whole[i] for i in part.indices]
            first, last = names[bucket[0]], names[bucket[-1]]
            title = first if len(bucket) == 1 else f"{first}..{last}"
            has_order = part.at_once or (self.has_order and part.siblings > 1 and several)
            reduce = functools.partial(
                dense.grouped_allreduce, op=self.op, name=once_in_graph(f"{self.name}.{title}{part.suffix}"),
                compression=compression, prescale_factor=1.0 / self.gradient_predivide_factor,
                postscale_factor=self.gradient_predivide_factor, process_set=self.process_set,
                # Of equal ones the first released is the most urgent.
                priority=adapter.priority_of(0 if part.at_once else bucket[0]) if has_order else 0,
            )  # fmt: skip
            for i, result in zip(bucket, taken(now, part.way, reduce, [results[i] for i in bucket]), strict=True):
                results[i] = result
        if tf.executing_eagerly():
            adapter.followed()  # the step is that of these ranks
        return results

    def _dealt(self, tensors: list[Any], names: Sequence[str], *, several: bool) -> adapter.Dealt:
        """How they are dealt out to operations, of which several may be under way at a time."""
        sizes = [(tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in tensors]
        name = f"{self.name}.{names[0]}..{names[-1]}" if names else self.name
        return adapter.dealt(
            "TensorFlow", name, sizes, self.process_set, groups=self.groups, at_once=several and not self.has_order,
            why_not="a session runs what it is asked for, and knows no steps" if runs_in_session() else "",
        )  # fmt: skip

    def _way(self, dealt: adapter.Dealt, last: Any) -> Any:
        """The index of the way in which this step sends; in a graph what gives it when the graph runs.

        Args:
            dealt: Has the ways.
            last: The gradient that backward makes first.
        """
        if dealt.tuner is None or tf.executing_eagerly():
            return dealt.begin_step()
        with tf.control_dependencies([last]):  # which needs the weights that the step before has made
            found = tf.numpy_function(lambda: np.int32(dealt.begin_step()), [], tf.int32)
        return tf.ensure_shape(found, [])

    def _exchange(self, exchange: adapter.Exchange, gradients: dict[str, Any]) -> list[Any]:
        """Their averages: in a graph by a call of Python, which waits for the other ranks when it runs.

        TensorFlow makes such calls in the order of the program, so that they wait for each other on no two ranks.
        """
        if self.process_set.size() == 1 and not adapter.is_elastic():
            return list(gradients.values())
        name = f"{self.name}.exchange"
        arguments: dict[str, object] = {"compression": exchange, "sparse_as_dense": self.sparse_as_dense}

        def averages(*values: Any) -> list[Any]:
            arrays = {each: np.array(value, order="C") for each, value in zip(gradients, values, strict=True)}
            exchange.average_of_step(arrays, name, self.process_set, who=self.who, arguments=arguments)
            return list(arrays.values())

        tensors = list(gradients.values())
        if tf.executing_eagerly():
            found = averages(*(tensor.numpy() for tensor in tensors))
            adapter.followed()  # the step is that of these ranks
            return [tf.constant(each) for each in found]
        refuse_xla(type(exchange).__name__)
        found = tf.numpy_function(averages, tensors, [tensor.dtype for tensor in tensors]) if tensors else []
        return [tf.ensure_shape(each, tensor.shape) for each, tensor in zip(found, tensors, strict=True)]


def divided(gradient: Any, divisor: float) -> Any:
    """A gradient that stays a rank's own, as a part of an average."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / divisor, gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient / divisor


def is_variable(source: Any) -> bool:
    """Of TensorFlow, or of Keras, which holds one."""
    return isinstance(getattr(source, "value", source), tf.Variable) or isinstance(source, tf.Variable)
