"""How an operation on tensors of a framework starts: each collective once, for one tensor and for a group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Generic

from ringcore._errors import InvalidArgument
from ringcore._native import Buffer, Handle, UnsupportedArray
from ringcore.adapter import collectives
from ringcore.adapter.collectives import ReduceOp
from ringcore.adapter.framework import Finish, Framework, Tensor
from ringcore.adapter.refusals import refusing
from ringcore.job.process_sets import ProcessSet
from ringcore.job.state import context

first = itemgetter(0)


def alone(out: Tensor | None) -> tuple[Tensor] | None:
    """The place for the result of a single tensor, as that of a group of one."""
    return None if out is None else (out,)


class Starts(Generic[Tensor]):
    """What the verbs are made of, for frameworks that have another surface: pytrees, say.

    Each function takes the tensors of a group, or a single one; `finish` makes of the list of results what
    `Handle.synchronize` returns.

    Args:
        framework: Whose tensors these are.
        is_lazy: Whether a tensor's memory holds other values than the tensor (of PyTorch: the negated ones); None: no
            tensor is like that. A C function: it runs once a gradient.
    """

    def __init__(self, framework: Framework[Tensor], is_lazy: Callable[[Tensor], bool] | None = None) -> None:
        self._framework = framework
        self._is_lazy = is_lazy

    def start_allreduce(
        self,
        tensors: tuple[Tensor, ...],
        name: str | None,
        *,
        kind: str = "allreduce",
        op: ReduceOp,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        out: Sequence[Tensor] | None = None,
        priority: int = 0,
        in_place: bool = False,
        blocking: bool = False,
        finish: Finish = list,
        compression: int = 0,
    ) -> Handle:
        """Start an allreduce."""
        name = collectives.name_or_next(name, kind, process_set)
        try:
            if self._is_lazy is not None and any(map(self._is_lazy, tensors)):
                raise UnsupportedArray
            if in_place:
                targets = tensors
            elif out is not None:
                targets = self._ready(out)
            else:
                targets = tuple([self._framework.empty_like(tensor) for tensor in tensors])
            return collectives.allreduce(
                tensors, targets, name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
                process_set=process_set, priority=priority, blocking=blocking, result=finish(targets),
                compression=compression,
            )  # fmt: skip
        except TypeError:  # the engine cannot look at them, or may not write into them
            return self.start_allreduce_of_copies(
                tensors, name, kind=kind, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
                process_set=process_set, out=out, priority=priority, in_place=in_place, blocking=blocking,
                finish=finish, compression=compression,
            )  # fmt: skip

    def start_allreduce_of_copies(
        self,
        tensors: tuple[Tensor, ...],
        name: str | None,
        *,
        kind: str = "allreduce",
        op: ReduceOp,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        out: Sequence[Tensor] | None = None,
        priority: int = 0,
        in_place: bool = False,
        blocking: bool = False,
        finish: Finish = list,
        compression: int = 0,
    ) -> Handle:
        """`start_allreduce` of tensors that the engine may not be able to work on as they are."""
        framework = self._framework
        name = collectives.name_or_next(name, kind, process_set)
        with refusing(kind, name, process_set):
            collectives.check_op(op)
            sources = [framework.contiguous(tensor) for tensor in tensors]
            arrays = self._buffers(sources, writable=in_place)
            results = sources if in_place else list(map(framework.empty_like, sources)) if out is None else list(out)
            targets = self._outputs(out) or (arrays if in_place else self._buffers(results))

        def done(_: Handle) -> Any:
            return finish(self._written_back(results, tensors) if in_place else results)

        return collectives.allreduce(
            arrays, targets, name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, priority=priority, blocking=blocking, finish=done, compression=compression,
        )  # fmt: skip

    def start_allgather(
        self,
        tensors: Sequence[Tensor],
        name: str | None,
        *,
        kind: str = "allgather",
        process_set: ProcessSet,
        out: Sequence[Tensor] | None = None,
        priority: int = 0,
        blocking: bool = False,
        finish: Finish = list,
    ) -> Handle:
        """Start an allgather."""
        name = collectives.name_or_next(name, kind, process_set)
        if out is not None:  # without a look at them, where the engine can look itself
            with contextlib.suppress(UnsupportedArray):
                return collectives.allgather(
                    self._ready(tensors), name, targets=self._ready(out), process_set=process_set, priority=priority,
                    blocking=blocking, result=finish(out),
                )  # fmt: skip
        with refusing(kind, name, process_set):
            sources = self._buffers(map(self._framework.contiguous, tensors))
            targets = self._outputs(out)

        def done(handle: Handle) -> Any:
            return finish(out or self._results(handle, sources, lambda index: sum(handle.rows(index))))

        return collectives.allgather(
            sources, name, targets=targets, process_set=process_set, priority=priority, blocking=blocking, finish=done
        )

    def start_reducescatter(
        self,
        tensors: Sequence[Tensor],
        name: str | None,
        *,
        kind: str = "reducescatter",
        op: ReduceOp,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        out: Sequence[Tensor] | None = None,
        blocking: bool = False,
        finish: Finish = list,
    ) -> Handle:
        """Start a reducescatter."""
        name = collectives.name_or_next(name, kind, process_set)
        if out is not None:
            with contextlib.suppress(UnsupportedArray):
                return collectives.reducescatter(
                    self._ready(tensors), name, targets=self._ready(out), op=op, prescale_factor=prescale_factor,
                    postscale_factor=postscale_factor, process_set=process_set, blocking=blocking, result=finish(out),
                )  # fmt: skip
        with refusing(kind, name, process_set):
            sources = self._buffers(map(self._framework.contiguous, tensors))
            targets = self._outputs(out)

        def done(handle: Handle) -> Any:
            rows = [share_of(source.shape[0], process_set) for source in sources]
            return finish(out or self._results(handle, sources, rows.__getitem__))

        return collectives.reducescatter(
            sources, name, targets=targets, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, blocking=blocking, finish=done,
        )  # fmt: skip

    def start_alltoall(
        self,
        tensor: Tensor,
        splits: Any,
        name: str | None,
        *,
        process_set: ProcessSet,
        out: Tensor | None = None,
        blocking: bool = False,
    ) -> Handle:
        """Start an alltoall."""
        name = collectives.name_or_next(name, "alltoall", process_set)
        if out is not None and splits is None:  # without a look at them, where the engine can look itself
            with contextlib.suppress(UnsupportedArray):
                (ready,) = self._ready((tensor,))
                (target,) = self._ready((out,))
                return collectives.alltoall(
                    ready, None, name, process_set=process_set, target=target, blocking=blocking, result=out
                )
        with refusing("alltoall", name, process_set):
            source = self._framework.as_buffer(self._framework.contiguous(tensor))
            (place,) = self._outputs(alone(out)) or (None,)

        def done(handle: Handle) -> Any:
            rows = handle.rows()
            received = out
            if out is None:
                received = self._framework.result_of(handle, (sum(rows), *source.shape[1:]), source, 0)
            return received if splits is None else (received, self._framework.row_counts(list(rows), splits))

        return collectives.alltoall(
            source, splits, name, process_set=process_set, target=place, blocking=blocking, finish=done
        )

    def start_broadcast(
        self,
        tensor: Tensor,
        root_rank: int,
        name: str | None,
        *,
        process_set: ProcessSet,
        out: Tensor | None = None,
        in_place: bool = False,
        blocking: bool = False,
        finish: Finish = first,
    ) -> Handle:
        """Start a broadcast; of a single tensor: those of a group would have to be of one dtype."""
        framework = self._framework
        name = collectives.name_or_next(name, "broadcast", process_set)
        if in_place or out is not None:
            with contextlib.suppress(UnsupportedArray):
                (ready,) = self._ready((tensor,))
                target = ready if in_place or out is None else self._ready((out,))[0]
                return collectives.broadcast(
                    ready, target, root_rank, name, process_set=process_set, blocking=blocking, result=finish((target,))
                )
        with refusing("broadcast", name, process_set):
            source = framework.contiguous(tensor)
            result = source if in_place else framework.empty_like(source) if out is None else out
            array = framework.as_moved(source, writable=in_place)
            (place,) = self._outputs(alone(out)) or (array if in_place else framework.as_moved(result),)

        def done(_: Handle) -> Any:
            return finish(self._written_back([result], [tensor]) if in_place else [result])

        return collectives.broadcast(
            array, place, root_rank, name, process_set=process_set, blocking=blocking, finish=done
        )

    def start_reduce(
        self,
        tensor: Tensor,
        root_rank: int,
        name: str | None,
        *,
        op: ReduceOp,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        out: Tensor | None = None,
        blocking: bool = False,
        finish: Finish = first,
    ) -> Handle:
        """Start a reduce; elsewhere than on the root the handle's result is None."""
        framework = self._framework
        name = collectives.name_or_next(name, "reduce", process_set)
        with refusing("reduce", name, process_set):
            source = framework.contiguous(tensor)
            array = framework.as_buffer(source)
            result = place = None
            if root_rank == context().rank:
                result = framework.empty_like(source) if out is None else out
                (place,) = self._outputs(alone(out)) or (framework.as_buffer(result),)

        def done(_: Handle) -> Any:
            return None if place is None else finish([result])

        return collectives.reduce(
            array, place, root_rank, name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, blocking=blocking, finish=done,
        )  # fmt: skip

    def start_gather(
        self,
        tensor: Tensor,
        root_rank: int,
        name: str | None,
        *,
        process_set: ProcessSet,
        out: Tensor | None = None,
        blocking: bool = False,
    ) -> Handle:
        """Start a gather; elsewhere than on the root the handle's result is None."""
        is_root = root_rank == context().rank
        name = collectives.name_or_next(name, "gather", process_set)
        with refusing("gather", name, process_set):
            source = self._framework.as_buffer(self._framework.contiguous(tensor))
            (place,) = (self._outputs(alone(out)) if is_root else ()) or (None,)

        def done(handle: Handle) -> Any:
            if not is_root or out is not None:
                return out if is_root else None
            return self._framework.result_of(handle, (sum(handle.rows()), *source.shape[1:]), source, 0)

        return collectives.gather(
            source, root_rank, name, process_set=process_set, target=place, blocking=blocking, finish=done
        )

    def start_scatter(
        self,
        tensor: Tensor,
        root_rank: int,
        splits: Any,
        name: str | None,
        *,
        process_set: ProcessSet,
        out: Tensor | None = None,
        blocking: bool = False,
    ) -> Handle:
        """Start a scatter."""
        name = collectives.name_or_next(name, "scatter", process_set)
        with refusing("scatter", name, process_set):
            source = self._framework.as_buffer(self._framework.contiguous(tensor))
            (place,) = self._outputs(alone(out)) or (None,)

        def done(handle: Handle) -> Any:
            if out is not None:
                return out
            return self._framework.result_of(handle, (sum(handle.rows()), *source.shape[1:]), source, 0)

        return collectives.scatter(
            source, root_rank, splits if root_rank == context().rank else None, name, process_set=process_set,
            target=place, blocking=blocking, finish=done,
        )  # fmt: skip

    def _ready(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Tensors whose memory holds what they are, for the engine to look at.

        Raises:
            UnsupportedArray: One holds other values.
        """
        if self._is_lazy is not None and any(map(self._is_lazy, tensors)):
            raise UnsupportedArray
        return tuple(tensors)

    def _outputs(self, out: Sequence[Tensor] | None) -> tuple[Buffer, ...]:
        """The caller's places for the results; none where there are none."""
        if out is None:
            return ()
        try:
            places = tuple([self._framework.as_output(each) for each in out])
        except InvalidArgument as error:
            raise InvalidArgument(f"out: {error}") from None
        if any(place.device >= 0 for place in places):
            raise InvalidArgument(
                "out: on a GPU results have memory of the engine's; leave out= out, and copy what is returned"
            )
        return places

    def _buffers(self, tensors: Iterable[Tensor], *, writable: bool = False) -> tuple[Buffer, ...]:
        return tuple([self._framework.as_buffer(tensor, writable=writable) for tensor in tensors])

    def _results(self, handle: Handle, sources: Sequence[Buffer], rows: Callable[[int], int]) -> list[Tensor]:
        return [
            self._framework.result_of(handle, (rows(index), *source.shape[1:]), source, index)
            for index, source in enumerate(sources)
        ]

    def _written_back(self, results: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        for result, tensor in zip(results, tensors, strict=True):
            self._framework.copy_back(result, tensor)
        return list(tensors)


def share_of(rows: int, process_set: ProcessSet) -> int:
    """Of so many rows that a reducescatter deals out, how many this rank gets: the first ranks one more."""
    members = process_set.size()
    return rows // members + (process_set.rank() < rows % members)
