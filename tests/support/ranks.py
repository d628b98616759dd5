"""Runs a function on several ranks, each a real process, and gathers what each returned, printed and exited with.

The function's source is written to a script, so that a rank does not import the test. It may use what the script's head
imports (`_HEAD`) and its arguments; what it returns must be JSON. Unlike ringrun, nothing ends the other ranks when one
dies: tests of faults look at the survivors.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.processes import LIMIT_S, clean_environ, eventually

_HEAD = """
import json, os, signal, subprocess, sys, threading, time
from pathlib import Path

# mpiexec does not set it.
os.environ.setdefault("RANK", os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK", ""))

import faulthandler
faulthandler.register(signal.SIGUSR2, all_threads=True)

import numpy as np
import ringcore
from support.rank import await_mark, caught, mark, reduce_until_lost

"""
_FOOT = """
if __name__ == "__main__":
    outcome = {function}(*json.loads(sys.argv[1]))
    with open("new." + os.environ["RANK"], "w") as file:
        json.dump(outcome, file)
    os.rename("new." + os.environ["RANK"], "result." + os.environ["RANK"])
"""
_SHOW_STACKS = signal.SIGUSR2
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Outcome:
    """What became of one rank.

    Attributes:
        rank: Its number.
        result: What its function returned; None if it did not come to that.
        exit_code: As of `subprocess`: negative for a signal.
        stdout: What it printed.
        stderr: What it complained about.
    """

    rank: int
    result: Any
    exit_code: int
    stdout: str
    stderr: str


class Ranks:
    """The running ranks of one job."""

    def __init__(self, directory: Path, processes: list[subprocess.Popen[bytes]]) -> None:
        self._directory = directory
        self._processes = processes

    def pid(self, rank: int) -> int:
        return self._processes[rank].pid

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a rank a signal."""
        self._processes[rank].send_signal(number)

    def mark(self, name: str) -> None:
        """Let ranks that wait in `await_mark(name, "test")` go on."""
        (self._directory / f"mark.{name}.test").touch()

    def await_mark(self, name: str, *ranks: int) -> None:
        """Wait until these ranks have called `mark(name)`; fails at once if one has ended without it."""

        def reached(rank: int) -> bool:
            if (self._directory / f"mark.{name}.{rank}").exists():
                return True
            ended = self._processes[rank].poll()
            assert ended is None, f"rank {rank} ended with {ended} before {name!r}:\n{self._read('stderr', rank)}"
            return False

        eventually(lambda: all(reached(rank) for rank in ranks), f"ranks {ranks} come to {name!r}", LIMIT_S)

    def pause(self, rank: int, seconds: float) -> None:
        """Stop a rank for a while, so that it neither computes nor answers."""
        self.signal(rank, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            self.signal(rank, signal.SIGCONT)

    def await_end(self, *ranks: int) -> None:
        """Wait until these ranks have ended; what they said is in the outcomes of `wait`."""
        eventually(
            lambda: all(self._processes[rank].poll() is not None for rank in ranks), f"ranks {ranks} end", LIMIT_S
        )

    def wait(self, limit_s: float = LIMIT_S) -> list[Outcome]:
        """Wait until all ranks have ended; fails, with what they said, if one has not at the limit."""
        deadline = time.monotonic() + limit_s
        for rank, process in enumerate(self._processes):
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                waits = self._show_waits()
                self._show_stacks()
                said = "\n".join(f"rank {r}: {self._read('stderr', r)}" for r in range(len(self._processes)))
                raise AssertionError(f"rank {rank} still runs after {limit_s:g} s\n{waits}\n{said}") from None
        return [self._outcome(rank) for rank in range(len(self._processes))]

    def _show_waits(self) -> str:
        """What the job waits for at this moment."""
        command = [str(Path(sys.executable).with_name("ringcore")), "status"]
        environ = {**clean_environ(), "XDG_RUNTIME_DIR": str(self._directory)}
        try:
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            return "no rank says what it waits for"
        return done.stdout + done.stderr

    def _show_stacks(self) -> None:
        """Let the ranks that still run say where they are, each in its stderr."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(_SHOW_STACKS)
        time.sleep(1)  # a rank that does not answer is not waited for

    def _outcome(self, rank: int) -> Outcome:
        path = self._directory / f"result.{rank}"
        result = json.loads(path.read_text()) if path.exists() else None
        exit_code = self._processes[rank].returncode
        return Outcome(rank, result, exit_code, self._read("stdout", rank), self._read("stderr", rank))

    def _read(self, stream: str, rank: int) -> str:
        return (self._directory / f"{stream}.{rank}").read_text(errors="replace")


def write_program(function: Callable[..., Any], directory: Path) -> Path:
    """Write the script of a rank; its argument is the list of the function's, as JSON."""
    script = directory / "program.py"
    body = textwrap.dedent(inspect.getsource(function))
    script.write_text(_HEAD + body + _FOOT.format(function=function.__name__))
    return script


@contextlib.contextmanager
def started(
    function: Callable[..., Any],
    size: int,
    directory: Path,
    *args: Any,
    env: Mapping[str, str] | None = None,
    wrap: Callable[[int, list[str]], list[str]] = lambda _, command: command,
) -> Iterator[Ranks]:
    """Start ranks; those that still run at the end of the block are killed.

    Args:
        function: Called on each rank.
        size: Number of ranks.
        directory: Of this job alone; the ranks work in it.
        *args: The function's arguments, JSON.
        env: Variables for the ranks.
        wrap: Makes of a rank and its command the command that is started, to run it somewhere else.
    """
    script = write_program(function, directory)
    common = {**clean_environ(), "PYTHONPATH": str(TESTS), "RANKS_DIRECTORY": str(directory)}
    # As torchrun places ranks; rank 0 serves the rendezvous, in a folder of this job.
    common |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "XDG_RUNTIME_DIR": str(directory)}
    common |= {"RINGCORE_JOB_ID": uuid.uuid4().hex, "OMP_NUM_THREADS": "1", **(env or {})}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(size):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with (directory / f"stdout.{rank}").open("wb") as out, (directory / f"stderr.{rank}").open("wb") as err:
                command = wrap(rank, [sys.executable, str(script), json.dumps(args)])
                processes.append(
                    subprocess.Popen(
                        command, cwd=directory, env=place | common, stdin=subprocess.DEVNULL, stdout=out, stderr=err
                    )
                )
        yield Ranks(directory, processes)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def run(
    function: Callable[..., Any],
    size: int,
    directory: Path,
    *args: Any,
    env: Mapping[str, str] | None = None,
    wrap: Callable[[int, list[str]], list[str]] = lambda _, command: command,
    limit_s: float = LIMIT_S,
) -> list[Any]:
    """Run a function on ranks that must all end well.

    Returns:
        What each rank returned.

    Raises:
        AssertionError: A rank failed or still runs at the limit; with what it said.
    """
    with started(function, size, directory, *args, env=env, wrap=wrap) as ranks:
        outcomes = ranks.wait(limit_s)
    failed = [outcome for outcome in outcomes if outcome.exit_code != 0]
    assert not failed, "\n".join(f"rank {o.rank} ended with {o.exit_code}:\n{o.stderr}" for o in failed)
    return [outcome.result for outcome in outcomes]
