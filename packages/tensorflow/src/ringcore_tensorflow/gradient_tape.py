"""Tapes whose gradients are those of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from ringcore import Average, InvalidArgument
from ringcore.adapter import Exchange, ProcessSet, ReduceOp, global_process_set

from ringcore_tensorflow.compression import Compression, Compressor
from ringcore_tensorflow.gradients import Reduction, divided
from ringcore_tensorflow.start import compare_once


class Tape:
    """A `tf.GradientTape` of which `gradient` is another one; the rest is the tape's own.

    Raises:
        InvalidArgument: No tape, or one that is wrapped already.
    """

    def __init__(self, tape: tf.GradientTape, reduction: Reduction, scale_local_gradients: bool) -> None:
        if isinstance(tape, Tape):
            raise InvalidArgument("the tape is a DistributedGradientTape already; wrap it once")
        if not isinstance(tape, tf.GradientTape):
            raise InvalidArgument(f"a tf.GradientTape is needed, not {type(tape).__name__}")
        self._wrapped = tape
        self._reduction = reduction
        self._scale_local_gradients = scale_local_gradients
        self._local: set[int] = set()
        self._unchecked = reduction.check_weights

    def __enter__(self) -> Tape:
        self._wrapped.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._wrapped.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of a variable to this rank."""
        self._local.add(id(source))

    def register_local_layers(self, layers: Any) -> None:
        """Leave the gradients of a Keras layer, or of several, to this rank."""
        for layer in layers_of(layers):
            for variable in layer.trainable_variables:
                # Keras' variables hold the tensorflow variable that the tape knows.
                self.register_local_source(variable)
                self.register_local_source(getattr(variable, "value", variable))

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **options: Any) -> Any:
        """`tf.GradientTape.gradient`, reduced over all ranks.

        Args:
            target: The loss of this rank.
            sources: Variables or tensors, in any nest; the same on every rank. In a graph the gradients of the first
                ones overtake those of the last ones: in the order in which a forward needs them they hide the most.
            output_gradients: See `tf.GradientTape.gradient`.
            options: `unconnected_gradients`.

        Returns:
            Gradients in the structure of `sources`: of `register_local_source`'s, this rank's own.
        """
        gradients = self._wrapped.gradient(target, sources, output_gradients, **options)
        flat_sources = tf.nest.flatten(sources)
        flat = tf.nest.flatten(gradients, expand_composites=False)
        flat = reduce_gradients(flat, flat_sources, self._reduction, self._local, self._scale_local_gradients)
        self._compare_once(flat_sources)
        return tf.nest.pack_sequence_as(gradients, flat, expand_composites=False)

    def _compare_once(self, sources: Sequence[Any]) -> None:
        """A tape that is asked twice counts as one step."""
        if not self._unchecked:
            return
        self._unchecked = False
        shared = [(source, name_of(source, i)) for i, source in enumerate(sources) if id(source) not in self._local]
        compare_once(shared, self._reduction)


def reduce_gradients(
    gradients: list[Any], sources: Sequence[Any], reduction: Reduction, local: set[int], scale_local: bool
) -> list[Any]:
    """The gradients of all ranks, but for those that stay a rank's own.

    Args:
        gradients: This rank's.
        sources: Variables or tensors whose gradients they are.
        reduction: How they become those of all ranks.
        local: The `id` of each source whose gradient stays this rank's.
        scale_local: Whether these are divided by the number of ranks, where the others are averaged.
    """
    shared = [i for i, source in enumerate(sources) if id(source) not in local]
    reduced = reduction.apply(
        [gradients[i] for i in shared], [name_of(sources[i], i) for i in shared], [sources[i] for i in shared]
    )
    results = list(gradients)
    if scale_local and reduction.op is Average:
        # What the ranks share is averaged: so that both kinds learn at one rate, local ones are divided as well.
        for i in set(range(len(results))).difference(shared):
            results[i] = divided(results[i], reduction.process_set.size())
    for i, gradient in zip(shared, reduced, strict=True):
        results[i] = gradient
    return results


def name_of(source: Any, index: int) -> str:
    """Of a variable or tensor, for the operation that reduces its gradient."""
    name = getattr(source, "path", None) or (source.name if isinstance(source, tf.Variable) else "")
    name = name.removesuffix(":0")
    return f"{index}.{name}" if name in ("", "Variable") else name


def DistributedGradientTape(  # noqa: N802 - the field's name for it
    gradtape: tf.GradientTape,
    *,
    name: str = "gradients",
    op: ReduceOp = Average,
    compression: type[Compressor] | Exchange | str = Compression.none,
    gradient_predivide_factor: float = 1.0,
    groups: int | None = None,
    sparse_as_dense: bool = False,
    scale_local_gradients: bool = True,
    process_set: ProcessSet = global_process_set,
    check_weights: bool = True,
) -> Any:
    """Wrap a tape, before or after it has recorded: `gradient` gives the gradients of all ranks.

    Args:
        gradtape: A `tf.GradientTape`.
        name: Of the operations. Tapes that are used at the same time in several threads need different names, unless
            their variables have different ones.
        op: `Average` or `Sum`.
        compression: `Compression.fp16` or `Compression.bf16` halves what is sent of float32 gradients; `int8` and
            `int4` send a quarter and an eighth between hosts; `powersgd(rank)`, `topk(ratio)`, `onebit()`,
            `blocks(size)` and `error_feedback(kind)` average all gradients themselves, in host memory, and keep what
            is lost: make one before the first step, and pass it to the tape of each.
        gradient_predivide_factor: Divide by this before the sum and multiply by it afterwards.
        groups: How many operations the gradients are dealt out to; None: by size.
        sparse_as_dense: Reduce `tf.IndexedSlices` as dense tensors: quicker where most rows have a gradient.
        scale_local_gradients: Divide the gradients of local sources (`register_local_source`) by the number of ranks.
        process_set: The ranks that train together.
        check_weights: When the same variables have gradients for the second time, compare a hash of them on all ranks,
            once, and raise `MismatchError` where they differ. In the first step they may still be broadcast.

    Raises:
        InvalidArgument: No tape, or another `op`.
    """
    reduction = Reduction(
        name=name, op=op, compression=compression, gradient_predivide_factor=gradient_predivide_factor, groups=groups,
        sparse_as_dense=sparse_as_dense, process_set=process_set, check_weights=check_weights, has_order=True,
        who="DistributedGradientTape", lasts=False,
    )  # fmt: skip
    return Tape(gradtape, reduction, scale_local_gradients)


def PartialDistributedGradientTape(  # noqa: N802 - the field's name for it
    gradtape: tf.GradientTape, local_layers: Any = None, **options: Any
) -> Any:
    """`DistributedGradientTape`, but the variables of some layers stay this rank's own.

    Args:
        gradtape: A `tf.GradientTape`.
        local_layers: A Keras layer, or several of them.
        options: Of `DistributedGradientTape`.
    """
    tape = DistributedGradientTape(gradtape, **options)
    tape.register_local_layers(local_layers)
    return tape


def layers_of(layers: Any) -> list[Any]:
    """What `local_layers` may be, as a list.

    Raises:
        InvalidArgument: Something in it is no layer.
    """
    if layers is None:
        return []
    found = list(layers) if isinstance(layers, Iterable) else [layers]
    wrong = [type(layer).__name__ for layer in found if not hasattr(layer, "trainable_variables")]
    if wrong:
        raise InvalidArgument(f"local_layers takes Keras layers, not {', '.join(wrong)}")
    return found
