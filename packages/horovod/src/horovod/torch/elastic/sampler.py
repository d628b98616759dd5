"""`ElasticSampler` where Horovod has it."""

from ringcore_torch.elastic import ElasticSampler

__all__ = ["ElasticSampler"]
