"""`RingExecutor`: functions on actors that are the ranks of a job. Its methods are those of Horovod's RayExecutor."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError
from ringcore.launcher.external import (
    Elasticity,
    LaunchError,
    Raised,
    RankError,
    TicketError,
    check_call,
    raise_first,
)

from ringcore_ray import process
from ringcore_ray.actors import Placement
from ringcore_ray.elastic import ElasticWorkers, numbers_of_workers

# A class, and the arguments for it.
Executable = tuple[Callable[..., Any] | None, Sequence[Any], Mapping[str, Any]]
# A rank that has lost another may be heard before the one that is to blame.
_SETTLE_S = 5.0
# At a restart, an actor that still works on the call that failed elsewhere has so long to end it.
_BUSY_S = 5.0


class RingExecutor:
    """Ranks as actors of a Ray cluster.

    Args:
        num_workers: How many, wherever there is room.
        num_hosts: On so many hosts instead, each with `num_workers_per_host`.
        num_workers_per_host: See `num_hosts`.
        cpus_per_worker: Resources of an actor.
        gpus_per_worker: Likewise. `ring.local_rank()` is the index of a rank's first one.
        use_current_placement_group: Take the placement group that this runs in, if there is one.
        placement_timeout_s: How long to wait for resources that others hold, an autoscaler brings, or nodes have that
            are still to join. None: 60 s for the first two, and no time for such nodes.
        env: Variables for the ranks, `RINGCORE_*` settings among them.
        min_workers: Jobs are elastic: they begin with `num_workers` (None: with so many), go on with so many when ranks
            are lost, and take in others. Each call is a job of its own, and its ranks are processes below the actors.
        max_workers: They take no more; None: as many as they begin with.
        elastic_timeout_s: They wait so long with fewer than `min_workers`.
        reset_limit: They end after so many changes; None: they do not.
        cooldown_range: The least and the most that passes before a rank that has failed is replaced, in seconds; None:
            1 and 60.

    Raises:
        ValueError: The numbers do not fit together.
        TypeError: One is no whole number.
    """

    def __init__(
        self,
        num_workers: int | None = None,
        *,
        num_hosts: int | None = None,
        num_workers_per_host: int | None = None,
        cpus_per_worker: float = 1,
        gpus_per_worker: float = 0,
        use_current_placement_group: bool = True,
        placement_timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        min_workers: int | None = None,
        max_workers: int | None = None,
        elastic_timeout_s: float = 600.0,
        reset_limit: int | None = None,
        cooldown_range: tuple[float, float] | None = None,
    ) -> None:
        numbers = {"num_workers": num_workers, "num_hosts": num_hosts, "num_workers_per_host": num_workers_per_host}
        for name, number in {**numbers, "min_workers": min_workers, "max_workers": max_workers}.items():
            if number is not None and not hasattr(number, "__index__"):
                raise TypeError(f"{name}={number!r} is no whole number")
        self._elasticity: Elasticity | None = None
        if min_workers is not None or max_workers is not None:
            if num_hosts is not None:
                raise ValueError("num_hosts places a fixed number of workers: leave it out where they come and go")
            num_workers, least, most = numbers_of_workers(num_workers, min_workers, max_workers)
            self._elasticity = Elasticity(least, most, elastic_timeout_s, reset_limit, cooldown_range)
        if (num_workers is None) == (num_hosts is None):
            raise ValueError("say how many: num_workers, or num_hosts with num_workers_per_host")
        each = (num_workers_per_host or 1) if num_hosts is not None else 1
        self.num_workers = num_workers if num_workers is not None else (num_hosts or 0) * each
        if self.num_workers < 1 or each < 1:
            raise ValueError(f"a job has at least one worker, not {self.num_workers}")
        self._per_bundle = each
        self._resources = {"CPU": float(cpus_per_worker)} | ({"GPU": float(gpus_per_worker)} if gpus_per_worker else {})
        self._strategy = "PACK" if num_hosts is None else "STRICT_SPREAD"
        self._use_current = use_current_placement_group
        self._limit_s = 60.0 if placement_timeout_s is None else placement_timeout_s
        self._joining_s = placement_timeout_s or 0.0
        self._environ = dict(env or {})
        self._placement: Placement | None = None
        self._actors: list[Any] = []  # by rank
        self._bundle: dict[Any, int] = {}  # of each actor
        self._executable: Executable = (None, (), {})
        self._under_way: list[Any] = []
        self._failed: str | None = None
        self._elastic: ElasticWorkers | None = None  # Once it has started.

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the actors, and give each its place.

        Args:
            executable_cls: Class of the object that each actor makes and `execute` passes to functions.
            executable_args: For it.
            executable_kwargs: For it.
            extra_env_vars: Variables for the ranks, over those of `env`.

        Raises:
            TimeoutError: Ray has no room for them; at once where there can never be any.
            LaunchError: An actor has another version of ringcore or Python than rank 0's.
            RankError: The class raised.
        """
        if self._actors or self._elastic is not None:
            raise RuntimeError("the executor has started already: call shutdown() first, or restart()")
        self._environ |= {name: str(value) for name, value in (extra_env_vars or {}).items()}
        self._executable = (executable_cls, executable_args or (), executable_kwargs or {})
        if self._elasticity is not None:
            self._elastic = ElasticWorkers(
                self.num_workers, self._elasticity, self._resources, use_current=self._use_current,
                start_timeout_s=self._limit_s,
                joining_s=self._joining_s,
            )  # fmt: skip
            return
        self._placement = Placement(
            self._resources,
            self._per_bundle,
            self.num_workers // self._per_bundle,
            self._strategy,
            use_current=self._use_current,
            limit_s=self._limit_s,
            joining_s=self._joining_s,
        )
        try:
            self._begin([self._new_actor(index // self._per_bundle) for index in range(self.num_workers)])
        except BaseException:
            self.shutdown()
            raise

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on every rank, and wait for all of them.

        Args:
            fn: The function; it calls `ring.init()`, which does nothing if an earlier call has done so.
            args: The same on every rank.
            kwargs: Likewise.
            callbacks: Not supported; Ray shows what ranks print by itself.

        Returns:
            What it returned, in the order of ranks.

        Raises:
            RankError: It raised on a rank, or an actor died; its `original` is the exception. `restart()` next.
            TypeError: It cannot be called, or it or its arguments cannot be pickled.
        """
        _refuse_callbacks(callbacks)
        check_call(fn, args or ())
        if self._elastic is not None:
            return self._elastic.run(fn, args or (), kwargs or {}, self._environ)
        return self._call(self._ready(), fn, args or (), kwargs or {}, with_executable=False)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Like `run`, but returns references at once: `ray.get` them."""
        check_call(fn, args or ())
        references = [actor.call_bare.remote(fn, args or (), kwargs or {}) for actor in self._ready()]
        self._under_way = references
        return references

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[..., Any]] | None = None) -> list[Any]:
        """Call `fn(executable)` on every rank, with the object that its actor holds; see `run`."""
        _refuse_callbacks(callbacks)
        if self._elastic is not None:
            return self._elastic.run(_with_own, (fn, self._executable), {}, self._environ)
        return self._call(self._ready(), fn, (), {}, with_executable=True)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call `fn(executable)` on rank 0 only."""
        return self._call(self._ready()[:1], fn, (), {}, with_executable=True)[0]

    def restart(self) -> None:
        """Give every rank a new place in a new job, after a failure: dead actors are replaced, the others keep theirs.

        An actor that still works on the call that failed elsewhere is replaced too, after a few seconds.

        Raises:
            RuntimeError: `start` was not called.
            TimeoutError: Ray has no room for the new actors.
            LaunchError: A new actor has another version of ringcore or Python than rank 0's.
            RankError: The class that `start` was given raised.
        """
        if self._elastic is not None:
            return  # Each call is a job of its own.
        if self._placement is None:
            raise RuntimeError("there is nothing to restart: call start() first")
        busy: list[Any] = []
        if self._under_way:
            _, busy = ray.wait(self._under_way, num_returns=len(self._under_way), timeout=_BUSY_S)
        stuck = {actor for actor, reference in zip(self._actors, self._under_way, strict=False) if reference in busy}
        alive = [actor for actor in self._actors if actor not in stuck and _answers(actor)]
        for actor in self._actors:
            if actor not in alive:
                ray.kill(actor)
        gone = [self._bundle.pop(actor) for actor in self._actors if actor not in alive]
        self._begin([*alive, *(self._new_actor(bundle) for bundle in gone)], new=len(gone))

    def shutdown(self) -> None:
        """End the actors, and give their resources back."""
        if self._elastic is not None:
            self._elastic.shutdown()
            self._elastic = None
        leaving = [actor.leave.remote() for actor in self._actors] if self._failed is None else []
        if leaving:
            with contextlib.suppress(Exception):
                ray.wait(leaving, num_returns=len(leaving), timeout=_BUSY_S)
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._bundle, self._under_way, self._failed = [], {}, [], None
        if self._placement is not None:
            self._placement.remove()
            self._placement = None

    def __enter__(self) -> RingExecutor:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def _new_actor(self, bundle: int) -> Any:
        assert self._placement is not None  # noqa: S101 - for the type checker
        actor = self._placement.actor(bundle)
        self._bundle[actor] = bundle
        return actor

    def _begin(self, actors: list[Any], new: int | None = None) -> None:
        """Makes these actors the ranks of a new job; the last `new` of them have no executable yet (None: all)."""
        self._actors, self._under_way = actors, []
        fresh = actors[len(actors) - (len(actors) if new is None else new) :]
        nodes = dict(zip(actors, self._get([actor.node.remote() for actor in actors]), strict=True))
        first = {node: index for index, (node, _, _) in reversed(list(enumerate(nodes.values())))}
        # Ranks of a host are neighbours.
        self._actors = sorted(actors, key=lambda actor: first[nodes[actor][0]])
        places = [nodes[actor] for actor in self._actors]
        (tickets,) = self._get(
            [self._actors[0].open_job.remote(self.num_workers, process.meeting_host(places), self._environ)]
        )
        seats = [
            actor.take_seat.remote(ticket, process.gpus_of_node(places, node))
            for actor, ticket, (node, _, _) in zip(self._actors, tickets, places, strict=True)
        ]
        self._get(seats)
        self._failed = None
        cls, args, kwargs = self._executable
        if cls is not None:
            self._gather({self._actors.index(actor): actor.make.remote(cls, args, kwargs) for actor in fresh})

    def _get(self, references: list[Any]) -> list[Any]:
        try:
            return list(ray.get(references, timeout=self._limit_s))
        except TicketError as error:  # Ray's own exception, with the actor's stack, is of this type too.
            raise LaunchError(f"an actor could not take its rank: {getattr(error, 'cause', error)}") from error
        except RayActorError as error:
            raise RuntimeError(f"an actor ended while the ranks were started: {error}") from error
        except ray.exceptions.GetTimeoutError as error:
            raise TimeoutError(
                f"not all {self.num_workers} actors came within {self._limit_s:g} s (placement_timeout_s): has the "
                "placement group that this runs in room for them? use_current_placement_group=False makes another one"
            ) from error

    def _ready(self) -> list[Any]:
        if self._elastic is not None:
            raise RuntimeError(
                "the ranks of an elastic job come and go: run(fn) and execute(fn) call on all of them and wait; for "
                "one rank, or references, leave min_workers= and max_workers= out"
            )
        if not self._actors:
            raise RuntimeError("the executor has no actors: call start() first")
        if self._failed is not None:
            raise RuntimeError(f"the ranks are no job any more, as {self._failed}: call restart() first")
        return self._actors

    def _call(
        self,
        actors: list[Any],
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        with_executable: bool,
    ) -> list[Any]:
        references = [actor.call.remote(fn, args, kwargs, with_executable) for actor in actors]
        self._under_way = references
        values = self._gather(dict(enumerate(references)))
        return [values[rank] for rank in range(len(references))]

    def _gather(self, references: Mapping[int, Any]) -> dict[int, Any]:
        """Waits for all ranks, or for the one to blame."""
        rank_of = {reference: rank for rank, reference in references.items()}
        values: dict[int, Any] = {}
        raised: dict[int, Raised] = {}
        waiting, deadline, limit_s = list(references.values()), 0.0, None
        while waiting:
            done, waiting = ray.wait(waiting, timeout=limit_s)
            for reference in done:
                rank = rank_of[reference]
                what, values[rank] = _outcome(reference)
                if what is not None:
                    raised[rank] = what
            if any(what.lost_rank is None for what in raised.values()):
                break  # The one to blame; the others need not be waited for.
            if raised:
                deadline = deadline or time.monotonic() + _SETTLE_S
                limit_s = max(0.0, deadline - time.monotonic())
                if not limit_s:
                    break
        if raised:
            self._fail(raised)
        return values

    def _fail(self, raised: dict[int, Raised]) -> NoReturn:
        try:
            raise_first(raised)
        except RankError as error:
            self._failed = str(error).partition("\n")[0]
            raise


def _with_own(fn: Callable[[Any], Any], executable: Executable) -> Any:
    cls, args, kwargs = executable
    return fn(None if cls is None else cls(*args, **kwargs))


def _outcome(reference: Any) -> tuple[Raised | None, Any]:
    try:
        outcome: tuple[Raised | None, Any] = ray.get(reference)
        return outcome
    except (ActorDiedError, ActorUnavailableError) as error:
        message = " ".join(str(error).split())
        return Raised(type(error).__name__, f"its actor has died. {message}", "", None, None), None
    except RayTaskError as error:  # The actor itself returns what functions raise.
        cause = error.cause or error
        message = f"what the function returned cannot be sent back: {cause}"
        return Raised(type(cause).__name__, message, "", None, None), None
    except Exception as error:  # The function or its arguments cannot be unpickled there.
        return Raised(type(error).__name__, str(error), "", None, None), None


def _answers(actor: Any) -> bool:
    try:
        ray.get(actor.node.remote(), timeout=_BUSY_S)
    except (RayActorError, ray.exceptions.GetTimeoutError):
        return False
    return True


def _refuse_callbacks(callbacks: Sequence[Callable[..., Any]] | None) -> None:
    if callbacks:
        raise ValueError(
            "callbacks= is not supported: Ray shows what ranks print, and a queue (ray.util.queue.Queue) passed as an "
            "argument carries results while the function runs"
        )
