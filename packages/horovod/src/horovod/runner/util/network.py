"""Which hosts are this machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from ringcore.bootstrap import interfaces

__all__ = ["filter_local_addresses", "get_local_host_addresses", "get_local_intfs", "resolve_host_address"]


def get_local_host_addresses() -> set[str]:
    """The addresses of this machine's interfaces."""
    return {address.ip for address in interfaces.addresses()}


def get_local_intfs(nic: str | None = None) -> set[str]:
    """The interfaces that only this machine reaches itself by.

    Args:
        nic: Look at this one alone.
    """
    here = (address for address in interfaces.addresses() if nic in (None, address.interface))
    return {address.interface for address in here if ipaddress.ip_address(address.ip).is_loopback}


def resolve_host_address(host_name: str) -> str | None:
    """The address of a host; None: its name means nothing here."""
    try:
        return str(socket.getaddrinfo(host_name.strip("[]"), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def filter_local_addresses(all_host_names: Iterable[str]) -> list[str]:
    """The hosts that are other machines, in their order; `user@host` is one, as another user has another login."""
    here = get_local_host_addresses()
    return [name for name in all_host_names if "@" in name or not _is_here(resolve_host_address(name), here)]


def _is_here(address: str | None, here: set[str]) -> bool:
    # A system may give its own name an address of the loopback network that no interface has.
    return address is not None and (address in here or ipaddress.ip_address(address.partition("%")[0]).is_loopback)
