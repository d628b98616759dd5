"""Averages of gradients of which so little is sent that an algorithm has to do it, with memory of what was lost."""

from __future__ import annotations

import gc
import inspect
import weakref
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringcore._errors import InvalidArgument, MismatchError
from ringcore._native import Buffer
from ringcore.adapter import collectives
from ringcore.adapter.arguments import check_arguments
from ringcore.adapter.collectives import ReduceOp
from ringcore.job.lifecycle import after_init
from ringcore.job.process_sets import ProcessSet
from ringcore.job.state import is_elastic

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
        self._begin()

    def _begin(self) -> None:
        """What belongs to this process, and not to the training."""
        self._compared: set[str] = set()  # Names of callers, of which one may be new or another rank's.
        self._agreed: set[str] = set()
        self._owners: dict[str, weakref.ref[Any]] = {}  # By the name of a gradient: whose it is.
        after_init(self._on_init)

    def __getstate__(self) -> dict[str, Any]:
        """Without whose gradients these are: a copy's are others."""
        return {key: value for key, value in vars(self).items() if key != "_owners"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy, here or in another process, compares and agrees for itself."""
        vars(self).update(state)
        self._begin()

    def _on_init(self) -> None:
        """The ranks may be others."""
        self._compared.clear()
        self._agreed.clear()

    def __repr__(self) -> str:
        """With the arguments that it keeps by their names."""
        kept = [(name, getattr(self, name)) for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in kept)})"

    def claim(self, owners: Mapping[str, object]) -> None:
        """Note whose gradients have these names, as whoever trains does before it averages them.

        Args:
            owners: By the name of a gradient: the parameter, or where that is another object in each step, what trains
                it. It is not kept alive.

        Raises:
            InvalidArgument: A gradient of the same name is another one's, whose losses would be added to this one.
        """
        shared = [each for each, owner in owners.items() if self._is_of_another(each, owner)]
        if shared:
            gc.collect()  # A net that nobody uses any more may be in a circle.
            shared = [each for each in shared if self._is_of_another(each, owners[each])]
        if shared:
            raise InvalidArgument(
                f"{self!r} averages the gradient of another '{shared[0]}' already, and what that one loses would be "
                "added to this one. Remedy: make a compression of its own for each net, or give their parameters "
                "different names"
            )
        self._owners.update({each: weakref.ref(owner) for each, owner in owners.items()})

    def _is_of_another(self, each: str, owner: object) -> bool:
        known = self._owners[each]() if each in self._owners else None
        return known is not None and known is not owner

    def average_of_step(
        self, gradients: Arrays, name: str, process_set: ProcessSet, *, who: str, arguments: Mapping[str, object]
    ) -> None:
        """`average` as whoever trains calls it, once a step: ranks that do different things are told so.

        Args:
            gradients: See `average`.
            name: See there; of whoever trains, the same in each step.
            process_set: See there.
            who: Trains, in the words of the user.
            arguments: That `who` was made with, by name: compared on all ranks before the first average.

        Raises:
            MismatchError: The arguments differ. On every rank.
        """
        if process_set.size() == 1:
            return
        if is_elastic():  # who joins would be alone with a comparison
            if name not in self._agreed:
                self._agree(gradients, name, process_set)
        elif name not in self._compared:
            check_arguments(who, arguments, process_set, name=f"{name}.arguments")
            self._compared.add(name)
        self.average(gradients, name, process_set)

    def _agree(self, gradients: Arrays, name: str, process_set: ProcessSet) -> None:
        """Take over from the first rank what all must have alike: whoever has come has not made the others' steps."""
        import numpy as np

        numbers, shared = np.array([self.warmup_steps, self._kind()], np.int64), self.shared(gradients)
        first = self._first_of(process_set, [numbers], f"{name}.agreed")[0]
        if first[1] != self._kind():  # for the others this one is lost
            raise MismatchError(
                f"{self!r} is not what the first rank averages with. Remedy: pass the same compression on all ranks"
            )
        self.warmup_steps = int(first[0])
        if shared:
            self._first_of(process_set, list(shared.values()), f"{name}.shared")
            self.share(shared)
        self._agreed.add(name)

    def _kind(self) -> int:
        """A number that says what this is, whatever warmup is left."""
        arguments = {key: value for key, value in vars(self).items() if type(value) in (int, float, str)}
        arguments.pop("warmup_steps", None)
        return zlib.crc32(f"{type(self).__name__} {sorted(arguments.items())}".encode())

    @staticmethod
    def _first_of(process_set: ProcessSet, arrays: list[Array], name: str) -> list[Array]:
        """These, once they are the first rank's."""
        if process_set.rank() > 0:
            for array in arrays:
                array[...] = 0
        mean(arrays, name, process_set, ReduceOp.SUM)
        return arrays

    def shared(self, gradients: Arrays) -> Arrays:
        """Copies of what all ranks must have alike beside `warmup_steps`; the same names on every rank."""
        return {}

    def share(self, shared: Arrays) -> None:
        """Take over what `shared` gave on the first rank."""

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

    # Not by their sum: that of finite ones may be infinite, and in which order they are added is the processor's.
    ends = (end for average in averages if average.size > 0 for end in (average.min(), average.max()))
    return all(np.isfinite(end) for end in ends)


def mean(
    arrays: Sequence[Array | Buffer],
    name: str,
    process_set: ProcessSet,
    op: ReduceOp = ReduceOp.AVERAGE,
    compression: int = 0,
) -> None:
    """Average arrays in place, by one operation."""
    sources = tuple(arrays)
    collectives.allreduce(
        sources, sources, name, op=op, process_set=process_set, blocking=True, compression=compression
    )


def check_exchange_options(
    exchange: Exchange, op: ReduceOp, groups: object = None, gradient_predivide_factor: float = 1.0
) -> None:
    """What every trainer asks of its arguments when an `Exchange` is one of them.

    Raises:
        InvalidArgument: They say how gradients are summed, which the exchange decides.
    """
    if op is not ReduceOp.AVERAGE or groups is not None or gradient_predivide_factor != 1.0:
        raise InvalidArgument(
            f"{type(exchange).__name__} averages all gradients together; leave out op, groups and "
            "gradient_predivide_factor"
        )


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
