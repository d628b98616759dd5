"""This host's addresses, and which of them the user has chosen by network or by interface."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringcore._errors import BootstrapError

# Above this, in Mbit/s, one TCP connection seldom fills a link.
_FAST_MBITS = 10_000
# PCI vendors whose clouds limit what one connection carries: Amazon (ENA), Google (gVNIC).
_VENDORS_THAT_LIMIT_FLOWS = ("0x1d0f", "0x1ae0")
_CONNECTIONS_WHERE_ONE_IS_SLOW = 4


@dataclass(frozen=True)
class Address:
    """An address of an interface of this host.

    Attributes:
        interface: Its name, which means nothing on other hosts.
        ip: IPv4 or IPv6, without a scope.
        prefix: Bits of `ip` that name its network.
    """

    interface: str
    ip: str
    prefix: int

    def __str__(self) -> str:
        return f"{self.interface} {self.ip}/{self.prefix}"

    @property
    def is_link_local(self) -> bool:
        """Whether it is one of IPv6 that means something on its own link only."""
        return ":" in self.ip and ipaddress.ip_address(self.ip).is_link_local

    def sockaddr(self, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        """What `bind` takes."""
        return sockaddr(self.ip, port, self.interface)


def sockaddr(ip: str, port: int, interface: str) -> tuple[str, int] | tuple[str, int, int, int]:
    """What `bind` and `connect` take; `interface` of this host leads to `ip` where that is link-local."""
    if ":" not in ip:
        return ip, port
    scope = socket.if_nametoindex(interface) if ipaddress.ip_address(ip).is_link_local else 0
    return ip, port, 0, scope


class _SockAddr(ctypes.Structure):
    _fields_ = (("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26))


class _IfAddrs(ctypes.Structure):
    pass


# struct ifaddrs of getifaddrs(3); what follows the mask is not read.
_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SockAddr)),
    ("mask", ctypes.POINTER(_SockAddr)),
]
_IFF_UP = 0x1


def addresses() -> list[Address]:
    """The addresses of the interfaces that are up, in the system's order.

    Raises:
        BootstrapError: The system does not tell them.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise BootstrapError(f"the addresses of this host cannot be read: {os.strerror(ctypes.get_errno())}")
    try:
        return list(_read(first))
    finally:
        libc.freeifaddrs(first)


def _read(entry: ctypes._Pointer[_IfAddrs]) -> Iterator[Address]:
    while entry:
        item = entry.contents
        if item.flags & _IFF_UP and item.address and item.mask:
            ip, mask = _packed(item.address.contents), _packed(item.mask.contents, item.address.contents.family)
            if ip is not None and mask is not None:
                family = socket.AF_INET if len(ip) == 4 else socket.AF_INET6
                prefix = int.from_bytes(mask, "big").bit_count()
                yield Address(item.name.decode(), socket.inet_ntop(family, ip), prefix)
        entry = item.next


def _packed(address: _SockAddr, family: int | None = None) -> bytes | None:
    family = address.family if family is None else family
    data = bytes(address.data)
    if family == socket.AF_INET:
        return data[2:6]  # behind the port
    if family == socket.AF_INET6:
        return data[6:22]  # behind the port and the flow
    return None


def choose(networks: Sequence[str], interfaces: Sequence[str]) -> list[Address]:
    """This host's addresses in these networks or on these interfaces, in the order in which those are given.

    Of an interface that has others, link-local addresses are left out.
    """
    found: dict[Address, None] = {}
    here = addresses()
    for network in map(_network, networks):
        found.update({a: None for a in here if ipaddress.ip_address(a.ip) in network})
    for interface in interfaces:
        own = [a for a in here if a.interface == interface]
        found.update({a: None for a in own if not a.is_link_local} or dict.fromkeys(own))
    return list(found)


@functools.cache
def _network(cidr: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network(cidr, strict=False)


def towards(host: str) -> Address:
    """The address of this host that packets to another one come from.

    Raises:
        BootstrapError: There is no route, or the host does not resolve.
    """
    problems = []
    try:
        targets = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise BootstrapError(f"the rendezvous host {host!r} does not resolve ({error})") from error
    for family, _, _, _, target in targets:
        try:
            # No packet is sent: the kernel only looks which of our addresses it would use on that route.
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)
                ip = str(probe.getsockname()[0]).partition("%")[0]
        except OSError as error:
            problems.append(f"{target[0]}: {error}")
            continue
        return next((a for a in addresses() if a.ip == ip), Address("", ip, 128 if ":" in ip else 32))
    raise BootstrapError(f"there is no route to the rendezvous host {host!r} ({'; '.join(problems)})")


def address_for_others(host: str) -> str:
    """An address at which other hosts reach this one, which they know as `host`.

    Raises:
        BootstrapError: The name does not resolve, or this host has no address but loopback's.
    """
    try:
        found = _resolved(host)
    except OSError as error:
        raise BootstrapError(
            f"the host {host!r} does not resolve ({error}); name an address of this machine"
        ) from error
    address = _not_loopback(found)
    if address is None:
        raise BootstrapError(f"other hosts cannot reach {host!r}: it has no address but {', '.join(found)}")
    return address


def own_address() -> str:
    """An address at which other hosts reach this one; loopback's where it has no other.

    In containers a host's own name need not resolve.
    """
    try:
        found = _resolved(socket.gethostname())
    except OSError:
        found = []
    return _not_loopback(found) or "127.0.0.1"


def _resolved(host: str) -> list[str]:
    return [str(target[0]) for *_, target in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def _not_loopback(found: Sequence[str]) -> str | None:
    """Of these addresses, or of all of this host: Debian gives its own name one of loopback, in /etc/hosts."""
    own = [address.ip for address in addresses() if not address.is_link_local]
    reachable = (ip for ip in (*found, *own) if not ipaddress.ip_address(ip.partition("%")[0]).is_loopback)
    return next(reachable, None)


def share_network(first: tuple[str, int], second: tuple[str, int]) -> bool:
    """Whether two addresses, each with its prefix, lie in one network."""
    if (":" in first[0]) != (":" in second[0]) or first[1] != second[1]:
        return False
    return ipaddress.ip_address(second[0]) in _network(f"{first[0]}/{first[1]}")


def connections_for(address: Address) -> int:
    """How many TCP connections it takes to fill the link behind an address, as far as the system tells."""
    fast = (speed_of(address.interface) or 0) > _FAST_MBITS * 1e6
    device = Path("/sys/class/net", address.interface or "-", "device")
    try:
        limited = (device / "vendor").read_text().strip() in _VENDORS_THAT_LIMIT_FLOWS
    except OSError:
        limited = False
    return _CONNECTIONS_WHERE_ONE_IS_SLOW if fast or limited else 1


# ioctl SIOCETHTOOL with ETHTOOL_GSET, of linux/ethtool.h: /sys may show the interfaces of another network namespace.
_SIOCETHTOOL, _ETHTOOL_GSET = 0x8946, 1
_COMMAND, _SPEED = struct.Struct("I40x"), struct.Struct("12xH14xH")
_UNKNOWN_MBITS = (0, 0xFFFF, 0xFFFFFFFF)


def speed_of(interface: str) -> float | None:
    """What its card says that it carries, in bits a second; None where it says nothing."""
    command = ctypes.create_string_buffer(_COMMAND.pack(_ETHTOOL_GSET), _COMMAND.size)
    request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(command))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            fcntl.ioctl(asked, _SIOCETHTOOL, request)
    except OSError:
        return None
    low, high = _SPEED.unpack_from(command.raw)
    mbits = low | high << 16
    return None if mbits in _UNKNOWN_MBITS else mbits * 1e6
