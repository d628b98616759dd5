"""Start functions and commands on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ringcore

from horovod.common.basics import translate_environment
from horovod.runner.util.network import with_one_local_host

__all__ = ["run"]

# Horovod's keywords that mean nothing here.
_WITHOUT_EFFECT = {"disable_cache", "use_gloo"}
_UNAVAILABLE = {
    **dict.fromkeys(
        ("min_np", "min_num_proc", "max_np", "max_num_proc", "slots", "reset_limit", "cooldown_range",
         "host_discovery_script"),
        "elastic jobs are not supported by this version of ringcore",
    ),
    **dict.fromkeys(("use_mpi", "mpi_args"), "to start with an MPI, use its mpirun: ringcore finds its place there"),
}  # fmt: skip
_AS_MANY_AS_EVER = ("min_np", "min_num_proc", "max_np", "max_num_proc")
# Programs match this text, and no less of it.
FAILED = "Horovod detected that one or more processes exited with non-zero status"


class _HorovodArgs:
    """The command line of `horovodrun`, for `horovod.runner.launch._run`: what is not set is None."""

    num_proc: int = 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    num_proc: int | None = None,
    hosts: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    start_timeout: float | None = None,
    verbose: int | None = 0,
    executable: str | None = None,
    **options: Any,
) -> list[Any]:
    """`ringcore.run` with Horovod's keywords.

    Args:
        func: Called on every rank.
        args: Its arguments.
        kwargs: Its keyword arguments.
        np: Number of ranks; 1 without.
        num_proc: The same.
        hosts: Where they run: "first:2,second:2".
        network_interfaces: Listen on these only; names, or one text with commas.
        start_timeout: All ranks must have met after so many seconds.
        verbose: Above 0: say what is done.
        executable: Python interpreter of the ranks.
        options: `hostfile`, `ssh_port`, `ssh_identity_file`, `output_filename`, and others of `ringcore.run`.

    Returns:
        What `func` returned, in the order of ranks.

    Raises:
        RuntimeError: The function raised on a rank, or a rank was killed. What it raised is the `__cause__`.
        ValueError: A keyword asks for what ringcore does not do.
    """
    count = np or num_proc or 1
    given = supported(options, count)
    if hosts:
        given["hosts"] = with_one_local_host(hosts)
    if network_interfaces:
        names = [network_interfaces] if isinstance(network_interfaces, str) else network_interfaces
        given["network_interfaces"] = ",".join(names)
    if start_timeout:
        given["start_timeout_s"] = start_timeout
    if verbose:
        given["verbose"] = True
    translate_environment()
    try:
        return ringcore.run(func, args, kwargs, count, executable=executable, **given)
    except RuntimeError as error:
        error.args = (f"{FAILED}: {error}",)
        raise


def supported(options: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Those of Horovod's options that are set and mean something here.

    Args:
        options: By Horovod's names.
        count: The number of ranks; a job that may have no less and no more is not elastic.

    Raises:
        ValueError: One asks for what ringcore does not do.
    """
    given = {name: value for name, value in options.items() if value and name not in _WITHOUT_EFFECT}
    for name in _AS_MANY_AS_EVER:
        if given.get(name) == count:
            del given[name]
    for name in given:
        if name in _UNAVAILABLE:
            raise ValueError(f"run({name}=...): {_UNAVAILABLE[name]}")
    return given
