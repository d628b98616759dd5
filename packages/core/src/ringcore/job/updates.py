"""Servers that hold an optimizer: each steps its share of the parameters by the sum of the ranks' gradients.

A server is a member of one process set more than the world, of the ranks and itself, and answers what the ranks ask for
there. A request is JSON; what it is about travels in collectives of its own, in which the server is the root: gradients
are reduced to it, and parameters broadcast from it. Nothing that comes from a rank is run.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringcore import _native
from ringcore._errors import InvalidArgument, RingcoreError
from ringcore._native import Handle
from ringcore.job.agreement import differences
from ringcore.job.rules import RULES, Numbers, Rule, Segment, step_row
from ringcore.job.state import Context

if TYPE_CHECKING:
    from ringcore.job.rules import Row

_log = logging.getLogger("ringcore")
REQUEST = "servers.request"
REPLY = "servers.reply"
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


def share_of(elements: int, server: int, servers: int) -> tuple[int, int]:
    """Where the share of a server begins and ends in a row: even shares, so that all have as much to do."""
    return elements * server // servers, elements * (server + 1) // servers


def operation(optimizer: str, what: str, row: int) -> str:
    """The name of what a row takes part in."""
    return f"{optimizer}.{what}.{row}"


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


class _Refused(Exception):
    """What the ranks ask for is not done, and they are told why."""


class _Optimizer:
    """One that the ranks have ordered.

    Args:
        order: What they ask for: a dict as `adapter.servers` makes it.
        server: Which of the servers this one is.
        servers: How many there are.

    Raises:
        InvalidArgument: It is none that can be.
    """

    def __init__(self, order: Mapping[str, Any], server: int, servers: int) -> None:
        import numpy as np

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


class Updates:
    """What a server does for the ranks besides their sums.

    Args:
        current: Of the job.
    """

    def __init__(self, current: Context) -> None:
        self._runtime = current.runtime
        self._rank, self._size = current.rank, current.size
        self._server, self._servers = current.rank - current.size, current.servers
        members = [*range(current.size), current.rank]
        self._set = self._runtime.add_process_set(members, set_number(self._server))
        self._optimizers: dict[str, _Optimizer] = {}

    def run(self) -> None:
        """Answer requests until the ranks have left, or the job has failed."""
        try:
            while True:
                self._runtime.watch(self._set, REQUEST, 1).wait()
                self._answer()
        except RingcoreError as error:  # The ranks are told the same, and say so.
            _log.info("rank %d (server %d) has answered its last request: %s", self._rank, self._server, error)
        except Exception as error:
            self._runtime.fail(f"server {self._server} (rank {self._rank}) failed: {type(error).__name__}: {error}")
            raise

    def _answer(self) -> None:
        handle = self._submit(_GATHER, REQUEST, (_no_bytes(),), ())
        handle.wait()
        whole, at, said = bytes(handle.result()), 0, []
        for rows in handle.rows()[: self._size]:
            said.append(json.loads(whole[at : at + rows]))
            at += rows
        tasks = {
            "order": self._order, "weights": self._take_weights, "push": self._push, "step": self._step,
            "state": self._tell_state, "load": self._load,
        }  # fmt: skip
        try:
            asked = self._agreed(said)
            tasks[asked["do"]](asked)
        except _Refused as refused:
            for name in sorted({name for request in said for name in self._awaited_by(request)}):
                self._runtime.refuse(self._set, name, f"'{name}': {refused}")

    def _agreed(self, said: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What all ranks ask for; only in which parameters have a gradient they may differ."""
        told = [{key: value for key, value in request.items() if key != "touched"} for request in said]
        if any(request != told[0] for request in told):
            given = {rank: {key: str(value) for key, value in request.items()} for rank, request in enumerate(told)}
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
            return [operation(request["optimizer"], kind, row) for kind in kinds for row in range(rows)]

        pushed = [] if request.get("pushed") else of_rows("push")
        return {
            "order": lambda: [REPLY], "weights": lambda: of_rows("weights"), "push": lambda: [*of_rows("push"), REPLY],
            "step": lambda: [*pushed, *of_rows("pull")], "state": lambda: [REPLY], "load": lambda: [REPLY],
        }[request["do"]]()  # fmt: skip

    def _known(self, asked: Mapping[str, Any]) -> _Optimizer:
        try:
            return self._optimizers[asked["optimizer"]]
        except KeyError:
            raise _Refused(f"no optimizer '{asked['optimizer']}' was ordered here") from None

    def _order(self, asked: Mapping[str, Any]) -> None:
        try:
            made = _Optimizer(asked, self._server, self._servers)
        except ImportError as error:
            raise _Refused(f"the host of server {self._server} has no numpy ({error}); install it there") from None
        except InvalidArgument as error:
            raise _Refused(str(error)) from None
        self._optimizers[asked["optimizer"]] = made
        self._reply({})

    def _take_weights(self, asked: Mapping[str, Any]) -> None:
        rows = self._known(asked).rows
        self._take(asked["optimizer"], "weights", [row.values for row in rows])

    def _take(self, optimizer: str, what: str, targets: Sequence[Row]) -> None:
        """Rank 0 alone has rows to give."""
        handles = [
            self._submit(_GATHER, operation(optimizer, what, index), (target[:0],), (target,))
            for index, target in enumerate(targets)
        ]
        for handle in handles:
            handle.wait()

    def _push(self, asked: Mapping[str, Any]) -> None:
        """Sum the gradients, and tell the square of their norm here; the step comes later."""
        rows = self._known(asked).rows
        for row, handle in zip(rows, self._start_sums(asked["optimizer"], rows), strict=True):
            handle.wait()
        self._reply({"squares": [float((row.sums.astype("float64") ** 2).sum()) for row in rows]})

    def _start_sums(self, optimizer: str, rows: Sequence[_Row]) -> list[Handle]:
        handles = []
        for index, row in enumerate(rows):
            row.sums[:] = 0  # what this server adds to them
            name = operation(optimizer, "push", index)
            handles.append(self._submit(_REDUCE, name, (row.sums,), (row.sums,), scale=1 / self._size))
        return handles

    def _step(self, asked: Mapping[str, Any]) -> None:
        """Sum, step and give back row by row: while one is stepped, others are on their way."""
        optimizer = self._known(asked)
        rule = optimizer.rule
        try:
            groups = [rule.check(numbers) for numbers in asked["groups"]]
        except InvalidArgument as error:
            raise _Refused(str(error)) from None
        if len(groups) != len(optimizer.groups):
            raise _Refused(f"the optimizer has {len(optimizer.groups)} groups, and not {len(groups)}")
        for numbers in groups:
            optimizer.need_slots(rule.slots_of(numbers))
        touched, factor, name = asked["touched"], asked["factor"], asked["optimizer"]
        sums = [] if asked["pushed"] else self._start_sums(name, optimizer.rows)
        pulls = []
        for index, row in enumerate(optimizer.rows):
            if sums:
                sums[index].wait()
            if factor != 1.0:
                row.sums *= factor
            step_row(rule, row.values, row.sums, row.slots, row.segments, groups, optimizer.counts, touched)
            pulls.append(self._submit(_BROADCAST, operation(name, "pull", index), (row.values,), (row.values,)))
        self._count(optimizer, groups, asked)
        for pull in pulls:
            pull.wait()

    def _count(self, optimizer: _Optimizer, groups: Sequence[Numbers], asked: Mapping[str, Any]) -> None:
        counted = [optimizer.rule.counts(numbers) for numbers in groups]
        for parameter, group in enumerate(optimizer.group_of):
            if asked["touched"][parameter] and counted[group]:
                optimizer.counts[parameter] += 1

    def _tell_state(self, asked: Mapping[str, Any]) -> None:
        optimizer = self._known(asked)
        names = optimizer.slot_names()
        self._reply({"counts": optimizer.counts, "slots": names})
        slots = [(name, index, row.slots[name]) for name in names for index, row in enumerate(optimizer.rows)]
        handles = [
            self._submit(_BROADCAST, operation(asked["optimizer"], f"state.{name}", index), (slot,), (slot,))
            for name, index, slot in slots
        ]
        for handle in handles:
            handle.wait()

    def _load(self, asked: Mapping[str, Any]) -> None:
        optimizer = self._known(asked)
        known = {name for numbers in optimizer.groups for name in optimizer.rule.slots_of(numbers)}
        names, counts = asked["slots"], asked["counts"]
        known |= set(optimizer.slot_names()) | ({"momentum_buffer"} if optimizer.rule is RULES["sgd"] else set())
        if not set(names) <= known or len(counts) != len(optimizer.counts):
            raise _Refused(f"the optimizer's state is {sorted(known)} of {len(optimizer.counts)} parameters")
        self._reply({})
        optimizer.counts = [_count(count) for count in counts]
        for name in names:
            for row in optimizer.rows:
                row.slots.pop(name, None)
        optimizer.need_slots(names)
        for name in names:
            self._take(asked["optimizer"], f"load.{name}", [row.slots[name] for row in optimizer.rows])

    def _reply(self, what: Mapping[str, Any]) -> None:
        handle = self._submit(_ALLGATHER, REPLY, (_bytes_of(encode(what)),), ())
        handle.wait()

    def _submit(
        self, collective: int, name: str, sources: tuple[Any, ...], targets: tuple[Any, ...], scale: float = 1.0
    ) -> Handle:  # fmt: skip
        """Of the server, which is the root, and the last of the members."""
        rooted = collective != _ALLGATHER
        return self._runtime.submit(
            collective, name, sources, targets, _SUM, self._size if rooted else 0, 1.0, scale, self._set, 0, (), False,
            None, None,
        )  # fmt: skip


def _bytes_of(data: bytes) -> _native.Buffer:
    return _native.describe(bytearray(data), writable=False)


def _no_bytes() -> _native.Buffer:
    return _bytes_of(b"")
