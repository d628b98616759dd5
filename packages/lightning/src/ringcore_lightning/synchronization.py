"""What the strategies of the Trainer and of Fabric do alike: keep a module the same on all ranks."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator

import torch
from ringcore import InvalidArgument, global_process_set
from ringcore.adapter import tell_untuned
from ringcore_torch import broadcast_, broadcast_parameters
from ringcore_torch.compression import Compressor
from ringcore_torch.memory import keep_freed_memory
from ringcore_torch.reducer import GradientReducer

from ringcore_lightning.elastic import again


class ModuleSynchronization:
    """Gives all ranks rank 0's parameters and buffers, and averages gradients after each backward pass.

    Args:
        module: On the CPU or a CUDA device; it is not wrapped.
        compression: What is sent of the gradients.
        broadcast_buffers: Before a forward pass give all ranks rank 0's buffers, when DistributedDataParallel does.

    Raises:
        InvalidArgument: A parameter is on a device of another kind.
    """

    def __init__(self, module: torch.nn.Module, compression: type[Compressor], *, broadcast_buffers: bool) -> None:
        named: list[tuple[str, torch.Tensor]] = [
            (name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad
        ]
        for name, parameter in named:
            if parameter.device.type not in ("cpu", "cuda"):
                raise InvalidArgument(
                    f"'{name}' is on {parameter.device}, and strategy='ring' trains on CPUs and CUDA devices; pass "
                    "accelerator='cpu' or accelerator='gpu', and give parameters on the meta device their memory first"
                )
        keep_freed_memory(named)
        broadcast_parameters([*module.named_parameters(), *module.named_buffers()])
        self._module = weakref.ref(module)
        self._broadcasts_buffers = broadcast_buffers
        self._buffers_differ = False
        tell_untuned("strategy='ring'", "Lightning says when gradients are averaged, and not where a step ends")
        self._reducer = (
            GradientReducer(named, global_process_set, compression=compression, skip_untouched=True) if named else None
        )

    def before_forward(self, *, training: bool) -> None:
        """Broadcast buffers if they may differ: after a pass in training whose gradients were averaged."""
        module = self._module()
        if self._broadcasts_buffers and self._buffers_differ and module is not None:
            buffers = [buffer.detach() for buffer in module.buffers() if buffer.numel() > 0]
            again(lambda: _broadcast_together(buffers))
        self._buffers_differ = training and (self._reducer is None or self._reducer.collects)

    def after_backward(self) -> None:
        """Average the gradients, unless they are only being added up."""
        if self._reducer is not None and self._reducer.collects:
            self._reducer.synchronize()
            self._reducer.reset()

    def abandon(self) -> None:
        """Drop what a backward pass that has failed has left."""
        if self._reducer is not None:
            self._reducer.abandon()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients are only added up."""
        if self._reducer is None:
            yield
            return
        with self._reducer.no_sync():
            yield

    def end(self) -> None:
        """Let go of the module."""
        if self._reducer is not None:
            self._reducer.detach()
            self._reducer = None


def _broadcast_together(tensors: list[torch.Tensor]) -> None:
    """Give all ranks rank 0's values; tensors of one dtype on one device in one operation."""
    for dtype, device in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
        same = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == (dtype, device)]
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        broadcast_(flat, 0, name=f"lightning.buffers.{device.type}.{dtype}")
        for tensor, part in zip(same, torch.split(flat, [tensor.numel() for tensor in same]), strict=True):
            tensor.copy_(part.view_as(tensor))


def default_start_method() -> str:
    """A notebook cannot be started again as a script: there, ranks are forked."""
    return "fork" if hasattr(sys, "ps1") or sys.flags.interactive else "popen"
