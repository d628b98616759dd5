"""Where the job's key and its rendezvous come from."""

from __future__ import annotations

import binascii
import contextlib
import hashlib
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ringcore._errors import BootstrapError
from ringcore.bootstrap.auth import KEY_BYTES, Key, key_of_job
from ringcore.bootstrap.interfaces import address_for_others
from ringcore.bootstrap.rendezvous import RendezvousServer
from ringcore.bootstrap.sockets import RanksMissingError, await_name
from ringcore.environment.hidden import hidden_room, hide, memory_file
from ringcore.environment.placement import LOCAL_SIZE_VARIABLES
from ringcore.environment.private_folder import private_folder

if TYPE_CHECKING:
    from ringcore.environment.placement import Placement
    from ringcore.environment.settings import Settings


_KEY_POLL_S = 0.1
_MOST_KEY_BYTES = 4096  # of a file: digits, and what somebody has put around them
_SPACE = b" \t\r\n"


def read_key(settings: Settings) -> Key | None:
    """The job's key from RINGCORE_KEY_FD or RINGCORE_KEY_FILE; None when neither is set.

    Raises:
        BootstrapError: The file is not private, or holds no key.
    """
    if settings.key_fd is not None:
        return _read_key_fd(settings.key_fd)
    if settings.key_file is None:
        return None
    return read_key_file(Path(settings.key_file))


# Descriptor -> the key that it held, for init() after shutdown().
_key_of_fd: dict[int, Key] = {}


def _read_key_fd(fd: int) -> Key:
    """Reads the key and closes the descriptor: what this process starts must not inherit it."""
    if fd in _key_of_fd:
        return _key_of_fd[fd]
    try:
        key = _read_hidden(fd, f"descriptor {fd}")
    except BootstrapError:  # an OSError, too
        raise
    except OSError as error:
        raise BootstrapError(
            f"the job's key cannot be read from descriptor {fd} ({error.strerror}); a program between "
            "ringrun and this one has closed it: set RINGCORE_KEY_FILE instead"
        ) from error
    _key_of_fd[fd] = key
    os.close(fd)
    return _key_of_fd[fd]


def hold_key(key: bytes) -> int:
    """A descriptor for RINGCORE_KEY_FD, for a process that has been told its key. Children do not inherit it."""
    fd = memory_file("ringcore-key", key)
    # It stays open: its number means this key, until `drop_key`.
    _key_of_fd[fd] = _read_hidden(fd, f"descriptor {fd}")
    return fd


def drop_key(fd: int) -> None:
    """Forget a key of `hold_key`: the descriptor's number may be another's from now on."""
    del _key_of_fd[fd]
    os.close(fd)


def read_key_file(path: Path) -> Key:
    """The key in a file that only its user can read: 32 bytes, or 64 hex digits.

    Raises:
        BootstrapError: The file is not private, or holds no key.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not _is_private(os.fstat(fd)):
                raise BootstrapError(f"the key file {path} can be read by others; run: chmod 600 {path}")
            return _read_hidden(fd, str(path))
        finally:
            os.close(fd)
    except BootstrapError:  # an OSError, too
        raise
    except OSError as error:
        raise BootstrapError(f"the key file {path} cannot be read ({error.strerror})") from error


def _is_private(status: os.stat_result) -> bool:
    """Only this user can read it; or root lets a group of this user read it, as Kubernetes does with secrets."""
    if status.st_mode & stat.S_IRWXO:
        return False
    if not status.st_mode & stat.S_IRWXG:
        return status.st_uid in (0, os.getuid())
    of_this_user = os.getuid() == 0 or status.st_gid in (os.getgid(), *os.getgroups())
    return status.st_uid == 0 and of_this_user and not status.st_mode & stat.S_IWGRP


def _read_hidden(fd: int, source: str) -> Key:
    """Reads a key past all buffers of Python."""
    room = hidden_room(_MOST_KEY_BYTES)
    text = room[: os.preadv(fd, [room], 0)]
    if len(text) == KEY_BYTES:
        return text.toreadonly()
    while len(text) and text[0] in _SPACE:
        text = text[1:]
    while len(text) and text[-1] in _SPACE:
        text = text[:-1]
    if len(text) == 2 * KEY_BYTES:
        with contextlib.suppress(ValueError):
            return hide(binascii.unhexlify(text))
    raise BootstrapError(
        f"{source} holds no key: 32 bytes, or 64 hexadecimal digits; make one with: "
        "(umask 077; head -c 32 /dev/urandom > FILE)"
    )


@contextlib.contextmanager
def rendezvous_of(placement: Placement, settings: Settings) -> Iterator[tuple[str, Key | None]]:
    """The rendezvous' address and the key; serves it where no launcher of ours does and this is rank 0.

    Raises:
        BootstrapError: Ranks on several hosts, and nothing tells where they meet or what their key is.
    """
    key = read_key(settings)
    address = settings.rendezvous
    if address is not None and os.environ.get("JOB_COMPLETION_INDEX"):
        await_name(address.partition(":")[2].rpartition(":")[0], settings.start_timeout_s)
    if address is not None:
        if key is None:
            raise BootstrapError("RINGCORE_RENDEZVOUS is set, but no key: set RINGCORE_KEY_FILE on all ranks as well")
        if placement.source == "ringrun" or placement.rank != 0:
            yield address, key
            return
        kind, _, where = address.partition(":")
        host, _, port = where.rpartition(":")
        place = {"path": where} if kind == "unix" else {"host": host.strip("[]"), "port": int(port)}
        with RendezvousServer(placement.processes, key, job=settings.job_id or "", **place) as server:
            yield server.address, key
            server.wait_served(1, settings.start_timeout_s)
        return
    if placement.local_size is not None and placement.local_size < placement.size:
        address, key = _meeting_between_hosts(placement, settings, key)
        if placement.rank != 0:
            yield address, key
            return
        host = address_for_others(placement.master_addr or "")
        with RendezvousServer(placement.size, key, host=host, port=_port(address)) as server:
            yield server.address, key
            server.wait_served(1, settings.start_timeout_s)
        return
    path = private_folder() / f"{_job_name(placement, settings)}.sock"
    with _on_one_host(placement):
        if placement.rank != 0:
            yield f"unix:{path}", None
            return
        _remove_stale(path)
        with RendezvousServer(placement.size, hide(os.urandom(KEY_BYTES)), path=str(path)) as server:
            yield server.address, None
            server.wait_served(1, settings.start_timeout_s)


@contextlib.contextmanager
def _on_one_host(placement: Placement) -> Iterator[None]:
    """Where ranks are missing: says why all were expected on one host, if nobody has said that there is only one."""
    try:
        yield
    except RanksMissingError as error:
        if placement.local_size is not None:
            raise
        variable = LOCAL_SIZE_VARIABLES.get(placement.source, "LOCAL_WORLD_SIZE")
        raise RanksMissingError(
            f"{error}. All {placement.size} ranks were expected on this host, because {placement.source} does not tell "
            f"how many each has: if there are several hosts, set {variable} to the number of ranks on each"
        ) from error


# Below the ports that systems give to outgoing connections.
_FIRST_PORT, _PORTS = 20_000, 10_000


def _meeting_between_hosts(placement: Placement, settings: Settings, key: Key | None) -> tuple[str, Key]:
    """Where the ranks of several hosts meet that a foreign launcher started, and their key: each finds the same.

    Raises:
        BootstrapError: The launcher does not tell enough.
    """
    told = settings.job_id or placement.job_id or placement.master_port
    if placement.master_addr is None or told is None:
        raise BootstrapError(
            f"{placement.source} started {placement.size} ranks on several hosts and does not tell where they can "
            "meet: set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a number that no other job there has, or "
            "start the job with ringrun"
        )
    name = _job_name(placement, settings)
    host = f"[{placement.master_addr}]" if ":" in placement.master_addr else placement.master_addr
    port = _FIRST_PORT + int(name, 16) % _PORTS
    if key is None:
        key = _users_key(placement.rank == 0, settings.start_timeout_s)
    # Two jobs can have the same port.
    return f"tcp:{host}:{port}", key_of_job(key, name)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def users_key_path() -> Path:
    """Where the secret lies that this user's jobs share through the home directory."""
    return Path.home() / ".ringcore" / "key"


def ensure_users_key() -> None:
    """Make the secret that this user's jobs share, if there is none.

    Raises:
        BootstrapError: It cannot be made.
    """
    path = users_key_path()
    if path.exists():
        return
    try:
        import tempfile  # and much that it needs: only where it is used

        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor, new = tempfile.mkstemp(dir=path.parent)  # mode 0600
        try:
            with open(descriptor, "wb") as file:
                file.write(os.urandom(KEY_BYTES))
            # Whole or not at all, and the first of two jobs wins.
            with contextlib.suppress(FileExistsError):
                os.link(new, path)
        finally:
            os.unlink(new)
    except OSError as error:
        raise BootstrapError(
            f"the key {path} cannot be made ({error.strerror}); set RINGCORE_KEY_FILE to a file of 32 random "
            "bytes, mode 600, the same on all hosts"
        ) from error


def _users_key(makes_it: bool, limit_s: float) -> Key:
    """The secret that this user's jobs share through the home directory: rank 0 makes it when there is none.

    Raises:
        BootstrapError: It cannot be made, is not private, or does not come: the home directory is not shared.
    """
    path = users_key_path()
    if makes_it:
        ensure_users_key()
    deadline = time.monotonic() + limit_s
    while not path.exists():
        if time.monotonic() > deadline:
            raise BootstrapError(
                f"{socket.gethostname()} has no key {path}, which rank 0 makes in a home directory that all hosts "
                "share. Copy it to this host, or set RINGCORE_KEY_FILE to a file of 32 random bytes, mode 600, the "
                "same on all hosts"
            )
        time.sleep(_KEY_POLL_S)
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # makes NFS look again
    return read_key_file(path)


def _job_name(placement: Placement, settings: Settings) -> str:
    """The same on all ranks of one job of one launcher, different for two jobs."""
    identity = settings.job_id or placement.job_id
    if identity is None and placement.master_port is None:
        # The launcher's daemon of this host is the parent of all ranks.
        identity = f"parent-{os.getppid()}"
    text = f"{placement.source}|{identity}|{placement.master_port}|{placement.size}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _remove_stale(path: Path) -> None:
    """A socket that a killed rank 0 left behind: nobody answers on it."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise BootstrapError(f"another job of the same name is starting on this host ({path}); set RINGCORE_JOB_ID")
