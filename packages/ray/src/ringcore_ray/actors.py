"""The actors of an executor, and where they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ringcore.launcher.external import Raised

from ringcore_ray import process
from ringcore_ray.room import in_words, refuse_what_never_fits


class RankActor:
    """One rank. It keeps its state from call to call, and an object of the user's if one is wanted."""

    def __init__(self) -> None:
        self._executable: Any = None

    def node(self) -> tuple[str, str, list[str]]:
        """See `process.node_of`."""
        return process.node_of()

    def open_job(self, size: int, host: str, environ: Mapping[str, str]) -> list[bytes]:
        """See `process.open_job`."""
        return process.open_job(size, host, environ)

    def take_seat(self, ticket: bytes, gpus: str | None) -> None:
        """See `process.take_seat`."""
        process.take_seat(ticket, gpus)

    def make(
        self, cls: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Raised | None, None]:
        """Make the object that `execute` passes to functions."""
        what, self._executable = self._outcome(cls, args, kwargs)
        return what, None

    def call(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], with_executable: bool
    ) -> tuple[Raised | None, Any]:
        """Call a function; what it raises is returned, with what the others have to know of it."""
        return self._outcome(fn, [self._executable, *args] if with_executable else args, kwargs)

    def call_bare(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function for `run_remote`."""
        try:
            return fn(*args, **kwargs)
        except BaseException as error:
            process.leave(error)
            raise

    def leave(self) -> None:
        """Leave the job."""
        process.leave()
        process.close_job()

    def _outcome(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Raised | None, Any]:
        try:
            return None, fn(*args, **kwargs)
        except BaseException as error:
            outcome = process.outcome(error)
            process.leave(error)  # Ranks that wait for this one are to fail with it.
            return outcome, None


class Placement:
    """Where the actors are: a placement group of our own, or the one that this code runs in.

    Args:
        resources: Of an actor.
        each: How many actors are in a bundle.
        bundles: How many bundles there are.
        strategy: Ray's word for how those are spread.
        use_current: Take the group that the calling actor or task is in, if there is one.
        limit_s: Give up after so long.
        joining_s: Give up on nodes that are not there after so long.

    Raises:
        TimeoutError: The cluster has not got these resources in time, or can never have them.
    """

    def __init__(
        self, resources: Mapping[str, float], each: int, bundles: int, strategy: str, *, use_current: bool,
        limit_s: float, joining_s: float,
    ) -> None:  # fmt: skip
        self._resources = resources
        current = ray.util.get_current_placement_group() if use_current else None
        self._own = current is None
        if current is not None:
            refuse_what_never_fits(resources, each * bundles, joining_s=0, group=current)
            self.group: PlacementGroup = current
            return
        bundle = {name: amount * each for name, amount in resources.items()}
        refuse_what_never_fits(bundle, bundles, joining_s=joining_s, apart=strategy == "STRICT_SPREAD")
        self.group = placement_group([bundle] * bundles, strategy=strategy)
        if not self.group.wait(limit_s):
            self.remove()
            raise TimeoutError(
                f"Ray had no place for {bundles} bundle(s) of {in_words(bundle)} ({strategy}) within "
                f"{limit_s:g} s. The cluster has {in_words(ray.cluster_resources())}, of which free: "
                f"{in_words(ray.available_resources())}. Ask for fewer workers or less for each, end what holds the "
                "rest, or raise placement_timeout_s where the cluster grows by itself"
            )

    def actor(self, bundle: int) -> Any:
        """Start an actor in this bundle, if the group is our own."""
        strategy = PlacementGroupSchedulingStrategy(self.group, bundle if self._own else -1)
        options = {
            "num_cpus": self._resources.get("CPU", 0),
            "num_gpus": self._resources.get("GPU", 0),
            "scheduling_strategy": strategy,
        }
        return ray.remote(RankActor).options(**options).remote()

    def remove(self) -> None:
        """Give the resources back, if they are ours."""
        if self._own:
            remove_placement_group(self.group)
