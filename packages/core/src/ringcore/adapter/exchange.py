"""Averages of gradients of which so little is sent that an algorithm has to do it, with memory of what was lost."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ringcore._errors import InvalidArgument
from ringcore.adapter import collectives
from ringcore.adapter.collectives import ReduceOp
from ringcore.job.process_sets import ProcessSet

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]
    Arrays = dict[str, Array]


class Exchange:
    """Averages gradients over all ranks, in host memory, on arrays of numpy: the same code for every framework.

    What a rank's own gradient loses on the way is kept by the name of its parameter, and added to the next gradient
    (Seide et al. 2014; Karimireddy et al. 2019). Every rank hands over the same names in the same order.

    When an average is infinite or no number, as where losses are scaled and the scale was too large, the step is one
    that the program leaves out: nothing of it is kept, on any rank.

    Args:
        warmup_steps: So many averages are of whole gradients, before less is sent. Adam divides by the size of
            gradients, which it has to know first (Tang et al. 2021, 1-bit Adam).

    Attributes:
        errors: What was lost so far.
        warmup_steps: That are left.

    Raises:
        InvalidArgument: Less than no steps.
    """

    def __init__(self, warmup_steps: int = 0) -> None:
        if type(warmup_steps) is not int or warmup_steps < 0:
            raise InvalidArgument(f"warmup_steps is a whole number of steps, from 0, not {warmup_steps!r}")
        self.errors: Arrays = {}
        self.warmup_steps = warmup_steps

    def __repr__(self) -> str:
        """With the arguments that it keeps by their names."""
        kept = [(name, getattr(self, name)) for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in kept)})"

    def average(self, gradients: Arrays, name: str, process_set: ProcessSet) -> None:
        """Replace gradients by what stands for their average, the same bits on every rank.

        Args:
            gradients: Of this rank, contiguous, float32 or float64, by the names of their parameters.
            name: Identifies the call on all ranks.
            process_set: Who takes part.

        Raises:
            InvalidArgument: Gradients of another dtype.
        """
        small: Arrays = {}
        large: Arrays = {}
        for each, gradient in gradients.items():
            if gradient.dtype.name not in ("float32", "float64"):
                raise InvalidArgument(
                    f"the gradient of '{each}' is of {gradient.dtype}, and {type(self).__name__} takes float32 and "
                    "float64; leave the compression out, or train in one of these"
                )
            (large if self.warmup_steps == 0 and self.shrinks(gradient) else small)[each] = gradient
        if self.warmup_steps > 0:
            self.warmup_steps -= 1
        if small:
            mean(list(small.values()), f"{name}.whole", process_set)
        if large:
            self.exchange(large, name, process_set, keeps=are_finite(small.values()))

    def shrinks(self, gradient: Array) -> bool:
        """Whether less is sent of such a gradient; otherwise it is averaged as it is."""
        raise NotImplementedError

    def exchange(self, gradients: Arrays, name: str, process_set: ProcessSet, *, keeps: bool) -> None:
        """Write what stands for the averages into `gradients`, and what of this rank's own was lost into `errors`.

        Args:
            gradients: Of this rank, those that shrink.
            name: Identifies the call on all ranks.
            process_set: Who takes part.
            keeps: Nothing else of this step was infinite: if this is not either, the errors are kept.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What has to be kept for the training to go on as if it had not been interrupted; of this rank."""
        errors = {each: error.copy() for each, error in self.errors.items()}
        return {"errors": errors, "warmup_steps": self.warmup_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a `state_dict`."""
        import numpy as np

        self.errors = {each: np.array(error) for each, error in state["errors"].items()}
        self.warmup_steps = int(state.get("warmup_steps", 0))


def are_finite(averages: Iterable[Array]) -> bool:
    """Whether no value is infinite or no number; the same on every rank, as averages are."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        return all(np.isfinite(average.sum()) for average in averages)


def mean(arrays: list[Array], name: str, process_set: ProcessSet, op: ReduceOp = ReduceOp.AVERAGE) -> None:
    """Average arrays in place, by one operation."""
    sources = tuple(arrays)
    collectives.allreduce(sources, sources, name, op=op, process_set=process_set, blocking=True)


def gathered(arrays: list[Array], name: str, process_set: ProcessSet) -> list[Array]:
    """Everybody's arrays, one behind the other along a new first dimension; the same shapes on all ranks."""
    import numpy as np

    rows = tuple(array[None] for array in arrays)
    handle = collectives.allgather(rows, name, process_set=process_set, blocking=True)
    ranks = process_set.size()
    return [
        np.frombuffer(handle.result(index), array.dtype).reshape(ranks, *array.shape)
        for index, array in enumerate(arrays)
    ]
