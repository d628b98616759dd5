"""What a process has open that others could come in by, as the kernel tells it in /proc."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
import resource
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ringcore.environment import watching

_LISTENS, _CONNECTED = 0x0A, 0x01  # of linux/tcp_states.h
_UNIX_LISTENS = 0x10000  # __SO_ACCEPTCON of linux/net.h
_TRACED_BY = "TracerPid"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_MEMORY = re.compile(r"/memfd:(.*) \(deleted\)")
_GET_SEALS, _SEAL_SHRINK, _SEAL_GROW = 1034, 2, 4  # of linux/fcntl.h


@dataclass(frozen=True)
class Opening:
    """One thing that is open.

    Attributes:
        what: In words.
        problem: What is wrong with it, and what to do; empty if nothing is.
    """

    what: str
    problem: str = ""


@dataclass
class Process:
    """What was found of a process.

    Attributes:
        pid: Its number.
        openings: In the order of its descriptors.
        reaches_out: It has a TCP connection that leaves the host.
        environ: Its settings, those of the time when it was started.
    """

    pid: int
    openings: list[Opening] = field(default_factory=list)
    reaches_out: bool = False
    environ: dict[str, str] = field(default_factory=dict)


def look_at(pid: int, folder: Path) -> Process:
    """Look at a process of this user.

    Args:
        pid: Its number.
        folder: That of its job, where `ringcore status` finds it.

    Raises:
        OSError: It has ended, or is another user's.
    """
    proc = Path("/proc", str(pid))
    found = Process(pid)
    words = (proc / "environ").read_bytes().decode(errors="replace").split("\0")
    found.environ = dict(word.split("=", 1) for word in words if "=" in word)
    sockets = {**_streams(proc), **_local_sockets(proc, folder)}
    seen = set()
    for entry in sorted((proc / "fd").iterdir(), key=lambda entry: int(entry.name)):
        with contextlib.suppress(OSError):  # It has been closed meanwhile.
            opening = _opening(entry, sockets)
            if opening is not None and opening not in seen:
                seen.add(opening)
                found.openings.append(opening)
    found.openings += _rights(proc)
    found.reaches_out = any(opening.what.startswith("TCP connections to") for opening in seen)
    return found


def _opening(entry: Path, sockets: dict[int, Opening]) -> Opening | None:
    target = os.readlink(entry)
    if match := _SOCKET.fullmatch(target):
        return sockets.get(int(match[1]))
    if match := _MEMORY.fullmatch(target):
        return _memory(entry, match[1])
    if not target.startswith("/") or target.startswith(("/dev/", "/proc/")):
        return None
    return _file(entry, target)


def _memory(entry: Path, name: str) -> Opening:
    fd = os.open(entry, os.O_RDONLY | os.O_CLOEXEC)
    try:
        seals = fcntl.fcntl(fd, _GET_SEALS)
    finally:
        os.close(fd)
    sealed = seals & (_SEAL_SHRINK | _SEAL_GROW) == _SEAL_SHRINK | _SEAL_GROW
    return Opening(f"memory {name}, without a name in any folder{', its size is sealed' if sealed else ''}")


def _file(entry: Path, target: str) -> Opening | None:
    status = entry.stat()
    if not stat.S_ISREG(status.st_mode):
        return None
    mode = stat.S_IMODE(status.st_mode)
    problem = f"others may write {target}: chmod go-w {target}" if mode & 0o022 else ""
    return Opening(f"file {target}, mode {mode:o}", problem)


def _streams(proc: Path) -> dict[int, Opening]:
    """The sockets of TCP and UDP in the namespace of a process, by inode."""
    found = {}
    for protocol, kind in (("tcp", "TCP"), ("tcp6", "TCP"), ("udp", "UDP"), ("udp6", "UDP")):
        for words in _rows(proc / "net" / protocol):
            here, there, state = _address(words[1]), _address(words[2]), int(words[3], 16)
            found[int(words[9])] = _stream(kind, here, there, state)
    return found


def _stream(kind: str, here: tuple[str, int], there: tuple[str, int], state: int) -> Opening:
    address = ipaddress.ip_address(here[0])
    if kind == "UDP" or state == _LISTENS:
        what = f"{kind} socket that listens on {here[0]} port {here[1]}"
        if address.is_unspecified:
            return Opening(what, f"it listens on every network (port {here[1]}): name one with --network-interface")
        return Opening(what)
    if state == _CONNECTED and not ipaddress.ip_address(there[0]).is_loopback and here[0] != there[0]:
        return Opening(f"TCP connections to {there[0]}")
    return Opening("TCP connections inside this host")


def _address(text: str) -> tuple[str, int]:
    """The kernel writes addresses as words of 32 bits in the processor's order."""
    host, port = text.split(":")
    words = [int(host[start : start + 8], 16) for start in range(0, len(host), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), int(port, 16)


def _local_sockets(proc: Path, folder: Path) -> dict[int, Opening]:
    found = {}
    for words in _rows(proc / "net" / "unix"):
        name = words[7] if len(words) > 7 else ""
        listens = int(words[3], 16) & _UNIX_LISTENS
        found[int(words[6])] = _listener(name, folder) if listens else Opening("Unix sockets between processes")
    return found


def _listener(name: str, folder: Path) -> Opening:
    if name.startswith("@"):
        return Opening(f"Unix socket {name}, which asks the kernel for the other end's user")
    if name.startswith(watching.FOLDER_OF_SOCKETS):
        name = str(folder / Path(name).name)
    place = Path(name).parent
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(place.stat().st_mode)
        problem = f"others may look into {place}: chmod 700 {place}" if mode & 0o077 else ""
        return Opening(f"Unix socket {name}, in a folder of mode {mode:o}", problem)
    return Opening(f"Unix socket {name}")


def _rows(path: Path) -> Iterator[list[str]]:
    with contextlib.suppress(OSError):  # There is no IPv6.
        for line in path.read_text().splitlines()[1:]:
            yield line.split()


def _rights(proc: Path) -> Iterator[Opening]:
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line)
    users = set(status["Uid"].split())
    if len(users) > 1:
        yield Opening(f"rights of users {', '.join(sorted(users))}", "it has the rights of several users")
    if int(status[_TRACED_BY]):
        tracer = status[_TRACED_BY]
        yield Opening(f"a debugger, pid {tracer}", f"process {tracer} can read all of its memory, the key as well")
    soft, _ = resource.prlimit(int(proc.name), resource.RLIMIT_CORE)
    if soft:
        yield Opening("core files", "if it crashes, its core file holds the tensors that it works on: ulimit -c 0")
