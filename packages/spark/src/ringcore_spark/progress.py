"""How far a job is, in Spark's own page."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

# A line of rank 0, as the launcher shows it.
_LINE = re.compile(r"\[0\]<stdout> progress: (.+)")
# Spark's page keeps a thousand jobs, and a rank may print each step.
_PAUSE_S = 1.0
_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"


class Progress:
    """Lines of rank 0 that begin with `progress: ` appear among the jobs of Spark's page.

    The description of a job that runs cannot be changed. But a job without tasks needs no slot and is over at once:
    each line is the description of one, in the group of the job that it tells of.

    Args:
        context: The SparkContext; None: over Connect, where there are no jobs to describe.
        group: The group.
        title: Stands before each line.
    """

    def __init__(self, context: Any, group: str, title: str) -> None:
        self._context = context
        self._group = group
        self._title = title
        self._begun = ""
        self._latest: str | None = None
        self._after = 0.0

    def hear(self, text: str) -> None:
        """Take a piece of what ranks print."""
        *lines, self._begun = (self._begun + text).split("\n")
        found = [match[1] for match in map(_LINE.match, lines) if match]
        if found:
            self._latest = found[-1].strip()
        if time.monotonic() >= self._after:
            self.show()

    def show(self) -> None:
        """Show the latest line, if that was not done yet."""
        if self._latest is None or self._context is None:
            return
        own = {_GROUP: self._group, _DESCRIPTION: f"{self._title}: {self._latest}"}
        before = {name: self._context.getLocalProperty(name) for name in own}
        try:
            self._set(own)
            self._context._jsc.emptyRDD().count()
        finally:
            self._set(before)
        self._latest, self._after = None, time.monotonic() + _PAUSE_S

    def _set(self, properties: Mapping[str, str | None]) -> None:
        for name, value in properties.items():
            self._context.setLocalProperty(name, value)
