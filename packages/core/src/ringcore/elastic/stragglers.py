"""Which rank is slower than the others, again and again, so that all wait for it.

At each commit the ranks tell each other for how long they have worked since the last one: the time that has passed,
less that in which they waited for others to announce what they had announced themselves. So all know the same and come
to the same conclusion, and what moving data over the network takes counts for all alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from ringcore.environment.straggler import Straggler
from ringcore.job.state import context

# What is looked at together: at least so many steps that took so long. A straggler is slow in so large a part of them:
# whoever evaluates the model now and then, or saves it, is none.
_STEPS, _SECONDS, _SHARE = 20, 10.0, 0.75


class Stragglers:
    """Looks for a straggler.

    Args:
        factor: It works so many times as long as the median of all.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._epoch: int | None = None
        self._began_s = self._waited_s = 0.0  # When this rank's step began, and how long it had waited until then.
        self._begin_window(0)

    def _begin_window(self, ranks: int) -> None:
        self._steps, self._lasted_s, self._middle_s = 0, 0.0, 0.0
        self._own_s = [0.0] * ranks
        self._slow_steps = [0] * ranks

    def end_step(self) -> float:
        """This rank has come to a commit; returns for how many seconds it has worked since the last one."""
        passed_s = time.monotonic() - self._began_s
        return passed_s - (context().runtime.waited_for_others - self._waited_s)

    def begin_step(self) -> None:
        """All ranks have come to that commit."""
        self._began_s, self._waited_s = time.monotonic(), context().runtime.waited_for_others

    def find(self, epoch: int, worked_s: Sequence[float]) -> tuple[int, Straggler] | None:
        """A straggler, if there is one: the same on all ranks.

        Args:
            epoch: That all of them have come to this commit in.
            worked_s: What `end_step` has returned on each of them, by rank.
        """
        if epoch != self._epoch:  # Somebody has come or gone since the last commit, and that took everybody's time.
            self._epoch = epoch
            self._begin_window(len(worked_s))
            return None
        middle_s = statistics.median_low(worked_s)  # Of two ranks: the quicker one's.
        self._steps += 1
        self._lasted_s += max(worked_s)
        self._middle_s += middle_s
        for rank, own_s in enumerate(worked_s):
            self._own_s[rank] += own_s
            self._slow_steps[rank] += own_s > self._factor * middle_s
        if self._steps < _STEPS or self._lasted_s < _SECONDS:
            return None
        slowest = max(range(len(worked_s)), key=self._own_s.__getitem__)
        straggler = Straggler(self._own_s[slowest] / self._steps, self._middle_s / self._steps, self._steps)
        is_slow = self._slow_steps[slowest] >= _SHARE * self._steps
        self._begin_window(len(worked_s))
        return (slowest, straggler) if is_slow else None
