"""Servers that hold an optimizer: each steps its share of the parameters by the sum of the ranks' gradients.

A server is a member of one process set more than the world, of the ranks and itself, and answers what the ranks ask for
there. Where they do not wait for each other, it has a set with each of them besides, and a thread for it. A request is
JSON; what it is about travels in collectives of its own, in which the server is the root: gradients are reduced to it,
and parameters broadcast from it. Nothing that comes from a rank is run.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringcore import _native
from ringcore._errors import InvalidArgument, RingcoreError, TimeoutError
from ringcore._native import Handle
from ringcore.job.agreement import differences
from ringcore.job.rules import RULES, Numbers, Rule, Segment, step_row
from ringcore.job.state import Context

if TYPE_CHECKING:
    from ringcore.job.rules import Row

_log = logging.getLogger("ringcore")
REQUEST = "servers.request"
DTYPES = ("float32", "float64")
_BROADCAST: int = _native.COLLECTIVES["broadcast"]
_ALLGATHER: int = _native.COLLECTIVES["allgather"]
_GATHER: int = _native.COLLECTIVES["gather"]
_REDUCE: int = _native.COLLECTIVES["reduce"]
_SUM: int = _native.REDUCE_OPS["sum"]
_MOST_ROWS = 1 << 20


def set_number(server: int) -> int:
    """Of the process set of all ranks and a server: from the last one down, as others are counted up."""
    return _native.MOST_AGREED_SETS - server


def pair_number(rank: int, server: int, servers: int) -> int:
    """Of the process set of a rank and a server: below those of all ranks."""
    return _native.MOST_AGREED_SETS - servers - rank * servers - server


def share_of(elements: int, server: int, servers: int) -> tuple[int, int]:
    """Where the share of a server begins and ends in a row: even shares, so that all have as much to do."""
    return elements * server // servers, elements * (server + 1) // servers


def operation(request: Mapping[str, Any], what: str, row: int = 0) -> str:
    """The name of what a row takes part in, for a request.

    A request that was refused may leave operations behind that not all ranks have come to: those that follow have other
    names, by the number of refusals that the ranks have seen.
    """
    refusals = request.get("refusals")
    return f"{request['optimizer']}.{what}.{row}" + (f".{refusals}" if refusals else "")


def encode(request: Mapping[str, Any]) -> bytes:
    """A request, as it travels.

    Raises:
        ValueError: A number is not finite.
    """
    return json.dumps(request, separators=(",", ":"), allow_nan=False).encode()


def flags_to_text(flags: Sequence[bool]) -> str:
    """Flags, a digit of base 16 for each four."""
    bits = "".join("1" if flag else "0" for flag in flags)
    return f"{int('1' + bits, 2):x}"


def flags_of_text(text: str, count: int) -> list[bool]:
    """The flags again.

    Raises:
        ValueError: There are not so many.
    """
    bits = f"{int(text, 16):b}"[1:]
    if len(bits) != count:
        raise ValueError(f"{len(bits)} flags are not {count}")
    return [bit == "1" for bit in bits]


@dataclasses.dataclass
class _Row:
    """This server's share of a row.

    Attributes:
        values: The parameters.
        sums: Of their gradients.
        segments: Whose they are.
        slots: What the rule keeps of each value.
    """

    values: Row
    sums: Row
    segments: list[Segment]
    slots: dict[str, Row] = dataclasses.field(default_factory=dict)
    _places: dict[int, Row] = dataclasses.field(default_factory=dict)

    def place_of(self, rank: int) -> Row:
        """Where the gradient of one rank goes, and the parameters for it, where ranks do not wait for each other."""
        if rank not in self._places:
            self._places[rank] = self.sums.copy()
        return self._places[rank]


class _Refused(Exception):
    """What the ranks ask for is not done, and they are told why.

    Attributes:
        pushed: What they have pushed has been taken.
    """

    pushed = False


class _Late(_Refused):
    """A rank is too far ahead of others, which do not come."""

    pushed = True


class Clock:
    """How many steps each rank has made, where ranks do not wait for each other.

    Args:
        ranks: How many there are.
        staleness: So many steps a rank may be ahead of the slowest.
    """

    def __init__(self, ranks: int, staleness: int) -> None:
        self._staleness = staleness
        self._changed = threading.Condition()  # Guards: all that follows.
        self._steps = [0] * ranks
        self._rests = [False] * ranks

    def step(self, rank: int, limit_s: float) -> list[int]:
        """The rank has made a step: wait until it may go on.

        Returns:
            Those who are too far behind after so long; nobody: it may.
        """
        with self._changed:
            self._rests[rank] = False
            self._steps[rank] += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._behind(rank), limit_s)
            return self._behind(rank)

    def rest(self, rank: int) -> None:
        """The rank waits for the others, has left, or is lost: nobody waits for it."""
        with self._changed:
            self._rests[rank] = True
            self._changed.notify_all()

    def begin_anew(self) -> None:
        """All ranks have met."""
        with self._changed:
            self._steps = [0] * len(self._steps)
            self._rests = [False] * len(self._steps)

    def _behind(self, rank: int) -> list[int]:
        least = self._steps[rank] - self._staleness
        return [each for each, steps in enumerate(self._steps) if steps < least and not self._rests[each]]


class _Optimizer:
    """One that the ranks have ordered.

    Args:
        order: What they ask for: a dict as `adapter.Served` makes it.
        server: Which of the servers this one is.
        servers: How many there are.
        ranks: How many of these there are.

    Raises:
        InvalidArgument: It is none that can be.
    """

    def __init__(self, order: Mapping[str, Any], server: int, servers: int, ranks: int) -> None:
        import numpy as np

        self.lock = threading.Lock()  # Guards: all that is kept, where ranks do not wait for each other.
        staleness = order["staleness"]
        self.clock = None if staleness is None else Clock(ranks, _count(staleness))
        if order["rule"] not in RULES or order["dtype"] not in DTYPES:
            raise InvalidArgument(f"a server knows the rules {sorted(RULES)} and the dtypes {list(DTYPES)}")
        self.rule: Rule = RULES[order["rule"]]
        self.dtype = np.dtype(order["dtype"])
        self.groups = [self.rule.check(numbers) for numbers in order["groups"]]
        sizes = [_count(size) for size in order["rows"]]
        if len(sizes) > _MOST_ROWS:
            raise InvalidArgument(f"{len(sizes)} rows are more than {_MOST_ROWS}")
        self.rows: list[_Row] = []
        bounds = [share_of(size, server, servers) for size in sizes]
        for begin, end in bounds:
            self.rows.append(_Row(np.zeros(end - begin, self.dtype), np.zeros(end - begin, self.dtype), []))
        self.counts = [0] * len(order["parameters"])
        self.group_of = [group for _, _, _, group in order["parameters"]]
        for parameter, (row, begin, end, group) in enumerate(order["parameters"]):
            if not (0 <= row < len(sizes) and 0 <= begin <= end <= sizes[row] and 0 <= group < len(self.groups)):
                raise InvalidArgument(f"parameter {parameter} lies in no row, or in no group")
            first, last = bounds[row]
            begins, ends = max(begin, first) - first, min(end, last) - first
            if begins < ends:
                self.rows[row].segments.append(Segment(parameter, group, begins, ends))
        for group in self.groups:
            self.need_slots(self.rule.slots_of(group))

    def need_slots(self, names: Sequence[str]) -> None:
        """From now on these are kept."""
        import numpy as np

        for row in self.rows:
            for name in names:
                if name in row.slots:
                    continue
                row.slots[name] = slot = np.zeros_like(row.values)
                for segment in row.segments if self.rule.begins_with else ():
                    slot[segment.begin : segment.end] = self.groups[segment.group][self.rule.begins_with or ""]

    def slot_names(self) -> list[str]:
        """What is kept of each value."""
        return sorted({name for row in self.rows for name in row.slots})


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise InvalidArgument(f"{value!r} is no number of elements")
    return value


class _Channel:
    """A process set of some ranks and this server, its last member.

    Args:
        current: Of the job.
        ranks: The other members.
        number: Of the set, which they have agreed on.
    """

    def __init__(self, current: Context, ranks: Sequence[int], number: int) -> None:
        self._runtime = current.runtime
        self.ranks = list(ranks)
        self._set = self._runtime.add_process_set([*ranks, current.rank], number)

    def await_request(self) -> list[dict[str, Any]]:
        """What the ranks ask for next, of each of them. Until one of them asks, nobody is late."""
        self._runtime.watch(self._set, REQUEST, 1).wait()
        handle = self.submit(_GATHER, REQUEST, (_no_bytes(),), ())
        handle.wait()
        whole, at, said = bytes(handle.result()), 0, []
        for rows in handle.rows()[: len(self.ranks)]:
            said.append(json.loads(whole[at : at + rows]))
            at += rows
        return said

    def refuse(self, name: str, why: str) -> None:
        """The ranks wait for this server in an operation that it does not take part in."""
        self._runtime.refuse(self._set, name, f"'{name}': {why}")

    def reply(self, asked: Mapping[str, Any], what: Mapping[str, Any]) -> None:
        """Tell all ranks."""
        self.submit(_ALLGATHER, operation(asked, "reply"), (_bytes_of(encode(what)),), ()).wait()

    def start_sums(self, asked: Mapping[str, Any], targets: Sequence[Row]) -> list[Handle]:
        """Of the ranks' gradients, by row; averages."""
        handles = []
        for index, target in enumerate(targets):
            target[:] = 0  # what this server adds to them
            name = operation(asked, "push", index)
            handles.append(self.submit(_REDUCE, name, (target,), (target,), 1 / len(self.ranks)))
        return handles

    def start_broadcast(self, asked: Mapping[str, Any], what: str, index: int, values: Row) -> Handle:
        """Give a row to the ranks."""
        return self.submit(_BROADCAST, operation(asked, what, index), (values,), (values,))

    def take(self, asked: Mapping[str, Any], what: str, targets: Sequence[Row]) -> None:
        """Of each row what rank 0 has; the others give none."""
        handles = [
            self.submit(_GATHER, operation(asked, what, index), (target[:0],), (target,))
            for index, target in enumerate(targets)
        ]
        for handle in handles:
            handle.wait()

    def submit(
        self, collective: int, name: str, sources: tuple[Any, ...], targets: tuple[Any, ...], scale: float = 1.0
    ) -> Handle:  # fmt: skip
        """With this server as the root, where there is one."""
        root = 0 if collective == _ALLGATHER else len(self.ranks)
        return self._runtime.submit(
            collective, name, sources, targets, _SUM, root, 1.0, scale, self._set, 0, (), False, None, None
        )


class Updates:
    """What a server does for the ranks besides their sums.

    Args:
        current: Of the job.
    """

    def __init__(self, current: Context) -> None:
        self._current = current
        self._server, self._servers = current.rank - current.size, current.servers
        self._all = _Channel(current, range(current.size), set_number(self._server))
        self._optimizers: dict[str, _Optimizer] = {}
        self._threads: list[threading.Thread] = []  # with a rank each, once ranks do not wait for each other

    def run(self) -> None:
        """Answer requests until the ranks have left, or the job has failed."""
        tasks = {
            "order": self._order, "weights": self._take_weights, "push": self._push, "step": self._step,
            "state": self._tell_state, "load": self._load, "meet": self._meet,
        }  # fmt: skip
        self._answer(self._all, tasks)
        for thread in self._threads:
            thread.join()

    def _answer(self, channel: _Channel, tasks: Mapping[str, Callable[[_Channel, dict[str, Any]], None]]) -> None:
        try:
            while True:
                said = channel.await_request()
                try:
                    asked = self._agreed(channel, said)
                    tasks[asked["do"]](channel, asked)
                except _Refused as refused:
                    told = [{**request, "pushed": request.get("pushed") or refused.pushed} for request in said]
                    for name in sorted({name for request in told for name in self._awaited_by(request)}):
                        channel.refuse(name, str(refused))
        except TimeoutError as error:  # Some ranks have come to what others have not: nobody knows what is next.
            self._current.runtime.fail(f"server {self._server} cannot go on with its optimizers: {error}")
        except RingcoreError as error:  # The ranks are told the same, and say so.
            _log.info("server %d has answered its last request of ranks %s: %s", self._server, channel.ranks, error)
        except Exception as error:
            self._current.runtime.fail(f"server {self._server} failed: {type(error).__name__}: {error}")
            raise
        finally:
            for optimizer in list(self._optimizers.values()):
                if optimizer.clock is not None and channel is not self._all:
                    optimizer.clock.rest(channel.ranks[0])

    def _agreed(self, channel: _Channel, said: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What all ranks ask for; only in which parameters have a gradient they may differ."""
        told = [{key: value for key, value in request.items() if key != "touched"} for request in said]
        if any(request != told[0] for request in told):
            given = {
                rank: {key: str(value) for key, value in request.items()}
                for rank, request in zip(channel.ranks, told, strict=True)
            }
            raise _Refused(
                "ranks ask servers for different things: " + "; ".join(differences(given)) + ". Remedy: build the same "
                "optimizer on all ranks, and let all of them step it with the same numbers"
            )
        asked = dict(said[0])
        if "touched" in asked:
            count = len(self._known(asked).counts)
            flags = [flags_of_text(request["touched"], count) for request in said]
            asked["touched"] = [any(each) for each in zip(*flags, strict=True)]
        return asked

    def _awaited_by(self, request: Mapping[str, Any]) -> list[str]:
        """The operations in which ranks that ask for this wait for the server."""
        found = self._optimizers.get(request["optimizer"])
        rows = 0 if found is None else len(found.rows)

        def of_rows(*kinds: str) -> list[str]:
            return [operation(request, kind, row) for kind in kinds for row in range(rows)]

        pushed = [] if request.get("pushed") else of_rows("push")
        reply = [operation(request, "reply")]
        return {
            "order": reply, "weights": of_rows("weights"), "push": [*of_rows("push"), *reply],
            "step": [*pushed, *of_rows("pull")], "state": reply, "load": reply, "meet": of_rows("pull"), "rest": [],
        }[request["do"]]  # fmt: skip

    def _known(self, asked: Mapping[str, Any]) -> _Optimizer:
        try:
            return self._optimizers[asked["optimizer"]]
        except KeyError:
            raise _Refused(f"no optimizer '{asked['optimizer']}' was ordered here") from None

    def _order(self, channel: _Channel, asked: Mapping[str, Any]) -> None:
        try:
            made = _Optimizer(asked, self._server, self._servers, len(channel.ranks))
        except ImportError as error:
            raise _Refused(f"the host of server {self._server} has no numpy ({error}); install it there") from None
        except InvalidArgument as error:
            raise _Refused(str(error)) from None
        self._optimizers[asked["optimizer"]] = made
        if made.clock is not None and not self._threads:
            self._attend_each()
        channel.reply(asked, {})

    def _attend_each(self) -> None:
        for rank in self._all.ranks:
            channel = _Channel(self._current, [rank], pair_number(rank, self._server, self._servers))
            tasks = {"step": self._step_alone, "rest": self._rest}
            thread = threading.Thread(target=self._answer, args=(channel, tasks), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _take_weights(self, channel: _Channel, asked: Mapping[str, Any]) -> None:
        optimizer = self._known(asked)
        with optimizer.lock:
            channel.take(asked, "weights", [row.values for row in optimizer.rows])

    def _push(self, channel: _Channel, asked: Mapping[str, Any]) -> None:
        """Sum the gradients, and tell the square of their norm here; the step comes later."""
        rows = self._known(asked).rows
        for handle in channel.start_sums(asked, [row.sums for row in rows]):
            handle.wait()
        channel.reply(asked, {"squares": [float((row.sums.astype("float64") ** 2).sum()) for row in rows]})

    def _step(self, channel: _Channel, asked: Mapping[str, Any]) -> None:
        """Sum, step and give back row by row: while one is stepped, others are on their way."""
        optimizer = self._known(asked)
        groups = _groups_of(optimizer, asked)
        sums = [] if asked["pushed"] else channel.start_sums(asked, [row.sums for row in optimizer.rows])
        pulls = []
        for index, row in enumerate(optimizer.rows):
            if sums:
                sums[index].wait()
            if asked["factor"] != 1.0:
                row.sums *= asked["factor"]
            _step_row(optimizer, row, row.sums, groups, asked["touched"])
            pulls.append(channel.start_broadcast(asked, "pull", index, row.values))
        _count_steps(optimizer, groups, asked["touched"])
        for pull in pulls:
            pull.wait()

    def _step_alone(self, channel: _Channel, asked: Mapping[str, Any]) -> None:
        """Step by the gradient of one rank, and give it what there is when it is not too far ahead."""
        optimizer = self._known(asked)
        groups = _groups_of(optimizer, asked)
        (rank,) = channel.ranks
        if optimizer.clock is None:
            raise _Refused(f"the ranks step '{asked['optimizer']}' together")
        places = [row.place_of(rank) for row in optimizer.rows]
        for handle in channel.start_sums(asked, places):
            handle.wait()
        with optimizer.lock:
            for row, place in zip(optimizer.rows, places, strict=True):
                _step_row(optimizer, row, place, groups, asked["touched"])
            _count_steps(optimizer, groups, asked["touched"])
        behind = optimizer.clock.step(rank, self._patience_s())
        if behind:
            raise _Late(f"it is too far ahead of ranks {behind}, which made no step for {self._patience_s():g} s")
        pulls = []
        with optimizer.lock:
            for index, (row, place) in enumerate(zip(optimizer.rows, places, strict=True)):
                place[:] = row.values  # others step these meanwhile
                pulls.append(channel.start_broadcast(asked, "pull", index, place))
        for pull in pulls:
            pull.wait()

    def _patience_s(self) -> float:
        """The rank gives up a little later, and would blame this server."""
        return 0.9 * self._current.settings.timeout_s

    def _rest(self, channel: _Channel, asked: Mapping[str, Any]) -> None:
        clock = self._known(asked).clock
        if clock is not None:
            clock.rest(channel.ranks[0])

    def _meet(self, channel: _Channel, asked: Mapping[str, Any]) -> None:
        """All ranks get the same parameters, and go on from there."""
        optimizer = self._known(asked)
        with optimizer.lock:
            if optimizer.clock is not None:
                optimizer.clock.begin_anew()
            pulls = [
                channel.start_broadcast(asked, "pull", index, row.values) for index, row in enumerate(optimizer.rows)
            ]
            for pull in pulls:
                pull.wait()

    def _tell_state(self, channel: _Channel, asked: Mapping[str, Any]) -> None:
        optimizer = self._known(asked)
        with optimizer.lock:
            names = optimizer.slot_names()
            channel.reply(asked, {"counts": optimizer.counts, "slots": names})
            handles = [
                channel.start_broadcast(asked, f"state.{name}", index, row.slots[name])
                for name in names
                for index, row in enumerate(optimizer.rows)
            ]
            for handle in handles:
                handle.wait()

    def _load(self, channel: _Channel, asked: Mapping[str, Any]) -> None:
        optimizer = self._known(asked)
        known = {name for numbers in optimizer.groups for name in optimizer.rule.slots_of(numbers)}
        names, counts = asked["slots"], asked["counts"]
        known |= set(optimizer.slot_names()) | ({"momentum_buffer"} if optimizer.rule is RULES["sgd"] else set())
        if not set(names) <= known or len(counts) != len(optimizer.counts):
            raise _Refused(f"the optimizer's state is {sorted(known)} of {len(optimizer.counts)} parameters")
        channel.reply(asked, {})
        with optimizer.lock:
            optimizer.counts = [_count(count) for count in counts]
            for row in optimizer.rows:
                row.slots.clear()
            for group in optimizer.groups:
                optimizer.need_slots(optimizer.rule.slots_of(group))
            optimizer.need_slots(names)
            for name in names:
                channel.take(asked, f"load.{name}", [row.slots[name] for row in optimizer.rows])


def _groups_of(optimizer: _Optimizer, asked: Mapping[str, Any]) -> list[Numbers]:
    """The numbers of a step.

    Raises:
        _Refused: They are not what the optimizer takes.
    """
    try:
        groups = [optimizer.rule.check(numbers) for numbers in asked["groups"]]
    except InvalidArgument as error:
        raise _Refused(str(error)) from None
    if len(groups) != len(optimizer.groups):
        raise _Refused(f"the optimizer has {len(optimizer.groups)} groups, and not {len(groups)}")
    with optimizer.lock:
        for numbers in groups:
            optimizer.need_slots(optimizer.rule.slots_of(numbers))
    return groups


def _step_row(
    optimizer: _Optimizer, row: _Row, gradient: Row, groups: list[Numbers], touched: list[bool]
) -> None:  # fmt: skip
    step_row(optimizer.rule, row.values, gradient, row.slots, row.segments, groups, optimizer.counts, touched)


def _count_steps(optimizer: _Optimizer, groups: Sequence[Numbers], touched: Sequence[bool]) -> None:
    counted = [optimizer.rule.counts(numbers) for numbers in groups]
    for parameter, group in enumerate(optimizer.group_of):
        if touched[parameter] and counted[group]:
            optimizer.counts[parameter] += 1


def _bytes_of(data: bytes) -> _native.Buffer:
    return _native.describe(bytearray(data), writable=False)


def _no_bytes() -> _native.Buffer:
    return _bytes_of(b"")
