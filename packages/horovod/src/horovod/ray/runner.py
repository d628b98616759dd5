"""Horovod's `RayExecutor`: `ringcore_ray.RingExecutor` with its arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ringcore_ray import RankError, RingExecutor

__all__ = ["MiniSettings", "RayExecutor"]

T = TypeVar("T")


@dataclasses.dataclass
class MiniSettings:
    """What `RayExecutor.create_settings` makes.

    Attributes:
        timeout_s: Seconds in which all ranks must have met.
        placement_group_timeout_s: Seconds in which Ray must have room for the workers.
        nics: Network interfaces to use.
        verbose: Of Horovod's own log, which is not here.
    """

    timeout_s: float = 300
    placement_group_timeout_s: float = 100
    nics: Sequence[str] | None = None
    verbose: int = 1


class RayExecutor:
    """Ranks as actors of a Ray cluster. See `ringcore_ray.RingExecutor` for what its methods do.

    Args:
        settings: From `create_settings`.
        num_workers: How many, wherever there is room.
        num_hosts: On so many hosts instead, each with `num_workers_per_host`.
        num_workers_per_host: See `num_hosts`.
        cpus_per_worker: Resources of an actor.
        use_gpu: One GPU for each, unless `gpus_per_worker` says more.
        gpus_per_worker: Likewise.
        use_current_placement_group: Take the placement group that this runs in, if there is one.
        min_workers: Of elastic jobs, which go on with so many; see `RingExecutor`.
        max_workers: They take no more.
        reset_limit: They end after so many changes.
        cooldown_range: The least and the most that passes before a rank that has failed is replaced, in seconds.
        elastic_timeout: Seconds for which they wait with fewer than `min_workers`.
        options: Others of elastic jobs, which are refused: `override_discovery`.

    Raises:
        ValueError: An argument asks for what ringcore does not do, or the numbers do not fit together.
    """

    def __init__(
        self,
        settings: MiniSettings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int | None = None,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[float] | None = None,
        elastic_timeout: float = 600,
        **options: Any,
    ) -> None:
        if options:
            raise ValueError(f"RayExecutor on ringcore has no {', '.join(sorted(options))}: leave it out")
        if gpus_per_worker and not use_gpu:
            raise ValueError("gpus_per_worker is given, but use_gpu is not True")
        settings = settings or MiniSettings()
        env = {"RINGCORE_START_TIMEOUT_S": f"{settings.timeout_s:g}"}
        if settings.nics:
            env["RINGCORE_NETWORK_INTERFACES"] = ",".join(sorted(settings.nics))
        self._executor = RingExecutor(
            num_workers,
            num_hosts=num_hosts,
            num_workers_per_host=num_workers_per_host,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=(gpus_per_worker or 1) if use_gpu else 0,
            use_current_placement_group=use_current_placement_group,
            placement_timeout_s=settings.placement_group_timeout_s,
            env=env,
            min_workers=min_workers,
            max_workers=max_workers,
            elastic_timeout_s=elastic_timeout,
            reset_limit=reset_limit,
            cooldown_range=None if cooldown_range is None else (cooldown_range[0], cooldown_range[-1]),
        )

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 300,
        ssh_identity_file: str | None = None,  # noqa: ARG003 - nothing goes over ssh
        ssh_str: str | None = None,  # noqa: ARG003
        placement_group_timeout_s: float = 100,
        nics: Sequence[str] | None = None,
        verbose: int = 1,
    ) -> MiniSettings:
        """Settings for the first argument. Nothing goes over ssh: what is told of it is not looked at."""
        return MiniSettings(timeout_s, placement_group_timeout_s, nics, verbose)

    @property
    def num_workers(self) -> int:
        """Number of ranks."""
        return self._executor.num_workers

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the actors."""
        _as_raised(self._executor.start, executable_cls, executable_args, executable_kwargs, extra_env_vars)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on every rank."""
        return _as_raised(self._executor.run, fn, args, kwargs, callbacks)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """The same, returning Ray's references at once."""
        return self._executor.run_remote(fn, args, kwargs)

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[..., Any]] | None = None) -> list[Any]:
        """Call `fn(executable)` on every rank."""
        return _as_raised(self._executor.execute, fn, callbacks)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call `fn(executable)` on rank 0."""
        return _as_raised(self._executor.execute_single, fn)

    def restart(self) -> None:
        """Replace dead actors, and give all ranks a place in a new job."""
        self._executor.restart()

    def shutdown(self) -> None:
        """End the actors."""
        self._executor.shutdown()


def _as_raised(call: Callable[..., T], *args: Any) -> T:
    """Calls it; raises what the function raised on its rank, as Ray does for Horovod."""
    try:
        return call(*args)
    except RankError as error:
        if error.original is None:
            raise
        raise error.original from error
