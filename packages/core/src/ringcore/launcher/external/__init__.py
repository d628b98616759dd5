"""For schedulers that start processes themselves: Spark, Ray, Dask, Kubernetes, a notebook's workers.

They place the ranks; ringcore gives each a ticket, which a cluster carries by its own channel: `Job` and `connect`.
"""

from ringcore.launcher.external.meeting import Job, Seat, TicketError, connect

__all__ = ["Job", "Seat", "TicketError", "connect"]
