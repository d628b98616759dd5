"""For schedulers that start processes themselves: Spark, Ray, Dask, Kubernetes, a notebook's workers.

They place the ranks; ringcore gives each a ticket, which a cluster carries by its own channel: `Job` and `connect`.
"""

from ringcore.bootstrap.interfaces import own_address
from ringcore.launcher.external.meeting import Job, Seat, connect
from ringcore.launcher.external.tickets import TicketError
from ringcore.launcher.outcomes import LaunchError, Raised, RankError, outcome_of, raise_first

__all__ = [
    "Job",
    "LaunchError",
    "Raised",
    "RankError",
    "Seat",
    "TicketError",
    "connect",
    "outcome_of",
    "own_address",
    "raise_first",
]
