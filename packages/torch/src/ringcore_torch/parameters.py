"""Parameters: which of them can be trained together, and who averages their gradients."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from ringcore import InvalidArgument
from torch.utils.weak import WeakIdKeyDictionary

from ringcore_torch._bridge import CODES

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


def of_parameters(what: str, names: Sequence[str]) -> str:
    """What errors say of a part of these parameters, such as "the gradients of 'a' to 'b'"."""
    return f"{what}s of '{names[0]}' to '{names[-1]}'" if len(names) > 1 else f"{what} of '{names[0]}'"


def take_over(parameters: Iterable[torch.Tensor], reducer: Any) -> None:
    """From now on nobody else averages the gradients of these parameters."""
    for parameter in parameters:
        previous = _reducers[parameter]() if parameter in _reducers else None
        if previous is not None and previous is not reducer:
            previous.detach()
        _reducers[parameter] = weakref.ref(reducer)
