"""The launcher as `ringcore.run` starts it: takes the call from a socket, and sends the ranks' outcomes back.

A process of its own, because the caller may be a notebook with threads, signal handlers and a loop of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from ringcore._errors import BootstrapError
from ringcore.launcher import _hosts, _options
from ringcore.launcher._frames import FramePipe, Kind
from ringcore.launcher._loop import Loop
from ringcore.launcher._supervisor import Supervisor
from ringcore.launcher.main import KeyFileError, Placed, start_job

# The caller has gone, or has been interrupted.
_EXIT_GONE = 130


class _Caller:
    """The process that called `ringcore.run`."""

    def __init__(self, fd: int, argv: Sequence[str]) -> None:
        self._argv = argv
        self._loop = Loop()
        self._call: bytes | None = None
        self._placed: Placed | None = None
        self._gone = self._abandoned = False
        self._supervisor: Supervisor | None = None
        self._pipe = FramePipe(self._loop, fd, os.dup(fd), on_frame=self._on_frame, on_close=self._on_close)

    def serve(self) -> int:
        while self._call is None and not self._gone:
            self._loop.run_once()
        if self._call is None:
            return _EXIT_GONE
        code = start_job(
            _options.parse(self._argv, os.environ),
            loop=self._loop,
            blobs={"RINGCORE_CALL_FD": self._call},
            placed=self._placed,
            on_result=lambda rank, data: self._pipe.send(Kind.RESULT, rank, data),
            on_start=self._on_start,
        )
        if self._supervisor is not None and self._supervisor.blamed is not None:
            self._pipe.send(Kind.EXIT, self._supervisor.blamed)
        while not self._pipe.idle and not self._gone:
            self._loop.run_once()
        return code

    def _on_start(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        if self._gone:
            supervisor.stop(_EXIT_GONE)
        elif self._abandoned:
            supervisor.on_abandoned()

    def _on_frame(self, kind: Kind, _rank: int, payload: bytes) -> None:
        if kind is Kind.JOB:
            self._call = payload
        elif kind is Kind.PLACE:
            place = json.loads(payload)
            self._placed = Placed(place["bind"], place["listener"], bytes.fromhex(place["key"]))
            self._call = b""
        elif kind is Kind.ABANDON:
            self._abandoned = True
            if self._supervisor is not None:
                self._supervisor.on_abandoned()

    def _on_close(self, _reason: str) -> None:
        self._gone = True
        if self._supervisor is not None:
            self._supervisor.stop(_EXIT_GONE)


def main() -> int:
    """Serve one call. The first argument is the socket's descriptor, the others are ringrun's.

    Returns:
        The exit code of the job.
    """
    try:
        return _Caller(int(sys.argv[1]), sys.argv[2:]).serve()
    except (_hosts.HostError, BootstrapError, KeyFileError, ValueError) as error:
        print(f"ringcore.run: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # All is closed and written; somebody waits for this end, and the interpreter takes its time for it.
