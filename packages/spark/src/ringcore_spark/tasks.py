"""What runs in Spark's tasks: one rank each, as a child process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ringcore.launcher.external import host_rank

from ringcore_spark.partition import kept


class Tasks:
    """The function that Spark calls for each partition; Spark's own channels carry it, with the job's key.

    Args:
        tickets: One for each partition.
        call: What the ranks call.
        keep: Whether the ranks read the rows of the partitions.
        again: Whether a task that Spark tries again has a rank, too: of an elastic job.
    """

    def __init__(self, tickets: Sequence[bytes], call: bytes, *, keep: bool = False, again: bool = False) -> None:
        self._tickets = list(tickets)
        self._call = call
        self._keep = keep
        self._again = again

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Run the rank of this partition until the job's end. It returns no rows: the rank tells the driver."""
        from pyspark import TaskContext

        context = TaskContext.get()
        # Spark tries a stage again when an executor is lost; a job of fixed ranks is over then, and its driver knows.
        if context is not None and (self._again or context.attemptNumber() == 0):
            with kept(batches if self._keep else None) as variables:
                host_rank(self._tickets[context.partitionId()], self._call, {**devices(context), **variables})
        for _ in batches:
            pass
        yield from ()


def devices(context: Any) -> dict[str, str]:
    """Variables that give a rank the GPUs of its task."""
    gpus = context.resources().get("gpu")
    return {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus.addresses)}
