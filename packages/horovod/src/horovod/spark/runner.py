"""`ringcore_spark.run` with Horovod's arguments."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import ringcore_spark

# Of ringcore, before what a rank prints.
_PREFIX = re.compile(r"^(\[\d+\]<std(?:out|err)>) ")
_LINE_END = re.compile(r"([\r\n])")


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,  # noqa: ARG001 - there is nothing to choose
    use_gloo: bool | None = None,  # noqa: ARG001
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
        use_mpi: Changes nothing, as ranks meet by themselves.
        use_gloo: Likewise.
        extra_mpi_args: None.
        env: Variables for the ranks.
        stdout: Where what ranks print goes; `None`: `sys.stdout`.
        stderr: Likewise.
        verbose: 2 and more say what is done.
        nics: Network interfaces to use.
        prefix_output_with_timestamp: Put the time before the rank that stands before each line.
        executable: `None`: the interpreter of Spark's workers.

    Returns:
        What `fn` returned, in the order of ranks.

    Raises:
        RuntimeError: It raised on a rank, or a rank was killed. What it raised is its `original`.
        ValueError: There are too few slots, or an argument asks for what ringcore does not do.
    """
    given = {
        "extra_mpi_args": extra_mpi_args,
        "executable": executable,
    }
    refused = [name for name, value in given.items() if value]
    if refused:
        raise ValueError(f"horovod.spark.run on ringcore has no {', '.join(refused)}: leave it out")
    with _shown(stdout, stderr, prefix_output_with_timestamp):
        return ringcore_spark.run(
            fn,
            args,
            kwargs,
            num_proc,
            env=_environ(env, nics),
            start_timeout=start_timeout,
            verbose=verbose > 1,
        )


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: IO[str] | None = None,
    stderr: IO[str] | None = None,
    verbose: int = 1,
    nics: Sequence[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call a function on ranks that are tasks of Spark, and come and go: it calls what `hvd.elastic.run` decorates.

    Args:
        fn: The function.
        args: Its arguments.
        kwargs: Its keyword arguments.
        num_proc: It begins with so many ranks; `None`: as many as tasks fit.
        min_num_proc: It goes on with so many; `None`: `num_proc`, or 1 if that is not given.
        max_num_proc: It has no more; `None`: as many as tasks fit.
        start_timeout: Seconds after which it begins with fewer than `num_proc`.
        elastic_timeout: Seconds for which it waits with fewer than `min_num_proc`.
        reset_limit: It ends after so many changes.
        env: Variables for the ranks.
        stdout: Where what ranks print goes; `None`: `sys.stdout`.
        stderr: Likewise.
        verbose: 2 and more say what is done.
        nics: Network interfaces to use.
        prefix_output_with_timestamp: Put the time before the rank that stands before each line.
        min_np: `min_num_proc`.
        max_np: `max_num_proc`.

    Returns:
        What `fn` returned, in the order of the ranks that were there in the end.

    Raises:
        RuntimeError: All have failed, or too few were there; what the first raised is its `original`.
        ValueError: There are too few slots, or the numbers do not fit together.
    """
    with _shown(stdout, stderr, prefix_output_with_timestamp):
        return ringcore_spark.run(
            fn,
            args,
            kwargs,
            num_proc,
            env=_environ(env, nics),
            start_timeout=start_timeout,
            verbose=verbose > 1,
            elastic=True,
            min_num_proc=min_np if min_num_proc is None else min_num_proc,
            max_num_proc=max_np if max_num_proc is None else max_num_proc,
            elastic_timeout=elastic_timeout,
            reset_limit=reset_limit,
        )


def _environ(env: Mapping[str, str] | None, nics: Sequence[str] | None) -> dict[str, str]:
    interfaces = {"RINGCORE_NETWORK_INTERFACES": ",".join(sorted(nics))} if nics else {}
    return {**interfaces, **(env or {})}


@contextlib.contextmanager
def _shown(stdout: IO[str] | None, stderr: IO[str] | None, timestamps: bool) -> Iterator[None]:
    """Show what ranks print as Horovod does, there."""
    with (
        _prefixed(stdout or sys.stdout, timestamps) as out,
        _prefixed(stderr or sys.stderr, timestamps) as err,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        yield


@contextlib.contextmanager
def _prefixed(stream: IO[str], timestamps: bool) -> Iterator[_Prefixed]:
    """What is written to this goes to the stream, with `[0]<stdout>:` before a rank's lines as Horovod has it."""
    writer = _Prefixed(stream, timestamps)
    try:
        yield writer
    finally:
        writer.close()


class _Prefixed(io.TextIOBase):
    def __init__(self, stream: IO[str], timestamps: bool) -> None:
        self._stream = stream
        self._timestamps = timestamps
        self._line = ""  # Its end has not come yet.

    def write(self, text: str) -> int:
        *lines, self._line = _LINE_END.split(self._line + text)
        # Ends of lines are the odd pieces.
        self._stream.write("".join(self._own(line) + end for line, end in zip(lines[::2], lines[1::2], strict=True)))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        if self._line:
            self._stream.write(self._own(self._line))
            self._line = ""

    def _own(self, line: str) -> str:
        time_of = time.asctime() if self._timestamps else ""
        return _PREFIX.sub(lambda found: f"{time_of}{found[1]}:", line, count=1)
