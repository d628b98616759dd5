"""An optimizer that averages gradients over all ranks, while backward is still running where that is quicker."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, cast

import torch
from ringcore import InvalidArgument, adapter
from ringcore.adapter import Exchange, ProcessSet, ReduceOp, global_process_set

from ringcore_torch import adasum
from ringcore_torch.buckets import SOONER_BUCKET_BYTES, Groups, usual_bucket_bytes
from ringcore_torch.compression import Compression, Compressor
from ringcore_torch.exchanging import ExchangingReducer
from ringcore_torch.memory import keep_freed_memory
from ringcore_torch.overlap import ForwardOverlap, narrowed, why_never
from ringcore_torch.pending import PendingParameter
from ringcore_torch.reducer import GradientReducer
from ringcore_torch.state import broadcast_optimizer_state, broadcast_parameters
from ringcore_torch.tuning import Sending, tuner_of
from ringcore_torch.wrapping import with_methods

_log = logging.getLogger("ringcore")


class _DistributedOptimizer(torch.optim.Optimizer):
    """The methods that a wrapped optimizer gets; see `DistributedOptimizer`."""

    _ring: GradientReducer | ExchangingReducer
    _overlap: ForwardOverlap | None = None
    _tuner: adapter.Tuner[Sending] | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "_ring":
            raise InvalidArgument(
                "this is a copy of a DistributedOptimizer, and nobody averages the gradients of its parameters; copy "
                "the optimizer before wrapping it, and wrap the copy as well"
            )
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    @adapter.optimizer_step()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Wait for the averaged gradients, then step."""
        loss = self._step(closure)
        if self._tuner is not None:
            self._tuner.after_step()
        return loss

    def _step(self, closure: Callable[[], float] | None) -> Any:
        if self._overlap is not None and self._overlap.defers(closure):
            return self._overlap.defer()
        self._settle()
        if closure is None:
            return super().step() if self._ring.end_round() else None
        if self._ring.drops_steps:
            raise InvalidArgument(
                "on_lost_rank='skip' may leave out a step, which step(closure) cannot; call backward() before step(), "
                "or use on_lost_rank='retry'"
            )

        def averaged() -> float:
            loss = closure()
            self._ring.end_round()
            return loss

        return super().step(averaged)

    def step_groups(self, groups: list[dict[str, Any]]) -> None:
        """Step these, in the place of `param_groups`, now."""
        with self._in_place_of_groups(groups):
            super().step()

    @contextlib.contextmanager
    def _in_place_of_groups(self, groups: list[dict[str, Any]]) -> Iterator[None]:
        own, self.param_groups = self.param_groups, groups
        try:
            yield
        finally:
            self.param_groups = own

    def _settle(self) -> None:
        if self._overlap is not None:
            self._overlap.settle()

    def send(self, sending: Sending) -> None:
        """Send gradients like this from the next backward pass on: all ranks do so behind the same step."""
        self._settle()
        cast(GradientReducer, self._ring).deal_anew(
            sending.bucket_bytes, overlaps=sending.overlaps, at_once=sending.at_once
        )
        if self._overlap is not None:
            self._overlap.begin_anew()

    def synchronize(self) -> None:
        """Wait until `grad` of every parameter holds the average; for clipping before `step`.

        Call `step` inside `skip_synchronize()` afterwards.
        """
        self._settle()
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
        groups = self.param_groups
        if self._overlap is not None and self._overlap.is_pending:
            self._overlap.drop_gradients(set_to_none)
            others = {id(one) for group in groups for one in group["params"] if type(one) is not PendingParameter}
            groups = narrowed(groups, others)
        with self._in_place_of_groups(groups):
            super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, whose gradients are not averaged."""
        self._settle()
        super().add_param_group(param_group)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # `torch.amp.GradScaler.step` asks for this before it unscales the gradients, and looks for infinities in them:
        # they must be the averages by then, so that all ranks unscale, and step or not, alike.
        if self._ring.should_synchronize:
            self.synchronize()
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own, and what was lost of this rank's gradients, where that is kept."""
        self._settle()
        return {**super().state_dict(), **self._ring.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`, of a run without `error_feedback` as well."""
        self._settle()
        super().load_state_dict(state_dict)
        self._ring.load_state_dict(state_dict)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Average after so many backward passes from now on."""
        self._ring.passes_per_step = passes


def named_of(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> list[tuple[str, torch.Tensor]]:
    """The optimizer's parameters that have gradients, with their names.

    Raises:
        InvalidArgument: There are names, but not of all of them.
    """
    owned = [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]
    if named_parameters is None:
        return [(f"parameter.{i}", parameter) for i, parameter in enumerate(owned)]
    ids = {id(parameter) for parameter in owned}
    named = [(name, parameter) for name, parameter in named_parameters if id(parameter) in ids]
    if len({id(parameter) for _, parameter in named}) < len(ids):
        raise InvalidArgument(
            f"named_parameters names {len(named)} of the optimizer's {len(ids)} parameters; pass "
            "model.named_parameters() of the whole model"
        )
    return named


def _check_on_lost_rank(on_lost_rank: str, op: ReduceOp, compression: type[Compressor] | Exchange) -> None:
    if on_lost_rank not in ("retry", "skip"):
        raise InvalidArgument(f"on_lost_rank is 'retry' or 'skip', not {on_lost_rank!r}")
    if on_lost_rank == "skip" and (op is ReduceOp.ADASUM or isinstance(compression, Exchange)):
        raise InvalidArgument(
            "on_lost_rank='skip' takes neither op=Adasum nor a compression that averages all gradients itself; leave "
            "one of the two out"
        )


def _check_adasum_compression(compression: type[Compressor], *, error_feedback: bool) -> None:
    """Steps are gathered as they are, or cast: what would make nothing else of them is refused."""
    name = Compression.name_of(compression)
    if compression.quantised:
        raise InvalidArgument(
            f"op=Adasum combines steps whole, and {name} is for sums; use Compression.fp16 or bf16, or op=Average"
        )
    if error_feedback:
        raise InvalidArgument(f"op=Adasum keeps nothing of what {name} loses; leave out error_feedback, or op=Adasum")


def DistributedOptimizer(  # noqa: N802 - the field's name for it
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    compression: type[Compressor] | Exchange | str = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    check_weights: bool = True,
    broadcast: bool = False,
    error_feedback: bool = False,
    on_lost_rank: Literal["retry", "skip"] = "retry",
    overlap: Literal["backward", "forward"] = "backward",
) -> Any:
    """Wrap an optimizer: before it steps, gradients are averaged over all ranks.

    The result is of the optimizer's own class (a subclass of it) and shares its `param_groups` and `state`, so that
    schedulers and checkpoints go on working. Every rank must wrap the same parameters in the same order.

    Args:
        optimizer: Over parameters of a float dtype, on the CPU or on this rank's CUDA device.
        named_parameters: `model.named_parameters()`; names make errors readable.
        compression: `Compression.fp16` or `Compression.bf16` halves what is sent of float32 gradients; `int8` and
            `int4` send a quarter and an eighth between hosts, of gradients of 32 KiB and more; `powersgd(rank)`,
            `topk(ratio)` and `onebit()` send still less, when backward is done, and always keep what is lost.
        backward_passes_per_step: Backward passes whose gradients are summed before they are averaged over the ranks.
        op: `Average` or `Sum` of the gradients; `Adasum` combines the ranks' steps instead (Maleki et al., MLSys 2021).
        gradient_predivide_factor: Divide by this before the sum and multiply by it afterwards.
        groups: How gradients are sent together: a number of groups, or lists of parameters; the others are dealt out by
            size, as all are without it.
        sparse_as_dense: Reduce sparse gradients as dense ones: quicker where most rows have a gradient.
        process_set: The ranks that train together.
        check_weights: Before the first step, compare a hash of the parameters of all ranks, and raise `MismatchError`
            where they differ: `broadcast_parameters` was forgotten. Not with `op=Adasum`.
        broadcast: Give all ranks the parameters and the optimizer's state of the first rank now. A model's buffers,
            such as running statistics, need `broadcast_parameters`.
        error_feedback: With a compression: keep what is lost of each gradient of this rank, and add it to the next one.
            `state_dict` has it as "errors": it is this rank's own. `powersgd`, `topk` and `onebit` always do, and have
            it as "compression". Not with `op=Adasum`.
        on_lost_rank: In an elastic job: "retry" does the step that is under way again with the ranks that are left, and
            needs memory for the gradients twice; with "skip" all of them leave it out, `step` changes nothing, and
            `ElasticSampler.batches` deals its samples out again. On GPUs "retry" raises `MembershipChangedError`, and
            with "skip" each step waits for the GPU.
        overlap: What communication runs beside. With "forward" also the next forward: `step` returns at once, what
            that forward needs first is sent first, and whatever reads a parameter waits until it has been stepped. The
            results are the same. A step that needs all gradients (after `synchronize`, with a `GradScaler`, a closure,
            or hooks) is as without, and so is every step of an optimizer that does not work by element, of sparse
            gradients, on GPUs and in elastic jobs: a warning says so once. Drop gradients with the optimizer's
            `zero_grad`: the model's reads them.

    Raises:
        InvalidArgument: Parameters without a name or of a dtype that has no average, parameters in `groups` that the
            optimizer does not have, an `op` that is neither `Average` nor `Sum`, an `overlap` that is none,
            `error_feedback` without a compression; with `op=Adasum` parameters on a GPU, `int8`, `int4` or
            `error_feedback`.
    """
    if isinstance(optimizer, _DistributedOptimizer | adasum.AdasumOptimizer):
        raise InvalidArgument("the optimizer is a DistributedOptimizer already; wrap it once")
    compressor = Compression.chosen(compression, exchanges=True)
    _check_options(op, backward_passes_per_step, groups, compressor, overlap)
    if error_feedback and compressor is Compression.none:
        raise InvalidArgument("error_feedback keeps what a compression loses; pass a compression, or leave it out")
    _check_on_lost_rank(on_lost_rank, op, compressor)
    named = named_of(optimizer, named_parameters)
    if groups is not None and not isinstance(groups, int):
        known = {id(parameter) for _, parameter in named}
        grouped = [id(parameter) for group in groups for parameter in group]
        if len(set(grouped)) < len(grouped) or not set(grouped) <= known:
            raise InvalidArgument("groups names a parameter twice, or one that the optimizer does not have")
    if broadcast:
        broadcast_parameters(named, root_rank=process_set.ranks[0], process_set=process_set)
        broadcast_optimizer_state(optimizer, root_rank=process_set.ranks[0], process_set=process_set)
    arguments: dict[str, object] = {
        "compression": Compression.name_of(compressor), "op": op.name, "overlap": overlap, "on_lost_rank": on_lost_rank,
        "backward_passes_per_step": backward_passes_per_step, "gradient_predivide_factor": gradient_predivide_factor,
        "groups": groups if groups is None or isinstance(groups, int) else [len(group) for group in groups],
        "sparse_as_dense": sparse_as_dense,
    }  # fmt: skip
    if isinstance(compressor, Exchange) or op is ReduceOp.ADASUM:
        what = type(compressor).__name__ if isinstance(compressor, Exchange) else "op=Adasum"
        adapter.tell_untuned("a DistributedOptimizer", f"{what} sends in a way of its own")
    if isinstance(compressor, Exchange):
        adapter.check_exchange_options(compressor, op, groups, gradient_predivide_factor)
        wrapped = with_methods(optimizer, _DistributedOptimizer)
        wrapped._ring = ExchangingReducer(
            named, process_set, compressor, passes_per_step=backward_passes_per_step, check_weights=check_weights,
            arguments=arguments,
        )  # fmt: skip
        return wrapped
    if op is ReduceOp.ADASUM:
        if backward_passes_per_step > 1 or groups is not None or gradient_predivide_factor != 1.0:
            raise InvalidArgument(
                "op=Adasum combines steps, not gradients: it takes no backward_passes_per_step, groups or "
                "gradient_predivide_factor; step() as often as gradients are to be combined"
            )
        _check_adasum_compression(compressor, error_feedback=error_feedback)
        return adasum.wrap(optimizer, named, process_set, compressor, arguments)
    keep_freed_memory(named)
    wrapped = with_methods(optimizer, _DistributedOptimizer)
    parameters = [parameter for _, parameter in named]
    bucket_bytes = SOONER_BUCKET_BYTES if overlap == "forward" else usual_bucket_bytes(parameters)
    wrapped._ring = GradientReducer(
        named, process_set, passes_per_step=backward_passes_per_step, op=op, predivide=gradient_predivide_factor,
        compression=compressor, groups=groups, sparse_as_dense=sparse_as_dense, check_weights=check_weights,
        error_feedback=error_feedback, drops_steps=on_lost_rank == "skip",
        arguments=arguments, bucket_bytes=bucket_bytes,
    )  # fmt: skip
    if overlap == "forward":
        wrapped._overlap = _overlap_of(wrapped, optimizer, parameters)
    if adapter.context().settings.autotune:
        wrapped._tuner = tuner_of(
            wrapped, parameters, Sending(bucket_bytes, wrapped._ring.overlaps),
            groups=groups, keeps_errors=error_feedback, has_order=wrapped._overlap is not None, process_set=process_set,
        )  # fmt: skip
    return wrapped


def _check_options(
    op: ReduceOp, backward_passes_per_step: int, groups: Groups, compression: type[Compressor] | Exchange, overlap: str
) -> None:
    adapter.check_op(op)
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM):
        raise InvalidArgument(f"DistributedOptimizer takes op=Average, op=Sum or op=Adasum, not {op.name}")
    if backward_passes_per_step < 1:
        raise InvalidArgument(f"backward_passes_per_step is at least 1, not {backward_passes_per_step}")
    if isinstance(groups, int) and groups < 1:
        raise InvalidArgument(f"groups is at least 1, not {groups}")
    if overlap not in ("backward", "forward"):
        raise InvalidArgument(f'overlap is "backward" or "forward", not {overlap!r}')
    if overlap == "forward" and (isinstance(compression, Exchange) or op is ReduceOp.ADASUM):
        what = type(compression).__name__ if isinstance(compression, Exchange) else "op=Adasum"
        raise InvalidArgument(f'{what} begins when all gradients are there; leave out overlap="forward"')


def _overlap_of(
    wrapped: Any, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]
) -> ForwardOverlap | None:
    if reason := why_never(optimizer, parameters, is_elastic=adapter.is_elastic()):
        _log.warning('overlap="forward" is off: %s', reason)
        return None
    return ForwardOverlap(wrapped, wrapped._ring)
