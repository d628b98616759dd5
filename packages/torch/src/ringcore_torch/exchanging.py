"""Averages gradients when backward is done, by an `adapter.Exchange`: one of those that send very little of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from ringcore import InvalidArgument, adapter
from ringcore.adapter import Exchange, ProcessSet, name_or_next

from ringcore_torch.parameters import check_dtypes, take_over, taken_over
from ringcore_torch.state import check_weights_of

_DTYPES = (torch.float32, torch.float64)


def array_of(exchange: Exchange, name: str, gradient: torch.Tensor) -> Any:
    """The memory of a gradient, which lies in a row.

    Raises:
        InvalidArgument: It is of another dtype than an exchange takes: numpy, which the exchange would see, has no
            bfloat16.
    """
    if gradient.dtype not in _DTYPES:
        dtype = str(gradient.dtype).removeprefix("torch.")
        raise InvalidArgument(
            f"the gradient of '{name}' is of {dtype}, and {type(exchange).__name__} takes float32 and float64; leave "
            "the compression out, or train in one of these"
        )
    return gradient.numpy()


class ExchangingReducer:
    """What `GradientReducer` is for the other compressions.

    Args:
        named: The parameters, in host memory.
        process_set: The ranks that train together.
        exchange: What averages.
        passes_per_step: Backward passes whose gradients autograd adds up before `step`.
        check_weights: Before the first step, compare the parameters of all ranks.
        arguments: Of whoever made this, by name: compared on all ranks before the first average.
    """

    def __init__(
        self, named: list[tuple[str, torch.Tensor]], process_set: ProcessSet, exchange: Exchange, *,
        passes_per_step: int, check_weights: bool, arguments: Mapping[str, object],
    ) -> None:  # fmt: skip
        check_dtypes(named)
        if on_gpu := [name for name, parameter in named if not parameter.is_cpu]:
            raise InvalidArgument(
                f"'{on_gpu[0]}' lies on a GPU, and {type(exchange).__name__} works in host memory; use "
                "Compression.fp16 or bf16 there"
            )
        if narrow := [name for name, parameter in named if parameter.dtype not in _DTYPES]:
            raise InvalidArgument(
                f"'{narrow[0]}' is of another dtype than float32 and float64, which {type(exchange).__name__} takes; "
                "leave the compression out, or keep the parameters in one of these"
            )
        self.passes_per_step = passes_per_step
        self.drops_steps = False
        self.should_synchronize = True
        self._named = named
        self._process_set = process_set
        self._exchange = exchange
        self._checks_weights = self._unchecked = check_weights
        self._has_compared = False
        self._arguments = arguments
        self._replaced, self._replaced_by = False, ""
        self._prefix = name_or_next(None, "gradients", process_set) if process_set.included() else "gradients"
        self._averages: list[tuple[torch.Tensor, int]] = []
        exchange.claim(dict(named))
        take_over((parameter for _, parameter in named), self)
        adapter.after_init(self._on_init)

    def _on_init(self) -> None:
        """The ranks may be others."""
        self.abandon()
        self._unchecked = self._checks_weights

    def detach(self, who: str = "") -> None:
        """Average nothing any more: another one does it now, see `take_over`."""
        self._replaced, self._replaced_by = True, who

    def synchronize(self) -> None:
        """Let every `grad` hold what stands for the average.

        Raises:
            InvalidArgument: Somebody else has the parameters, or a gradient is sparse or of another dtype.
        """
        if self._replaced:
            raise taken_over([name for name, _ in self._named], self._replaced_by)
        if self._process_set.size() == 1 or self._holds_averages():
            return
        self._exchange.average_of_step(
            {name: self._gradient(name, parameter) for name, parameter in self._named}, self._prefix,
            self._process_set, who="DistributedOptimizer", arguments=self._arguments,
        )  # fmt: skip
        held = [parameter.grad for _, parameter in self._named]
        self._averages = [(grad, grad._version) for grad in held if grad is not None]

    def _holds_averages(self) -> bool:
        """Nobody has touched the gradients since they were averaged."""
        now = [parameter.grad for _, parameter in self._named]
        return len(self._averages) == len(now) and all(
            grad is kept and grad._version == version for grad, (kept, version) in zip(now, self._averages, strict=True)
        )

    def _gradient(self, name: str, parameter: torch.Tensor) -> Any:
        """In a row of memory; a parameter without one on this rank has zeros."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.is_sparse:
            raise InvalidArgument(
                f"the gradient of '{name}' is sparse, which {type(self._exchange).__name__} does not take; use "
                "sparse=False, or another compression"
            )
        if not parameter.grad.is_contiguous():
            parameter.grad = parameter.grad.contiguous()
        return array_of(self._exchange, name, parameter.grad.detach())

    def end_round(self) -> bool:
        """Wait for the averages that `step` needs, and be ready for the next ones. True: there are averages."""
        try:
            if self.should_synchronize:
                self.synchronize()
            if self._unchecked and self._process_set.size() > 1:
                self._unchecked = False
                check_weights_of(self._named, self._process_set, f"{self._prefix}.weights", again=self._has_compared)
                self._has_compared = True
        finally:
            self.abandon()
        return True

    def abandon(self) -> None:
        """The gradients that come are others."""
        self._averages = []

    def state_dict(self) -> dict[str, Any]:
        """What the exchange keeps."""
        return {"compression": self._exchange.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`."""
        if "compression" in state_dict:
            self._exchange.load_state_dict(state_dict["compression"])
