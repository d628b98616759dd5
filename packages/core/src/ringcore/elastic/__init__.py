"""Training that goes on when ranks are lost, and takes in those that come: `ringrun --min-np N python train.py`.

A state keeps what training needs; `run` begins with that of rank 0, goes back to the last commit when a rank is lost,
meets the ranks that are there then, in the same process, and goes on. Adapters have states for what is their
framework's.
"""

from ringcore.elastic.loop import run
from ringcore.elastic.sampler import ElasticSampler
from ringcore.elastic.state import Handler, HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State
from ringcore.elastic.variables import VariablesState

__all__ = [
    "ElasticSampler",
    "Handler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "VariablesState",
    "run",
]
