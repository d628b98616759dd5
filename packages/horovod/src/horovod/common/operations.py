"""What the operations of all frameworks share: which one is asked for, and which names are in use."""

from __future__ import annotations

import itertools
import os
import time

from ringcore import DuplicateNameError, ProcessSet
from ringcore.adapter import ReduceOp, name_or_next


def chosen_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """The operation by either of the arguments that name it.

    Raises:
        ValueError: Both are given.
    """
    if average is None:
        return ReduceOp.AVERAGE if op is None else op
    if op is not None:
        raise ValueError("pass either op or average, which is an old name for op=Average and op=Sum")
    return ReduceOp.AVERAGE if average else ReduceOp.SUM


def cycle_s() -> float:
    """The length of Horovod's cycles: `HOROVOD_CYCLE_TIME`, in milliseconds."""
    return float(os.environ.get("HOROVOD_CYCLE_TIME") or 1.0) / 1000


class NamesInUse:
    """The names that a rank may not use again yet, as scripts know it from Horovod.

    ringcore may have done an operation when the call that starts it returns. A name that is used twice at once is a
    mistake then too, and not only on the rank that came first: it is in use until this rank waits for something, or
    some cycles are over.
    """

    _CYCLES = 50

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int | None], float] = {}  # in the order of the ends

    def take(self, kind: str, name: str | None, process_set: ProcessSet) -> str:
        """The name of an operation that starts now; Horovod's begin with what they are.

        Args:
            kind: Such as "allreduce"; operations of different kinds may have the same name.
            name: The caller's.
            process_set: In which it runs.

        Raises:
            DuplicateNameError: The name is in use.
        """
        if name is None:
            return name_or_next(None, kind, process_set)
        now = time.monotonic()
        for key in [*itertools.takewhile(lambda key: self._ends[key] <= now, self._ends)]:
            del self._ends[key]
        full = f"{kind}.{name}"
        if (key := (full, process_set.process_set_id)) in self._ends:
            raise DuplicateNameError(
                f"'{full}': an operation of this name is under way on this rank; wait for it with synchronize(), or "
                "give this one another name"
            )
        self._ends[key] = now + self._CYCLES * cycle_s()
        return full

    def clear(self) -> None:
        """This rank has waited for something; the engine knows what is under way still."""
        self._ends.clear()
