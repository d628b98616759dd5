"""`ringcore_spark.run` with Horovod's arguments."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NoReturn

import ringcore_spark


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,  # noqa: ARG001 - there is nothing to choose
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: IO[str] | None = None,
    stderr: IO[str] | None = None,
    verbose: int = 1,
    nics: Sequence[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Call a function on ranks that are tasks of Spark.

    Args:
        fn: The function.
        args: Its arguments.
        kwargs: Its keyword arguments.
        num_proc: Number of ranks; `None`: as many as tasks fit.
        start_timeout: Seconds in which all tasks must have begun.
        use_mpi: False, as ranks meet by themselves.
        use_gloo: Changes nothing.
        extra_mpi_args: None.
        env: Variables for the ranks.
        stdout: Where what ranks print goes; `None`: `sys.stdout`.
        stderr: Likewise.
        verbose: 2 and more say what is done.
        nics: Network interfaces to use.
        prefix_output_with_timestamp: False: the rank stands before each line.
        executable: `None`: the interpreter of Spark's workers.

    Returns:
        What `fn` returned, in the order of ranks.

    Raises:
        RuntimeError: It raised on a rank, or a rank was killed. What it raised is its `original`.
        ValueError: There are too few slots, or an argument asks for what ringcore does not do.
    """
    given = {
        "use_mpi": use_mpi,
        "extra_mpi_args": extra_mpi_args,
        "prefix_output_with_timestamp": prefix_output_with_timestamp,
        "executable": executable,
    }
    refused = [name for name, value in given.items() if value]
    if refused:
        raise ValueError(f"horovod.spark.run on ringcore has no {', '.join(refused)}: leave it out")
    interfaces = {"RINGCORE_NETWORK_INTERFACES": ",".join(sorted(nics))} if nics else {}
    with contextlib.redirect_stdout(stdout or sys.stdout), contextlib.redirect_stderr(stderr or sys.stderr):
        return ringcore_spark.run(
            fn,
            args,
            kwargs,
            num_proc,
            env={**interfaces, **(env or {})},
            start_timeout=start_timeout,
            verbose=verbose > 1,
        )


def run_elastic(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Not there yet.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(
        "elastic jobs on Spark are not there yet: use horovod.spark.run, or ringcore_spark.run(fn, retries=3), which "
        "starts a job anew"
    )
