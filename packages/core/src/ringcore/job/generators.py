"""Generators of plans from outside the engine: run on rank 0, agreed on by all ranks, given to their engines.

Nothing of this runs while operations do: the engine calls no Python. All ranks come together here, and leave with the
same plans or with the same sentence.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import threading
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ringcore import _native
from ringcore._errors import InvalidArgument, MismatchError
from ringcore.job.agreement import gather_bytes, meet
from ringcore.job.state import Context, context
from ringcore.planning import Generator, Plan, Request

_log = logging.getLogger("ringcore")

ENTRY_POINTS = "ringcore.plans"
# Each stands for what is nearer to it than to its neighbours: a plan counts chunks, not bytes.
SIZES = (64 << 10, 1 << 20, 16 << 20, 256 << 20)
_MOST_DATA = (1 << 63) - 1
_CHECK = "save the plan to a file; `ringcore plan check` and `ringcore plan show` tell more"
_MEND = "mend it there; it can be called without a job: generator(plans.Request('allreduce', 1 << 20, (0, 0)))"


@dataclass(frozen=True)
class Outcome:
    """What was found of a registered plan for a kind and size of operation.

    Attributes:
        generator: The plan's name.
        collective: The operation.
        nbytes: So many, about.
        predicted_s: By the cost model.
        measured_s: `None` where it was not tried: it was hopeless, or is taken always.
        best_other_s: Of what stood beside it: measured, or predicted where it was not tried. `None` where nothing did.
        chosen: It has these operations from then on, or where lanes have chosen differently those of some lanes.
    """

    generator: str
    collective: str
    nbytes: int
    predicted_s: float
    measured_s: float | None
    best_other_s: float | None
    chosen: bool


@dataclass(frozen=True)
class _Wish:
    """A request, and for which sizes its plan is used."""

    collective: str
    nbytes: int
    least: int
    most: int


def register(
    generator: Generator,
    *,
    collectives: Sequence[str] = ("allreduce",),
    sizes: Sequence[int] = SIZES,
    root: int = 0,
    always: bool = False,
    patience_s: float = 10.0,
) -> list[Plan]:
    """Let the engine use the plans of a generator. Collective: every rank of the job calls it, between operations.

    The generator is called on rank 0, for each collective and size; the other ranks get its plans from there. Every
    rank verifies them before any of them runs, and so does every server: they stand behind the ranks, as the nodes that
    serve do in a plan. From then on they are tried beside the engine's own ones, and the quickest has the operations of
    a kind and size.

    Args:
        generator: From a `Request` to a `Plan`, or to `None` where it has none to offer.
        collectives: That it is asked for; in a job with servers the allreduce alone.
        sizes: In bytes, that it is asked for; each plan serves the sizes that are nearer to its own.
        root: Of a broadcast, reduce, gather or scatter.
        always: Its plans have such operations without being compared; of several that have, the last ones registered.
        patience_s: What takes longer on rank 0 is refused.

    Returns:
        The plans.

    Raises:
        MismatchError: The ranks registered different things. On every rank.
        InvalidArgument: A plan is wrong, late, too large, or not for this job. On every rank, with the reason.
    """
    current = context()
    name = getattr(generator, "__name__", type(generator).__name__ if callable(generator) else repr(generator))
    wishes = _wishes(collectives, sizes)
    call = current.next_name("plans.register")
    own = {"generator": name, "wishes": [asdict(wish) for wish in wishes], "root": root, "always": always}
    refused = _not_now(current, collectives)
    if not callable(generator):
        refused = (
            f"{generator!r} is no function, on rank {current.rank}. Remedy: pass a function from a Request to a Plan, "
            "as it is, without calling it"
        )
    _agree(call, own, refused)
    if current.size == 1:
        return []
    found = _generate(generator, wishes, current, root, patience_s) if current.rank == 0 else b""
    offered = _take(gather_bytes(found, f"{call}.plans")[0])
    plans, reason = _look_at(offered, wishes, current, root)
    verdicts = [json.loads(part) for part in gather_bytes(_encode({"why": reason}), f"{call}.verdicts")]
    reasons = [verdict["why"] for verdict in verdicts if verdict["why"]]
    if reasons:
        remedy = offered[0].get("remedy", _CHECK)
        raise InvalidArgument(f"the plans of {name!r} are refused on all ranks: {reasons[0]}. Remedy: {remedy}.")
    offers = [(plan.native, wish.least, wish.most, always) for plan, wish in plans]
    current.runtime.offer_plans(current.rank, [*current.host_of, *current.server_hosts], current.servers, offers)
    # Whoever goes on finds the plans on all ranks; on the servers they come before whatever is submitted from now on.
    meet(f"{call}.ready")
    _log.info("rank %d: %d plans of %s", current.rank, len(plans), name)
    return [plan for plan, _ in plans]


def report() -> list[Outcome]:
    """What was found of the registered plans so far, on this rank; all ranks have chosen the same."""
    # The engine compares in each of its lanes, and the caller knows of no lanes: there the quickest time counts.
    of_lanes: dict[tuple[str, str, int], list[tuple[float, float, float, bool]]] = {}
    for each in context().runtime.plan_outcomes():
        of_lanes.setdefault(each[:3], []).append(each[3:])
    outcomes = []
    for what, found in of_lanes.items():
        predicted, measured, best_other, chosen = zip(*found, strict=True)
        outcomes.append(Outcome(*what, min(predicted), _least(measured), _least(best_other), any(chosen)))
    return outcomes


def _least(seconds: Iterable[float]) -> float | None:
    """Without the zeros, by which the engine says that it has not measured."""
    return min(filter(None, seconds), default=None)


def register_installed(names: str) -> None:
    """Register generators that installed distributions offer as entry points `ringcore.plans`.

    Args:
        names: Of the entry points, with commas between them.

    Raises:
        InvalidArgument: There is none of that name, or it cannot be loaded.
    """
    from importlib.metadata import entry_points

    known = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise InvalidArgument(
                f"RINGCORE_PLANS names {name!r}, but no installed distribution has an entry point of that name in "
                f"{ENTRY_POINTS!r}; there are: {listed}"
            )
        register(known[name].load())


def _wishes(collectives: Sequence[str], sizes: Sequence[int]) -> list[_Wish]:
    known = [name for name in _native.COLLECTIVES if name != "barrier"]
    wrong = [name for name in collectives if name not in known]
    if wrong or isinstance(collectives, str):
        raise InvalidArgument(f"collectives are some of {', '.join(known)}, not {collectives!r}")
    ordered = sorted(set(sizes))
    if not ordered or ordered[0] < 1:
        raise InvalidArgument(f"sizes are numbers of bytes from 1 on, at least one, not {list(sizes)}")
    middles = [math.isqrt(a * b) for a, b in itertools.pairwise(ordered)]
    ranges = zip(ordered, [0, *(middle + 1 for middle in middles)], [*middles, _MOST_DATA], strict=True)
    return [_Wish(name, *each) for each in ranges for name in collectives]


def _not_now(current: Context, collectives: Sequence[str]) -> str | None:
    """Why no plans can be given to the engine of this rank."""
    if current.settings.elastic:
        return "the job is elastic (RINGCORE_ELASTIC), and ranks that join later would not have the plans"
    if current.servers and set(collectives) != {"allreduce"}:
        return "the job has servers, which take part in allreduces alone; leave out other collectives"
    waits = current.runtime.statistics()["waits"]
    if waits:
        return f"{waits[0][0]} is under way on rank {current.rank}; wait for its handle before"
    return None


def _agree(call: str, own: dict[str, object], refused: str | None) -> None:
    parts = [json.loads(part) for part in gather_bytes(_encode({"what": own, "refused": refused}), call)]
    reasons = [part["refused"] for part in parts if part["refused"]]
    if reasons:
        raise InvalidArgument(f"no plans can be registered: {reasons[0]}")
    if any(part["what"] != parts[0]["what"] for part in parts):
        listed = "; ".join(f"rank {rank}: {part['what']['generator']}" for rank, part in enumerate(parts))
        raise MismatchError(
            f"plans.register was called differently: {listed}. Remedy: pass the same generator, collectives, sizes, "
            "root and always on all ranks."
        )


def _generate(generator: Generator, wishes: list[_Wish], current: Context, root: int, patience_s: float) -> bytes:
    """On rank 0: the plans, with their hashes; or why there are none."""
    entries: list[dict[str, object]] = []
    blobs: list[bytes] = []
    problems: list[tuple[str, str]] = []  # each with its remedy
    told = current.told
    topology, host_names = (None, ()) if told is None else (told.topology, told.host_names)

    def work() -> None:
        for number, wish in enumerate(wishes):
            request = Request(
                wish.collective, wish.nbytes, tuple(current.host_of), root, topology, host_names,
                tuple(current.server_hosts),
            )  # fmt: skip
            try:
                plan = generator(request)
                blob = None if plan is None else _written(plan, generator)
            except _Unwritten as error:
                problems.append((f"for {_name(wish)} {error}", error.remedy))
                return
            except Exception as error:
                where = _line_of(error, generator)
                problems.append((f"for {_name(wish)} it raised {type(error).__name__}: {error} ({where})", _MEND))
                return
            if plan is None or blob is None:
                continue
            entries.append({"wish": number, "bytes": len(blob), "hash": plan.hash})
            blobs.append(blob)

    thread = threading.Thread(target=work, name="ringcore-plans", daemon=True)
    thread.start()
    thread.join(patience_s)
    if thread.is_alive():
        why = f"it was late: after {patience_s:g} s it had made {len(entries)} plans of {len(wishes)}"
        return _pack({"why": why, "remedy": "make it quicker, ask it for fewer sizes, or pass a larger patience_s"}, [])
    if problems:
        why, remedy = problems[0]
        return _pack({"why": why, "remedy": remedy}, [])
    return _pack({"plans": entries}, blobs)


class _Unwritten(Exception):
    """What a generator returned cannot be given to the others."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


def _written(plan: object, generator: Generator) -> bytes:
    if not isinstance(plan, Plan):
        raise _Unwritten(
            f"it returned {type(plan).__name__}, and not a Plan or None ({_place_of(generator)})",
            "return builder.plan() of a plans.Builder, or None where it has no plan",
        )
    if plan.steps > _native.MOST_PLAN_STEPS:
        raise _Unwritten(
            f"its plan is too large: it has {plan.steps} steps, and {_native.MOST_PLAN_STEPS} can be verified",
            "use fewer chunks",
        )
    return plan.to_bytes()


def _line_of(error: Exception, generator: Generator) -> str:
    """Where in the generator's file it was raised, or what was called from there that raised it."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # The first is of this file.
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else _place_of(generator)


def _place_of(generator: Generator) -> str:
    code = getattr(generator, "__code__", None) or getattr(type(generator).__call__, "__code__", None)
    return "it has no lines in Python" if code is None else f"{code.co_filename}, line {code.co_firstlineno}"


def _look_at(
    offered: tuple[dict[str, Any], bytes], wishes: list[_Wish], current: Context, root: int
) -> tuple[list[tuple[Plan, _Wish]], str | None]:
    """On every rank: the plans, and what is wrong with the first one that is."""
    head, data = offered
    if "why" in head:
        return [], str(head["why"])
    plans = []
    for entry in head["plans"]:
        wish = wishes[entry["wish"]]
        try:
            plan = Plan(_native.Plan.read(data[: entry["bytes"]]))
        except InvalidArgument as error:
            return [], f"{_name(wish)}: {error}"
        data = data[entry["bytes"] :]
        reason = _flaw(plan, wish, entry["hash"], current, root)
        if reason:
            return [], f"for {_name(wish)}: {reason}"
        plans.append((plan, wish))
    return plans, None


def _flaw(plan: Plan, wish: _Wish, expected: str, current: Context, root: int) -> str | None:
    native = plan.native
    if plan.hash != expected:
        return f"rank {current.rank} has got plan {plan.hash}, and rank 0 has sent {expected}"
    if plan.ranks < current.size and plan.serving:
        return (
            f"node {plan.ranks} serves in the plan, and is rank {plan.ranks} of the job: servers are numbered behind "
            f"its {current.size} ranks"
        )
    if plan.ranks != current.size or plan.collective != wish.collective:
        return (
            f"the plan is of {plan.collective} among {plan.ranks} ranks, and {wish.collective} among {current.size} "
            "was asked for"
        )
    if plan.serving > current.servers:
        has = current.servers or "none"
        return f"the nodes that serve in the plan need --servers {plan.serving}, and the job has {has}"
    if plan.collective in ("broadcast", "reduce", "gather", "scatter") and plan.root != root:
        return f"the plan's root is rank {plan.root}, and rank {root} was asked for"
    if native.one_sided or native.inputs_ready:
        return "the plan reads other ranks' memory, which only the engine's own plans do; let it send and receive"
    # A server may keep what each rank has sent it.
    most = max(2 * native.chunks, plan.ranks if plan.serving else 0)
    if native.scratch_chunks > most:
        wanted = f"{native.scratch_chunks} scratch chunks beside {native.chunks} chunks"
        return f"the plan wants {wanted}; {most} are given at most"
    return plan.check([*current.host_of, *current.server_hosts[: plan.serving]])


def _name(wish: _Wish) -> str:
    return f"{wish.collective} of {wish.nbytes} bytes"


def _encode(value: dict[str, object]) -> bytes:
    return json.dumps(value).encode()


def _pack(head: dict[str, object], blobs: list[bytes]) -> bytes:
    encoded = _encode(head)
    return len(encoded).to_bytes(4, "little") + encoded + b"".join(blobs)


def _take(data: bytes) -> tuple[dict[str, Any], bytes]:
    end = 4 + int.from_bytes(data[:4], "little")
    head: dict[str, Any] = json.loads(data[4:end])
    return head, data[end:]
