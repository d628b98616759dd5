"""Averages gradients over all ranks: a step, from buckets that fill up to gradients that hold the averages.

`buckets` has the parameters, and `hooks` fill them while backward runs. Sparse gradients are reduced one by one when
all buckets are done, and every rank knows which they are.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from ringcore import MembershipChangedError, RingcoreError, adapter
from ringcore.adapter import ProcessSet, ReduceOp, name_or_next

from ringcore_torch._operations import allreduce_
from ringcore_torch._profiling import seen
from ringcore_torch.buckets import Bucket, Groups, PackedBucket, make_buckets, usual_bucket_bytes
from ringcore_torch.compression import Compression, Compressor
from ringcore_torch.hooks import Hooks
from ringcore_torch.parameters import check_dtypes, take_over, taken_over
from ringcore_torch.sparse import sparse_allreduce_async
from ringcore_torch.state import check_weights_of

_log = logging.getLogger("ringcore")


class GradientReducer:
    """Collects gradients into buckets and averages them.

    Args:
        named: The parameters.
        process_set: The ranks that train together.
        passes_per_step: Backward passes whose gradients are summed before they are averaged.
        op: `SUM` or `AVERAGE`.
        predivide: Divides the gradients before the sum, and multiplies the result.
        compression: What is sent.
        groups: How gradients are sent together.
        sparse_as_dense: Reduce sparse gradients as dense ones.
        check_weights: Before the first step, compare the parameters of all ranks.
        error_feedback: Keep what is lost of gradients of which less is sent, and add it to the next ones.
        drops_steps: When a rank is lost in a step, leave this out, on all ranks that are left, and keep nothing for it.
            Else it is done again in an elastic job, where there is memory enough.
        skip_untouched: Leave out the buckets that backward reached on no rank. Ranks agree on them, which takes an
            operation more: for models of which some backward passes leave large parts alone.
        arguments: Of whoever made this, by name: compared on all ranks before the first average.
        bucket_bytes: A bucket is closed when it has so many; None: a part of all, see `usual_bucket_bytes`.
    """

    def __init__(
        self, named: list[tuple[str, torch.Tensor]], process_set: ProcessSet, *, passes_per_step: int = 1,
        op: ReduceOp = ReduceOp.AVERAGE, predivide: float = 1.0, compression: type[Compressor] = Compression.none,
        groups: Groups = None, sparse_as_dense: bool = False, skip_untouched: bool = False,
        check_weights: bool = False, error_feedback: bool = False, drops_steps: bool = False,
        arguments: Mapping[str, object] | None = None, bucket_bytes: int | None = None,
    ) -> None:  # fmt: skip
        check_dtypes(named)
        self.passes_per_step = passes_per_step
        self.should_synchronize = True
        self.collects = True
        self.sparse_as_dense = sparse_as_dense
        self._skip_untouched = skip_untouched
        self._names = {id(parameter): name for name, parameter in named}
        self._checked = named if check_weights else []  # By each new job, before its first step.
        self._unchecked = self._checked if process_set.size() > 1 else []
        self._has_compared = False
        self._arguments = arguments
        # Once; who joins an elastic job would be alone with it.
        self.compares_arguments = arguments is not None and not adapter.is_elastic()
        self.has_seen_sparse = False
        self._op = op
        # Dividing partly before and partly after the sum keeps 16-bit sums in range.
        self._prescale = 1.0 / predivide
        self._postscale = predivide
        self._process_set = process_set
        self.alone = process_set.size() == 1
        # Scripts make the optimizer on all ranks, also on those that are no members, and step on members only.
        self._prefix = name_or_next(None, "gradients", process_set) if process_set.included() else "gradients"
        self._replaced, self._replaced_by = False, ""
        on_gpu = any(parameter.is_cuda for _, parameter in named)
        self.overlaps = on_gpu or adapter.has_room_to_overlap(torch.get_num_threads())
        self.drops_steps = drops_steps
        self.dropped = False  # the step that is under way
        self._lost: MembershipChangedError | None = None  # why nothing more of it is submitted
        self._retries = not drops_steps
        self._asks_for_memory = adapter.is_elastic() and self._retries
        self._make_buckets = functools.partial(
            make_buckets, named, groups=groups, compression=compression, keeps_errors=error_feedback
        )
        self._hooks = Hooks()
        self._deal(self._prefix, bucket_bytes or usual_bucket_bytes([parameter for _, parameter in named]))
        if self._asks_for_memory:
            for bucket in self.buckets:
                bucket.keep_inputs()  # when all have what they need
        take_over((parameter for _, parameter in named), self)
        weakref.finalize(self, self._hooks.remove)
        adapter.after_init(self._on_init)

    def _deal(self, prefix: str, bucket_bytes: int) -> None:
        self.buckets = self._make_buckets(prefix, bucket_bytes=bucket_bytes)
        packed = [bucket for bucket in self.buckets if isinstance(bucket, PackedBucket)]
        # The last small gradients are there when backward ends: `synchronize` submits them, and no hook is needed.
        self.hookless = packed[-1] if packed and not self._skip_untouched else None
        if not self.alone and not self._replaced:
            self._hooks.add(self)

    def deal_anew(self, bucket_bytes: int, *, overlaps: bool, at_once: bool = False) -> None:
        """Between two steps, on all ranks between the same: send gradients in other buckets from now on.

        Nothing that was lost by a compression may be kept, nor memory to do a step again.

        Args:
            bucket_bytes: See `GradientReducer`.
            overlaps: Submit a bucket when its last gradient is there, else when backward is done.
            at_once: Over a network buckets begin while others wait for data, and not two at a time.
        """
        self.abandon()
        self._hooks.remove()
        self.overlaps = overlaps
        self._deal(f"{self._prefix}.{bucket_bytes}{'.at_once' if at_once else ''}", bucket_bytes)
        if at_once:
            for bucket in self.buckets:
                bucket.priority = adapter.priority_of(0)  # of equal ones the first released is the most urgent

    def _on_init(self) -> None:
        """The ranks may be others: what was on its way is lost, and whoever comes has its own weights."""
        self.abandon()
        self.alone = self._process_set.size() == 1
        self._unchecked = [] if self.alone else self._checked
        self.compares_arguments = self.compares_arguments and not adapter.is_elastic()
        self._asks_for_memory = adapter.is_elastic() and self._retries  # with whoever has come
        if not self.alone and not self._hooks and not self._replaced:
            self._hooks.add(self)

    @property
    def compares(self) -> bool:
        """Whether the next step compares the parameters or the arguments of all ranks."""
        return bool(self._unchecked) or self.compares_arguments

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients are only added up on this rank; they are averaged with those of the next pass outside."""
        before, self.collects = self.collects, False
        try:
            yield
        finally:
            self.collects = before

    def detach(self, who: str = "") -> None:
        """Average nothing any more: another one does it now, see `take_over`."""
        self._hooks.remove()
        self._replaced, self._replaced_by = True, who

    def check_own(self) -> None:
        """Refuse to step after `detach`.

        Raises:
            InvalidArgument: Somebody else has the parameters.
        """
        if self._replaced:
            raise taken_over(list(self._names.values()), self._replaced_by)

    @seen
    def launch(self, bucket: Bucket, *, early: bool, blocking: bool = False) -> None:
        """Submit a bucket; `early`: what calls this goes on, and may change gradients; `blocking`: wait for it."""
        if self._lost is not None:
            return
        try:
            bucket.launch(
                early=early, blocking=blocking, priority=bucket.priority,
                sparse_as_dense=self.sparse_as_dense, op=self._op, prescale_factor=self._prescale,
                postscale_factor=self._postscale, process_set=self._process_set,
            )  # fmt: skip
        except MembershipChangedError as error:
            if not self._leaves_out_steps():
                raise
            self._lost = error  # Others may be told in `synchronize` only, and submit nothing more of this step, too.

    def _sum_up(self, buckets: list[Bucket]) -> None:
        """Wait until all sums are there, and of the same ranks.

        In an elastic job some may be of ranks of which one was lost before the others had theirs. All ranks know which,
        and sum these up again: a step is the work of those who are there at its end.
        """
        behind = buckets
        while behind:
            for bucket in behind:
                bucket.wait()
            newest = max((epoch for bucket in buckets for epoch in bucket.epochs()), default=0)
            behind = [bucket for bucket in buckets if min(bucket.epochs(), default=newest) < newest]
            if behind and self.drops_steps:
                raise MembershipChangedError("a rank was lost when some gradients of the step had been summed up")
            for bucket in behind:
                bucket.submit_again()
        for bucket in buckets:
            bucket.land()

    @seen
    def synchronize(self) -> None:
        """Average what has not been averaged yet, and wait for all of it. Of a dropped step no gradient is left."""
        self.check_own()
        if self.alone or self.dropped:
            return
        try:
            self._average()
        except MembershipChangedError as error:
            if not self._leaves_out_steps():
                raise
            self._drop(error)

    def _leaves_out_steps(self) -> bool:
        """Where the caller goes back to a commit, all ranks have to: they may be in different steps, or in none."""
        return self.drops_steps and not adapter.goes_back()

    def _drop(self, why: MembershipChangedError) -> None:
        """All ranks that go on leave out this step: what has failed has failed on all of them."""
        self.abandon()
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.grad = None
        self.dropped = True
        adapter.drop_step()
        _log.warning("a step of '%s' is left out: %s", self._prefix, why)

    def _average(self) -> None:
        if self.compares_arguments and not _is_capturing():
            self._compare_arguments()
        if self.hookless is not None and self.hookless.finished and self.hookless.has_other_gradients():
            self.reset()  # the averages of a step that was skipped have made room for new gradients
        wanted = self._touched() if self._skip_untouched else self.buckets
        waiting = [bucket for bucket in wanted if bucket.handle is None]
        for bucket in waiting:
            # Behind the last one there is nothing to do but to wait.
            self.launch(bucket, early=False, blocking=bucket is waiting[-1] and not bucket.on_gpu)
        if self._lost is not None:
            raise self._lost
        unfinished = [bucket for bucket in wanted if not bucket.finished]
        self._sum_up(unfinished)
        if self.drops_steps and adapter.is_elastic() and any(bucket.on_gpu for bucket in unfinished):
            # On GPUs a sum may be lost when the program has it: all ranks have theirs, or all leave out the step.
            adapter.await_devices()
            adapter.barrier(f"{self._prefix}.ended", process_set=self._process_set)
        for bucket in unfinished:
            self._give(bucket)

    def submit_rest(self) -> None:
        """Send what has not been sent yet, the most urgent first; nobody waits for it."""
        self.check_own()
        for bucket in sorted(self.buckets, key=lambda bucket: -bucket.priority):
            if bucket.handle is None:
                self.launch(bucket, early=True)

    def finish(self, bucket: Bucket) -> None:
        """Wait for the averages of one bucket."""
        self._sum_up([bucket])
        self._give(bucket)

    def _give(self, bucket: Bucket) -> None:
        """Let the parameters have what has come."""
        dense, sparse = bucket.flags.tolist()
        if bucket.all_dense and not any(sparse):
            return bucket.finish(replaced=False)
        for index, parameter in enumerate(bucket.parameters):
            if sparse[index] != 0:
                self.has_seen_sparse = True
                self._average_sparse(parameter, bucket.result(index) if dense[index] != 0 else None)
            elif dense[index] == 0:
                parameter.grad = None  # no rank had a gradient: the optimizer skips it
            elif parameter.grad is None:
                parameter.grad = bucket.result(index)
        return bucket.finish(replaced=True)

    def _touched(self) -> list[Bucket]:
        """The buckets of which backward has reached a parameter on any rank."""
        touched = torch.tensor([bucket.touched for bucket in self.buckets], dtype=torch.uint8, device="cpu")
        allreduce_(touched, op=ReduceOp.MAX, name=f"{self._prefix}.touched", process_set=self._process_set)
        return [bucket for bucket, is_touched in zip(self.buckets, touched.tolist(), strict=True) if is_touched]

    def _average_sparse(self, parameter: torch.Tensor, dense: torch.Tensor | None) -> None:
        """Reduce the gradient that is sparse on some rank; a rank without one contributes no rows.

        Args:
            parameter: Its gradient on this rank may be sparse, dense or None.
            dense: What the ranks with a dense gradient have together; None where nobody has one.
        """
        grad = parameter.grad
        if grad is None or not grad.is_sparse:
            values = parameter.new_empty((0, *parameter.shape[1:]))
            indices = values.new_empty((1, 0), dtype=torch.int64)
            grad = torch.sparse_coo_tensor(
                indices, values, parameter.shape, device=parameter.device, check_invariants=False
            )
        name = f"{self._prefix}.sparse.{self._names[id(parameter)]}"
        factor = self._prescale * self._postscale
        total = sparse_allreduce_async(grad * factor, op=self._op, name=name, process_set=self._process_set)()
        parameter.grad = total if dense is None else total.to_dense() + dense

    def end_round(self) -> bool:
        """Wait for the averages that `step` needs, and be ready for the next ones, also when these have failed.

        Returns:
            Whether there are averages: the step is not dropped.
        """
        try:
            if self.should_synchronize:
                self.synchronize()
            is_dropped, self.dropped = self.dropped, False
            if self._unchecked and not is_dropped and not _is_capturing():
                self._check_weights()
            if self._asks_for_memory and not self.alone:
                self._ask_for_memory()
        except BaseException:
            self.abandon()
            raise
        self.reset()
        return not is_dropped

    def _ask_for_memory(self) -> None:
        """Once: where one rank cannot keep what is summed up, none can do a step again."""
        self._asks_for_memory = False
        is_short = self.drops_steps or any(bucket.is_short for bucket in self.buckets)
        short = torch.tensor([is_short], dtype=torch.uint8, device="cpu")
        allreduce_(short, op=ReduceOp.MAX, name=f"{self._prefix}.short", process_set=self._process_set)
        if self.drops_steps or not short.item():
            return
        self.drops_steps = True
        for bucket in self.buckets:
            bucket.stop_keeping()
        _log.warning(
            "there is too little memory, here or on another rank, for a second buffer of the gradients of '%s': when a "
            "rank is lost, the others leave out the step that is under way, as with on_lost_rank='skip'. Remedy: raise "
            "RINGCORE_ARENA_BYTES, or the memory of the machine or container",
            self._prefix,
        )

    def _compare_arguments(self) -> None:
        """Before anything is sent, which could not be told from what another rank sends with other arguments."""
        if self._arguments is not None:
            name = f"{self._prefix}.arguments"
            adapter.check_arguments("DistributedOptimizer", self._arguments, self._process_set, name=name)
        self.compares_arguments = False

    def _check_weights(self) -> None:
        named, self._unchecked = self._unchecked, []
        check_weights_of(named, self._process_set, f"{self._prefix}.weights", again=self._has_compared)
        self._has_compared = True

    def _errors(self) -> dict[str, torch.Tensor]:
        return {name: lost for bucket in self.buckets for name, lost in bucket.errors.items()}

    def state_dict(self) -> dict[str, Any]:
        """What was lost of each parameter's gradients so far, where that is kept."""
        errors = {name: lost.clone() for name, lost in self._errors().items()}
        return {"errors": errors} if errors else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`; one without errors has lost nothing."""
        kept = state_dict.get("errors", {})
        for name, lost in self._errors().items():
            lost.copy_(kept[name]) if name in kept else lost.zero_()

    def reset(self) -> None:
        """Ready for the next step."""
        for bucket in self.buckets:
            if not bucket.held:
                bucket.reset()

    def abandon(self) -> None:
        """Drop what is on the way: its memory is free once the engine is done with it."""
        self.dropped, self._lost = False, None
        for bucket in self.buckets:
            if bucket.held:
                continue
            if bucket.handle is not None:
                with contextlib.suppress(RingcoreError):  # nobody wants it any more, and `step` has told why
                    bucket.handle.wait()
            bucket.reset()


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
