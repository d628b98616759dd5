"""The collectives of torch.distributed as operations of the engine."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from ringcore import InvalidArgument, MismatchError, adapter
from ringcore import TimeoutError as RingcoreTimeoutError
from ringcore.adapter import Handle, ProcessSet, context, name_or_next, refusing
from ringcore.adapter import ReduceOp as RingReduceOp

from ringcore_torch import _operations as plain
from ringcore_torch._bridge import as_buffer, as_contiguous, copy_back, result_of
from ringcore_torch.distributed.completer import Completer
from ringcore_torch.distributed.flat import Flat, check_output, shares_memory, targets_of
from ringcore_torch.distributed.membership import Membership
from ringcore_torch.distributed.reduce_ops import BITWISE, OPS, reduce_op, scaled
from ringcore_torch.distributed.work import CoalescedWork, RingWork
from ringcore_torch.sparse import sparse_allreduce_async

Tensor = torch.Tensor
# Kinds of devices whose tensors it takes.
DEVICES = ("cpu", "cuda")


class RingProcessGroup(dist.ProcessGroup):
    """A process group of torch.distributed whose operations the engine runs.

    Args:
        membership: The ranks, and how they find each other.
        name: Of the group; different for groups of the same ranks.
        limit_s: How long `wait` waits where it is not told; infinity: as long as the engine does.
    """

    def __init__(self, membership: Membership, name: str, limit_s: float = math.inf) -> None:
        super().__init__(membership.rank, membership.size)  # type: ignore[call-arg]
        self._membership = membership
        self._set: ProcessSet = membership.process_set
        self._limit_s = limit_s
        self._name = name
        self._description = ""
        self._prefix = f"torch.{name}."
        # On an earlier group of this name the ranks may have made different calls, of which some were refused.
        context().forget_names(self._prefix)
        self._completer = Completer(f"ringcore-futures-{name}")
        self._coalesced: list[RingWork] | None = None

    # ---- What torch.distributed asks a group ----

    def getBackendName(self) -> str:  # noqa: D102, N802
        return "ring"

    def name(self) -> str:  # noqa: D102
        return "ring"

    def getRank(self) -> int:  # noqa: D102, N802
        return self._membership.rank

    def getSize(self) -> int:  # noqa: D102, N802
        return self._membership.size

    def rank(self) -> int:  # noqa: D102
        return self._membership.rank

    def size(self) -> int:  # noqa: D102
        return self._membership.size

    def setGroupName(self, name: str) -> None:  # noqa: D102, N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: D102, N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: D102, N802
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: D102, N802
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        return list(map(torch.device, DEVICES))

    def _get_backend(self, device: Any) -> RingProcessGroup:
        """Of `init_process_group(device_id=...)`, among others: the group is its own backend for all its devices."""
        if torch.device(device).type not in DEVICES:
            raise RuntimeError(  # which is what PyTorch's own groups raise, and its callers expect
                f"the backend 'ring' takes tensors of {' and '.join(DEVICES)}, not of {torch.device(device).type}"
            )
        return self

    # What PyTorch asks a backend before it uses more of it.
    supports_splitting = supports_coalescing = supports_time_estimate = False

    def supports_tensor_alloc(self, device: Any) -> bool:  # noqa: D102
        return False

    def shutdown(self) -> None:
        """Leave; the engine as well, if it was started for this group."""
        self._completer.close()
        self._membership.leave()

    def abort(self) -> None:
        """As `shutdown`."""
        self.shutdown()

    def _set_sequence_number_for_group(self) -> None:
        pass  # names of operations count

    def _next_name(self, kind: str, process_set: ProcessSet | None = None) -> str:
        return name_or_next(None, self._prefix + kind, process_set or self._set)

    def _named(self, kind: str) -> tuple[str, refusing]:
        """The name of the next operation, and a block in which what this rank refuses is told to the others."""
        name = self._next_name(kind)
        return name, refusing(kind, name, self._set)

    def _work(
        self, handle: Handle, tensors: Sequence[Tensor], finish: Callable[[Handle], None] | None = None, *,
        like: Tensor | None = None,
    ) -> RingWork:  # fmt: skip
        """What a collective returns.

        Args:
            handle: Of the engine.
            tensors: The results.
            finish: See `RingWork`.
            like: Lies where the tensors of this rank do; for results that may be none.
        """
        like = tensors[0] if like is None and tensors else like
        device = like.device if like is not None and like.is_cuda else None
        work = RingWork(handle, list(tensors), self._completer, finish, self._limit_s, device)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _parts(self, source: Flat, handle: Handle, expected: Sequence[int], index: int = 0) -> list[Tensor]:
        """What came from each rank. The arguments are those of `_check_counts`."""
        self._check_counts(source, handle, expected, index)
        return source.parts(handle, expected, index)

    def _check_counts(self, source: Flat, handle: Handle, expected: Sequence[int], index: int = 0) -> None:
        """Look whether all ranks have sent what this one expects.

        Args:
            source: What this rank has sent.
            handle: Of the allgather or alltoall.
            expected: Elements from each rank.
            index: Of the tensor in a group.

        Raises:
            MismatchError: Another number of elements came.
        """
        for rank, (came, wanted) in enumerate(zip(source.counts(handle, index), expected, strict=True)):
            if came != wanted:
                sender, receiver = self._membership.job_rank(rank), self._membership.job_rank(self.rank())
                raise MismatchError(
                    f"'{handle.name}': rank {sender} sent {came} elements, and rank {receiver} has an output of "
                    f"{wanted} for them; give outputs the shapes of what the ranks send"
                )

    # ---- Reductions ----

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> RingWork:
        """Reduce in place. An average of integers is rounded towards zero."""
        op, factor = reduce_op(opts)
        (tensor,) = tensors
        if tensor.is_sparse:
            return self._sparse_allreduce(tensor, op)
        if op in BITWISE:
            return self._bitwise(tensors, op, range(self.size()))
        total = scaled(tensor, factor)
        handle, result = self._start_allreduce(total, op, factor, "allreduce")

        def finish(_: Handle) -> None:
            result()
            if total is not tensor:
                copy_back(total, tensor)

        return self._work(handle, tensors, finish)

    def _start_allreduce(self, tensor: Tensor, op: Any, factor: Any, kind: str) -> tuple[Handle, Callable[[], None]]:
        """In place; the function completes the result when the operation has ended."""
        divides = op == dist.ReduceOp.AVG and not tensor.is_floating_point()
        handle = plain.allreduce_async_(
            tensor, op=RingReduceOp.SUM if divides else OPS[op], name=self._next_name(kind), process_set=self._set,
            prescale_factor=1.0 if isinstance(factor, Tensor) else factor,
        )  # fmt: skip

        def result() -> None:
            handle.synchronize()
            if divides:
                tensor.detach().div_(self.size(), rounding_mode="trunc")

        return handle, result

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> RingWork:
        """Reduce several tensors in place, in one operation."""
        name, refusal = self._named("allreduce_coalesced")
        with refusal:
            op, factor = reduce_op(opts)
            if op in BITWISE or isinstance(factor, Tensor):
                raise InvalidArgument(f"allreduce_coalesced takes no {op}; reduce the tensors one by one")
            if op == dist.ReduceOp.AVG and not all(tensor.is_floating_point() for tensor in tensors):
                raise InvalidArgument("averages floats only; reduce the tensors of integers one by one")
        handle = plain.grouped_allreduce_async_(
            tensors, op=OPS[op], name=name, process_set=self._set, prescale_factor=factor
        )
        return self._work(handle, tensors, _synchronize)

    def reduce(self, tensors: list[Tensor], opts: Any) -> RingWork:
        """Reduce into the root's tensor; the others' stay as they are."""
        op, factor = reduce_op(opts)
        (tensor,) = tensors
        if op in BITWISE:
            return self._bitwise(tensors, op, [opts.rootRank])
        divides = op == dist.ReduceOp.AVG and not tensor.is_floating_point()
        handle = plain.reduce_async(
            scaled(tensor, factor).detach(), self._set.ranks[opts.rootRank],
            op=RingReduceOp.SUM if divides else OPS[op], name=self._next_name("reduce"), process_set=self._set,
            prescale_factor=1.0 if isinstance(factor, Tensor) else factor,
        )  # fmt: skip

        def finish(_: Handle) -> None:
            total = handle.synchronize()
            if total is None:
                return
            if divides:
                total.div_(self.size(), rounding_mode="trunc")
            copy_back(total, tensor)

        return self._work(handle, tensors, finish)

    def _bitwise(self, tensors: list[Tensor], op: Any, roots: Sequence[int]) -> RingWork:
        """The engine has no bitwise operations: all ranks' tensors are gathered, and combined on the roots."""
        (tensor,) = tensors
        name, refusal = self._named("bitwise")
        with refusal:
            if tensor.is_floating_point():
                raise InvalidArgument(f"{op} takes integers and bools, not {tensor.dtype}")
            source = Flat(tensor)

        def finish(handle: Handle) -> None:
            if self.rank() in roots:
                parts = self._parts(source, handle, [tensor.numel()] * self.size())
                total = parts[0].clone()
                for part in parts[1:]:
                    total = BITWISE[op](total, part)
                tensor.detach().copy_(total.view(tensor.shape))

        handle = adapter.allgather((source.buffer,), name, process_set=self._set)
        return self._work(handle, tensors, finish)

    def _sparse_allreduce(self, tensor: Tensor, op: Any) -> RingWork:
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise InvalidArgument(f"sparse tensors are summed or averaged, not reduced by {op}")
        total = sparse_allreduce_async(
            tensor, op=OPS[op], name=self._next_name("sparse_allreduce"), process_set=self._set
        )

        def finish(_: Handle) -> None:
            tensor.copy_(total())

        return self._work(Handle.of_nothing(None), [tensor], finish)

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> RingWork:
        """Reduce, and give each rank an equal share of the elements."""
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], sources: list[Tensor], opts: Any = None
    ) -> RingWork:
        """Several `reduce_scatter_single` in one operation."""
        name, refusal = self._named("reduce_scatter")
        with refusal:
            op, factor = reduce_op(opts)
            if op in BITWISE or isinstance(factor, Tensor):
                raise InvalidArgument(f"reduce_scatter takes no {op}; use all_reduce")
            for output, source in zip(outputs, sources, strict=True):
                if output.numel() * self.size() != source.numel():
                    raise InvalidArgument(
                        f"reduce_scatter of {source.numel()} elements over {self.size()} ranks needs outputs of "
                        f"{source.numel() / self.size():g} elements, not {output.numel()}"
                    )
                check_output("reduce_scatter", output, source)
            rows = tuple(as_buffer(as_contiguous(source).view(-1)) for source in sources)
        divides = op == dist.ReduceOp.AVG and not sources[0].is_floating_point()
        targets = targets_of(outputs)
        handle = adapter.reducescatter(
            rows, name, op=RingReduceOp.SUM if divides else OPS[op], prescale_factor=factor, process_set=self._set,
            targets=targets,
        )  # fmt: skip

        def finish(handle: Handle) -> None:
            for index, output in enumerate(outputs):
                if not targets:
                    output.detach().copy_(result_of(handle, tuple(output.shape), output, index))
                if divides:
                    output.detach().div_(self.size(), rounding_mode="trunc")

        return self._work(handle, outputs, finish)

    def reduce_scatter(self, outputs: list[Tensor], source_lists: list[list[Tensor]], opts: Any = None) -> RingWork:
        """Reduce the tensors of each rank, which may differ in size; each rank gets its own."""
        op, factor = reduce_op(opts)
        (output,), (sources,) = outputs, source_lists
        if len(sources) != self.size():
            raise InvalidArgument(f"reduce_scatter takes {self.size()} tensors, one for each rank, not {len(sources)}")
        flat = torch.cat([source.reshape(-1) for source in sources])
        if len({source.numel() for source in sources}) == 1 and op not in BITWISE and not isinstance(factor, Tensor):
            return self.reduce_scatter_single(output, flat, opts)
        begin = sum(source.numel() for source in sources[: self.rank()])
        reduced = self.allreduce([flat], opts)

        def finish(_: Handle) -> None:
            reduced.wait()
            copy_back(flat[begin : begin + output.numel()].view(output.shape), output)

        return self._work(reduced.handle, outputs, finish)

    # ---- Movements ----

    def broadcast(self, tensors: list[Tensor], opts: Any) -> RingWork:
        """Give every rank the root's values."""
        (tensor,) = tensors
        target = Flat(tensor)
        handle = adapter.broadcast(
            target.buffer, target.buffer, self._membership.job_rank(opts.rootRank), self._next_name("broadcast"),
            process_set=self._set,
        )  # fmt: skip
        return self._work(handle, tensors, lambda _: target.write_back())

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], tensors: list[Tensor], opts: Any = None
    ) -> RingWork:
        """Several `allgather` in one operation; the outputs lie by rank, then by tensor."""
        return self.allgather([list(outputs) for outputs in zip(*output_lists, strict=True)], tensors, opts)

    def allgather(
        self,
        output_lists: list[list[Tensor]],
        tensors: list[Tensor],
        opts: Any = None,
    ) -> RingWork:
        """Everybody's tensors, which may differ in size; the outputs lie by tensor, then by rank."""
        name, refusal = self._named("all_gather")
        with refusal:
            for outputs, tensor in zip(output_lists, tensors, strict=True):
                if len(outputs) != self.size():
                    raise InvalidArgument(f"needs {self.size()} outputs, one for each rank, not {len(outputs)}")
                for output in outputs:
                    check_output("all_gather", output, tensor)
            sources = [Flat(tensor) for tensor in tensors]
        handle = adapter.allgather(tuple(source.buffer for source in sources), name, process_set=self._set)

        def finish(handle: Handle) -> None:
            for index, (source, outputs) in enumerate(zip(sources, output_lists, strict=True)):
                parts = self._parts(source, handle, [output.numel() for output in outputs], index)
                for output, part in zip(outputs, parts, strict=True):
                    output.detach().copy_(part.view(output.shape))

        return self._work(handle, [output for outputs in output_lists for output in outputs], finish)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> RingWork:
        """Everybody's elements in one tensor."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self,
        outputs: list[Tensor],
        tensors: list[Tensor],
        opts: Any = None,
    ) -> RingWork:
        """Several `all_gather_single` in one operation."""
        name, refusal = self._named("all_gather_single")
        with refusal:
            for output, tensor in zip(outputs, tensors, strict=True):
                if output.numel() != tensor.numel() * self.size():
                    raise InvalidArgument(
                        f"all_gather of {tensor.numel()} elements from {self.size()} ranks needs an output of "
                        f"{tensor.numel() * self.size()} elements, not {output.numel()}"
                    )
                check_output("all_gather", output, tensor)
            sources = [Flat(tensor) for tensor in tensors]
        targets = targets_of(outputs)
        handle = adapter.allgather(
            tuple(source.buffer for source in sources), name, process_set=self._set, targets=targets
        )

        def finish(handle: Handle) -> None:
            for index, (source, tensor, output) in enumerate(zip(sources, tensors, outputs, strict=True)):
                expected = [tensor.numel()] * self.size()
                if targets:
                    self._check_counts(source, handle, expected, index)
                else:
                    output.detach().copy_(torch.cat(self._parts(source, handle, expected, index)).view(output.shape))

        return self._work(handle, outputs, finish)

    def all_to_all_single(
        self, output: Tensor, source: Tensor, output_splits: Sequence[int], input_splits: Sequence[int],
        opts: Any = None,
    ) -> RingWork:  # fmt: skip
        """Send rows of the first dimension to each rank."""
        name, refusal = self._named("all_to_all")
        with refusal:
            send, receive = self._elements(source, input_splits), self._elements(output, output_splits)
        return self._alltoall(name, [output], [source], send, receive)

    def _elements(self, tensor: Tensor, splits: Sequence[int]) -> list[int]:
        """How many elements go to or come from each rank."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self.size():
                raise InvalidArgument(f"{rows} rows cannot be divided evenly among {self.size()} ranks; pass splits")
            splits = [rows // self.size()] * self.size()
        if len(splits) != self.size() or sum(splits) != rows:
            raise InvalidArgument(f"splits {list(splits)} are not {rows} rows for {self.size()} ranks")
        row = math.prod(tensor.shape[1:])
        return [count * row for count in splits]

    def alltoall(self, outputs: list[Tensor], sources: list[Tensor], opts: Any = None) -> RingWork:
        """Send a tensor to each rank."""
        name, refusal = self._named("all_to_all")
        with refusal:
            if len(outputs) != self.size() or len(sources) != self.size():
                raise InvalidArgument(
                    f"takes {self.size()} inputs and outputs, one for each rank, not {len(sources)} and {len(outputs)}"
                )
        return self._alltoall(
            name, outputs, sources, [source.numel() for source in sources], [output.numel() for output in outputs]
        )

    def gather(self, output_lists: list[list[Tensor]], tensors: list[Tensor], opts: Any) -> RingWork:
        """Everybody's tensors on the root."""
        (tensor,) = tensors
        outputs = output_lists[0] if output_lists else []
        is_root = self.rank() == opts.rootRank
        name, refusal = self._named("gather")
        with refusal:
            if len(outputs) != (self.size() if is_root else 0):
                raise InvalidArgument(
                    f"needs {self.size()} outputs on the root, one for each rank, and none elsewhere; rank "
                    f"{self.rank()} has {len(outputs)}"
                )
        root = self._set.ranks[opts.rootRank]

        def start(source: Flat, target: Any) -> Handle:
            return adapter.gather(source.buffer, root, name, process_set=self._set, target=target)

        receive = [output.numel() for output in outputs] or [0] * self.size()
        return self._exchange("gather", name, outputs, [tensor], receive, start)

    def scatter(self, outputs: list[Tensor], source_lists: list[list[Tensor]], opts: Any) -> RingWork:
        """A tensor of the root's for each rank."""
        (output,) = outputs
        sources = source_lists[0] if source_lists else []
        is_root = self.rank() == opts.rootRank
        name, refusal = self._named("scatter")
        with refusal:
            if len(sources) != (self.size() if is_root else 0):
                raise InvalidArgument(
                    f"needs {self.size()} tensors on the root, one for each rank, and none elsewhere; rank "
                    f"{self.rank()} has {len(sources)}"
                )
        send, receive = [source.numel() for source in sources], [0] * self.size()
        receive[opts.rootRank] = output.numel()
        root = self._set.ranks[opts.rootRank]

        def start(source: Flat, target: Any) -> Handle:
            splits = [count * source.width for count in send] or None
            return adapter.scatter(source.buffer, root, splits, name, process_set=self._set, target=target)

        # Who has nothing to send says of which dtype nothing is.
        return self._exchange("scatter", name, outputs, sources or [output.new_empty(0)], receive, start)

    def _alltoall(
        self, name: str, outputs: Sequence[Tensor], sources: Sequence[Tensor], send: list[int], receive: list[int]
    ) -> RingWork:
        """`send[r]` of the elements of all sources go to rank r, `receive[r]` of those of all outputs come from it."""

        def start(source: Flat, target: Any) -> Handle:
            splits = [count * source.width for count in send]
            return adapter.alltoall(source.buffer, splits, name, process_set=self._set, target=target)

        return self._exchange("all_to_all", name, outputs, sources, receive, start)

    def _exchange(
        self,
        kind: str,
        name: str,
        outputs: Sequence[Tensor],
        sources: Sequence[Tensor],
        receive: list[int],
        start: Callable[[Flat, Any], Handle],
    ) -> RingWork:
        """What `start` makes of all sources' elements: `receive[r]` of those of all outputs come from rank r."""
        with refusing(kind, name, self._set):
            for output in outputs:
                check_output(kind, output, sources[0])
            source = Flat(sources[0] if len(sources) == 1 else torch.cat([tensor.reshape(-1) for tensor in sources]))
        apart = len(outputs) == 1 and not shares_memory(outputs[0], sources)
        targets = targets_of(outputs) if apart else ()
        handle = start(source, targets[0] if targets else None)

        def finish(handle: Handle) -> None:
            if targets:
                self._check_counts(source, handle, receive)
                return
            flat = torch.cat(self._parts(source, handle, receive))
            begin = 0
            for output in outputs:
                output.detach().copy_(flat[begin : begin + output.numel()].view(output.shape))
                begin += output.numel()

        return self._work(handle, list(outputs), finish, like=sources[0])

    # ---- Between two ranks ----

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> RingWork:
        """Send a tensor to a rank that receives one with this tag. Ends when that has it."""
        (tensor,) = tensors
        return self._between(tensor, self.rank(), to, tag)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> RingWork:
        """Receive a tensor that a rank sends with this tag."""
        (tensor,) = tensors
        return self._between(tensor, source, self.rank(), tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> RingWork:
        """Not possible.

        Raises:
            InvalidArgument: Always.
        """
        raise InvalidArgument("the backend 'ring' receives from a rank that is named: pass src=")

    def _between(self, tensor: Tensor, sender: int, receiver: int, tag: int) -> RingWork:
        if sender == receiver:
            raise InvalidArgument(f"rank {sender} sends to itself")
        process_set = self._membership.pair(sender, receiver)
        flat = Flat(tensor)
        name = self._next_name(f"{sender}to{receiver}.tag{tag}", process_set)
        root = self._membership.job_rank(sender)
        handle = adapter.broadcast(flat.buffer, flat.buffer, root, name, process_set=process_set)
        if self.rank() == sender:
            return self._work(handle, [tensor])
        return self._work(handle, [tensor], lambda _: flat.write_back())

    # ---- Barriers ----

    def barrier(self, opts: Any = None) -> RingWork:
        """Ends when all ranks have called it, and those that name a GPU (`device_ids`) have waited for its stream."""
        device = getattr(opts, "device", None)
        if device is not None and device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        return self._work(adapter.barrier(self._next_name("barrier"), process_set=self._set, blocking=False), [])

    def monitored_barrier(self, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier with a limit of its own.

        Raises:
            TimeoutError: It has passed; names the ranks that did not come.
        """
        limit = timeout or datetime.timedelta(seconds=300)
        missing = self._membership.missing(limit)
        if missing:
            raise RingcoreTimeoutError(
                f"monitored_barrier: ranks {missing} did not come within {limit.total_seconds():g} s"
            )

    # ---- Coalescing ----

    def _start_coalescing(self, device: Any) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any) -> RingWork | None:
        works, self._coalesced = self._coalesced or [], None
        return CoalescedWork(works, self._completer, self._limit_s) if works else None

    # Names of PyTorch before 2.13, and of its C++ side.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _synchronize(handle: Handle) -> None:
    handle.synchronize()
