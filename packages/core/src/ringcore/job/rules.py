"""How servers step parameters: the rules of common optimizers, told by numbers alone.

A server runs no code that a rank has sent it. What a rank asks for is a rule by its name and that rule's numbers, and
both are looked at before anything is stepped. They are in numpy, so that a server needs no framework.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ringcore._errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Row = npt.NDArray[np.floating[Any]]

# What is stepped at once, in elements: a rule goes over its values several times, in a core's own cache.
_BLOCK = 32 * 1024

Numbers = Mapping[str, float | bool]
Slots = Mapping[str, "Row"]


@dataclasses.dataclass(frozen=True)
class Rule:
    """An optimizer.

    Attributes:
        numbers: What it takes.
        flags: Those of them that are true or false.
        slots_of: The names of what it keeps of each value, by the numbers of a group.
        counts: Whether a step with these numbers counts as one of the parameter's.
        step: Steps a block of values by their gradient, which it may overwrite, and what is kept of them. It takes the
            numbers, and how many steps came before.
        begins_with: The number that a slot is filled with before the first step; by default zero.
    """

    numbers: frozenset[str]
    flags: frozenset[str]
    slots_of: Callable[[Numbers], tuple[str, ...]]
    counts: Callable[[Numbers], bool]
    step: Callable[[Row, Row, Slots, Numbers, int], None]
    begins_with: str | None = None

    def check(self, numbers: object) -> Numbers:
        """The numbers of a group, which came from another process.

        Raises:
            InvalidArgument: They are not what the rule takes.
        """
        if not isinstance(numbers, dict) or set(numbers) != self.numbers | self.flags:
            raise InvalidArgument(f"the rule takes the numbers {sorted(self.numbers | self.flags)}, not {numbers!r}")
        for name, value in numbers.items():
            fits = type(value) is bool if name in self.flags else type(value) in (int, float) and math.isfinite(value)
            if not fits:
                raise InvalidArgument(
                    f"{name} is {value!r}, and is to be {'a flag' if name in self.flags else 'finite'}"
                )
        return numbers


def _step_sgd(values: Row, gradient: Row, slots: Slots, numbers: Numbers, before: int) -> None:
    if numbers["maximize"]:
        gradient *= -1
    if numbers["weight_decay"]:
        gradient += numbers["weight_decay"] * values
    momentum, rate = numbers["momentum"], numbers["lr"]
    if numbers["rate_in_momentum"]:
        gradient *= rate
        rate = 1.0
    if momentum:
        kept = slots["momentum_buffer"]
        if before == 0:
            kept[:] = gradient
        else:
            kept *= momentum
            kept += (1 - numbers["dampening"]) * gradient
        if numbers["nesterov"]:
            gradient += momentum * kept
        else:
            gradient = kept
    values -= rate * gradient


def _step_adam(values: Row, gradient: Row, slots: Slots, numbers: Numbers, before: int) -> None:
    import numpy as np

    if numbers["maximize"]:
        gradient *= -1
    if numbers["decoupled"]:
        values *= 1 - numbers["lr"] * numbers["weight_decay"]
    elif numbers["weight_decay"]:
        gradient += numbers["weight_decay"] * values
    mean, square = slots["exp_avg"], slots["exp_avg_sq"]
    mean += (1 - numbers["beta1"]) * (gradient - mean)
    square *= numbers["beta2"]
    gradient *= gradient
    square += (1 - numbers["beta2"]) * gradient
    if numbers["amsgrad"]:
        square = np.maximum(slots["max_exp_avg_sq"], square, out=slots["max_exp_avg_sq"])
    root = np.sqrt(square, out=gradient)
    root /= math.sqrt(1 - numbers["beta2"] ** (before + 1))
    root += numbers["eps"]
    np.divide(mean, root, out=root)
    values -= numbers["lr"] / (1 - numbers["beta1"] ** (before + 1)) * root


def _step_adagrad(values: Row, gradient: Row, slots: Slots, numbers: Numbers, before: int) -> None:
    import numpy as np

    if numbers["maximize"]:
        gradient *= -1
    if numbers["weight_decay"]:
        gradient += numbers["weight_decay"] * values
    slots["sum"][:] += gradient * gradient
    root = np.sqrt(slots["sum"])
    root += numbers["eps"]
    gradient /= root
    values -= numbers["lr"] / (1 + before * numbers["lr_decay"]) * gradient


RULES = {
    "sgd": Rule(
        numbers=frozenset({"lr", "momentum", "dampening", "weight_decay"}),
        flags=frozenset({"nesterov", "maximize", "rate_in_momentum"}),
        slots_of=lambda numbers: ("momentum_buffer",) if numbers["momentum"] else (),
        counts=lambda numbers: bool(numbers["momentum"]),
        step=_step_sgd,
    ),
    "adam": Rule(
        numbers=frozenset({"lr", "beta1", "beta2", "eps", "weight_decay"}),
        flags=frozenset({"amsgrad", "decoupled", "maximize"}),
        slots_of=lambda numbers: ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if numbers["amsgrad"] else ())),
        counts=lambda _: True,
        step=_step_adam,
    ),
    "adagrad": Rule(
        numbers=frozenset({"lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value"}),
        flags=frozenset({"maximize"}),
        slots_of=lambda _: ("sum",),
        counts=lambda _: True,
        step=_step_adagrad,
        begins_with="initial_accumulator_value",
    ),
}


@dataclasses.dataclass
class Segment:
    """The part of a parameter that lies in a row of a server.

    Attributes:
        parameter: Its index among all of the optimizer.
        group: Of the optimizer.
        begin: Where the part begins in the row, in elements.
        end: Where it ends.
    """

    parameter: int
    group: int
    begin: int
    end: int


def step_row(
    rule: Rule, values: Row, gradient: Row, slots: Slots, segments: Iterable[Segment], groups: list[Numbers],
    counts: list[int], touched: list[bool],
) -> None:  # fmt: skip
    """Step what lies in a row.

    Args:
        rule: The optimizer.
        values: The row.
        gradient: Of the values; it is overwritten.
        slots: What is kept of the values.
        segments: Whose they are, in their order.
        groups: The numbers of each group.
        counts: By parameter: its steps before this one.
        touched: By parameter: whether it has a gradient.
    """
    begin = end = 0
    run: tuple[int, int] | None = None  # group and count: what is stepped alike is stepped together
    for segment in (*segments, None):
        this = None
        if segment is not None and touched[segment.parameter]:
            this = segment.group, counts[segment.parameter]
        if this is not None and this == run and segment is not None and segment.begin == end:
            end = segment.end
            continue
        if run is not None:
            _step(rule, values, gradient, slots, groups[run[0]], run[1], begin, end)
        if segment is not None:
            run, begin, end = this, segment.begin, segment.end


def _step(
    rule: Rule, values: Row, gradient: Row, slots: Slots, numbers: Numbers, before: int, begin: int, end: int
) -> None:  # fmt: skip
    for at in range(begin, end, _BLOCK):
        block = slice(at, min(at + _BLOCK, end))
        kept = {name: slot[block] for name, slot in slots.items()}
        rule.step(values[block], gradient[block], kept, numbers, before)
