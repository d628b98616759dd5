"""Host lists: reading them, laying ranks out on them, and finding out early that one does not exist."""

from __future__ import annotations

import dataclasses
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence

# Strict, so that no host name can be an option of ssh or mean something to a shell.
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?"
_NAME = rf"([A-Za-z_][A-Za-z0-9._-]*@)?({_LABEL}(\.{_LABEL})*\.?|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\])"
_HOST = re.compile(rf"(?P<name>{_NAME})(:(?P<slots>[0-9]{{1,6}}))?", re.ASCII)
# A name server that does not answer would hold the user up for 5 s a try.
_RESOLVE_LIMIT_S = 0.8


class HostError(ValueError):
    """A host list that cannot be used."""


@dataclasses.dataclass(frozen=True)
class Host:
    """A host and how many ranks it takes."""

    name: str
    slots: int

    @property
    def address(self) -> str:
        """The name without a user and without brackets."""
        return self.name.rpartition("@")[2].strip("[]")


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where one rank runs, in the terms of the scripts' variables."""

    rank: int
    host: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    serves: bool = False  # a server is no rank, and its local and cross rank say nothing


def parse_host(text: str) -> Host:
    """Parse `name` or `name:slots`; a name may be `user@name` or `[address]`.

    Raises:
        HostError: It is neither.
    """
    match = _HOST.fullmatch(text)
    if match is None:
        raise HostError(f"{text!r} is no host; write NAME or NAME:SLOTS, such as node1:4")
    slots = int(match["slots"] or 1)
    if slots < 1:
        raise HostError(f"host {text!r} has no slots; leave it out, or give it one")
    return Host(match["name"], slots)


def parse_hosts(text: str) -> list[Host]:
    """Parse `h1:2,h2:4`.

    Raises:
        HostError: One of them is no host, or occurs twice.
    """
    return _distinct(parse_host(part.strip()) for part in text.split(","))


def parse_hostfile(path: str) -> list[Host]:
    """Read a file with one host a line: `h1 slots=2`, `h1:2` or `h1`; `#` begins a comment.

    Raises:
        HostError: The file cannot be read, or has a line that is no host.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise HostError(f"cannot read the host file {path}: {error}") from None
    hosts = []
    for number, words in enumerate(lines, 1):
        if words:
            try:
                hosts.append(_hostfile_line(words))
            except HostError as error:
                raise HostError(f"{path}, line {number}: {error}") from None
    if not hosts:
        raise HostError(f"the host file {path} names no host")
    return _distinct(hosts)


def _hostfile_line(words: list[str]) -> Host:
    host = parse_host(words[0])
    for word in words[1:]:
        match = re.fullmatch(r"(slots|max[-_]slots)=([0-9]{1,6})", word, re.ASCII)
        if match is None:
            raise HostError(f"{word!r} is not understood; write 'NAME slots=N' or 'NAME:N'")
        if match[1] == "slots":
            host = parse_host(f"{host.name}:{match[2]}")
    return host


def _distinct(hosts: Iterable[Host]) -> list[Host]:
    found: dict[str, Host] = {}
    for host in hosts:
        if host.name in found:
            raise HostError(f"host {host.name} occurs twice; give it all its slots in one place")
        found[host.name] = host
    return list(found.values())


def lay_out(hosts: Sequence[Host], size: int) -> list[Slot]:
    """Lay `size` ranks out on the hosts, filling each before the next.

    Raises:
        HostError: There are fewer slots than ranks.
    """
    total = sum(host.slots for host in hosts)
    if size > total:
        listed = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        raise HostError(f"{size} ranks do not fit into {total} slots ({listed})")
    counts: list[int] = []
    for host in hosts:
        counts.append(min(host.slots, size - sum(counts)))
    return slots_of([count for count in counts if count])


def slots_of(counts: Sequence[int]) -> list[Slot]:
    """Number the ranks of hosts that have `counts` ranks each."""
    slots: list[Slot] = []
    for host, count in enumerate(counts):
        for local_rank in range(count):
            peers = [index for index, other in enumerate(counts) if other > local_rank]
            slots.append(
                Slot(
                    rank=len(slots),
                    host=host,
                    local_rank=local_rank,
                    local_size=count,
                    cross_rank=peers.index(host),
                    cross_size=len(peers),
                )
            )
    return slots


def servers_on(hosts: Sequence[Host], ranks: Sequence[Slot], servers: int) -> list[Slot]:
    """Number the servers behind the ranks; they take slots that ranks leave, and then stand beside them in turns."""
    taken = [slot.host for slot in ranks]
    free = [index for index, host in enumerate(hosts) for _ in range(host.slots - taken.count(index))]
    used = list(dict.fromkeys(taken))
    places = [free[i] if i < len(free) else used[(i - len(free)) % len(used)] for i in range(servers)]
    return [Slot(len(ranks) + i, host, -1, 0, 0, 0, serves=True) for i, host in enumerate(places)]


def is_local(host: Host) -> bool:
    """Whether the name means this machine: then its ranks need no ssh."""
    if "@" in host.name:
        return False
    return host.address in ("localhost", "127.0.0.1", "::1", socket.gethostname())


def resolve(hosts: Sequence[Host]) -> dict[str, str]:
    """Find the address of each host, all at the same time, as ssh would.

    Args:
        hosts: Remote hosts.

    Returns:
        Name -> the address, or the real name where only ssh's proxy can resolve it.

    Raises:
        HostError: One does not resolve within a second; it is named.
    """
    found: dict[str, str] = {}

    def look_up(host: Host) -> None:
        address = _address(host)
        if address is not None:
            found[host.name] = address

    # Daemon threads, because getaddrinfo cannot be interrupted.
    threads = [threading.Thread(target=look_up, args=(host,), daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _RESOLVE_LIMIT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    missing = [host.name for host in hosts if host.name not in found]
    if missing:
        raise HostError(
            f"host {', '.join(missing)} does not resolve to an address (waited up to {_RESOLVE_LIMIT_S} s): check the "
            "spelling, /etc/hosts and ~/.ssh/config, or give an IP address"
        )
    return found


def _address(host: Host) -> str | None:
    direct = _look_up(host.address)
    if direct is not None:
        return direct
    # Perhaps an alias from the user's ssh configuration; -G prints what ssh would do, and connects to nothing.
    try:
        printed = subprocess.run(
            ["ssh", "-G", "--", host.name], capture_output=True, text=True, timeout=_RESOLVE_LIMIT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    config = dict(line.split(" ", 1) for line in printed.splitlines() if " " in line)
    name = config.get("hostname", host.address)
    if {config.get("proxyjump", "none"), config.get("proxycommand", "none")} != {"none"}:
        return name  # Only the host between may be able to resolve it.
    return _look_up(name) if name != host.address else None


def _look_up(name: str) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def address_towards(address: str) -> str:
    """The address of this machine that a host at `address` reaches it by: the one that the kernel routes from.

    Raises:
        HostError: There is no route.
    """
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # Of a datagram socket: nothing is sent.
            return str(probe.getsockname()[0])
    except OSError as error:
        raise HostError(f"there is no route to {address}: {error.strerror}") from None


def address_on(interfaces: Sequence[str], networks: Sequence[str]) -> str:
    """This machine's first address on one of these interfaces or networks that means the same on every host.

    Raises:
        HostError: It has none.
    """
    from ringcore.bootstrap.interfaces import addresses, choose

    found = [address.ip for address in choose(networks, interfaces) if not address.is_link_local]
    if not found:
        seen = ", ".join(str(address) for address in addresses())
        raise HostError(f"this machine has no address on {', '.join([*interfaces, *networks])}; it has {seen}")
    return found[0]
