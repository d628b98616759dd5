"""Optimizers whose state lies on servers, as a rank uses them: it pushes gradients, and pulls parameters.

The parameters lie in rows, one behind the other, and each server has an even share of every row: push is a reduce of
that share to the server, and pull a broadcast from it. What servers do is in `ringcore.job.updates`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ringcore._errors import InvalidArgument, MismatchError, RingcoreError
from ringcore._native import Handle
from ringcore.adapter import collectives
from ringcore.adapter.buffer import as_buffer
from ringcore.adapter.collectives import ReduceOp
from ringcore.job.agreement import differences, gather_bytes
from ringcore.job.process_sets import ProcessSet, add_process_set_of_members
from ringcore.job.rules import Numbers
from ringcore.job.state import context
from ringcore.job.updates import (
    DTYPES,
    REQUEST,
    encode,
    flags_to_text,
    operation,
    pair_number,
    set_number,
    share_of,
)


@dataclasses.dataclass(frozen=True)
class Placed:
    """Where a parameter lies.

    Attributes:
        row: The index of the row.
        begin: Where it begins there, in elements.
        end: Where it ends.
        group: Of the optimizer.
    """

    row: int
    begin: int
    end: int
    group: int


class Served:
    """An optimizer that servers hold. All ranks of the job make it, and call its methods, in the same order.

    Args:
        rule: What steps the parameters: a name of `ringcore.job.rules.RULES`.
        groups: The numbers that the rule takes, of each group.
        dtype: Of all values: "float32" or "float64".
        rows: How many elements each row has.
        parameters: Where each of them lies.
        staleness: Ranks step for themselves, with `step_alone`, and are so many steps ahead of the slowest at most.
            None: they step together, with `step`.

    Raises:
        InvalidArgument: The job has no servers, or the dtype is none of servers'.
        MismatchError: Ranks ask for different things.
    """

    def __init__(
        self, rule: str, groups: Sequence[Numbers], dtype: str, rows: Sequence[int], parameters: Sequence[Placed],
        staleness: int | None = None,
    ) -> None:  # fmt: skip
        check_servers()
        if dtype not in DTYPES:
            raise InvalidArgument(
                f"servers step parameters of {' and '.join(DTYPES)}, not of {dtype}; let the ranks hold the optimizer"
            )
        self._name = context().next_name("served")
        self._refusals = self._refusals_alone = 0  # that all ranks have seen, and this one where it steps for itself
        self._rows = list(rows)
        self._sets = _sets()
        order = {
            **self._request("order"), "rule": rule, "dtype": dtype, "staleness": staleness,
            "groups": [dict(numbers) for numbers in groups], "rows": self._rows,
            "parameters": [[one.row, one.begin, one.end, one.group] for one in parameters],
        }  # fmt: skip
        _check_alike(order, f"{self._name}.order")
        self._replies(order, self._ask(order))
        self._alone = [] if staleness is None else _pairs()

    def send_weights(self, rows: Sequence[Any]) -> None:
        """Let servers go on from rank 0's parameters."""
        request = self._request("weights")
        self._wait(self._ask(request) + self._give(request, "weights", rows))

    def push(self, gradients: Sequence[Any]) -> float:
        """Sum up the gradients, before the step: the square of the norm of their average."""
        request = self._request("push")
        replies = self._replies(request, self._ask(request) + self._start_push(request, gradients))
        return float(sum(sum(reply["squares"]) for reply in replies))

    def step(
        self, rows: Sequence[Any], gradients: Sequence[Any] | None, groups: Sequence[Numbers], touched: Sequence[bool],
        factor: float = 1.0,
    ) -> None:  # fmt: skip
        """Step the parameters by the average of the ranks' gradients.

        Args:
            rows: Where the parameters go.
            gradients: This rank's; None where they were pushed before.
            groups: The numbers that the rule takes, of each group.
            touched: By parameter: whether it has a gradient. Those without one on any rank are not stepped.
            factor: Multiplied into the average.

        Raises:
            MismatchError: Ranks ask for different things. On every rank, and nothing was stepped.
        """
        request = {
            **self._request("step"), "groups": [dict(one) for one in groups], "touched": flags_to_text(touched),
            "pushed": gradients is None, "factor": factor,
        }  # fmt: skip
        asked = self._ask(request)
        pushes = [] if gradients is None else self._start_push(request, gradients)
        self._wait(asked + pushes + self._start_broadcast(request, "pull", rows))

    def step_alone(
        self, rows: Sequence[Any], gradients: Sequence[Any], groups: Sequence[Numbers], touched: Sequence[bool]
    ) -> None:  # fmt: skip
        """Step the parameters by this rank's gradient, and take what there is; waits for ranks too far behind.

        Args:
            rows: Where the parameters go.
            gradients: This rank's.
            groups: The numbers that the rule takes, of each group.
            touched: By parameter: whether it has a gradient.
        """
        request = {
            **self._request("step"), "groups": [dict(one) for one in groups], "touched": flags_to_text(touched),
            "pushed": False, "factor": 1.0, "refusals": self._refusals_alone,
        }  # fmt: skip
        handles = self._ask(request, self._alone)
        handles += self._start_push(request, gradients, self._alone)
        handles += self._start_broadcast(request, "pull", rows, self._alone)
        try:
            _wait(handles)
        except MismatchError:
            self._refusals_alone += 1
            raise

    def meet(self, rows: Sequence[Any]) -> None:
        """Wait until all ranks have called this, and take the parameters: the same on all ranks."""
        _wait(self._ask(self._request("rest"), self._alone))
        request = self._request("meet")
        self._wait(self._ask(request) + self._start_broadcast(request, "pull", rows))

    def state(self, rows: Mapping[str, Sequence[Any]]) -> tuple[list[int], list[str]]:
        """What servers keep of the parameters.

        Args:
            rows: By the name of what is kept: where it goes. What servers do not keep is left as it is.

        Returns:
            The steps of each parameter, and the names of what is kept.
        """
        request = self._request("state")
        reply = self._replies(request, self._ask(request))[0]
        handles = []
        for name in reply["slots"]:
            handles += self._start_broadcast(request, f"state.{name}", rows[name])
        self._wait(handles)
        return reply["counts"], reply["slots"]

    def load(self, counts: Sequence[int], rows: Mapping[str, Sequence[Any]]) -> None:
        """Let servers go on from such a state, which is rank 0's.

        Args:
            counts: The steps of each parameter.
            rows: By the name of what is kept.
        """
        request = {**self._request("load"), "counts": list(counts), "slots": sorted(rows)}
        self._replies(request, self._ask(request))
        handles = []
        for name in sorted(rows):
            handles += self._give(request, f"load.{name}", rows[name])
        self._wait(handles)

    def _request(self, what: str) -> dict[str, Any]:
        return {"do": what, "optimizer": self._name, "refusals": self._refusals}

    def _wait(self, handles: Sequence[Handle]) -> None:
        try:
            _wait(handles)
        except MismatchError:
            self._refusals += 1
            raise

    def _start_push(
        self, request: Mapping[str, Any], gradients: Sequence[Any], sets: Sequence[ProcessSet] | None = None
    ) -> list[Handle]:  # fmt: skip
        handles = []
        for row, begin, end, process_set in self._shares(sets):
            name, gradient = operation(request, "push", row), gradients[row][begin:end]
            scale = 1 / (process_set.size() - 1)
            push = collectives.reduce(
                gradient, None, process_set.ranks[-1], name, op=ReduceOp.SUM, postscale_factor=scale,
                process_set=process_set,
            )  # fmt: skip
            handles.append(push)
        return handles

    def _start_broadcast(
        self, request: Mapping[str, Any], what: str, rows: Sequence[Any], sets: Sequence[ProcessSet] | None = None
    ) -> list[Handle]:  # fmt: skip
        handles = []
        for row, begin, end, process_set in self._shares(sets):
            share = rows[row][begin:end]
            name = operation(request, what, row)
            handles.append(collectives.broadcast(share, share, process_set.ranks[-1], name, process_set=process_set))
        return handles

    def _give(self, request: Mapping[str, Any], what: str, rows: Sequence[Any]) -> list[Handle]:
        """Rank 0 sends each server its share."""
        return [
            collectives.gather(
                rows[row][begin : end if context().rank == 0 else begin], process_set.ranks[-1],
                operation(request, what, row), process_set=process_set,
            )
            for row, begin, end, process_set in self._shares()
        ]  # fmt: skip

    def _shares(self, sets: Sequence[ProcessSet] | None = None) -> list[tuple[int, int, int, ProcessSet]]:
        """Rows first: what servers have in the same row travels at the same time."""
        servers = self._sets if sets is None else sets
        return [
            (row, *share_of(elements, server, len(servers)), process_set)
            for row, elements in enumerate(self._rows)
            for server, process_set in enumerate(servers)
        ]

    def _ask(self, request: Mapping[str, Any], sets: Sequence[ProcessSet] | None = None) -> list[Handle]:
        """Tell each server what it is to take part in now."""
        try:
            source = as_buffer(bytearray(encode(request)))
        except ValueError:
            raise InvalidArgument(
                f"an optimizer on servers takes finite numbers, and not all of these are: {request}"
            ) from None
        return [
            collectives.gather(source, process_set.ranks[-1], REQUEST, process_set=process_set)
            for process_set in (self._sets if sets is None else sets)
        ]

    def _replies(self, request: Mapping[str, Any], asked: Sequence[Handle]) -> list[dict[str, Any]]:
        """What each server says, after what it was asked."""
        nothing, name = as_buffer(bytearray()), operation(request, "reply")
        handles = [collectives.allgather((nothing,), name, process_set=process_set) for process_set in self._sets]
        self._wait([*asked, *handles])
        return [json.loads(bytes(handle.result())) for handle in handles]


def _wait(handles: Sequence[Handle]) -> None:
    """For all of them, so that none is under way after an error."""
    first: RingcoreError | None = None
    for handle in handles:
        try:
            handle.wait()
        except RingcoreError as error:
            first = first or error
    if first is not None:
        raise first


def check_servers() -> None:
    """Refuse what needs servers, where there are none.

    Raises:
        InvalidArgument: There are none.
    """
    if context().servers == 0:
        raise InvalidArgument("the job has no servers to hold the optimizer; start it with ringrun --servers N")


def _sets() -> list[ProcessSet]:
    """All ranks and a server, of each server."""
    current = context()
    for server in range(len(current.server_sets), current.servers):
        members = [*range(current.size), current.size + server]
        current.server_sets.append(add_process_set_of_members(members, set_number(server)))
    return list(current.server_sets)


def _pairs() -> list[ProcessSet]:
    """This rank and a server, of each server."""
    current = context()
    for server in range(len(current.server_pairs), current.servers):
        number = pair_number(current.rank, server, current.servers)
        current.server_pairs.append(add_process_set_of_members([current.rank, current.size + server], number))
    return list(current.server_pairs)


def _check_alike(order: Mapping[str, Any], name: str) -> None:
    """Before any server hears of it.

    Raises:
        MismatchError: Ranks order different optimizers.
    """
    told = {key: str(value) for key, value in order.items() if key not in ("do", "optimizer")}
    given = [json.loads(part) for part in gather_bytes(json.dumps(told).encode(), name)]
    if any(one != given[0] for one in given):
        listed = "; ".join(differences(dict(enumerate(given))))
        raise MismatchError(
            f"ranks want servers to hold different optimizers: {listed}. Remedy: build the same model and optimizer on "
            "all ranks"
        )
