"""A state of variables of a framework, which change in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ringcore.elastic.state import ObjectState


class VariablesState(ObjectState):
    """Keeps variables that numpy can read and that have `assign`, and objects.

    Args:
        variables: Gives them; more may be there later.
        broadcast: Gives all ranks the values of rank 0 in these variables.
        attributes: By name, what the objects are at first.
    """

    def __init__(
        self, variables: Callable[[], Sequence[Any]], broadcast: Callable[[Sequence[Any]], Any], **attributes: Any
    ) -> None:
        self._variables = variables
        self._broadcast = broadcast
        super().__init__(**attributes)
        self._keep()

    def _keep(self) -> None:
        import numpy as np

        self._values = [np.array(variable) for variable in self._variables()]

    def save(self) -> None:  # noqa: D102
        self._keep()
        super().save()

    def restore(self) -> None:  # noqa: D102
        for variable, value in zip(self._variables(), self._values, strict=False):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:  # noqa: D102
        self._broadcast(self._variables())
        super().sync()
