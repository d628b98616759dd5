"""An elastic job whose nodes come by themselves: of Kubernetes, of Slurm, or started by hand. See `launcher.node`.

A slot of a node is a place as long as its agent is connected, whatever becomes of the processes there. Each node shows
what its ranks print; of that this launcher hears their standard error, to tell what has ended the job.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from ringcore._version import __version__
from ringcore.launcher import _summary
from ringcore.launcher._frames import Kind
from ringcore.launcher._placed import PlacedHost
from ringcore.launcher.elastic.arrivals import PlacedElasticSupervisor

if TYPE_CHECKING:
    from ringcore.launcher.elastic.arrivals import Arrival
    from ringcore.launcher.elastic.places import Place

# A node that has been told to leave closes its connections at once, where it can be reached.
_LEAVE_LIMIT_S = 2.0
_EXIT_REFUSED = 2


class NodeHost(PlacedHost):
    """One slot of a node."""

    stays = True

    def let_go(self, code: int, why: str) -> None:
        """Tell the node to end with this exit code; it closes the connection."""
        self._send(Kind.LEAVE, 0, json.dumps({"code": code, "why": why}).encode())

    def _on_close(self, reason: str) -> None:
        self._lose(f"this node has gone ({reason})", 1)


class NodesSupervisor(PlacedElasticSupervisor):
    """One such job from start to end."""

    _agent_class = NodeHost
    _agent_word = "slot"
    _waited = False  # For nodes to close their connections at the end.

    def take(self, arrival: Arrival, hello: dict[str, Any]) -> None:
        """A slot is there: it has a place from now on, that of a node of this name that has gone before."""
        theirs = str(hello.get("ringcore"))
        if theirs == __version__:
            super().take(arrival, hello)
            return
        problem = (
            f"{hello['host']} has ringcore {theirs}, and the launcher of this job {__version__}; install the same "
            "version on all hosts"
        )
        self._output.say(f"ringrun: {problem}")
        _let_go(arrival.agent, _EXIT_REFUSED, problem)

    def on_lost(self, index: int, reason: str, code: int) -> None:
        """A slot has gone with its node."""
        place = self._places.all[index]
        if place.process is not None and place.process.began_at is None:
            place.offered = False  # Nothing of the job has gone with it, so that this is no failure.
        super().on_lost(index, reason, code)

    def _name_of(self, hello: dict[str, Any]) -> str:
        key, host = f"{hello['machine']} {hello['host']}", hello["host"]
        there = {place.host.name for place in self._places.all if place.offered}
        # A pod is another machine each time it comes, and has the name of the one before it.
        self._names = {other: name for other, name in self._names.items() if other == key or name in there}
        if key not in self._names:
            taken = {*self._names.values()}
            namesakes = (f"{host} ({number})" for number in itertools.count(2))
            self._names[key] = next(name for name in itertools.chain([host], namesakes) if name not in taken)
        return self._names[key]

    def _whom(self) -> str:
        return "nodes to come, or to come again"

    def _condition(self, place: Place) -> str:
        return "" if place.number in self._hello else ", if its node comes again"

    def _hand_over(self, code: int) -> None:
        """Nobody has asked for results."""

    def _part(self) -> None:
        """Tells all nodes how the job has ended, so that none takes this launcher's end for a failure."""
        code, why = self._code(), ""
        if self._failures and code:
            cause = _summary.find_cause(self._failures)
            host = self._host_of(cause.rank)
            why = f"the job has ended: rank {cause.rank} on {host} {_summary.how(cause)}"
        elif code:
            why = f"the job has ended with exit code {code}: its launcher tells why"
        self._stopping = True
        for agent in [*(self._hosts[number] for number in self._hello), *(other.agent for other in self._strangers)]:
            _let_go(agent, code, why)
        self._loop.call_later(_LEAVE_LIMIT_S, self._wait_no_longer)
        while (self._hello or self._strangers) and not self._waited:
            self._loop.run_once()

    def _wait_no_longer(self) -> None:
        self._waited = True


def _let_go(agent: object, code: int, why: str) -> None:
    if isinstance(agent, NodeHost):
        agent.let_go(code, why)
