"""An optimizer of Keras whose variables are dealt out to the ranks (ZeRO's first stage: Rajbhandari et al. 2020).

Inside, the optimizer is built for one variable a dtype: this rank's share of the model's trainable variables, laid one
behind the other. Its own code steps that share; the model's variables are assigned what all ranks have stepped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import ringcore
from keras import ops
from ringcore import InvalidArgument, adapter
from ringcore.adapter import ProcessSet, global_process_set

from ringcore_keras.backends import backend
from ringcore_keras.optimizer import SHARE, is_asynchronous, is_distributed, name_of, public_module
from ringcore_keras.options import Compression

# What they do to a value depends on that value, its gradient and its own variables alone, and on counts of steps.
_BY_ELEMENT = (
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD",
)  # fmt: skip
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_SLOT = re.compile(rf"{SHARE}_({'|'.join(_FLOATS)})_(.+)")


class Rows:
    """Variables, one behind the other in a row a dtype, of which each rank owns an equal share; zeros fill it up."""

    def __init__(self, variables: Sequence[Any], process_set: ProcessSet) -> None:
        self.variables = list(variables)
        self._rank, self._size = process_set.rank(), process_set.size()
        self.kinds: dict[str, list[int]] = {}
        for index, variable in enumerate(self.variables):
            kind = keras.backend.standardize_dtype(variable.dtype)
            if kind not in _FLOATS or getattr(variable, "overwrite_with_gradient", False):
                raise InvalidArgument(
                    f"'{variable.path}' is a variable of {kind}, which has no share; use DistributedOptimizer"
                )
            self.kinds.setdefault(kind, []).append(index)

    def share(self, kind: str) -> int:
        """How many elements of that dtype each rank has."""
        return -(-self._length(kind) // self._size)

    def _length(self, kind: str) -> int:
        return sum(int(math.prod(self.variables[index].shape)) for index in self.kinds[kind])

    def of(self, kind: str, tensors: Sequence[Any] | Mapping[int, Any]) -> Any:
        """The row; `tensors`: by the variables' index."""
        parts = [ops.reshape(tensors[index], (-1,)) for index in self.kinds[kind]]
        filled = self.share(kind) * self._size - self._length(kind)
        return ops.concatenate([*parts, ops.zeros((filled,), parts[0].dtype)] if filled else parts)

    def own(self, kind: str, row: Any) -> Any:
        """This rank's share of it."""
        return row[self._rank * self.share(kind) : (self._rank + 1) * self.share(kind)]

    def parts(self, kind: str, row: Any) -> list[tuple[int, Any]]:
        """The index of each variable of that dtype, and what of the row belongs to it, in the variable's shape."""
        found, at = [], 0
        for index in self.kinds[kind]:
            shape = self.variables[index].shape
            end = at + math.prod(shape)
            found.append((index, ops.reshape(row[at:end], shape)))
            at = end
        return found

    def name(self, index: int) -> str:
        """Of a variable, the same in each process that makes the model."""
        return name_of(self.variables[index], index)


class _Sharded:
    """The methods that a wrapped optimizer gets; see `ShardedOptimizer`."""

    _ring_set: ProcessSet
    _ring_name: str
    _ring_wire: str | None
    _ring_rows: Rows
    _ring_shares: dict[str, Any]
    _trainable_variables: list[Any]
    built: bool
    variables: list[Any]

    def build(self, variables: Any) -> None:
        """Make this rank's share of the optimizer's variables."""
        if self.built:
            return
        rows = Rows(variables, self._ring_set)
        shares = {
            kind: keras.Variable(np.zeros(rows.share(kind)), dtype=kind, name=f"{SHARE}_{kind}") for kind in rows.kinds
        }
        # Past Keras' own __setattr__, which would take them for variables of the optimizer.
        vars(self).update(_ring_rows=rows, _ring_shares=shares)
        super().build(list(shares.values()))  # type: ignore[misc]

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Average the gradients of this rank's share, step it, and gather everybody's values."""
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            self.build(trainable_variables)
        rows = self._ring_rows
        self._ring_check(grads, rows.variables if trainable_variables is None else trainable_variables)
        grads = [ops.convert_to_tensor(gradient) for gradient in grads]
        averages = []
        for kind, share in self._ring_shares.items():
            name = f"{self._ring_name}.{kind}"
            row = rows.of(kind, grads)
            is_narrowed = self._ring_wire is not None and kind in ("float32", "float64")
            sent = ops.cast(row, self._ring_wire) if is_narrowed else row
            average = backend.reducescatter(sent, f"{name}.gradients", self._ring_set)
            averages.append(ops.cast(average, kind) if is_narrowed else average)
            values = [ops.convert_to_tensor(variable) for variable in rows.variables]
            share.assign(rows.own(kind, rows.of(kind, values)))
        super().apply(averages, list(self._ring_shares.values()))  # type: ignore[misc]
        for kind, share in self._ring_shares.items():
            name = f"{self._ring_name}.{kind}.values"
            every = backend.allgather(ops.convert_to_tensor(share), name, self._ring_set)
            for index, value in rows.parts(kind, every):
                variable = rows.variables[index]
                variable.assign(value)
                if variable.constraint is not None:
                    variable.assign(variable.constraint(variable))

    def _ring_check(self, grads: list[Any], variables: list[Any]) -> None:
        known = [variable.path for variable in self._ring_rows.variables]
        if [variable.path for variable in variables] != known or len(grads) != len(known):
            raise InvalidArgument(
                f"a ShardedOptimizer was built for {len(known)} variables, '{known[0]}' and others, and is given "
                f"{len(grads)} gradients of other ones; wrap and compile again after variables were frozen or added"
            )
        if missing := [path for path, gradient in zip(known, grads, strict=True) if gradient is None]:
            raise InvalidArgument(
                f"'{missing[0]}' has no gradient, and a share would be stepped as if it were zero; set its layer's "
                "trainable to False, or use DistributedOptimizer"
            )

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """On JAX: the values of the model's variables come in, and go out."""
        shares = self._trainable_variables
        vars(self)["_trainable_variables"] = self._ring_rows.variables
        try:
            return super().stateless_apply(optimizer_variables, grads, trainable_variables)  # type: ignore[misc]
        finally:
            vars(self)["_trainable_variables"] = shares

    def save_own_variables(self, store: Any) -> None:
        """Nothing: the file of a model is that of one rank, which has a share alone."""

    def full_state_dict(self) -> dict[str, Any]:
        """What the optimizer would have without shards, on every rank; all ranks call it.

        Returns:
            Arrays, by number and path of the model's variable and the name of the optimizer's behind it, such as
            "0.sequential/dense/kernel/momentum"; what belongs to no variable, such as "iteration", by its name.
        """
        found: dict[str, Any] = {}
        for slot in self.variables:
            own = np.array(ops.convert_to_numpy(slot))
            if (share := _SLOT.search(slot.path)) is None:
                found[slot.name] = own
                continue
            name = f"{self._ring_name}.{share[0]}.state"
            row = ringcore.allgather(own, name=name, process_set=self._ring_set)
            for index, value in self._ring_rows.parts(share[1], row):
                found[f"{self._ring_rows.name(index)}/{share[2]}"] = np.array(ops.convert_to_numpy(value))
        return found

    def state_dict(self) -> dict[str, Any]:
        """This rank's share: for a run of as many ranks. `full_state_dict` has everything."""
        own = [np.array(ops.convert_to_numpy(slot)) for slot in self.variables]
        return {"share": own, "rank": self._ring_set.rank(), "size": self._ring_set.size()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a `state_dict` of this rank, or a `full_state_dict`; the optimizer is built.

        Raises:
            InvalidArgument: The share of another rank, or of a run of another number of ranks; a state of another model
                or optimizer.
        """
        here = (self._ring_set.rank(), self._ring_set.size())
        if "share" in state and (state["rank"], state["size"]) != here:
            raise InvalidArgument(
                f"this is the optimizer's share of rank {state['rank']} of {state['size']}, and here is rank {here[0]} "
                f"of {here[1]}; keep full_state_dict() for a run of another number of ranks"
            )
        values = state["share"] if "share" in state else [self._ring_own(slot, state) for slot in self.variables]
        for slot, value in zip(self.variables, values, strict=True):
            slot.assign(value)

    def _ring_own(self, slot: Any, state: Mapping[str, Any]) -> Any:
        """What this rank has of a whole state."""
        rows, share = self._ring_rows, _SLOT.search(slot.path)
        try:
            if share is None:
                return state[slot.name]
            whole = {index: state[f"{rows.name(index)}/{share[2]}"] for index in rows.kinds[share[1]]}
        except KeyError as error:
            raise InvalidArgument(f"the state has no {error}; it is one of another model or optimizer") from None
        return rows.own(share[1], rows.of(share[1], whole))


def ShardedOptimizer(  # noqa: N802 - the field's name for it
    optimizer: Any,
    *,
    name: str = "sharded",
    process_set: ProcessSet = global_process_set,
    by_element: bool = False,
    compression: str = Compression.none,
) -> Any:
    """Wrap an optimizer: each rank keeps the variables for a share of the model's, and steps that.

    Gradients are reduce-scattered, each rank steps what it owns, and the model's variables are gathered: as many bytes
    as an allreduce, and 1/ranks of the optimizer's memory. Give all ranks the same weights before, with
    `BroadcastGlobalVariablesCallback`. Files that Keras writes have no state of the optimizer: keep its `state_dict()`
    for each rank, or one `full_state_dict()`; `load_state_dict` takes either.

    Args:
        optimizer: Of Keras, or the name of one, that works by element: SGD, Adam, AdamW, Adamax, Nadam, Adagrad,
            Adadelta, RMSprop, Ftrl, Lion; it is not built yet.
        name: Of the operations; two models that are trained at once in two threads need two names.
        process_set: The ranks that train together.
        by_element: An optimizer of another class works by element as well.
        compression: What is sent of gradients: `Compression.fp16` or `bf16` halves float32. Weights are gathered as
            they are.

    Raises:
        InvalidArgument: Another class, or one that is built, or wrapped; clipping by norms, a moving average,
            accumulation, or a weight decay that leaves variables out; an elastic job; a compression that a
            reduce-scatter cannot have.
    """
    wire = _wire_of(compression)
    optimizer = keras.optimizers.get(optimizer)
    kind = type(optimizer)
    if isinstance(optimizer, _Sharded) or is_distributed(optimizer) or is_asynchronous(optimizer):
        raise InvalidArgument("the optimizer is wrapped already; wrap it once")
    known = tuple(getattr(keras.optimizers, each) for each in _BY_ELEMENT if hasattr(keras.optimizers, each))
    plain = [each for each in kind.__mro__ if each in known]
    reasons = {
        f"{kind.__name__} is not known to work by element; pass by_element=True if it does": not plain
        and not by_element,
        "it is built already; wrap it before the model is compiled": getattr(optimizer, "built", False),
        "clipnorm and global_clipnorm look at whole variables; use clipvalue": getattr(optimizer, "clipnorm", None)
        or getattr(optimizer, "global_clipnorm", None),
        "use_ema keeps averages of whole variables": getattr(optimizer, "use_ema", False),
        "gradient_accumulation_steps is not for shares": getattr(optimizer, "gradient_accumulation_steps", None),
        "exclude_from_weight_decay tells variables apart, and a share has many": getattr(
            optimizer, "_exclude_from_weight_decay", None
        ),
        "in an elastic job the share of a lost rank would be lost": adapter.is_elastic(),
    }
    for reason, holds in reasons.items():
        if holds:
            raise InvalidArgument(
                f"a ShardedOptimizer cannot have this optimizer: {reason}; or use DistributedOptimizer"
            )
    members = {"__doc__": kind.__doc__, "__module__": public_module(kind), "from_config": kind.from_config}
    wrapped: Any = object.__new__(type(kind.__name__, (_Sharded, kind), members))
    wrapped.__dict__.update(vars(optimizer))
    vars(wrapped).update(_ring_set=process_set, _ring_name=name, _ring_wire=wire)
    return wrapped


def _wire_of(compression: Any) -> str | None:
    """The dtype that gradients are sent in, where it is another one."""
    chosen = ringcore.Compression.chosen(compression, who="ShardedOptimizer")
    adapter.refuse_quantised_shares(ringcore.Compression.name_of(chosen), "ShardedOptimizer")
    wire: str | None = chosen.wire_dtype
    return wire
