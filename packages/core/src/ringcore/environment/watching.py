"""How a user looks at the own running jobs, and changes them: by Unix sockets in folders of mode 0700.

Both ends are of one user. A question or an order is a line; the answer is JSON, behind which the connection ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from ringcore.environment.private_folder import peer_uid, private_folder

# Where a rank listens that ringrun has started. Others do so in the folder of their job.
WATCH_FILE_VARIABLE = "RINGCORE_WATCH_FILE"
# The launcher's name among the sockets of a job, and how the ranks' begin.
LAUNCHER = "launcher"
RANK = "rank."
QUESTIONS = ("status", "stacks")
# Of the launcher of an elastic job, each with a word behind it.
ORDERS = ("scale", "drain")
MAX_QUESTION_BYTES = 64
# How the names begin that the kernel knows these sockets by: a descriptor of their folder follows.
FOLDER_OF_SOCKETS = "/proc/self/fd/"


class OrderError(ValueError):
    """What was ordered cannot be done; the message says why."""


def jobs_folder() -> Path:
    """Where the jobs of this user on this host are, a folder each.

    Raises:
        BootstrapError: It cannot be made, or others could look into it.
    """
    folder = private_folder() / "jobs"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def folder_of(job: str) -> Path:
    """The folder of a job.

    Raises:
        BootstrapError: As `jobs_folder`.
    """
    return jobs_folder() / re.sub(r"[^\w.-]|^\.", "_", job)


def listen(path: Path) -> socket.socket:
    """Listen in a folder that is there; what was left there by a process that was killed goes."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            listener.bind(name)
        listener.listen(8)
    except BaseException:
        listener.close()
        raise
    return listener


def dial(path: Path, limit_s: float) -> socket.socket:
    """Connect to whoever listens there.

    Raises:
        OSError: Nobody does, or another user.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(limit_s)
        with _short(path) as name:
            connection.connect(name)
        if not is_own(connection):
            raise PermissionError("another user listens there")
    except BaseException:
        connection.close()
        raise
    return connection


def is_own(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user, or of root, who sees everything anyway."""
    return peer_uid(connection) in (os.getuid(), 0)


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """The same place by a name that is short enough for a socket, whatever the folder is called."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{FOLDER_OF_SOCKETS}{folder}/{path.name}"
    finally:
        os.close(folder)
