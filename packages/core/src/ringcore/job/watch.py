"""Answers whoever looks at the running job: what this rank does, and where its threads stand.

A thread sleeps until somebody asks, so that it costs a job nothing that nobody looks at.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
from pathlib import Path

from ringcore._errors import BootstrapError
from ringcore.environment import watching
from ringcore.job.attention import WATCH_NAME, format_stacks
from ringcore.job.state import Context
from ringcore.job.statistics import statistics_of

_log = logging.getLogger("ringcore")
# Whoever asks is a program of the same user on this host; one that does not read is let go.
_LIMIT_S = 2.0
_told_path: str | None = None  # by the launcher


class Watch:
    """The thread, and what it listens on.

    Args:
        context: Of the job.
        listener: Closed at `stop`.
        path: Its name.
    """

    def __init__(self, context: Context, listener: socket.socket, path: Path) -> None:
        self._context = context
        self._path = path
        self._fd = listener.detach()
        self._thread = threading.Thread(target=self._serve, name=WATCH_NAME, daemon=True)
        self._thread.start()
        context.runtime.add_service_thread(self._thread.native_id or 0)

    def stop(self) -> None:
        """Listen no more."""
        self._path.unlink(missing_ok=True)
        if _told_path is None:
            with contextlib.suppress(OSError):  # other ranks are still there
                self._path.parent.rmdir()
        listener = socket.socket(fileno=self._fd)
        listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._thread.join()
        listener.close()

    def forget(self) -> None:
        """In a forked child: close the copy of the listener."""
        os.close(self._fd)

    def _serve(self) -> None:
        listener = socket.socket(fileno=self._fd)
        try:
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError, ValueError):
                    self._answer(connection)
        except OSError:  # `stop`
            listener.detach()

    def _answer(self, connection: socket.socket) -> None:
        if not watching.is_own(connection):
            return
        connection.settimeout(_LIMIT_S)
        question = connection.recv(watching.MAX_QUESTION_BYTES).decode().strip()
        answer: object = {"error": f"unknown question {question!r}"}
        if question == "status":
            answer = statistics_of(self._context)
        elif question == "stacks":
            answer = {"rank": self._context.rank, "size": self._context.size, "stacks": format_stacks()}
        connection.sendall(json.dumps(answer).encode())


def start_watch(context: Context) -> None:
    """Let this rank be looked at; where there is no private folder for that, it runs all the same.

    A process that no launcher has started is no job to look for.
    """
    global _told_path
    # What this process starts is not this rank.
    _told_path = os.environ.pop(watching.WATCH_FILE_VARIABLE, _told_path)
    if context.size + context.servers == 1 and _told_path is None:
        return
    try:
        path = _path_of(context)
        context.services.append(Watch(context, watching.listen(path), path))
    except (OSError, BootstrapError) as error:
        _log.info("rank %d: `ringcore status` cannot ask it: %s", context.rank, error)


def _path_of(context: Context) -> Path:
    if _told_path is not None:
        return Path(_told_path)
    folder = watching.folder_of(context.job)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{watching.RANK}{context.rank}"
