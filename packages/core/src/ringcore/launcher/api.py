"""`ringcore.run`: call a function on several ranks, from Python or a notebook."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ringcore.launcher import outcomes
from ringcore.launcher._frames import FrameReader, Kind
from ringcore.launcher.outcomes import LaunchError, RankError

__all__ = ["LaunchError", "RankError", "run"]

T = TypeVar("T")

_HEADER = struct.Struct(">BII")  # As in _frames.
_READ_BYTES = 1 << 18
_STOP_LIMIT_S = 10.0
_TAIL_CHARACTERS = 4000


def run(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = 2,
    *,
    env: Mapping[str, str] | None = None,
    executable: str | None = None,
    **options: Any,
) -> list[T]:
    """Call a function on several ranks at the same time and wait for all of them.

    Each rank is a new process (never a fork), also for a function from a notebook. What ranks print appears here.

    Args:
        fn: The function. One that was defined in a notebook, in `__main__` or inside another function needs
            cloudpickle; so do such arguments.
        args: Its arguments, the same on each rank.
        kwargs: Its keyword arguments.
        np: Number of ranks. `None` takes all slots of `hosts`.
        env: Variables for the ranks.
        executable: Python interpreter of the ranks; `None` is this one.
        **options: Options of ringrun with underscores: `hosts="a:2,b:2"`, `timeout_s=60`, `verbose=True`.

    Returns:
        What the function returned, in the order of ranks.

    Raises:
        RankError: The function raised, or a rank was killed. The original exception is its `__cause__`, if it could
            be pickled.
        LaunchError: No rank was started, or one ended without a result.
        TypeError: The function or its arguments cannot be pickled, or an option does not exist.
    """
    call = call_of(fn, args, kwargs)
    argv = _command_line(np, env, executable or sys.executable, options)
    results, said, code = _Launcher(argv).call(call)
    return _unpack(results, said, code)


def call_of(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bytes:
    """What `worker` calls, with the places that this process imports from."""
    function = outcomes.dump_call(fn, tuple(args), dict(kwargs or {}))
    return pickle.dumps({"path": [entry or os.getcwd() for entry in sys.path], "function": function})


def _command_line(
    np: int | None, env: Mapping[str, str] | None, executable: str, options: Mapping[str, Any]
) -> list[str]:
    from ringcore.launcher import _options

    known = _options.known_options()
    words = [] if np is None else ["-np", str(np)]
    for name, value in (env or {}).items():
        words += ["-x", f"{name}={value}"]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            negated = "--no-" + option[2:]
            # What is off unless asked for needs no word.
            words += [option] if value else [negated] if negated in known or option not in known else []
        elif isinstance(value, (str, int, float)):
            words.append(f"{option}={value}")
        elif isinstance(value, (list, tuple)):
            words.append(f"{option}={','.join(map(str, value))}")
        else:
            raise TypeError(f"option {name} is {value!r}, but a text, a number, a list or True is needed")
    words += ["--no-python", executable, "-m", "ringcore.launcher.worker"]
    try:
        _options.parse(words, {})
    except _options.UsageError as error:
        raise TypeError(f"ringcore.run: {error}") from None
    return words


class _Launcher:
    """The launcher's process and the socket to it."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "ringcore.launcher.call", str(theirs.fileno()), *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": _with_ringcore(os.environ.get("PYTHONPATH"))},
            )

    def call(self, call: bytes) -> tuple[dict[int, bytes], str, int]:
        """Sends the call and gathers the ranks' outcomes, what the launcher said and its exit code."""
        with contextlib.suppress(OSError):  # It has ended already, and says why.
            self._socket.sendall(_HEADER.pack(Kind.JOB, 0, len(call)) + call)
        try:
            results, said = self._gather()
            return results, said, self._popen.wait()
        finally:
            # Also after Ctrl-C: without its caller the launcher ends the ranks.
            self._socket.close()
            try:
                self._popen.wait(_STOP_LIMIT_S)
            finally:
                for pipe in (self._popen.stdout, self._popen.stderr):
                    if pipe is not None:
                        pipe.close()

    def _gather(self) -> tuple[dict[int, bytes], str]:
        reader = FrameReader()
        results: dict[int, bytes] = {}
        said = ""
        with selectors.DefaultSelector() as selector:
            assert self._popen.stdout is not None and self._popen.stderr is not None
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._popen.stdout, selectors.EVENT_READ, sys.stdout)
            selector.register(self._popen.stderr, selectors.EVENT_READ, sys.stderr)
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, _READ_BYTES)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.data is None:
                        for _, rank, payload in reader.feed(data):
                            results[rank] = results.get(rank, b"") + payload
                    else:
                        text = data.decode(errors="replace")
                        # To Python's own stream, which a notebook shows in the cell.
                        key.data.write(text)
                        key.data.flush()
                        if key.data is sys.stderr:
                            said = (said + text)[-_TAIL_CHARACTERS:]
        return results, said


def _with_ringcore(python_path: str | None) -> str:
    """The launcher must find this ringcore, also if only `sys.path` was changed."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return home if not python_path else f"{home}{os.pathsep}{python_path}"


def _unpack(results: dict[int, bytes], said: str, code: int) -> list[Any]:
    ended = {rank: pickle.loads(data) for rank, data in sorted(results.items()) if _complete(data)}
    raised = {rank: outcomes.Raised(*value) for rank, (kind, value) in ended.items() if kind == "raised"}
    if raised:
        outcomes.raise_first(raised)
    if code != 0:
        raise LaunchError(f"the launcher ended with exit code {code}:\n{said.strip()}")
    return [value for _, (_, value) in sorted(ended.items())]


def _complete(data: bytes) -> bool:
    return data.endswith(b".")  # Every pickle does; a rank may have been killed while it wrote.
