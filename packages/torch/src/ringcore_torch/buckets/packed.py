"""A bucket whose small gradients stay where autograd has put them."""

from __future__ import annotations

from typing import Any

import torch
from ringcore import adapter

from ringcore_torch.buckets.bucket import Bucket, new_flags


class PackedBucket(Bucket):
    """Small gradients: they stay where autograd has put them, and the engine packs them."""

    def __init__(self, name: str, parameters: list[torch.Tensor], names: list[str]) -> None:
        super().__init__(name, parameters, names)
        self.flags = new_flags(parameters)
        self._all_have_dense = torch.tensor([[1.0], [0.0]], device="cpu").expand(2, len(parameters))
        self._grads: list[Any] = [None] * len(parameters)
        self._keeps = False
        self._sums: list[torch.Tensor] = []

    def launch(self, *, early: bool, sparse_as_dense: bool, **options: Any) -> None:  # noqa: D102
        now = [parameter.grad for parameter in self.parameters]
        self.check_unchanged(now)
        self.sealed = False
        self.join_streams()
        # Without a look at each gradient: the engine refuses whatever is not a contiguous tensor.
        self._grads = now
        self.flags.copy_(self._all_have_dense)
        self.all_dense = True
        try:
            self.submit(self.arrays(), self.sums(), **options)
            self._left, self._unseen = self._grads, False
            if early:
                self._sealed_version = self.version()
                self.sealed = True
        except adapter.UnsupportedArray:
            self._left = []
            super().launch(early=early, sparse_as_dense=sparse_as_dense, **options)

    def seal(self) -> None:  # noqa: D102
        if not self.sealed and self.ready == len(self.parameters):
            self._grads = [parameter.grad for parameter in self.parameters]
        super().seal()

    def seal_arrived(self) -> None:
        """Backward has ended: the gradients that are there may not be changed; others may still come."""
        self._left = [parameter.grad for parameter in self.parameters]
        self._grads = list(self._left)
        self._sealed_version = self.version()
        self.sealed = self._unseen = True

    def take(self, index: int, grad: torch.Tensor) -> None:  # noqa: D102
        if grad.dtype is not self.dtype:
            self.check(index, grad)
        if grad.is_sparse or not grad.is_contiguous():
            grad = (grad.to_dense() if grad.is_sparse else grad).contiguous()
            self.parameters[index].grad = grad
        self._grads[index] = grad

    def leave_out(self, index: int) -> None:  # noqa: D102
        self._grads[index] = torch.zeros_like(self.parameters[index], memory_format=torch.contiguous_format)

    def finish(self, *, replaced: bool) -> None:  # noqa: D102
        if replaced or not self._left:
            return super().finish(replaced=replaced)
        self.finished, self._unseen = True, False
        return None

    def reset(self) -> None:  # noqa: D102
        if not self.on_gpu and not self._keeps:
            self._last = self.handle or self._last
        super().reset()
        self._grads = [None] * len(self.parameters)

    def arrays(self) -> tuple[Any, ...]:  # noqa: D102
        return tuple(self._grads) if self.on_gpu else (*self._grads, self.flags)

    def sums(self) -> tuple[Any, ...]:  # noqa: D102
        if self._keeps and not self._sums:
            arrays = (*self.parameters, self.flags)
            self._sums = [torch.empty_like(array, memory_format=torch.contiguous_format) for array in arrays]
        return tuple(self._sums)

    def keep_inputs(self) -> None:  # noqa: D102
        self._keeps = not self.on_gpu

    def stop_keeping(self) -> None:  # noqa: D102
        self._keeps, self._sums = False, []

    def land(self) -> None:  # noqa: D102
        if self._keeps:
            torch._foreach_copy_([*self._grads, self.flags], self._sums)

    def version(self) -> int:  # noqa: D102
        return sum([grad._version for grad in self._grads if grad is not None])

    def result(self, index: int) -> torch.Tensor:  # noqa: D102
        grad: torch.Tensor = self._grads[index]
        return grad
