"""Actors that bring the ranks of elastic jobs, and are replaced when they die."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ringcore.launcher.external import Elasticity, LaunchError, PlacedJob, host_rank

from ringcore_ray.room import in_words, refuse_what_never_fits

# An actor that dies is replaced at once, the next one after so long, then twice as long each time, and so long at most.
_REST_S, _LONGEST_REST_S = 1.0, 60.0
# The job's end is looked for so often, while no actor has anything to say.
_LOOK_S = 0.2


def numbers_of_workers(wanted: int | None, least: int | None, most: int | None) -> tuple[int, int, int]:
    """How many ranks a job begins with, at least has, and at most has.

    Raises:
        ValueError: They do not fit together.
    """
    least = (wanted or 1) if least is None else least
    wanted = least if wanted is None else wanted
    most = wanted if most is None else most
    if not 1 <= least <= wanted <= most:
        raise ValueError(
            f"an elastic job begins with num_workers={wanted}, which is not between min_workers={least} and "
            f"max_workers={most}"
        )
    return wanted, least, most


class HostActor:
    """Brings one rank of a job, and another one if that fails; each is a process of its own below this one's."""

    def host(self, ticket: bytes, call: bytes) -> None:
        """See `host_rank`."""
        host_rank(ticket, call)


class ElasticWorkers:
    """As many actors as there may be ranks; those that Ray has no room for come when it has.

    Args:
        size: An elastic job begins with so many ranks.
        elasticity: How they may come and go.
        resources: Of an actor.
        use_current: Take the placement group that this runs in, if there is one.
        start_timeout_s: A job begins with fewer ranks after so long.
        joining_s: Nodes that are not there after so long are not waited for.

    Raises:
        TimeoutError: There can never be room for the fewest.
    """

    def __init__(
        self, size: int, elasticity: Elasticity, resources: Mapping[str, float], *, use_current: bool,
        start_timeout_s: float, joining_s: float,
    ) -> None:  # fmt: skip
        self._size = size
        self._elasticity = elasticity
        self._resources = dict(resources)
        self._use_current = use_current
        self._start_timeout_s = start_timeout_s
        refuse_what_never_fits(self._resources, elasticity.min_ranks, joining_s=joining_s, group=self._group())
        self._actors = [self._new_actor() for _ in range(elasticity.max_ranks)]

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], environ: Mapping[str, str]
    ) -> list[Any]:
        """Call a function on ranks that come and go, and wait for all of them; see `RingExecutor.run`."""
        # Who comes later may be on another node, whatever there is now.
        host = ray.util.get_node_ip_address()
        with PlacedJob(
            self._size, fn, args, kwargs, host=host, env=environ, start_timeout_s=self._start_timeout_s,
            elastic=self._elasticity,
        ) as job:  # fmt: skip
            watch = _Watch(job, self._actors, self._new_actor)
            watch.start()
            try:
                return job.results()
            except LaunchError as error:
                if watch.error is not None:
                    cause = getattr(watch.error, "cause", None) or watch.error  # Ray's has the actor's stack.
                    raise LaunchError(f"an actor could not bring its rank: {cause}") from watch.error
                raise LaunchError(
                    f"{error}\nEach rank needs {in_words(self._resources)}; the cluster has "
                    f"{in_words(ray.cluster_resources())}, of which free: "
                    f"{in_words(ray.available_resources())}"
                ) from error
            finally:
                job.stop()
                watch.stop()

    def shutdown(self) -> None:
        """End the actors, those that have not begun too."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []

    def _group(self) -> PlacementGroup | None:
        return ray.util.get_current_placement_group() if self._use_current else None

    def _new_actor(self) -> Any:
        group = self._group()
        options: dict[str, Any] = {
            "num_cpus": self._resources.get("CPU", 0),
            "num_gpus": self._resources.get("GPU", 0),
            "scheduling_strategy": "DEFAULT" if group is None else PlacementGroupSchedulingStrategy(group),
        }
        return ray.remote(HostActor).options(**options).remote()


class _Watch:
    """Has the actors bring ranks as long as a job runs, and replaces those that die. On a thread of its own."""

    def __init__(self, job: PlacedJob, actors: list[Any], new_actor: Callable[[], Any]) -> None:
        self.error: Exception | None = None
        self._job = job
        self._actors = actors
        self._new_actor = new_actor
        self._over = threading.Event()
        self._number: dict[Any, int] = {}  # of the actor that has this call
        self._deaths = [0] * len(actors)
        self._due_at: dict[int, float] = {}  # of those that are to be replaced
        self._thread = threading.Thread(target=self._run, name="ringcore-ray", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for number in range(len(self._actors)):
                self._begin(number)
            while not self._over.is_set() and (self._number or self._due_at):
                self._look()
        except Exception as error:  # For example an executor that has another version of ringcore.
            if not self._over.is_set():
                self.error = error
                self._job.abandon()

    def _begin(self, number: int) -> None:
        reference = self._actors[number].host.remote(self._job.ticket(number), self._job.call)
        self._number[reference] = number

    def _look(self) -> None:
        now = time.monotonic()
        for number in [number for number, due_at in self._due_at.items() if due_at <= now]:
            del self._due_at[number]
            self._actors[number] = self._new_actor()
            self._begin(number)
        if not self._number:
            self._over.wait(_LOOK_S)
            return
        done, _ = ray.wait(list(self._number), timeout=_LOOK_S)
        for reference in done:
            number = self._number.pop(reference)
            try:
                ray.get(reference)
            except RayActorError:
                deaths = self._deaths[number]
                self._due_at[number] = now + (min(_LONGEST_REST_S, _REST_S * 2.0 ** (deaths - 1)) if deaths else 0.0)
                self._deaths[number] += 1
