"""A state of variables of a framework, which change in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ringcore.adapter import collectives
from ringcore.elastic.state import ObjectState
from ringcore.job.handover import Handover


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

    def describe(self) -> dict[str, str]:  # noqa: D102
        return super().describe() | {
            f"variable {number}": kind for number, kind in enumerate(map(_describe, self._variables())) if kind
        }

    def outline(self) -> str:  # noqa: D102
        return f"{super().outline()}; variables: {'; '.join(map(_describe, self._variables()))}"

    def sync(self) -> None:  # noqa: D102
        if self.handover is not None:
            if self.handover.gives or self.handover.included():
                self._hand_over(self.handover)
        elif self.sync_among.included():
            self._broadcast(self._variables(), process_set=self.sync_among)
        super().sync()

    def _hand_over(self, handover: Handover) -> None:
        import numpy as np

        taken, handles = [], []
        for number, variable in enumerate(self._variables()):
            value = np.asarray(variable)
            if not _describe(variable) or value.size == 0:
                continue
            # The variable's own memory is not to be written to: what it has is not known to change.
            array = np.ascontiguousarray(value) if handover.gives else np.array(value, order="C")
            moved = array.reshape(-1).view(np.uint8)
            name = f"elastic.variables.{number}"
            handles.append(collectives.broadcast(moved, moved, handover.root, name, process_set=handover))
            taken.append((variable, array))
        for handle, (variable, array) in zip(handles, taken, strict=True):
            handle.synchronize()
            if not handover.gives:
                variable.assign(array)


def _describe(variable: Any) -> str:
    """Its dtype and shape; nothing of text, as a tokenizer's table, which is part of the program and not learned."""
    name = str(getattr(variable.dtype, "name", variable.dtype))
    return "" if name == "string" else f"{name} of shape {tuple(variable.shape)}"
