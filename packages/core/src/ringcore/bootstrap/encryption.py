"""Which connections between ranks are encrypted, and whether all ranks want that and can do it.

What leaves a host is, unless the user says otherwise; see transport/tcp/tls.hpp for how. There is no way back to clear
text: what cannot be encrypted is refused.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringcore import _native
from ringcore._errors import BootstrapError, ResourceError
from ringcore.bootstrap.paths import Endpoint, Path

if TYPE_CHECKING:
    from ringcore.environment.settings import Settings

_log = logging.getLogger("ringcore")

AUTO, ON, OFF = "auto", "on", "off"


def announce_encryption(settings: Settings, endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """What a rank's contact says: its setting, and why it cannot encrypt, where it may have to."""
    setting = settings.encryption
    may_have_to = setting == ON or (setting == AUTO and any(not _is_loopback(endpoint.ip) for endpoint in endpoints))
    return {"encryption": setting, "no_tls": _why_not(settings) if may_have_to else None}


def _why_not(settings: Settings) -> str | None:
    try:
        if settings.openssl_library is not None:
            _native.set_openssl_library(settings.openssl_library)
        _native.tls_library()
    except ResourceError as error:
        return str(error)
    _native.use_kernel_tls(settings.kernel_tls)
    if settings.kernel_tls and _native.kernel_tls_refusal():
        _log.warning("RINGCORE_KERNEL_TLS=1, but ringcore itself encrypts: %s", _native.kernel_tls_refusal())
    return None


def check_encryption(contacts: Sequence[Mapping[str, Any]]) -> None:
    """On every rank alike, before they connect.

    Raises:
        BootstrapError: Ranks have different settings, or one of them cannot encrypt what has to be.
    """
    first = contacts[0]
    for other in contacts:
        if other["encryption"] != first["encryption"]:
            raise BootstrapError(
                f"rank 0 on {first.get('host')} has RINGCORE_ENCRYPTION={first['encryption']}, but rank "
                f"{other['rank']} on {other.get('host')} has RINGCORE_ENCRYPTION={other['encryption']}; set the same "
                "on all ranks (ringrun --encryption)"
            )
    hosts = {str(contact.get("host")) for contact in contacts}
    for contact in contacts:
        if contact["no_tls"] is not None and (first["encryption"] == ON or len(hosts) > 1):
            raise BootstrapError(f"rank {contact['rank']} on {contact.get('host')}: {contact['no_tls']}")


def check_carriers(setting: str, *, over_mpi: bool) -> None:
    """Raises BootstrapError where everything is to be encrypted, but something goes another way."""
    if setting == ON and over_mpi:
        raise BootstrapError(
            "RINGCORE_ENCRYPTION=on, but MPI carries what goes between the hosts, and it encrypts nothing; let TCP "
            "carry it (RINGCORE_TRANSPORT=tcp), or take RINGCORE_ENCRYPTION=auto, where MPI's network is private"
        )


def is_encrypted(setting: str, paths: Iterable[Path]) -> bool:
    """Whether the link that these paths make is encrypted; both of its ranks come to the same answer."""
    return setting == ON or (setting == AUTO and any(_leaves_host(path) for path in paths))


def _leaves_host(path: Path) -> bool:
    same = path.lower.ip == path.higher.ip or (_is_loopback(path.lower.ip) and _is_loopback(path.higher.ip))
    return not same


def _is_loopback(ip: str) -> bool:
    return ipaddress.ip_address(ip.partition("%")[0]).is_loopback
