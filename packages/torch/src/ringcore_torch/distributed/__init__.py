"""The backend "ring" of torch.distributed: `torch.distributed.init_process_group("ring")`.

`process_group` has the collectives, `work` what they return, `membership` the ranks of a group, `job` the engine's.
"""

from __future__ import annotations

import math
from typing import Any

import torch.distributed as dist

from ringcore_torch.distributed.membership import Membership
from ringcore_torch.distributed.process_group import RingProcessGroup

__all__ = ["RingProcessGroup", "create_process_group"]


def create_process_group(options: Any) -> RingProcessGroup:
    """Make a group of `torch.distributed.init_process_group` or `new_group`. Called on its members only.

    Args:
        options: `torch.distributed.distributed_c10d._DistributedBackendOptions`.
    """
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    membership = Membership(options.store, ranks, options.group_rank, options.timeout)
    # The engine has one limit for all operations; a group that was given another one waits no longer than that.
    own_limit = options.timeout != dist.default_pg_timeout
    limit_s = options.timeout.total_seconds() if own_limit else math.inf
    return RingProcessGroup(membership, options.group_id, limit_s)
