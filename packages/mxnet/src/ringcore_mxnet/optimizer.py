"""An optimizer of MXNet that averages each gradient over all ranks before it uses it; for `Module.fit`."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from ringcore import Average, InvalidArgument, adapter
from ringcore.adapter import ProcessSet, ReduceOp, global_process_set

from ringcore_mxnet._operations import allreduce_
from ringcore_mxnet.compression import Compression, Compressor
from ringcore_mxnet.parameters import check_weights as compare


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Wraps an optimizer: gradients are averaged over all ranks, in place, before they are used.

    With `Module.fit(optimizer=..., kvstore=None)` `rescale_grad` is 1 / batch size of this rank, as without ringcore.
    In Gluon `DistributedTrainer` is what you want.

    Args:
        optimizer: Any optimizer of MXNet. What is read or set here is read or set there.
        op: `Average` or `Sum` of the gradients.
        gradient_predivide_factor: Divide by this before the sum and multiply by it afterwards.
        compression: `Compression.fp16` or `Compression.bf16` halves what is sent of float32 gradients; `int8` and
            `int4` send a quarter and an eighth between hosts.
        process_set: The ranks that train together.
        check_weights: When the first weight is to be updated for the second time, compare a hash of all of them on all
            ranks, once, and raise `MismatchError` where they differ.

    Raises:
        InvalidArgument: No optimizer, or one that is wrapped already; a compression that needs all gradients at once;
            an `op` that is neither `Average` nor `Sum`.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        *,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        compression: type[Compressor] | str = Compression.none,
        process_set: ProcessSet = global_process_set,
        check_weights: bool = True,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            raise InvalidArgument("the optimizer is a DistributedOptimizer already; wrap it once")
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise InvalidArgument(
                f"DistributedOptimizer wraps an optimizer of MXNet, not {type(optimizer).__name__}; use "
                "mx.optimizer.create(name, ...)"
            )
        adapter.check_gradient_options(op, None, gradient_predivide_factor)
        compressor = Compression.chosen(compression, exchanges=True)
        if isinstance(compressor, adapter.Exchange):
            raise InvalidArgument(
                f"{type(compressor).__name__} needs all gradients of a step at once, and Module hands over one after "
                "the other; use Compression.int8 or int4, or Gluon and DistributedTrainer"
            )
        # Not Optimizer.__init__: the wrapped one has all that it would set.
        self.__dict__["_ring"] = {
            "optimizer": optimizer, "compression": compressor, "process_set": process_set,
            "op": op, "prescale_factor": 1.0 / gradient_predivide_factor, "postscale_factor": gradient_predivide_factor,
            "checks": check_weights, "unchecked": check_weights, "seen": {}, "has_compared": False,
        }  # fmt: skip
        adapter.after_init(self._on_init)

    def _on_init(self) -> None:
        """The ranks are others: whoever has come compares, and so do all."""
        self._ring.update(unchecked=self._ring["checks"], seen={})

    @property
    def unwrapped(self) -> mx.optimizer.Optimizer:
        """The optimizer that was wrapped."""
        optimizer: mx.optimizer.Optimizer = self._ring["optimizer"]
        return optimizer

    def __getattr__(self, name: str) -> Any:
        if name == "_ring":
            raise AttributeError(name)  # of a copy that is being made
        return getattr(self.unwrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.unwrapped, name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ring": {**self._ring, "seen": {}}}

    def create_state(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's."""
        return self.unwrapped.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's."""
        return self.unwrapped.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradient, then update."""
        self._compare_once(index, weight)
        self._average(index, grad)
        self.unwrapped.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradient, then update."""
        self._compare_once(index, weight)
        self._average(index, grad)
        self.unwrapped.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """The wrapped optimizer's."""
        self.unwrapped.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """The wrapped optimizer's."""
        self.unwrapped.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """The wrapped optimizer's."""
        self.unwrapped.set_wd_mult(args_wd_mult)

    def _compare_once(self, index: Any, weight: Any) -> None:
        """Which weights there are is known when one of them comes again: then they are compared."""
        if not self._ring["unchecked"] or self._ring["process_set"].size() == 1:
            return
        seen: dict[str, Any] = self._ring["seen"]
        for i, held in zip(index, weight, strict=True) if isinstance(index, list | tuple) else [(index, weight)]:
            name = str(self.idx2name.get(i, i))
            if name not in seen:
                seen[name] = held
                continue
            self._ring.update(unchecked=False, seen={})
            compare(
                seen, self._ring["process_set"], name="DistributedOptimizer.weights",
                remedy="before fit pass what module.get_params() gives to broadcast_parameters, then module.set_params",
                again=self._ring["has_compared"],
            )  # fmt: skip
            self._ring["has_compared"] = True
            return

    def _average(self, index: Any, grad: Any) -> None:
        adapter.check()
        process_set: ProcessSet = self._ring["process_set"]
        if process_set.size() == 1:
            return
        several = isinstance(index, list | tuple)
        for i, gradient in zip(index, grad, strict=True) if several else [(index, grad)]:
            number = i if isinstance(i, int) else 0
            allreduce_(
                gradient, op=self._ring["op"], name=f"gradient.{self.idx2name.get(i, i)}",
                priority=adapter.priority_of(number), prescale_factor=self._ring["prescale_factor"],
                postscale_factor=self._ring["postscale_factor"],
                process_set=process_set, compression=self._ring["compression"],
            )  # fmt: skip
