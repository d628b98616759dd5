"""An elastic job: processes come and go while it trains.

The index of an agent here is that of a place, see `_places`: each agent has one process. A process says that it is
ready; when all that were ranks and still run are ready, those present get their ranks for the next epoch, and meet.
From then on their engines see to it that the others go on when some are lost, with this launcher's vote: see
`_witness`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import time
from typing import TYPE_CHECKING, Any

from ringcore.environment import settings as _settings
from ringcore.environment.settings import Settings
from ringcore.environment.watching import OrderError
from ringcore.launcher import _hosts, _plan, _process, _summary
from ringcore.launcher._discovery import Discovery
from ringcore.launcher._frames import Kind
from ringcore.launcher._hosts import Host, HostError, Slot
from ringcore.launcher._job import HostJob, RankExit
from ringcore.launcher._joining import Joining
from ringcore.launcher._loop import Timer
from ringcore.launcher._options import Elastic
from ringcore.launcher._places import Place, Places, RankProcess, deal
from ringcore.launcher._plan import Node
from ringcore.launcher._summary import Failure, list_ranks
from ringcore.launcher._supervisor import NodeEvents, Supervisor
from ringcore.launcher._witness import Witness
from ringcore.launcher.agent import Agent, free_port

if TYPE_CHECKING:
    from ringcore.bootstrap import RendezvousServer

# A rank that was lost for another reason than its end ends, or comes to meet the others, by then.
_FENCE_S = 5.0
_ENGINE_VARIABLE = _settings.variable("elastic")
# Of a line that a process writes to its launcher.
_MOST_BYTES = 1 << 16


class ElasticSupervisor(Supervisor):
    """One elastic job from start to end."""

    _asked: Elastic
    _places: Places
    _server: RendezvousServer | None = None
    _joining: Joining | None = None  # With the witness.
    _witness: Witness | None = None  # Of the ranks that have met; None: their engines end with the first that is lost.
    _bind = ""
    _discovery: Discovery | None = None
    _master_port = 0
    _epoch = 0
    _resets = 0
    _needed = 0  # Ranks for the next epoch.
    _began = False  # There was an epoch.
    _impatient = False  # Who has not come by now is not waited for.
    _finishing = False  # A rank has done its work.
    _too_few: Timer | None = None
    _next_start: Timer | None = None

    def _connect(self) -> None:
        assert self._options.elastic is not None
        self._asked = asked = self._options.elastic
        self._launched = True
        self._open.clear()
        self._running.clear()
        self._places = Places(*asked.cooldown_s, asked.min_np, asked.max_np)
        self._needed = max(asked.min_np, self._options.np or 0)
        self._master_port = self._plan.master_port or free_port()
        self._words: dict[int, bytes] = {}
        self._heralded: set[str] = set()  # To the ranks of this epoch.
        self._cut_off: list[RankProcess] = []  # Their hosts were lost: they may still run.
        self._loop.call_later(self._start_timeout_s, self._on_patience_ends)
        self.note(f"job {self._given.job_id}, as `ringcore scale` and `ringcore drain` know it")
        if asked.host_discovery_script is None:
            self._on_hosts([Host(node.name, len(node.slots)) for node in self._plan.nodes])
            return
        self._discovery = Discovery(
            self._loop, asked.host_discovery_script, asked.slots_per_host, self._on_hosts, self._on_problem
        )
        self._discovery.ask()

    def _goes_on(self) -> bool:
        return bool(self._open) or not (self._stopping or self._is_over())

    def _is_over(self) -> bool:
        """Whether nobody is left, and nobody is to come: without a rank there is no state to go on with."""
        if self._places.processes():
            return False
        if self._failures and not self._finishing:
            return not self._may_start_anew()
        return self._finishing or (bool(self._places.all) and not self._places.vacant())

    def _may_start_anew(self) -> bool:
        limit = self._asked.reset_limit
        return limit is not None and self._resets < limit and all(p.stillborn <= limit for p in self._places.all)

    # Hosts.

    def _on_hosts(self, hosts: list[Host]) -> None:
        self.note(f"hosts: {', '.join(f'{host.name}:{host.slots}' for host in hosts) or 'none'}")
        try:
            self._serve(hosts)
        except HostError as error:
            self._on_problem(str(error))
            return
        for host in hosts:
            if self._bind == "127.0.0.1" and not _hosts.is_local(host):
                self._output.say(
                    f"ringrun: host {host.name} is left out: the job began on this machine alone, where its ranks meet "
                    "at 127.0.0.1. Name an interface that all hosts reach by --network-interface"
                )
                hosts = [other for other in hosts if other is not host]
        new = self._places.offer(hosts)
        nodes = tuple(_node_of(place) for place in self._places.all)
        self._plan = dataclasses.replace(self._plan, size=len(nodes), group_size=len(hosts), nodes=nodes)
        try:
            self._output.create_logs(place.number for place in new)
        except OSError as error:
            self._on_problem(f"cannot write to --log-dir {self._options.log_dir}: {error.strerror}")
        self._review()

    def _serve(self, hosts: list[Host]) -> None:
        if self._server is None and hosts:
            assert self._given.serve is not None
            settings = Settings.from_environ({**os.environ, **self._options.settings})
            self._bind = _plan.bind_address(hosts, settings)
            self._server = self._given.serve(self._bind)
            self._plan = dataclasses.replace(self._plan, master_addr=self._plan.master_addr or self._bind)

    def _on_problem(self, text: str) -> None:
        self._output.say(f"ringrun: {text}")
        self._review()

    def _on_patience_ends(self) -> None:
        self._impatient = True
        self._needed = self._asked.min_np
        self._review()

    # What `ringcore scale` and `ringcore drain` ask for.

    def order(self, order: str) -> str:
        if self._stopping:
            raise OrderError("the job ends")
        word, _, wanted = order.partition(" ")
        if word == "drain":
            return self._drain(wanted)
        match = re.fullmatch(r"([+=-])([0-9]{1,6})", wanted, re.ASCII)
        if match is None:
            raise OrderError(f"{wanted!r} is no number of ranks: write +2, -1 or =6")
        base = 0 if match[1] == "=" else self._places.wanted()
        return self._scale(base - int(match[2]) if match[1] == "-" else base + int(match[2]))

    def _scale(self, size: int) -> str:
        if size < self._asked.min_np:
            raise OrderError(f"{size} ranks are less than --min-np {self._asked.min_np}")
        self._places.most = size
        for place in self._places.all:
            place.retired = False
        if self._asked.host_discovery_script is None and not (self._options.hosts or self._options.hostfile):
            slots = max(size, len(self._places.all))
            self._on_hosts([Host("localhost", slots)])
        else:
            self._review()
        wanted = self._places.wanted()
        more = "" if wanted == size else f", as there are no more slots than that for {size}"
        return f"{_are(wanted)} wanted from now on{more}"

    def _drain(self, number: str) -> str:
        process = next((p for p in self._places.processes() if str(p.place.number) == number), None)
        if process is None or process.leaves:
            there = list_ranks([p.place.number for p in self._places.processes() if not p.leaves])
            raise OrderError(f"there is no rank {number} that could leave; there are {there}")
        self._say(process, {"drain": True})
        return f"rank {number} leaves at its next commit"

    # What processes say, and how they end.

    def on_output(self, rank: int, kind: Kind, data: bytes) -> None:
        """A process wrote something, to its launcher perhaps."""
        process = self._places.all[rank].process
        if kind is not Kind.WORD:
            super().on_output(rank, kind, data)
        elif process is not None:
            *lines, rest = (self._words.get(rank, b"") + data).split(b"\n")
            self._words[rank] = rest[:_MOST_BYTES]
            for line in lines:
                self._listen(process, line)
            self._review()

    def _listen(self, process: RankProcess, line: bytes) -> None:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):  # No word of ringcore's: the program has found the descriptor.
            return
        if said.get("leaves"):
            process.place.retired |= not process.leaves  # By itself: nobody is to come in its place.
            process.leaves = True
        if self._witness is not None and "view" in said and self._witness.hear(process, said):
            self._on_view(self._witness.members)
        process.apart |= bool(said.get("apart"))
        joining = self._joining
        if joining is not None and joining.newcomer is not None and said.get("unmet") == joining.place:
            self._end_meeting()
            self._tell_ranks("comes")  # They meet anew with it.
        if said.get("ready"):
            if self._joining is not None:
                self._joining.forget(process)
            process.ready, process.intact = True, bool(said.get("intact"))
            for lost in (p for p in self._places.processes() if p.in_epoch and p.rank == said.get("lost")):
                self._loop.call_later(_FENCE_S, functools.partial(self._fence, lost, lost.epoch))

    def _fence(self, process: RankProcess, epoch: int) -> None:
        """Ends a process that others have lost, and that still has not come to meet them: it was stopped, or hangs."""
        number = process.place.number
        if process.place.process is process and process.epoch == epoch and not (process.ready or process.apart):
            self._output.say(f"ringrun: rank {number} on {process.place.host.name} does not answer, and is killed")
            process.fenced = True
            self._hosts[number].kill()

    def on_exit(self, rank: int, how: RankExit) -> None:
        """A process has ended; the others go on."""
        process = self._places.all[rank].process
        super().on_exit(rank, how)  # Which tells of a failure.
        if how.code == 0 and process is not None and not process.leaves and not self._finishing:
            self._finishing = True
            self._failures.clear()  # They were made good.
        if process is not None:
            self._remove(process)
            self._prove_ended(process, in_order=how.code == 0)

    def _on_failure(self, failure: Failure) -> None:
        place = self._places.all[failure.rank]
        process = place.process
        if process is None or process.leaves or not place.usable:
            self._failures.remove(failure)  # It was to end, this way or another.
            return
        if process.fenced:  # It may have failed before, and only been slow to end.
            self._failures[-1] = failure = dataclasses.replace(failure, by_launcher=True)
        if process.began_at is not None and not process.in_epoch and (self._finishing or self._are_enough()):
            self._failures.remove(failure)  # The others go on without it already.
        self._needed = self._asked.min_np
        rest_s = self._places.fail(place, time.monotonic())
        place.process = None
        if self._finishing or self._is_over():
            return
        self._output.release(failure.rank)
        others = "the others go on, and it" if self._places.processes() else "it"
        self._output.say(
            f"ringrun: rank {failure.rank} on {place.host.name} {_summary.how(failure)}; {others} is started again in "
            f"{rest_s:g} s"
        )

    def _are_enough(self) -> bool:
        return sum(process.in_epoch for process in self._places.processes()) >= self._least()

    def _remove(self, process: RankProcess) -> None:
        was_rank, process.in_epoch = process.in_epoch, False
        process.place.process = None
        is_missed = was_rank or (self._joining is not None and self._joining.forget(process))
        if is_missed and not self._stopping:
            if was_rank and self._witness is None:
                self._tell_ranks("goes")
            self._end_meeting()
        self._review()

    def _end_meeting(self) -> None:
        """Whoever waits for a process at the rendezvous waits no more: the next epoch is that of nobody."""
        if self._server is not None:
            self._epoch += 1
            self._server.announce(self._epoch, 0)

    def on_lost(self, index: int, reason: str, code: int) -> None:
        """A host is gone, or could not start a process."""
        process = self._places.all[index].process
        if process is None or not self._plan.nodes[index].is_far:
            super().on_lost(index, reason, code)
            return
        self._open.discard(index)
        self._running.discard(index)
        self._hosts[index].close()
        if not self._stopping:
            self._output.say(f"ringrun: {reason}")
            self._failures.append(Failure(index, RankExit(code), reason, by_launcher=False))
            self._on_failure(self._failures[-1])
        self._remove(process)
        # An agent that hears nothing ends its ranks. Until then they may be more than half of the job, and go on.
        self._cut_off.append(process)
        limit_s = self._options.agent_timeout + _FENCE_S
        self._loop.call_later(limit_s, functools.partial(self._prove_ended, process))

    # Who goes on without whom.

    def _engines_go_on(self) -> bool:
        text = self._job_environ().get(_ENGINE_VARIABLE, "")
        return bool(_settings.parse("elastic", text))

    def _prove_ended(self, process: RankProcess, *, in_order: bool = False) -> None:
        """A process is no more: its engine's peers may not see that."""
        if process in self._cut_off:
            self._cut_off.remove(process)
        if self._witness is not None and not self._stopping:
            self._witness.prove_ended(process, in_order=in_order)
        self._review()

    def _on_view(self, members: list[RankProcess]) -> None:
        """Ranks have agreed to go on without others, in their processes."""
        self._epoch += 1
        self._resets += 1
        self.note(f"epoch {self._epoch}: the ranks of the places {[p.place.number for p in members]} go on")
        for process in self._places.processes():
            if process.in_epoch and process not in members:
                process.in_epoch = False
                self._loop.call_later(_FENCE_S, functools.partial(self._fence, process, process.epoch))
        if self._joining is not None:
            self._joining.take(members, time.monotonic())
        for rank, process in enumerate(members):
            process.rank, process.epoch = rank, self._epoch
        if self._are_enough():
            self._failures.clear()  # They were made good.

    def on_done(self, index: int) -> None:
        """Nothing is left of the process of a place."""
        super().on_done(index)
        self._review()

    # What is to happen.

    def _review(self) -> None:
        """After whatever has happened: start, tell, deal and wait as things are now."""
        if self._stopping:
            return
        if self._ends():
            return
        self._start_due()
        self._dismiss()
        self._announce_coming()
        if any(p.in_epoch for p in self._places.surplus()):
            self._tell_ranks("goes")
        self._deal()
        self._watch_number()

    def _ends(self) -> bool:
        """Ends a job that has no future: it is done, or starting once more would not help."""
        limit = self._asked.reset_limit
        doomed = [place for place in self._places.all if limit is not None and place.stillborn > limit]
        processes = self._places.processes()
        has_state = any(process.began_at is not None for process in processes)
        if doomed:
            number, times = doomed[0].number, doomed[0].stillborn
            self._give_in(f"rank {number} has failed {times} times before it met the others (--reset-limit {limit})")
        elif self._finishing and self._began and processes and not has_state and not self._failures:
            self._exit_code = 0  # Who is only on the way comes too late.
            self._end_others()
        elif self._began and processes and not has_state and not self._may_start_anew():
            self._give_in("no rank is left that has the state of the job")
        elif not self._began and limit is None and self._failures and all(p.stillborn for p in self._places.all):
            self._give_in("each rank has failed before it met the others")
        return self._stopping

    def _announce_coming(self) -> None:
        """Lets others join the ranks, or tells these of them, once those that start together are all there."""
        joining = self._joining
        new = [p for p in self._places.processes() if not (p.in_epoch or p.leaves)]
        now = time.monotonic()
        is_busy = joining is not None and joining.newcomer is not None
        if joining is not None and (not joining.is_settled() or (is_busy and now < joining.due_by)):
            return
        if not any(p.ready for p in new) or not all(p.ready or p.due_by <= now for p in new):
            return
        newcomer = next(p for p in new if p.ready)
        if joining is None or is_busy or self._heralded or not joining.is_possible(newcomer):
            self._tell_ranks("comes")
        else:
            self._let_join(joining, newcomer)

    def _let_join(self, joining: Joining, newcomer: RankProcess) -> None:
        assert self._server is not None
        self._epoch += 1
        self._server.announce(self._epoch, joining.guests())
        joining.begin(newcomer, self._epoch, time.monotonic() + self._start_timeout_s)
        self._loop.call_later(self._start_timeout_s, self._review)

    def _start_due(self) -> None:
        if self._next_start is not None:
            self._next_start.cancel()
        if self._finishing or self._is_over():
            return
        now = time.monotonic()
        vacant = [place for place in self._places.vacant() if place.number not in self._open]
        for place in vacant:
            if place.due_at <= now and not self._stopping:
                self._begin(place)
        later = [place.due_at for place in vacant if place.due_at > now]
        if later:
            self._next_start = self._loop.call_later(min(later) - now, self._review)

    def _begin(self, place: Place) -> None:
        place.process = RankProcess(place, due_by=time.monotonic() + self._start_timeout_s)
        self._loop.call_later(self._start_timeout_s, self._review)
        number = place.number
        self._open.add(number)
        self._running.add(number)
        self._words.pop(number, None)
        self._output.begin(number)
        node, events = self._plan.nodes[number], NodeEvents(self, number)
        try:
            if node.remote is not None:
                self._hosts[number] = self._connect_to(node, events)  # Which will say hello.
                return
            agent = self._hosts[number] = Agent(self._loop, self._guard, events)
            agent.start(self._job_at(number))
        except _process.StartError as error:
            self.on_lost(number, str(error), error.exit_code)

    def on_hello(self, index: int, hello: dict[str, Any]) -> None:
        """The agent of a place on another host is there."""
        self.note(f"{self._plan.nodes[index].name} answers: {hello['host']}, Python {hello['python']}")
        self._hosts[index].start(self._job_at(index))

    def _job_at(self, number: int) -> HostJob:
        assert self._server is not None
        node = self._plan.nodes[number]
        job = self._job_of(number, node, self._job_environ())
        slot, size = self._expected(number)
        environ = _plan.rank_environ(dataclasses.replace(self._plan, size=size), slot, self._options.role)
        ranks = tuple(dataclasses.replace(rank, environ=environ) for rank in job.ranks)
        return dataclasses.replace(
            job, ranks=ranks, stdin_rank=None, speaks=True, sharers=slot.local_size, host=node.name
        )

    def _job_environ(self) -> dict[str, str]:
        assert self._server is not None
        address = self._server.address
        common = _plan.common_environ(self._options, self._plan, self._given.job_id, address, self._master_port)
        common.setdefault(_ENGINE_VARIABLE, os.environ.get(_ENGINE_VARIABLE) or "1")
        return {**common, "HOROVOD_ELASTIC": "1"}

    def _expected(self, number: int) -> tuple[Slot, int]:
        """A process's place among all that could be there: scripts read it before they have met anybody."""
        now = time.monotonic()
        coming = [RankProcess(place) for place in self._places.vacant() if place.due_at <= now]
        dealt = deal([*self._places.processes(), *coming])
        return next(slot for process, slot in dealt if process.place.number == number), len(dealt)

    def _dismiss(self) -> None:
        """Lets go whoever has no place any more, once it has left its work as a rank."""
        for process in self._places.surplus():
            if process.ready and not process.leaves:
                process.leaves = True
                self._say(process, {"dismissed": True})

    def _tell_ranks(self, what: str) -> None:
        if what not in self._heralded:
            self._heralded.add(what)
            for process in self._places.processes():
                if process.in_epoch:
                    self._say(process, {what: True})

    def _say(self, process: RankProcess, message: dict[str, Any]) -> None:
        number = process.place.number
        self._hosts[number].tell(number, json.dumps(message).encode() + b"\n")

    # Epochs.

    def _deal(self) -> None:
        """Begins the next epoch, if all are there that should be."""
        processes = [process for process in self._places.processes() if not process.leaves]
        ready = [process for process in processes if process.ready]
        awaited = [p for p in processes if p.in_epoch or not (self._began or self._impatient)]
        if not ready or not all(p.ready for p in awaited) or len(ready) < self._least() or self._server is None:
            return
        limit = self._asked.reset_limit
        if self._began and limit is not None and self._resets >= limit:
            self._give_in(f"its ranks have met again {limit} times already (--reset-limit)")
            return
        if self._witness is not None and any(map(self._witness.may_go_on, self._cut_off)):
            return
        self._resets += self._began
        self._began = True
        self._needed = self._asked.min_np
        self._epoch += 1
        self._heralded.clear()
        self._failures.clear()
        self._server.announce(self._epoch, len(ready))
        dealt = deal(ready)
        self.note(f"epoch {self._epoch}: ranks are those of the places {[p.place.number for p, _ in dealt]}")
        for process in self._places.processes():
            process.in_epoch = False
        newest = max(process.epoch for process in ready)
        sync = not all(process.intact and process.epoch == newest for process in ready)
        now = time.monotonic()
        for process, slot in dealt:
            process.rank, process.epoch, process.in_epoch, process.ready = slot.rank, self._epoch, True, False
            process.apart = False
            process.began_at = process.began_at or now
            process.place.stillborn = 0
            told = {**self._placement(slot, len(dealt)), "sync": sync, "least": self._asked.min_np}
            self._say(process, {"dealt": told})
        self._witness = self._joining = None
        if self._engines_go_on():
            self._witness = Witness(self._epoch, [process for process, _ in dealt], self._say)
            settings = Settings.from_environ({**os.environ, **self._job_environ()})
            if settings.transport not in ("tcp", "mpi"):
                self._joining = Joining(self._witness, self._given.job_id, self._asked.min_np, self._say)

    def _placement(self, slot: Slot, size: int) -> dict[str, Any]:
        placement = dataclasses.asdict(slot)
        del placement["host"]
        return {**placement, "size": size, "epoch": self._epoch, "job_id": self._given.job_id}

    def _least(self) -> int:
        return 1 if self._finishing else self._needed

    def _watch_number(self) -> None:
        """Waits for others, though not for ever, where there are fewer ranks than may go on."""
        processes = self._places.processes()
        at_work = any(process.in_epoch and not process.ready for process in processes)
        if at_work or self._finishing or self._stopping or self._is_over():
            if self._too_few is not None:
                self._too_few.cancel()
                self._too_few = None
        elif self._too_few is None and len(processes) < self._least():
            limit_s = self._asked.elastic_timeout
            self._too_few = self._loop.call_later(limit_s, self._on_too_few)
            self._output.say(
                f"ringrun: {_are(len(processes))} there, and at least {self._least()} must be to go on: waiting for "
                f"{self._whom()}, {limit_s:g} s at most (--elastic-timeout)"
            )

    def _whom(self) -> str:
        vacant = self._places.vacant()
        if not vacant:
            return f"free slots from {self._asked.host_discovery_script or 'the hosts'}"
        hosts = ", ".join(dict.fromkeys(place.host.name for place in vacant))
        return f"{list_ranks(sorted(place.number for place in vacant))} on {hosts} to start again"

    def _on_too_few(self) -> None:
        self._give_in(
            f"there were less than {self._least()} ranks, too few to go on, for {self._asked.elastic_timeout:g} s "
            "(--elastic-timeout)"
        )

    def _give_in(self, reason: str) -> None:
        """Ends the job, with the exit code and the last words of the rank that failed first."""
        self._output.say(f"ringrun: the job ends: {reason}")
        if not self._failures:
            self._exit_code = 1
        self._end_others()

    def _begin_stop(self, number: int, grace_s: float) -> None:
        self._ask_no_more()
        super()._begin_stop(number, grace_s)

    def _kill(self) -> None:
        self._ask_no_more()
        super()._kill()
        self._stopping = True

    def _ask_no_more(self) -> None:
        if self._discovery is not None:
            self._discovery.close()


def _are(count: int) -> str:
    return "1 rank is" if count == 1 else f"{count or 'no'} ranks are"


def _node_of(place: Place) -> Node:
    slot = Slot(place.number, place.number, place.index, place.host.slots, 0, 1)
    return Node(place.host.name, (slot,), None if _hosts.is_local(place.host) else place.host)
