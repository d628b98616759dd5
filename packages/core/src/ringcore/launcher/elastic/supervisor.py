"""An elastic job: processes come and go while it trains.

The index of an agent here is that of a place, see `places`: each agent has one process. A process says that it is
ready; when all that were ranks and still run are ready, those present get their ranks for the next epoch, and meet.
From then on their engines see to it that the others go on when some are lost, with this launcher's vote: see
`witness`.
"""

from __future__ import annotations

from ringcore.launcher._hosts import Host
from ringcore.launcher.agent import free_port
from ringcore.launcher.elastic.discovery import Discovery
from ringcore.launcher.elastic.places import Places
from ringcore.launcher.elastic.returning import Returning


class ElasticSupervisor(Returning):
    """One elastic job from start to end."""

    def _connect(self) -> None:
        assert self._options.elastic is not None
        self._asked = asked = self._options.elastic
        self._launched = True
        self._open.clear()
        self._running.clear()
        self._places = Places(*asked.cooldown_s, asked.min_np, asked.max_np, asked.spares)
        self._needed = max(asked.min_np, self._options.np or 0)
        self._master_port = self._layout.master_port or free_port()
        self._words = {}
        self._heralded = set()
        self._members = []
        self._cut_off = []
        self._loop.call_later(self._start_timeout_s, self._on_patience_ends)
        self.note(f"job {self._given.job_id}, as `ringcore scale` and `ringcore drain` know it")
        self._look_for_hosts()

    def _look_for_hosts(self) -> None:
        asked = self._asked
        if asked.host_discovery_script is None:
            self._on_hosts([Host(node.name, len(node.slots)) for node in self._layout.nodes])
            return
        self._discovery = Discovery(
            self._loop, asked.host_discovery_script, asked.slots_per_host, self._on_hosts, self._on_problem
        )
        self._discovery.ask()

    def _goes_on(self) -> bool:
        return bool(self._open) or not (self._stopping or self._is_over())

    def _review(self) -> None:
        """After whatever has happened: start, tell, deal and wait as things are now."""
        if self._stopping:
            return
        if self._ends():
            return
        self._start_due()
        self._dismiss()
        self._announce_coming()
        self._deal()
        self._watch_number()

    def _on_patience_ends(self) -> None:
        self._impatient = True
        self._needed = self._asked.min_np
        self._review()
