"""An optimizer that averages gradients over all ranks while backward is still running.

Parameters are dealt to buckets, see `buckets`. When the last gradient of a bucket is there, it is submitted; where that
would only take turns with backward on the same core, when backward is done. Sparse gradients are reduced one by one
when all buckets are done, and every rank knows which they are.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from ringcore import InvalidArgument, RingcoreError, adapter
from ringcore._context import ProcessSet, context, global_process_set
from ringcore.adapter import ReduceOp
from torch.utils.weak import WeakIdKeyDictionary

from ringcore_torch import adasum
from ringcore_torch.buckets import Bucket, Groups, PackedBucket, make_buckets
from ringcore_torch.compression import Compression, Compressor
from ringcore_torch.sparse import sparse_allreduce_async
from ringcore_torch.wrapping import with_methods

# Which reducer averages a parameter's gradient: the one that was made last.
_reducers: WeakIdKeyDictionary = WeakIdKeyDictionary()


class _DistributedOptimizer(torch.optim.Optimizer):
    """The methods that a wrapped optimizer gets; see `DistributedOptimizer`."""

    _ring: _Reducer

    def __getattr__(self, name: str) -> Any:
        if name == "_ring":
            raise InvalidArgument(
                "this is a copy of a DistributedOptimizer, and nobody averages the gradients of its parameters; copy "
                "the optimizer before wrapping it, and wrap the copy as well"
            )
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Wait for the averaged gradients, then step."""
        if closure is None:
            self._ring.end_round()
            return super().step()

        def averaged() -> float:
            loss = closure()
            self._ring.end_round()
            return loss

        return super().step(averaged)

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

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # `torch.amp.GradScaler.step` asks for this before it unscales the gradients, and looks for infinities in them:
        # they must be the averages by then, so that all ranks unscale, and step or not, alike.
        if self._ring.should_synchronize:
            self._ring.synchronize()
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

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
        self._prefix = context().next_name("DistributedOptimizer", process_set)
        self.sparse_as_dense = sparse_as_dense
        self._replaced = False
        self._overlaps = adapter.has_room_to_overlap(torch.get_num_threads())
        self._buckets = make_buckets(named, self._prefix, groups, compression)
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        packed = [bucket for bucket in self._buckets if isinstance(bucket, PackedBucket)]
        # The last small gradients are there when backward ends: `synchronize` submits them, and no hook is needed.
        waits = self._hookless = packed[-1] if packed else None
        for bucket in self._buckets:
            for index, parameter in enumerate(bucket.parameters):
                previous = _reducers[parameter]() if parameter in _reducers else None
                if previous is not None:
                    previous.detach()
                _reducers[parameter] = weakref.ref(self)
                # One hook tells that a new round has begun.
                if not self._alone and (bucket is not waits or parameter is bucket.parameters[-1]):
                    hook = _hook(weakref.ref(self), bucket, index)
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        weakref.finalize(self, _remove, self._hooks)

    def detach(self) -> None:
        """Average nothing any more: another optimizer does it now."""
        _remove(self._hooks)
        self._replaced = True

    def check_own(self) -> None:
        """Refuse to step after `detach`.

        Raises:
            InvalidArgument: A later DistributedOptimizer has the parameters.
        """
        if self._replaced:
            raise InvalidArgument(
                f"'{next(iter(self._names.values()))}' and the other parameters of this DistributedOptimizer were "
                "wrapped again by a later one, which averages their gradients now; step that one, or wrap only once"
            )

    def launch(self, bucket: Bucket) -> None:
        """Submit a bucket."""
        bucket.launch(
            sparse_as_dense=self.sparse_as_dense, op=self._op, prescale_factor=self._prescale,
            postscale_factor=self._postscale, process_set=self._process_set,
        )  # fmt: skip

    def synchronize(self) -> None:
        """Average what has not been averaged yet, and wait for all of it."""
        self.check_own()
        if self._alone:
            return
        if self._hookless is not None and self._hookless.finished and self._hookless.has_other_gradients():
            self.reset()  # the averages of a step that was skipped have made room for new gradients
        for bucket in self._buckets:
            if bucket.handle is None:
                self.launch(bucket)
        for bucket in self._buckets:
            if bucket.finished:
                continue
            bucket.wait()
            dense, sparse = bucket.flags.tolist()
            if bucket.all_dense and not any(sparse):
                bucket.finish()
                continue
            for index, parameter in enumerate(bucket.parameters):
                if sparse[index] != 0:
                    self._average_sparse(parameter, bucket.result(index) if dense[index] != 0 else None)
                elif dense[index] == 0:
                    parameter.grad = None  # no rank had a gradient: the optimizer skips it
                elif parameter.grad is None:
                    parameter.grad = bucket.result(index)
            bucket.finish()

    def _average_sparse(self, parameter: torch.Tensor, dense: torch.Tensor | None) -> None:
        """Reduce the gradient that is sparse on some rank; a rank without one contributes no rows.

        Args:
            parameter: Its gradient on this rank may be sparse, dense or None.
            dense: What the ranks with a dense gradient have together; None where nobody has one.
        """
        grad = parameter.grad
        if grad is None or not grad.is_sparse:
            nothing = torch.empty((1, 0), dtype=torch.int64), parameter.new_empty((0, *parameter.shape[1:]))
            grad = torch.sparse_coo_tensor(*nothing, parameter.shape, check_invariants=False)
        name = f"{self._prefix}.sparse.{self._names[id(parameter)]}"
        factor = self._prescale * self._postscale
        total = sparse_allreduce_async(grad * factor, op=self._op, name=name, process_set=self._process_set)()
        parameter.grad = total if dense is None else total.to_dense() + dense

    def end_round(self) -> None:
        """Wait for the averages that `step` needs, and be ready for the next ones, also when these have failed."""
        try:
            if self.should_synchronize:
                self.synchronize()
        except BaseException:
            self.abandon()
            raise
        self.reset()

    def reset(self) -> None:
        """Ready for the next step."""
        for bucket in self._buckets:
            bucket.reset()

    def abandon(self) -> None:
        """Drop what is on the way: its memory is free once the engine is done with it."""
        for bucket in self._buckets:
            if bucket.handle is not None:
                with contextlib.suppress(RingcoreError):  # nobody wants it any more, and `step` has told why
                    bucket.handle.wait()
            bucket.reset()


def _hook(reducer: weakref.ref[_Reducer], bucket: Bucket, index: int) -> Callable[[torch.Tensor], None]:
    """What happens when a parameter has a gradient. It holds no reducer: one that nobody steps any more is freed."""
    passes, count = bucket.passes, len(bucket.parameters)

    def collect(parameter: torch.Tensor) -> None:
        owner = reducer()
        if owner is None:
            return
        if bucket.finished:
            owner.reset()  # the step was skipped, and this is the next one
        if bucket is owner._hookless:
            return
        if bucket.handle is not None or passes[index] == owner.passes_per_step:
            raise InvalidArgument(
                f"'{bucket.names[index]}' got a gradient when it was complete, or its average on the way: backward ran "
                f"more than backward_passes_per_step = {owner.passes_per_step} times before step(). Raise "
                "backward_passes_per_step, or call zero_grad() to drop the gradients"
            )
        grad = parameter.grad
        if bucket.takes_early and grad is not None and (owner.sparse_as_dense or not grad.is_sparse):
            bucket.take(index, grad)
        passes[index] += 1
        if passes[index] == owner.passes_per_step:
            bucket.ready += 1
            if bucket.ready == count:
                bucket.seal()
                if owner._overlaps:
                    owner.launch(bucket)

    return collect


def _remove(hooks: list[torch.utils.hooks.RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
    hooks.clear()


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
        op: `Average` or `Sum` of the gradients; `Adasum` combines the ranks' steps instead (Maleki et al., MLSys 2021).
        gradient_predivide_factor: Divide by this before the sum and multiply by it afterwards.
        groups: How gradients are sent together: a number of groups, or lists of parameters; the others are dealt out by
            size, as all are without it.
        sparse_as_dense: Reduce sparse gradients as dense ones: quicker where most rows have a gradient.
        process_set: The ranks that train together.

    Raises:
        InvalidArgument: Parameters without a name or of a dtype that has no average, parameters in `groups` that the
            optimizer does not have, an `op` that is neither `Average` nor `Sum`.
    """
    if isinstance(optimizer, _DistributedOptimizer | adasum.AdasumOptimizer):
        raise InvalidArgument("the optimizer is a DistributedOptimizer already; wrap it once")
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM):
        raise InvalidArgument(f"DistributedOptimizer takes op=Average, op=Sum or op=Adasum, not {op.name}")
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
    if op is ReduceOp.ADASUM:
        if backward_passes_per_step > 1 or groups is not None or gradient_predivide_factor != 1.0:
            raise InvalidArgument(
                "op=Adasum combines steps, not gradients: it takes no backward_passes_per_step, groups or "
                "gradient_predivide_factor; step() as often as gradients are to be combined"
            )
        return adasum.wrap(optimizer, named, process_set, compression)
    adapter.keep_freed_memory()
    wrapped = with_methods(optimizer, _DistributedOptimizer)
    wrapped._ring = _Reducer(
        named, backward_passes_per_step, op, gradient_predivide_factor, process_set, compression, groups,
        sparse_as_dense,
    )  # fmt: skip
    return wrapped
