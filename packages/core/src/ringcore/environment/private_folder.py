"""Where the processes of one user on one host meet."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

from ringcore._errors import BootstrapError


def private_folder() -> Path:
    """A folder that only this user can look into, the same for all processes of this host.

    Raises:
        BootstrapError: It cannot be made, or is not private.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.access(base, os.W_OK | os.X_OK):  # srun and containers bring the variable along, but not the folder
        base = os.environ.get("TMPDIR") or "/tmp"  # the module tempfile would cost the launcher 10 ms of imports
    folder = Path(base) / f"ringcore-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise BootstrapError(
            f"the folder {folder}, in which the ranks of this host meet, cannot be made ({error.strerror}); set TMPDIR "
            "to a folder that this user can write to, the same for all ranks of the host"
        ) from error
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise BootstrapError(f"{folder} is not a private folder of this user (mode 700); remove it")
    return folder


_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


def peer_uid(connection: socket.socket) -> int:
    """The user on the other end of a Unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
