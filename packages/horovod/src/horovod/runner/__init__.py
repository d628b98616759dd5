"""Start functions and commands on several ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["run"]


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
    network_interfaces: str | Sequence[str] | None = None,
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
        options: `hosts="first:2,second:2"`, `hostfile`, `start_timeout`, `verbose`, `executable` (the ranks' Python),
            `use_mpi` (mpirun starts the ranks), `mpi_args`, `ssh_port`, `ssh_identity_file`, `output_filename`, and
            others of `ringcore.run`.

    Returns:
        What `func` returned, in the order of ranks.

    Raises:
        RuntimeError: The function raised on a rank, or a rank was killed. What it raised is the `original`.
        ValueError: A keyword asks for what ringcore does not do.
    """
    from horovod.runner.launch import _run

    given = _HorovodArgs()
    call = functools.partial(func, *args, **(kwargs or {}))
    vars(given).update(options, num_proc=np or num_proc or 1, nics=network_interfaces, run_func=call)
    return _run(given) or []
