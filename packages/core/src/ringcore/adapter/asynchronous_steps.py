"""What optimizers of any framework share that step by asynchronous sums: memory, what is sent, and who is waited for.

The framework's own is how the newest weights are stepped and become those of the program, and how gradients become
arrays. All of it lies in host memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ringcore import _native
from ringcore._errors import InvalidArgument
from ringcore._native import Buffer, Handle
from ringcore.adapter import bfloat16, collectives
from ringcore.adapter.arguments import check_arguments
from ringcore.adapter.asynchronous import AsynchronousSums, Offer, check_bounds
from ringcore.adapter.collectives import ReduceOp, name_or_next
from ringcore.job.lifecycle import after_init
from ringcore.job.process_sets import ProcessSet

_QUANTISED: dict[str, int] = dict(_native.COMPRESSIONS)
_KINDS = ("none", "fp16", "bf16", "int8", "int4")
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
# By a parameter's shape and the name of its dtype: makes of its memory what the framework computes with.
View = Callable[[memoryview, tuple[int, ...], str], Any]


@dataclasses.dataclass(frozen=True)
class Asynchronous:
    """The arguments of an `AsyncOptimizer` that are the same in every framework.

    Attributes:
        staleness: How many updates old a gradient may be, from 0.
        threshold: How many gradients make a sum.
        compression: What is sent, by its name: of `none`, `fp16`, `bf16`, `int8`, `int4`.
        process_set: The ranks that train together.
    """

    staleness: int
    threshold: int
    compression: str
    process_set: ProcessSet

    @staticmethod
    def checked(staleness: Any, threshold: Any, compression: str, process_set: ProcessSet) -> Asynchronous:
        """The arguments, once they have been looked at; without a threshold it is the number of ranks.

        Raises:
            InvalidArgument: They are none, or the job is elastic.
        """
        if compression not in _KINDS:
            raise InvalidArgument(
                f"AsyncOptimizer sends gradients as one of {', '.join(_KINDS)}, and {compression} is a compression of "
                "your own; use one of these"
            )
        return Asynchronous(staleness, check_bounds(staleness, threshold, process_set), compression, process_set)


def as_array(memory: memoryview, shape: tuple[int, ...], dtype: str) -> Any:
    """The `View` of numpy."""
    import numpy as np

    kind: Any = dtype
    if dtype == "bfloat16":
        import ml_dtypes

        kind = ml_dtypes.bfloat16
    return np.ndarray(shape, kind, memory)


class _Row:
    """What belongs to the parameters of one dtype, one behind the other: this rank's gradient, and what is summed up.

    Attributes:
        views: By parameter, of either half of the memory.
    """

    def __init__(self, dtype: str, shapes: Sequence[tuple[int, ...]], view: View) -> None:
        self._dtype = dtype
        item_bytes = _ITEM_BYTES[dtype]
        counts = [math.prod(shape) for shape in shapes]
        self._count = sum(counts)
        ends = list(itertools.accumulate(count * item_bytes for count in counts))
        self._memory = [_zeros(self._count * item_bytes) for _ in range(2)]
        self.views = [
            [
                view(memory[begin:end], shape, dtype)
                for begin, end, shape in zip([0, *ends[:-1]], ends, shapes, strict=True)
            ]
            for memory in self._memory
        ]

    def clear(self, half: int) -> None:
        """Let it be zeros."""
        self._bytes(half)[:] = 0

    def start(self, half: int, name: str, factor: float, compression: str, process_set: ProcessSet) -> Handle:
        """Start the sum of all ranks' rows; the handle writes it into the row that it was made of."""
        options: dict[str, Any] = {"op": ReduceOp.SUM, "postscale_factor": factor, "process_set": process_set}
        whole = Buffer(
            self._bytes(half).ctypes.data, (self._count,), collectives.DTYPE_CODES[self._dtype], self._memory[half]
        )
        is_wide = self._dtype in ("float32", "float64")
        if not is_wide or compression == "none":
            return collectives.allreduce((whole,), (whole,), name, **options)
        if compression in _QUANTISED:
            return collectives.allreduce((whole,), (whole,), name, compression=_QUANTISED[compression], **options)
        import numpy as np

        values = as_array(self._memory[half], (self._count,), self._dtype)
        if compression == "bf16":
            narrow = bfloat16.bits_of(values)
            sent = bfloat16.buffer_of(narrow)
        else:
            with np.errstate(over="ignore"):  # what is too large is infinite
                sent = narrow = values.astype(np.float16)

        def widen(_: Handle) -> None:
            values[...] = bfloat16.values_of(narrow, values.dtype) if compression == "bf16" else narrow

        return collectives.allreduce((sent,), (sent,), name, finish=widen, **options)

    def _bytes(self, half: int) -> Any:
        import numpy as np

        return np.asarray(self._memory[half])


def _zeros(nbytes: int) -> memoryview:
    """Registered memory where there is shared memory."""
    registered = collectives.allocate(nbytes) if nbytes > 0 else None
    if registered is None:
        return memoryview(bytearray(nbytes))
    memory: memoryview = memoryview(registered.view()).cast("B")[:nbytes]
    memory[:] = bytes(nbytes)
    return memory


class AsynchronousSteps:
    """One optimizer that steps by asynchronous sums, on this rank.

    Args:
        arguments: What it was made with.
        kinds: Of each parameter: the name of its dtype, and its shape.
        view: Makes the arrays that gradients are written to and read from.
        count_numbers: Tells before the first step how many numbers `step` is given.
        check: Compares the program's weights with those of the other ranks: before the first step.
        begin: Lets the newest weights be those of the program: before the first step, and once more when there are
            other ranks.
        update: Called in a thread, while `stepping` is held: steps the newest weights. Takes the numbers of the first
            rank that contributed, the gradients, which are none where no contributor has one, and which are valid in
            the call only.
        take_newest: Lets the program's weights be the newest ones; called while `stepping` is held.
    """

    def __init__(
        self, arguments: Asynchronous, kinds: Sequence[tuple[str, tuple[int, ...]]], *, view: View = as_array,
        count_numbers: Callable[[], int], check: Callable[[], None], begin: Callable[[], None],
        update: Callable[[Sequence[float], list[Any]], None], take_newest: Callable[[], None],
    ) -> None:  # fmt: skip
        self._arguments, self._count_numbers = arguments, count_numbers
        self._check, self._begin, self._update_newest, self._take_newest = check, begin, update, take_newest
        self._stepping = threading.Lock()  # Guards: the newest weights, what steps them, and `_updates`.
        self._version = self._updates = 0
        self._sums: AsynchronousSums | None = None
        self._prefix = ""
        rows: dict[str, list[int]] = {}
        for index, (dtype, _) in enumerate(kinds):
            rows.setdefault(dtype, []).append(index)
        self._rows = [_Row(dtype, [kinds[index][1] for index in row], view) for dtype, row in rows.items()]
        places = {index: (number, at) for number, row in enumerate(rows.values()) for at, index in enumerate(row)}
        self._places = [places[index] for index in range(len(kinds))]
        self._offered = 0  # Which half of the rows' memory has this rank's gradient; the other one is summed up.
        after_init(self._on_init)

    def _on_init(self) -> None:
        """The ranks may be others."""
        self._sums = None

    # ---- The program ----

    def step(self, numbers: Sequence[float], touched: Sequence[bool], write: Callable[[list[Any]], None]) -> None:
        """Offer this rank's gradient to the next sum, and go on with the newest weights.

        Waits until at most `staleness` gradients of this rank are in no weights.

        Args:
            numbers: What this rank has set for the step: rates and the like.
            touched: By parameter, whether there is a gradient.
            write: Writes the gradients into the arrays that it is given; zeros where there is none.
        """
        sums = self.started()
        sums.wait_for_room()
        write(self._views(self._offered))
        sums.offer(Offer(self._version, numbers, touched))
        sums.wait_for_sums()
        self._take()

    def synchronize(self) -> None:
        """Wait until all ranks have called this and all gradients are in the weights: the same ones on all ranks."""
        self.started().meet(self._take)

    @property
    def dropped(self) -> int:
        """How many gradients of this rank were too old to be summed up."""
        return 0 if self._sums is None else self._sums.dropped

    @property
    def oldest(self) -> int:
        """How many updates old the oldest gradient of this rank was that was summed up."""
        return 0 if self._sums is None else self._sums.oldest

    @property
    def updates(self) -> int:
        """How many sums the weights of this rank have."""
        return self._version

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Nobody steps the newest weights in here."""
        with self._stepping:
            yield

    @contextmanager
    def anew(self) -> Iterator[None]:
        """In here the state of what steps is replaced; behind it the newest weights are the program's.

        All ranks do so, behind `synchronize`.
        """
        with self._stepping:
            yield
            self._begin()
        if self._sums is not None:  # nobody makes a sum before all have what they step
            collectives.barrier(f"{self._prefix}.loaded", process_set=self._arguments.process_set)

    def started(self) -> AsynchronousSums:
        """What this rank takes part in the sums with, from the first call on."""
        if self._sums is not None:
            return self._sums
        process_set = self._arguments.process_set
        self._prefix = name_or_next(None, "asynchronous", process_set)
        if process_set.size() > 1:
            told = {field: getattr(self._arguments, field) for field in ("staleness", "threshold", "compression")}
            check_arguments("AsyncOptimizer", told, process_set, name=f"{self._prefix}.arguments")
        self._check()
        self._begin()
        self._version = self._updates = 0
        self._sums = AsynchronousSums(
            self._prefix, process_set, staleness=self._arguments.staleness, threshold=self._arguments.threshold,
            count_numbers=self._count_numbers(), count_parameters=len(self._places), take=self._begin_sum,
            sum_up=self._sum_up, update=self._update,
        )  # fmt: skip
        self._sums.start()
        return self._sums

    def _views(self, half: int) -> list[Any]:
        return [self._rows[number].views[half][place] for number, place in self._places]

    def _take(self) -> None:
        with self._stepping:
            self._take_newest()
            self._version = self._updates

    # ---- The thread that takes part in the sums ----

    def _begin_sum(self, contributes: bool) -> None:
        """Let the next sum begin with what was offered, or with zeros."""
        if contributes:
            self._offered = 1 - self._offered
        else:
            for row in self._rows:
                row.clear(1 - self._offered)

    def _sum_up(self, factor: float) -> list[Handle]:
        return [
            row.start(
                1 - self._offered, f"{self._prefix}.{index}", factor, self._arguments.compression,
                self._arguments.process_set,
            )
            for index, row in enumerate(self._rows)
        ]  # fmt: skip

    def _update(self, numbers: Sequence[float], touched: Sequence[bool]) -> None:
        views = self._views(1 - self._offered)
        with self._stepping:
            gradients = [view if is_touched else None for view, is_touched in zip(views, touched, strict=True)]
            self._update_newest(numbers, gradients)
            self._updates += 1


def write_arrays(views: Sequence[Any], gradients: Sequence[Any]) -> None:
    """Write gradients into arrays of numpy; zeros where there is none."""
    for view, gradient in zip(views, gradients, strict=True):
        view[...] = 0 if gradient is None else gradient
