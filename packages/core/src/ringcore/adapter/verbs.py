"""The verbs, once: their names, arguments, defaults and documentation, for every framework that is a `Framework`.

A framework's module has one object of `Verbs`, and its methods as functions: `allreduce = _verbs.allreduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringcore import _native
from ringcore._native import Handle, UnsupportedArray
from ringcore.adapter import collectives
from ringcore.adapter.collectives import ReduceOp, name_or_next
from ringcore.adapter.framework import Tensor
from ringcore.adapter.starts import Starts, alone, first
from ringcore.job.process_sets import ProcessSet, global_process_set, process_set_id_of
from ringcore.job.state import context

Average = ReduceOp.AVERAGE
_ALLREDUCE: int = _native.COLLECTIVES["allreduce"]
_ALLGATHER: int = _native.COLLECTIVES["allgather"]
_BROADCAST: int = _native.COLLECTIVES["broadcast"]
_REDUCESCATTER: int = _native.COLLECTIVES["reducescatter"]
_ALLTOALL: int = _native.COLLECTIVES["alltoall"]


class Verbs(Starts[Tensor]):
    """The collectives on the tensors of a framework.

    Every rank calls a verb with the same `name`, dtype and shape. Without a name the order of the calls identifies the
    operation. All raise, on every rank, `MismatchError` where ranks pass what does not fit together, `TimeoutError`
    where one does not come within `RINGCORE_TIMEOUT_S`, and `PeerLostError` where one has died or left.
    """

    def allreduce(
        self,
        tensor: Tensor,
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Tensor:
        """Reduce a tensor over all ranks; every rank gets the same bits in a new tensor.

        Args:
            tensor: Of any shape, in host memory or on a GPU: uint8, int8, uint16, int16, int32, int64, float16,
                bfloat16, float32, float64, bool. In host memory 16-bit floats are summed in float32 and rounded once.
            op: `Average` (floats only), `Sum`, `Min`, `Max` (NaN wins), `Product`, or `Adasum` (Maleki et al., MLSys
                2021; floats in host memory).
            name: Identifies the tensor on all ranks; at most 4096 bytes of UTF-8. Without one the order of the calls
                does.
            prescale_factor: Multiplied into the tensor before the reduction. Integers take whole factors, bool none.
            postscale_factor: Multiplied into the result.
            process_set: The ranks that take part.
            out: Where the result goes, contiguous, in host memory, of the tensor's dtype and shape; it is returned.

        Raises:
            InvalidArgument: Another device, an unknown dtype, an average or a fraction of integers, an `out` that does
                not fit.
            MismatchError: Another rank used this name with another dtype, shape, op or factor. On every rank.
            TimeoutError: A rank did not submit it within `RINGCORE_TIMEOUT_S`, or nothing of it moved for so long. On
                every rank.
            PeerLostError: A rank died or left. On every rank.
        """
        place = self._place(tensor, out) if op != ReduceOp.ADASUM else None
        if place is not None:
            name = name_or_next(name, "allreduce", process_set)
            if self._run_into(
                _ALLREDUCE, tensor, place, name, process_set, op=op, prescale=prescale_factor,
                postscale=postscale_factor,
            ):  # fmt: skip
                return place
        result: Tensor = self.start_allreduce(
            (tensor,), name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, out=alone(out), blocking=True, finish=first,
        ).synchronize()  # fmt: skip
        return result

    def allreduce_(
        self,
        tensor: Tensor,
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Tensor:
        """`allreduce` in place: the tensor holds the result afterwards and is returned."""
        # As short as it can be, for the small ones of every step: no call between here and the engine.
        current = context()
        set_id = 0 if process_set is global_process_set else process_set_id_of(process_set, "allreduce", name)
        if name is None:
            name = current.next_name("allreduce", set_id)
        try:
            if op < 0 or (self._is_lazy is not None and self._is_lazy(tensor)):
                raise UnsupportedArray
            current.runtime.allreduce_in_place(tensor, name, op, prescale_factor, postscale_factor, set_id)
        except TypeError:
            self.start_allreduce_of_copies(
                (tensor,), name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
                process_set=process_set, in_place=True, blocking=True,
            ).synchronize()  # fmt: skip
        return tensor

    def allreduce_async(
        self,
        tensor: Tensor,
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
        priority: int = 0,
    ) -> Handle:
        """Start an `allreduce`; `synchronize` returns the result. The tensor may not be written until then.

        Args:
            tensor: See `allreduce`, as for all but the last.
            op: `Average` (floats only), `Sum`, `Min`, `Max`, `Product`, `Adasum`.
            name: Identifies the tensor on all ranks.
            prescale_factor: Multiplied into the tensor before the reduction. Integers take whole factors, bool none.
            postscale_factor: Multiplied into the result.
            process_set: The ranks that take part.
            priority: The larger, the sooner; on the CPU, and not over MPI, it overtakes what has begun.
            out: See `allreduce`.
        """
        return self.start_allreduce(
            (tensor,), name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, out=alone(out), priority=priority, finish=first,
        )  # fmt: skip

    def allreduce_async_(
        self,
        tensor: Tensor,
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        priority: int = 0,
    ) -> Handle:
        """Start an `allreduce_`. The tensor may be neither read nor written until `synchronize` returns."""
        # The way of every gradient of a loop written by hand: as short as `allreduce_`.
        current = context()
        tensors = (tensor,)
        set_id = 0 if process_set is global_process_set else process_set_id_of(process_set, "allreduce", name)
        if name is None:
            name = current.next_name("allreduce", set_id)
        try:
            if op < 0 or (self._is_lazy is not None and self._is_lazy(tensor)):
                raise UnsupportedArray
            return current.runtime.submit(
                _ALLREDUCE, name, tensors, tensors, op, 0, prescale_factor, postscale_factor, set_id, priority, (),
                False, tensor, None,
            )  # fmt: skip
        except TypeError:
            return self.start_allreduce_of_copies(
                tensors, name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
                process_set=process_set, priority=priority, in_place=True, finish=first,
            )  # fmt: skip

    def grouped_allreduce(
        self,
        tensors: Sequence[Tensor],
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        out: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """`allreduce` of several tensors that are released together: all of them run, or none."""
        results: list[Tensor] = self.grouped_allreduce_async(
            tensors, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, out=out,
        ).synchronize()  # fmt: skip
        return results

    def grouped_allreduce_(
        self,
        tensors: Sequence[Tensor],
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[Tensor]:
        """`grouped_allreduce` in place."""
        results: list[Tensor] = self.grouped_allreduce_async_(
            tensors, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set,
        ).synchronize()  # fmt: skip
        return results

    def grouped_allreduce_async(
        self,
        tensors: Sequence[Tensor],
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        out: Sequence[Tensor] | None = None,
        priority: int = 0,
    ) -> Handle:
        """Start a `grouped_allreduce`."""
        if not tensors:
            return Handle.of_nothing([])
        return self.start_allreduce(
            tuple(tensors), name, kind="grouped_allreduce", op=op, prescale_factor=prescale_factor,
            postscale_factor=postscale_factor, process_set=process_set, priority=priority,
            out=out,
        )  # fmt: skip

    def grouped_allreduce_async_(
        self,
        tensors: Sequence[Tensor],
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        priority: int = 0,
    ) -> Handle:
        """Start a `grouped_allreduce_`."""
        if not tensors:
            return Handle.of_nothing([])
        return self.start_allreduce(
            tuple(tensors), name, kind="grouped_allreduce", op=op, prescale_factor=prescale_factor,
            postscale_factor=postscale_factor, process_set=process_set, priority=priority, in_place=True,
        )  # fmt: skip

    def allgather(
        self,
        tensor: Tensor,
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Tensor:
        """Concatenate every rank's tensor along the first dimension, which may differ between ranks.

        Args:
            tensor: See `allreduce`.
            name: Identifies the tensor on all ranks.
            process_set: The ranks that take part.
            out: Where the result goes, contiguous, in host memory, of the tensor's dtype, with the rows of all ranks;
                it is returned. The tensor may be this rank's rows of it.

        Raises:
            MismatchError: Dtypes or other dimensions differ, or an `out` has not the rows of the result. On every rank,
                and nothing was written.
        """
        if out is not None:
            name = name_or_next(name, "allgather", process_set)
            if self._run_into(_ALLGATHER, tensor, out, name, process_set):
                return out
        result: Tensor = self.start_allgather(
            [tensor], name, process_set=process_set, out=alone(out), blocking=True, finish=first
        ).synchronize()
        return result

    def allgather_async(
        self,
        tensor: Tensor,
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Handle:
        """Start an `allgather`."""
        return self.start_allgather([tensor], name, process_set=process_set, out=alone(out), finish=first)

    def grouped_allgather(
        self,
        tensors: Sequence[Tensor],
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        out: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """`allgather` of several tensors that are released together: all of them run, or none."""
        results: list[Tensor] = self.grouped_allgather_async(
            tensors, name=name, process_set=process_set, out=out
        ).synchronize()
        return results

    def grouped_allgather_async(
        self,
        tensors: Sequence[Tensor],
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        out: Sequence[Tensor] | None = None,
    ) -> Handle:
        """Start a `grouped_allgather`."""
        if not tensors:
            return Handle.of_nothing([])
        return self.start_allgather(tensors, name, kind="grouped_allgather", process_set=process_set, out=out)

    def broadcast(
        self,
        tensor: Tensor,
        root_rank: int,
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Tensor:
        """A new tensor with the root's values.

        Args:
            tensor: Of the same shape and dtype on every rank.
            root_rank: Rank of the job whose values win.
            name: Identifies the tensor on all ranks.
            process_set: The ranks that take part.
            out: Where the values go; see `allreduce`.

        Raises:
            MismatchError: Ranks named different roots, shapes or dtypes. On every rank.
            InvalidArgument: The root is no member of the process set.
        """
        place = self._place(tensor, out)
        if place is not None:
            name = name_or_next(name, "broadcast", process_set)
            root = collectives.root_of(root_rank, name, process_set)
            if self._run_into(_BROADCAST, tensor, place, name, process_set, root=root):
                return place
        result: Tensor = self.start_broadcast(
            tensor, root_rank, name, process_set=process_set, out=out, blocking=True
        ).synchronize()
        return result

    def broadcast_(
        self,
        tensor: Tensor,
        root_rank: int,
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Tensor:
        """`broadcast` in place."""
        name = name_or_next(name, "broadcast", process_set)
        root = collectives.root_of(root_rank, name, process_set)
        if self._run_into(_BROADCAST, tensor, tensor, name, process_set, root=root):
            return tensor
        result: Tensor = self.start_broadcast(
            tensor, root_rank, name, process_set=process_set, in_place=True, blocking=True
        ).synchronize()
        return result

    def broadcast_async(
        self,
        tensor: Tensor,
        root_rank: int,
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Handle:
        """Start a `broadcast`."""
        return self.start_broadcast(tensor, root_rank, name, process_set=process_set, out=out)

    def broadcast_async_(
        self,
        tensor: Tensor,
        root_rank: int,
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Handle:
        """Start a `broadcast_`."""
        return self.start_broadcast(tensor, root_rank, name, process_set=process_set, in_place=True)

    def reduce(
        self,
        tensor: Tensor,
        root_rank: int,
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Tensor | None:
        """Reduce a tensor over all ranks to one of them; gradients do not go through it.

        Args:
            tensor: See `allreduce`, as for the factors.
            root_rank: Rank of the job that gets the result.
            op: `Average` (floats only), `Sum`, `Min`, `Max`, `Product`; not `Adasum`.
            name: Identifies the tensor on all ranks.
            prescale_factor: Multiplied into the tensor before the reduction. Integers take whole factors, bool none.
            postscale_factor: Multiplied into the result.
            process_set: The ranks that take part.
            out: Where the result goes on the root, contiguous, in host memory, of the tensor's dtype and shape: the
                tensor itself, if you like.

        Returns:
            A new tensor, or `out`, on the root; None elsewhere, where the tensor stays as it is.

        Raises:
            MismatchError: Ranks named different roots, shapes, dtypes, ops or factors. On every rank.
            InvalidArgument: The root is no member of the process set, or see `allreduce`.
        """
        result: Tensor | None = self.start_reduce(
            tensor, root_rank, name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, out=out, blocking=True,
        ).synchronize()  # fmt: skip
        return result

    def reduce_async(
        self,
        tensor: Tensor,
        root_rank: int,
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Handle:
        """Start a `reduce`."""
        return self.start_reduce(
            tensor, root_rank, name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, out=out,
        )  # fmt: skip

    def gather(
        self,
        tensor: Tensor,
        root_rank: int = 0,
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Tensor | None:
        """Concatenate every rank's tensor along the first dimension on one of them; gradients do not go through it.

        Args:
            tensor: See `allgather`: of one dtype on all ranks, and of one shape but for the first dimension.
            root_rank: Rank of the job that gets the result.
            name: Identifies the tensor on all ranks.
            process_set: The ranks that take part.
            out: Where the result goes on the root, contiguous, in host memory, of the tensor's dtype, with all ranks'
                rows.

        Returns:
            A new tensor, or `out`, on the root, with the rows in the order of the ranks; None elsewhere.

        Raises:
            MismatchError: Ranks named different roots, dtypes or shapes, or the root's `out` has not the rows that
                come. On every rank, and nothing was written.
            InvalidArgument: The root is no member of the process set.
        """
        result: Tensor | None = self.start_gather(
            tensor, root_rank, name, process_set=process_set, out=out, blocking=True
        ).synchronize()
        return result

    def gather_async(
        self,
        tensor: Tensor,
        root_rank: int = 0,
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Handle:
        """Start a `gather`."""
        return self.start_gather(tensor, root_rank, name, process_set=process_set, out=out)

    def scatter(
        self,
        tensor: Tensor,
        root_rank: int = 0,
        splits: Tensor | Sequence[int] | None = None,
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Tensor:
        """Deal out the rows of one rank's tensor: each rank gets its own; gradients do not go through it.

        Args:
            tensor: On the root, all ranks' rows in the order of the ranks. Elsewhere any tensor of its dtype and of its
                shape but for the first dimension, such as one of no rows: its values are not looked at.
            root_rank: Rank of the job whose rows these are.
            splits: On the root, how many rows each rank gets; none: all get as many. Elsewhere it is not looked at.
            name: Identifies the tensor on all ranks.
            process_set: The ranks that take part.
            out: Where this rank's rows go, contiguous, in host memory, of the tensor's dtype, and apart from it.

        Returns:
            A new tensor, or `out`, with this rank's rows.

        Raises:
            MismatchError: Ranks named different roots, dtypes or shapes, the splits do not fit the root's tensor or the
                number of ranks, or an `out` has not the rows that come. On every rank, and nothing was written.
            InvalidArgument: The root is no member of the process set, or has no splits and rows that cannot be divided
                evenly.
        """
        result: Tensor = self.start_scatter(
            tensor, root_rank, splits, name, process_set=process_set, out=out, blocking=True
        ).synchronize()
        return result

    def scatter_async(
        self,
        tensor: Tensor,
        root_rank: int = 0,
        splits: Tensor | Sequence[int] | None = None,
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Handle:
        """Start a `scatter`."""
        return self.start_scatter(tensor, root_rank, splits, name, process_set=process_set, out=out)

    def reducescatter(
        self,
        tensor: Tensor,
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Tensor:
        """Reduce over all ranks; each gets its share of the rows (the first ones one more where rows do not divide).

        Args:
            tensor: Of at least one dimension; see `allreduce`, as for the rest.
            op: `Average` (floats only), `Sum`, `Min`, `Max`, `Product`; not `Adasum`.
            name: Identifies the tensor on all ranks.
            prescale_factor: Multiplied into the tensor before the reduction. Integers take whole factors, bool none.
            postscale_factor: Multiplied into the result.
            process_set: The ranks that take part.
            out: Where this rank's rows go, contiguous, in host memory, of the tensor's dtype; it is returned.
        """
        if out is not None and op != ReduceOp.ADASUM:
            name = name_or_next(name, "reducescatter", process_set)
            if self._run_into(
                _REDUCESCATTER, tensor, out, name, process_set, op=op, prescale=prescale_factor,
                postscale=postscale_factor,
            ):  # fmt: skip
                return out
        result: Tensor = self.start_reducescatter(
            [tensor], name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, out=alone(out), blocking=True, finish=first,
        ).synchronize()  # fmt: skip
        return result

    def reducescatter_async(
        self,
        tensor: Tensor,
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Handle:
        """Start a `reducescatter`."""
        return self.start_reducescatter(
            [tensor], name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, out=alone(out), finish=first,
        )  # fmt: skip

    def grouped_reducescatter(
        self,
        tensors: Sequence[Tensor],
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        out: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """`reducescatter` of several tensors that are released together: all of them run, or none."""
        results: list[Tensor] = self.grouped_reducescatter_async(
            tensors, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, out=out,
        ).synchronize()  # fmt: skip
        return results

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[Tensor],
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        out: Sequence[Tensor] | None = None,
    ) -> Handle:
        """Start a `grouped_reducescatter`."""
        if not tensors:
            return Handle.of_nothing([])
        return self.start_reducescatter(
            tensors, name, kind="grouped_reducescatter", op=op, prescale_factor=prescale_factor,
            postscale_factor=postscale_factor, process_set=process_set, out=out,
        )  # fmt: skip

    def alltoall(
        self,
        tensor: Tensor,
        splits: Tensor | Sequence[int] | None = None,
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Any:
        """Send `splits[r]` rows to each rank r and receive theirs; without splits the rows are divided evenly.

        Args:
            tensor: See `allreduce`.
            splits: Numbers of rows, one for each rank.
            name: Identifies the tensor on all ranks.
            process_set: The ranks that take part.
            out: Where the received rows go, contiguous, in host memory, of the tensor's dtype, and apart from it.

        Returns:
            The received rows in the order of the ranks; with `splits` a pair (rows, how many came from each rank).

        Raises:
            MismatchError: A rank's splits do not fit its tensor or the number of ranks, or an `out` has not the rows
                that come. On every rank, and nothing was written.
        """
        if out is not None and splits is None:
            name = name_or_next(name, "alltoall", process_set)
            if self._run_into(_ALLTOALL, tensor, out, name, process_set):
                return out
        return self.start_alltoall(tensor, splits, name, process_set=process_set, out=out, blocking=True).synchronize()

    def alltoall_async(
        self,
        tensor: Tensor,
        splits: Tensor | Sequence[int] | None = None,
        *,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        out: Tensor | None = None,
    ) -> Handle:
        """Start an `alltoall`."""
        return self.start_alltoall(tensor, splits, name, process_set=process_set, out=out)

    def _place(self, tensor: Tensor, out: Tensor | None) -> Tensor | None:
        """Where a result of the tensor's shape goes: without the caller's a new one, if the engine can look at it."""
        if out is not None:
            return out
        try:
            return self._framework.empty_like(tensor)
        except TypeError:
            return None

    def _run_into(
        self, collective: int, tensor: Tensor, out: Tensor, name: str, process_set: ProcessSet, *, op: int = 0,
        root: int = 0, prescale: float = 1.0, postscale: float = 1.0,
    ) -> bool:  # fmt: skip
        """Carry out a collective of one tensor into another, without a handle; false where that needs copies."""
        is_lazy = self._is_lazy
        if is_lazy is not None and (is_lazy(tensor) or is_lazy(out)):
            return False
        set_id = (
            0
            if process_set is global_process_set
            else process_set_id_of(process_set, collectives.KINDS[collective], name)
        )
        try:
            context().runtime.run_into(collective, tensor, out, name, op, root, prescale, postscale, set_id)
        except TypeError:  # an array that needs a copy, or an argument of which the longer way tells
            return False
        return True

    def barrier(self, *, process_set: ProcessSet = global_process_set) -> None:
        """Return when all ranks have called it."""
        collectives.barrier(name_or_next(None, "barrier", process_set), process_set=process_set)

    def join(self, *, process_set: ProcessSet = global_process_set) -> int:
        """Take part in the others' allreduces with zeros until all ranks have called `join`.

        For loops of different length: call it after the loop. Averages are still divided by the number of all ranks.

        Returns:
            The rank that joined last.
        """
        return collectives.join(process_set=process_set)
