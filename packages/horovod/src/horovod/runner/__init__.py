"""Start functions and commands on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ringcore

from horovod.common.basics import translate_environment

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


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    num_proc: int | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    start_timeout: float | None = None,
    verbose: int = 0,
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
        network_interfaces: Listen on these only; names, or one text with commas.
        start_timeout: All ranks must have met after so many seconds.
        verbose: Above 0: say what is done.
        executable: Python interpreter of the ranks.
        options: `hosts`, `hostfile`, `ssh_port`, `ssh_identity_file`, `output_filename`, and others of `ringcore.run`.

    Returns:
        What `func` returned, in the order of ranks.

    Raises:
        ringcore.RankError: It raised on a rank, or a rank was killed.
        ValueError: A keyword asks for what ringcore does not do.
    """
    for name, why in _UNAVAILABLE.items():
        if options.pop(name, None):
            raise ValueError(f"run({name}=...): {why}")
    for name in _WITHOUT_EFFECT:
        options.pop(name, None)
    if network_interfaces:
        names = [network_interfaces] if isinstance(network_interfaces, str) else network_interfaces
        options["network_interfaces"] = ",".join(names)
    if start_timeout:
        options["start_timeout_s"] = start_timeout
    if verbose:
        options["verbose"] = True
    translate_environment()
    given = {name: value for name, value in options.items() if value is not None}
    return ringcore.run(func, args, kwargs, np or num_proc or 1, executable=executable, **given)
