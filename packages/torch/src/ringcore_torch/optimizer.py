"""An optimizer that averages gradients over all ranks while backward is still running.

Parameters are dealt to buckets in the reverse of their order, which is about the order in which backward finishes them.
A bucket is one piece of registered memory and gradients are views into it: when the last of its gradients is there, one
in-place allreduce runs on it, without a copy. Behind the gradients a bucket has two elements a parameter: whether
the rank had a dense gradient, and whether it had a sparse one. After the sum a 0 means that no rank had one. Sparse
gradients are reduced one by one when all buckets are done, and every rank knows which they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from ringcore import InvalidArgument, adapter
from ringcore._context import ProcessSet, context, global_process_set
from ringcore.adapter import ReduceOp

from ringcore_torch._bridge import as_buffer
from ringcore_torch.compression import Compression, Compressor
from ringcore_torch.sparse import sparse_allreduce_async

# How gradients are sent together, see `DistributedOptimizer`.
Groups = int | Sequence[Sequence[torch.Tensor]] | None

# The first bucket is small, so that communication starts early; the figures are those of DistributedDataParallel.
_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20
_ALIGNMENT_BYTES = 64


class _Bucket:
    """Gradients of some parameters in one piece of memory."""

    def __init__(self, name: str, parameters: list[torch.Tensor], compression: type[Compressor]) -> None:
        self.name = name
        self.parameters = parameters
        self.handle: adapter.Handle | None = None
        dtype = parameters[0].dtype
        align = _ALIGNMENT_BYTES // dtype.itemsize
        starts, end = [], 0
        for parameter in parameters:
            starts.append(end)
            end += -(-parameter.numel() // align) * align
        self.flat = _zeros(end + 2 * len(parameters), dtype)
        compresses = compression.wire_dtype is not None and dtype in (torch.float32, torch.float64)
        self.wire = _zeros(len(self.flat), compression.wire_dtype) if compresses else self.flat
        self.views = [
            self.flat[start : start + parameter.numel()].view_as(parameter)
            for start, parameter in zip(starts, parameters, strict=True)
        ]
        self.present, self.sparse = self.flat[end:].view(2, -1)
        self.passes = [0] * len(parameters)
        self.ready = 0
        self.finished = False  # the gradients hold the average

    def reset(self) -> None:
        """Forget what has been collected; memory stays as it is."""
        self.passes = [0] * len(self.parameters)
        self.ready = 0
        self.handle = None
        self.finished = False


def _zeros(count: int, dtype: Any) -> torch.Tensor:
    """Registered memory where there is shared memory."""
    registered = adapter.allocate(count * dtype.itemsize)
    if registered is None:
        return torch.zeros(count, dtype=dtype)
    return torch.frombuffer(registered.view(), dtype=dtype)[:count].zero_()


class _DistributedOptimizer(torch.optim.Optimizer):
    """The methods that a wrapped optimizer gets; see `DistributedOptimizer`."""

    _ring: _Reducer

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Wait for the averaged gradients, then step."""
        if self._ring.should_synchronize:
            self._ring.synchronize()
        self._ring.reset()
        return super().step(closure)

    def synchronize(self) -> None:
        """Wait until `grad` of every parameter holds the average; for clipping before `step`.

        Call `step` inside `skip_synchronize()` afterwards.
        """
        self._ring.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, `step` does not synchronize: `synchronize` was called already."""
        self._ring.should_synchronize = False
        try:
            yield
        finally:
            self._ring.should_synchronize = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, also those that are being averaged."""
        self._ring.abandon()
        super().zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Average after so many backward passes from now on."""
        self._ring.passes_per_step = passes


class _Reducer:
    """Collects gradients into buckets and averages them."""

    def __init__(
        self, named: list[tuple[str, torch.Tensor]], passes_per_step: int, op: ReduceOp, predivide: float,
        process_set: ProcessSet, compression: type[Compressor], groups: Groups, sparse_as_dense: bool,
    ) -> None:  # fmt: skip
        self.passes_per_step = passes_per_step
        self.should_synchronize = True
        self._names = {id(parameter): name for name, parameter in named}
        self._op = op
        # Dividing partly before and partly after the sum keeps 16-bit sums in range.
        self._prescale = 1.0 / predivide
        self._postscale = predivide
        self._process_set = process_set
        self._alone = process_set.size() == 1
        self._prefix = prefix = context().next_name("DistributedOptimizer")
        self._sparse_as_dense = sparse_as_dense
        self._buckets = [
            _Bucket(f"{prefix}.bucket{number}", parameters, compression)
            for number, parameters in enumerate(_deal([parameter for _, parameter in named], groups))
        ]
        self._hooks = []
        if not self._alone:
            for bucket in self._buckets:
                for index, parameter in enumerate(bucket.parameters):
                    hook = self._hook(bucket, index)
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def _hook(self, bucket: _Bucket, index: int) -> Callable[[torch.Tensor], None]:
        def collect(parameter: torch.Tensor) -> None:
            if bucket.handle is not None:
                raise InvalidArgument(
                    f"'{self._names[id(parameter)]}' got a gradient while its average was on the way: backward ran "
                    f"more than backward_passes_per_step = {self.passes_per_step} times before step(). Raise "
                    "backward_passes_per_step, or call zero_grad() to drop the gradients"
                )
            if not self._stays_sparse(parameter):
                self._adopt(bucket, index)
            bucket.passes[index] += 1
            if bucket.passes[index] == self.passes_per_step:
                bucket.ready += 1
                if bucket.ready == len(bucket.parameters):
                    self._launch(bucket)

        return collect

    @staticmethod
    def _adopt(bucket: _Bucket, index: int) -> None:
        """Make the parameter's gradient a view into the bucket, if it is not one yet."""
        parameter, view = bucket.parameters[index], bucket.views[index]
        grad = parameter.grad
        if grad is None:
            return
        if grad.is_sparse or grad.data_ptr() != view.data_ptr() or grad.stride() != view.stride():
            view.copy_(grad.to_dense() if grad.is_sparse else grad)
            parameter.grad = view

    def _stays_sparse(self, parameter: torch.Tensor) -> bool:
        return not self._sparse_as_dense and parameter.grad is not None and parameter.grad.is_sparse

    def _launch(self, bucket: _Bucket) -> None:
        present, sparse = [0] * len(bucket.parameters), [0] * len(bucket.parameters)
        for index, parameter in enumerate(bucket.parameters):
            if parameter.grad is None or self._stays_sparse(parameter):
                bucket.views[index].zero_()
                sparse[index] = int(parameter.grad is not None)
            else:
                self._adopt(bucket, index)  # a gradient that the user has set or replaced
                present[index] = 1
        bucket.present.copy_(torch.tensor(present))
        bucket.sparse.copy_(torch.tensor(sparse))
        if bucket.wire is not bucket.flat:
            bucket.wire.copy_(bucket.flat)
        arrays = (as_buffer(bucket.wire),)
        bucket.handle = adapter.allreduce(
            arrays, arrays, bucket.name, op=self._op, prescale_factor=self._prescale,
            postscale_factor=self._postscale, process_set=self._process_set,
        )  # fmt: skip

    def synchronize(self) -> None:
        """Average what has not been averaged yet, and wait for all of it."""
        if self._alone:
            return
        for bucket in self._buckets:
            if bucket.handle is None:
                self._launch(bucket)
        for bucket in self._buckets:
            if bucket.finished or bucket.handle is None:
                continue
            bucket.handle.wait()
            bucket.finished = True
            if bucket.wire is not bucket.flat:
                bucket.flat.copy_(bucket.wire)
            present, sparse = bucket.present.tolist(), bucket.sparse.tolist()
            for index, parameter in enumerate(bucket.parameters):
                if sparse[index] != 0:
                    self._average_sparse(parameter, bucket.views[index] if present[index] != 0 else None)
                elif present[index] == 0:
                    parameter.grad = None  # no rank had a gradient: the optimizer skips it
                elif parameter.grad is None:
                    parameter.grad = bucket.views[index]

    def _average_sparse(self, parameter: torch.Tensor, dense: torch.Tensor | None) -> None:
        """Reduce the gradient that is sparse on some rank; a rank without one contributes no rows.

        Args:
            parameter: Its gradient on this rank may be sparse, dense or None.
            dense: What the ranks with a dense gradient have together; None where nobody has one.
        """
        grad = parameter.grad
        if grad is None or not grad.is_sparse:
            nothing = torch.empty((1, 0), dtype=torch.int64), parameter.new_empty((0, *parameter.shape[1:]))
            grad = torch.sparse_coo_tensor(*nothing, parameter.shape)
        name = f"{self._prefix}.sparse.{self._names[id(parameter)]}"
        factor = self._prescale * self._postscale
        total = sparse_allreduce_async(grad * factor, op=self._op, name=name, process_set=self._process_set)()
        parameter.grad = total if dense is None else total.to_dense() + dense

    def reset(self) -> None:
        """Ready for the next step."""
        for bucket in self._buckets:
            bucket.reset()

    def abandon(self) -> None:
        """Drop what is on the way: its memory is free once the engine is done with it."""
        for bucket in self._buckets:
            if bucket.handle is not None:
                bucket.handle.wait()
            bucket.reset()


def _deal(parameters: list[torch.Tensor], groups: Groups) -> list[list[torch.Tensor]]:
    """The parameters of each bucket: those of `groups`, the rest by size in the reverse of their order."""
    if isinstance(groups, int):
        share = -(-len(parameters) // groups)
        chosen = [parameters[begin : begin + share] for begin in range(0, len(parameters), share)][::-1]
    else:
        chosen = [list(group) for group in groups or []]
    dealt = [same for group in chosen for same in _by_dtype(group)]
    taken = {id(parameter) for group in chosen for parameter in group}
    rest = [parameter for parameter in reversed(parameters) if id(parameter) not in taken]
    for same in _by_dtype(rest):
        bucket: list[torch.Tensor] = []
        for parameter in same:
            bucket.append(parameter)
            limit = _BUCKET_BYTES if dealt else _FIRST_BUCKET_BYTES
            if sum(p.numel() * p.element_size() for p in bucket) >= limit:
                dealt.append(bucket)
                bucket = []
        if bucket:
            dealt.append(bucket)
    return dealt


def _by_dtype(parameters: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter in parameters:
        found.setdefault(parameter.dtype, []).append(parameter)
    return list(found.values())


def DistributedOptimizer(  # noqa: N802 - the field's name for it
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Wrap an optimizer: before it steps, gradients are averaged over all ranks.

    The result is of the optimizer's own class (a subclass of it) and shares its `param_groups` and `state`, so that
    schedulers and checkpoints go on working. Every rank must wrap the same parameters in the same order.

    Args:
        optimizer: Over CPU parameters of a float dtype.
        named_parameters: `model.named_parameters()`; names make errors readable.
        compression: `Compression.fp16` or `Compression.bf16` halves what is sent of float32 gradients.
        backward_passes_per_step: Backward passes whose gradients are summed before they are averaged over the ranks.
        op: `Average` or `Sum`.
        gradient_predivide_factor: Divide by this before the sum and multiply by it afterwards.
        groups: How gradients are sent together: a number of groups, or lists of parameters; the others are dealt out by
            size, as all are without it.
        sparse_as_dense: Reduce sparse gradients as dense ones: quicker where most rows have a gradient.
        process_set: The ranks that train together.

    Raises:
        InvalidArgument: Parameters without a name or of a dtype that has no average, parameters in `groups` that the
            optimizer does not have, an `op` that is neither `Average` nor `Sum`.
    """
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise InvalidArgument(f"DistributedOptimizer takes op=Average or op=Sum, not {op.name}")
    if backward_passes_per_step < 1:
        raise InvalidArgument(f"backward_passes_per_step is at least 1, not {backward_passes_per_step}")
    if isinstance(groups, int) and groups < 1:
        raise InvalidArgument(f"groups is at least 1, not {groups}")
    owned = [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]
    if named_parameters is None:
        named = [(f"parameter.{i}", parameter) for i, parameter in enumerate(owned)]
    else:
        ids = {id(parameter) for parameter in owned}
        named = [(name, parameter) for name, parameter in named_parameters if id(parameter) in ids]
        if len({id(parameter) for _, parameter in named}) < len(ids):
            raise InvalidArgument(
                f"named_parameters names {len(named)} of the optimizer's {len(ids)} parameters; pass "
                "model.named_parameters() of the whole model"
            )
    if groups is not None and not isinstance(groups, int):
        known = {id(parameter) for _, parameter in named}
        grouped = [id(parameter) for group in groups for parameter in group]
        if len(set(grouped)) < len(grouped) or not set(grouped) <= known:
            raise InvalidArgument("groups names a parameter twice, or one that the optimizer does not have")
    kind = type(
        optimizer.__class__.__name__, (_DistributedOptimizer, optimizer.__class__), {"__doc__": optimizer.__doc__}
    )
    wrapped: Any = object.__new__(kind)
    # A scheduler that was attached before has put its own `step` on the instance; the wrapper's must win.
    wrapped.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    wrapped._ring = _Reducer(
        named, backward_passes_per_step, op, gradient_predivide_factor, process_set, compression, groups,
        sparse_as_dense,
    )  # fmt: skip
    return wrapped
