"""`TorchState` where Horovod has it."""

from ringcore_torch.elastic import TorchState

__all__ = ["TorchState"]
