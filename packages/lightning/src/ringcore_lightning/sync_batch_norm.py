"""`Trainer(sync_batchnorm=True)` on CPUs, for which PyTorch's own has no kernel."""

from __future__ import annotations

from typing import Any

import torch
from ringcore_torch.sync_batch_norm import SyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm


class LayerSync:
    """Replaces batch norm by one over the batches of all ranks while a model is fitted."""

    def __init__(self) -> None:
        self._originals: dict[SyncBatchNorm, _BatchNorm] = {}

    def apply(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model with its layers replaced."""
        return self._replaced(model, self._synchronized)

    def revert(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model with its own layers again, and what they have learned."""
        model = self._replaced(model, self._original)
        self._originals.clear()
        return model

    def _replaced(self, module: torch.nn.Module, replacement: Any) -> torch.nn.Module:
        for name, child in module.named_children():
            module.add_module(name, self._replaced(child, replacement))
        result: torch.nn.Module = replacement(module)
        return result

    def _synchronized(self, module: torch.nn.Module) -> torch.nn.Module:
        if not isinstance(module, _BatchNorm) or isinstance(module, SyncBatchNorm):
            return module
        layer = SyncBatchNorm(
            module.num_features, eps=module.eps, momentum=module.momentum, affine=module.affine,
            track_running_stats=module.track_running_stats,
        )  # fmt: skip
        self._originals[layer] = module
        _share(module, layer)
        return layer

    def _original(self, module: torch.nn.Module) -> torch.nn.Module:
        if not isinstance(module, SyncBatchNorm) or module not in self._originals:
            return module
        original = self._originals[module]
        _share(module, original)
        return original


def _share(source: _BatchNorm, target: _BatchNorm) -> None:
    target.weight, target.bias = source.weight, source.bias
    target.running_mean, target.running_var = source.running_mean, source.running_var
    target.num_batches_tracked = source.num_batches_tracked
    target.train(source.training)


def layer_sync_for(device: torch.device, layer_sync: Any) -> Any:
    """What converts batch norm on a device: on the CPU ours in place of Lightning's, whose layers need a GPU.

    Args:
        device: That the model is trained on.
        layer_sync: The Trainer's plugin; another one than Lightning's own stays.
    """
    is_lightnings = type(layer_sync).__name__ == "TorchSyncBatchNorm"
    return LayerSync() if is_lightnings and device.type == "cpu" else layer_sync
