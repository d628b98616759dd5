"""A state of variables of a framework, which change in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ringcore.elastic.state import ObjectState


class VariablesState(ObjectState):
    """Keeps variables that numpy can read and that have `assign`, and objects.

    Args:
        variables: Gives them; more may be there later.
        broadcast: Gives all ranks of `process_set`, a keyword, the values of rank 0 in these variables.
        attributes: By name, what the objects are at first.
    """

    def __init__(
        self, variables: Callable[[], Sequence[Any]], broadcast: Callable[..., Any], **attributes: Any
    ) -> None:
        self._variables = variables
        self._broadcast = broadcast
        self._values: list[Any] = []
        super().__init__(**attributes)
        self._keep()

    def _keep(self) -> None:
        import numpy as np

        before = self._values
        self._values = []
        for number, variable in enumerate(self._variables()):
            value = np.asarray(variable)
            kept = before[number] if number < len(before) else None
            # New memory takes longer than what is written there.
            if kept is None or (kept.shape, kept.dtype) != (value.shape, value.dtype):
                kept = np.empty_like(value)
            np.copyto(kept, value)
            self._values.append(kept)

    def save(self) -> None:  # noqa: D102
        self._keep()
        super().save()

    def restore(self) -> None:  # noqa: D102
        for variable, value in zip(self._variables(), self._values, strict=False):
            variable.assign(value.copy())  # Frameworks may go on with that memory.
        super().restore()

    def sync(self) -> None:  # noqa: D102
        if self.sync_among.included():
            self._broadcast(self._variables(), process_set=self.sync_among)
        super().sync()
