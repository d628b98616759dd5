"""Which links are encrypted, and what ranks say that do not agree about it."""

from __future__ import annotations

from typing import Any

import pytest
from ringcore import _native
from ringcore._errors import BootstrapError
from ringcore.bootstrap.encryption import announce_encryption, check_carriers, check_encryption, is_encrypted
from ringcore.bootstrap.paths import Endpoint, Path
from ringcore.environment.settings import Settings


def path(lower: str, higher: str) -> Path:
    return Path(Endpoint("eth0", lower, 24, 1000, 1), Endpoint("eth0", higher, 24, 1001, 1), 1)


LOOPBACK, INSIDE = path("127.0.0.1", "127.0.0.1"), path("10.0.0.1", "10.0.0.1")
BETWEEN, BETWEEN6 = path("10.0.0.1", "10.0.0.2"), path("fe80::1%eth0", "fe80::2%eth1")


@pytest.mark.parametrize(
    ("setting", "paths", "expected"),
    [
        ("auto", [LOOPBACK], False),
        ("auto", [INSIDE], False),
        ("auto", [BETWEEN], True),
        ("auto", [BETWEEN6], True),
        ("auto", [INSIDE, BETWEEN], True),
        ("on", [LOOPBACK], True),
        ("off", [BETWEEN], False),
    ],
)
def test_what_leaves_the_host_is_encrypted(setting: str, paths: list[Path], expected: bool) -> None:
    assert is_encrypted(setting, paths) is expected


def contact(rank: int, host: str, encryption: str = "auto", no_tls: str | None = None) -> dict[str, Any]:
    return {"rank": rank, "host": host, "encryption": encryption, "no_tls": no_tls}


def test_ranks_with_different_settings_are_told_who_they_are() -> None:
    contacts = [contact(0, "a", "on"), contact(1, "a", "on"), contact(2, "b", "off")]
    with pytest.raises(BootstrapError, match=r"rank 0 on a has RINGCORE_ENCRYPTION=on, but rank 2 on b has .*=off"):
        check_encryption(contacts)
    check_encryption(contacts[:2])


def test_a_rank_that_cannot_encrypt_is_refused_only_where_it_has_to() -> None:
    contacts = [contact(0, "a"), contact(1, "b", no_tls="there is no OpenSSL")]
    with pytest.raises(BootstrapError, match="rank 1 on b: there is no OpenSSL"):
        check_encryption(contacts)
    check_encryption([contact(0, "a"), contact(1, "a", no_tls="there is no OpenSSL")])


def test_everything_encrypted_leaves_no_room_for_mpi() -> None:
    with pytest.raises(BootstrapError, match="MPI carries what goes between the hosts, and it encrypts nothing"):
        check_carriers("on", over_mpi=True)
    check_carriers("auto", over_mpi=True)
    check_carriers("on", over_mpi=False)


def test_only_who_may_have_to_encrypt_looks_for_the_library() -> None:
    outside = [Endpoint("eth0", "10.0.0.1", 24, 1000, 1)]
    inside = [Endpoint("lo", "127.0.0.1", 8, 1000, 1)]
    missing = Settings(openssl_library="/nowhere/libssl.so.3")
    assert announce_encryption(missing, inside) == {"encryption": "auto", "no_tls": None}
    assert announce_encryption(Settings(encryption="off"), outside) == {"encryption": "off", "no_tls": None}


def test_who_asks_for_the_kernels_tls_and_does_not_get_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    outside = [Endpoint("eth0", "10.0.0.1", 24, 1000, 1)]
    announce_encryption(Settings(), outside)
    assert not caplog.records
    try:
        contact = announce_encryption(Settings(kernel_tls=True), outside)
    finally:
        _native.use_kernel_tls(False)
    assert contact == {"encryption": "auto", "no_tls": None}
    refusal = _native.kernel_tls_refusal()
    expected = [f"RINGCORE_KERNEL_TLS=1, but ringcore itself encrypts: {refusal}"] if refusal else []
    assert [record.getMessage() for record in caplog.records] == expected
