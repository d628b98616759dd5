"""For schedulers that start processes themselves: Spark, Ray, Dask, the workers of a notebook.

They place the ranks; ringcore gives each a ticket, which they carry by a channel of their own. With `Job` and
`connect` the process that has a ticket is the rank. With `PlacedJob` and `host_rank` it has the rank as its child, and
a launcher watches.
"""

from ringcore.bootstrap.interfaces import own_address
from ringcore.launcher.external.hosting import host_rank
from ringcore.launcher.external.meeting import Job, Seat, connect
from ringcore.launcher.external.placing import Elasticity, PlacedJob
from ringcore.launcher.external.tickets import TicketError
from ringcore.launcher.outcomes import LaunchError, Raised, RankError, check_call, outcome_of, raise_first

__all__ = [
    "Elasticity",
    "Job",
    "LaunchError",
    "PlacedJob",
    "Raised",
    "RankError",
    "Seat",
    "TicketError",
    "check_call",
    "connect",
    "host_rank",
    "outcome_of",
    "own_address",
    "raise_first",
]
