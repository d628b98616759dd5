"""A Gluon trainer that averages gradients over all ranks while backward is still running."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Literal

import mxnet as mx
from ringcore import Average, InvalidArgument, adapter
from ringcore.adapter import ProcessSet, ReduceOp, context, global_process_set

from ringcore_mxnet._operations import allreduce_, grouped_allreduce, grouped_allreduce_
from ringcore_mxnet.compression import Compression, Compressor
from ringcore_mxnet.optimizer import DistributedOptimizer
from ringcore_mxnet.parameters import broadcast_parameters
from ringcore_mxnet.parameters import check_weights as compare
from ringcore_mxnet.tuning import Dealing, tuner_of

_log = logging.getLogger("ringcore")
_told_of_overlap = False


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """`mx.gluon.Trainer` whose `step(batch_size)` averages the gradients of all ranks first.

    `batch_size` is that of this rank. Gradients are sent as MXNet makes them, those of the first layers first where
    several wait. `allreduce_grads()` and `update()` work as they do in Gluon, for clipping.

    Args:
        params: `net.collect_params()`, or a list of parameters; the same on every rank.
        optimizer: A name or an optimizer of MXNet.
        optimizer_params: Of the optimizer, where it is named.
        compression: `Compression.fp16` or `Compression.bf16` halves what is sent of float32 gradients; `int8` and
            `int4` send a quarter and an eighth between hosts; `powersgd(rank)`, `topk(ratio)`, `onebit()`,
            `blocks(size)` and `error_feedback(kind)` average all gradients themselves, when backward is done, and keep
            what is lost: in their own `state_dict()`.
        op: `Average` or `Sum` of the gradients.
        gradient_predivide_factor: Divide by this before the sum and multiply by it afterwards.
        prefix: Put before the names of gradients; tells trainers apart. Without one they are counted.
        groups: Number of groups that gradients are sent in; without it each is sent for itself, and the engine packs
            small ones.
        process_set: The ranks that train together.
        check_weights: Before the first step, compare a hash of the parameters of all ranks, and raise `MismatchError`
            where they differ.
        broadcast: Give all ranks the parameters of the first one of `process_set`, now, or when the first batch
            initialises them.
        overlap: What communication runs beside. "forward", also the next forward, is what MXNet's engine does with it
            in any case: `step` returns at once, and whatever reads a parameter waits until it has been updated. Not in
            elastic jobs: a warning says so once. Row-sparse gradients are waited for.

    Raises:
        InvalidArgument: A DistributedOptimizer, which would average them again; an `op` that is neither `Average` nor
            `Sum`, another `overlap`, or what a compression of all gradients has no use for.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        *,
        compression: type[Compressor] | adapter.Exchange | str = Compression.none,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        groups: int | None = None,
        process_set: ProcessSet = global_process_set,
        check_weights: bool = True,
        broadcast: bool = False,
        overlap: Literal["forward"] | None = None,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            raise InvalidArgument("DistributedTrainer averages gradients itself; pass it the optimizer unwrapped")
        compressor = Compression.chosen(compression, exchanges=True)
        adapter.check_gradient_options(op, groups, gradient_predivide_factor)
        _check_overlap(overlap, compressor)
        if isinstance(compressor, adapter.Exchange):
            adapter.check_exchange_options(compressor, op, groups, gradient_predivide_factor)
        # A dictionary has the order of the net, which the trainer gives up for that of the names.
        layers = list(params.values() if hasattr(params, "values") else params)
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._ring_order = [self._param2idx[param.name] for param in layers]
        for updater in self._updaters:
            # An update of several weights at once would wait for the last of their gradients.
            updater.aggregate_updates = False
        self._ring_prefix = context().next_name("trainer") if prefix is None else prefix
        self._ring_compression = compressor
        self._ring_factors: dict[str, Any] = {
            "op": op, "prescale_factor": 1.0 / gradient_predivide_factor, "postscale_factor": gradient_predivide_factor,
        }  # fmt: skip
        self._ring_dealing = Dealing(groups)
        self._ring_tuner: adapter.Tuner[Dealing] | None = None
        self._ring_has_begun = False
        self._ring_set = process_set
        self._ring_checks = self._ring_unchecked = check_weights
        self._ring_has_compared = False
        adapter.after_init(self._ring_on_init)
        if broadcast and process_set.included():
            named = {param.name: param for param in layers}
            broadcast_parameters(named, process_set.ranks[0], self._ring_prefix, process_set=process_set)

    def _ring_on_init(self) -> None:
        """The ranks are others: whoever has come compares, and so do all."""
        self._ring_unchecked = self._ring_checks

    def _allreduce_grads(self) -> None:
        adapter.check()
        if self._ring_set.size() == 1:
            return
        if self._ring_unchecked:
            self._ring_unchecked = False
            self._check_weights()
        dense: list[tuple[str, int, Any]] = []
        rows: list[tuple[str, int, Any]] = []
        for position, i in enumerate(self._ring_order):
            param = self._params[i]
            if param.grad_req == "null":
                continue
            gradient, *others = param.list_grad()
            if others:
                raise InvalidArgument(
                    f"'{param.name}' lies on {len(others) + 1} devices; a rank has one: start more ranks"
                )
            name = f"{self._ring_prefix}.{i}.{without_numbers(param.name)}"
            (dense if gradient.stype == "default" else rows).append((name, adapter.priority_of(position), gradient))
        if isinstance(self._ring_compression, adapter.Exchange):
            self._exchange(dense, self._ring_compression)
        else:
            self._tune(dense)
            for group in self._groups_of(dense):
                self._average(group, self._ring_compression)
        for name, _, gradient in rows:  # they are waited for
            allreduce_(gradient, name=name, process_set=self._ring_set, **self._ring_factors)

    def _tune(self, gradients: list[Any]) -> None:
        """Where ways are tried, take the time of the step before this one; before the first, make what tries them."""
        if not self._ring_has_begun:
            self._ring_has_begun = True
            if self._ring_dealing.groups is None:
                sizes = [gradient.size for _, _, gradient in gradients]
                self._ring_tuner = tuner_of(sizes, self._deal, self._ring_set)
        elif self._ring_tuner is not None:
            # MXNet's engine does what was asked for whenever it can: a step has ended when its weights are there.
            for param in self._params:
                if param.grad_req != "null" and param._stype == "default":
                    param.list_data()[0].wait_to_read()
            self._ring_tuner.after_step()

    def _deal(self, dealing: Dealing) -> None:
        self._ring_dealing = dealing

    def _check_weights(self) -> None:
        trained = [i for i in self._ring_order if self._params[i].grad_req != "null"]
        weights = {
            f"{i}.{without_numbers(self._params[i].name)}": self._params[i].list_data()[0]
            for i in trained
            if self._params[i]._stype == "default"
        }
        compare(
            weights, self._ring_set, name=f"{self._ring_prefix}.weights",
            remedy="call broadcast_parameters(net.collect_params(), root_rank=0) before the first step, or pass "
            "broadcast=True to DistributedTrainer", again=self._ring_has_compared,
        )  # fmt: skip
        self._ring_has_compared = True

    def _groups_of(self, gradients: list[Any]) -> list[list[Any]]:
        if self._ring_dealing.groups is None and not adapter.is_elastic():
            return [[gradient] for gradient in gradients]
        # Backward makes the last ones first.
        dealt = reversed(adapter.buckets([gradient.size for _, _, gradient in gradients], self._ring_dealing.groups))
        return [[gradients[i] for i in group] for group in dealt]

    def _average(self, group: list[Any], compression: type[Compressor]) -> None:
        name, priority, _ = group[0]
        gradients = [gradient for _, _, gradient in group]
        options = {
            "name": name, "priority": priority, "process_set": self._ring_set,
            "compression": compression, **self._ring_factors,
        }  # fmt: skip
        if not adapter.is_elastic():
            grouped_allreduce_(gradients, **options)
            return
        # What the averages are made of stays until all are there: they are made again when a rank is lost.
        for average, gradient in zip(grouped_allreduce(gradients, **options), gradients, strict=True):
            average.copyto(gradient)
        gradients[-1].wait_to_read()
        adapter.followed()  # the step is that of these ranks

    def _exchange(self, gradients: list[tuple[str, int, Any]], exchange: adapter.Exchange) -> None:
        """Wait for all of them, and let it make the averages."""
        names = {i: f"{self._ring_prefix}.{i}.{without_numbers(param.name)}" for i, param in enumerate(self._params)}
        exchange.claim({name: self._params[i] for i, name in names.items()})
        arrays = {name: gradient.asnumpy() for name, _, gradient in gradients}
        exchange.average_of_step(
            arrays, f"{self._ring_prefix}.exchange", self._ring_set, who="DistributedTrainer",
            arguments={"compression": exchange},
        )  # fmt: skip
        for name, _, gradient in gradients:
            gradient[:] = arrays[name]


def _check_overlap(overlap: str | None, compression: Any) -> None:
    global _told_of_overlap
    if overlap is None:
        return
    if overlap == "backward":
        raise InvalidArgument(
            'overlap="backward" would wait for all averages in step(), and MXNet always goes on with the next forward; '
            'leave overlap out, or pass "forward", which is what it does'
        )
    if overlap != "forward":
        raise InvalidArgument(f'overlap is "forward", or is left out, not {overlap!r}')
    if isinstance(compression, adapter.Exchange):
        what = type(compression).__name__
        raise InvalidArgument(f'{what} begins when all gradients are there; leave out overlap="forward"')
    if adapter.is_elastic() and not _told_of_overlap:
        _told_of_overlap = True
        _log.warning('overlap="forward" is off: in an elastic job averages are waited for, to be made again')


def without_numbers(name: str) -> str:
    """Gluon counts layers for the whole process: a rank that made others before has other numbers."""
    return re.sub(r"\d+", "", name)
