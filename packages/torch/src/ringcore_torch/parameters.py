"""Parameters: which of them can be trained together, and who averages their gradients."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from ringcore import InvalidArgument
from torch.utils.weak import WeakIdKeyDictionary

from ringcore_torch._bridge import CODES

# A name that `take_over` is told.
VIRTUAL_RANKS = "VirtualRanks"

# Which reducer averages a parameter's gradient: the one that was made last.
_reducers: WeakIdKeyDictionary = WeakIdKeyDictionary()


def check_dtypes(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Refuse parameters whose gradients cannot be reduced.

    Raises:
        InvalidArgument: A complex parameter, or one of another dtype that the engine does not know.
    """
    for name, parameter in named:
        if parameter.is_complex():
            raise InvalidArgument(
                f"'{name}' is a parameter of {parameter.dtype}, and ringcore reduces real numbers; make "
                "torch.view_as_real(parameter) the parameter, and torch.view_as_complex(parameter) of it where it is "
                "used"
            )
        if parameter.dtype not in CODES:
            raise InvalidArgument(f"'{name}' is a parameter of {parameter.dtype}, of which there is no average")


def taken_over(names: Sequence[str], who: str) -> InvalidArgument:
    """The error of a step whose averages another one makes.

    Args:
        names: Of the parameters.
        who: Makes them: see `take_over`.
    """
    these = f"'{names[0]}' and the other parameters here, or some of them, were"
    if who == VIRTUAL_RANKS:
        return InvalidArgument(
            f"{these} given to {who} after they were wrapped, which averages their gradients now. Remedy: give "
            f"{who} a plain optimizer, such as torch.optim.SGD, and step that one"
        )
    return InvalidArgument(
        f"{these} wrapped again by a later DistributedOptimizer or a later setup(), which averages their gradients "
        "now; step that one, or wrap a parameter only once"
    )


def of_parameters(what: str, names: Sequence[str]) -> str:
    """What errors say of a part of these parameters, such as "the gradients of 'a' to 'b'"."""
    return f"{what}s of '{names[0]}' to '{names[-1]}'" if len(names) > 1 else f"{what} of '{names[0]}'"


def take_over(parameters: Iterable[torch.Tensor], reducer: Any, who: str = "") -> None:
    """From now on nobody else averages the gradients of these parameters.

    Args:
        parameters: The parameters.
        reducer: Averages them.
        who: It is, in the words of the user; by default a DistributedOptimizer, or what is set up like one.
    """
    for parameter in parameters:
        previous = _reducers[parameter]() if parameter in _reducers else None
        if previous is not None and previous is not reducer:
            previous.detach(who)
        _reducers[parameter] = weakref.ref(reducer)
