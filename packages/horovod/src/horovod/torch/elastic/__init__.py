"""Elastic training: `ringcore_torch.elastic` under Horovod"s name."""

from ringcore_torch.elastic import ElasticSampler, TorchState, run

__all__ = ["ElasticSampler", "TorchState", "run"]
