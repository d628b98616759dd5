"""Encrypted jobs in processes that have little left, or much besides: descriptors, forked children, another OpenSSL."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
import ringcore
from support import ranks
from support.rank import await_mark, caught, mark

ENCRYPTED = {"RINGCORE_TRANSPORT": "tcp", "RINGCORE_ENCRYPTION": "on"}


def runs_out_of_descriptors(who: int) -> dict:
    import resource

    from support.rank import sums_rightly

    ringcore.init()
    small = sums_rightly(3)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if ringcore.rank() == who:
        # The next one that is opened would have this number.
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    error = caught(sums_rightly, 1 << 20)  # for which another connection is made
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    # Both have heard of it before one of them begins anew.
    mark("heard")
    await_mark("heard", 1 - ringcore.rank())
    ringcore.shutdown()
    ringcore.init()
    return {"small": small, "error": error, "again": sums_rightly(1 << 20)}


@pytest.mark.parametrize("who", [0, 1])
def test_no_descriptors_left_in_the_handshake_is_an_error_on_both_that_says_so(tmp_path: Path, who: int) -> None:
    env = {**ENCRYPTED, "RINGCORE_START_TIMEOUT_S": "10"}
    results = ranks.run(runs_out_of_descriptors, 2, tmp_path, who, env=env)
    for result in results:
        assert result["small"] is True
        assert result["again"] is True
        assert result["error"]["type"] in ("PeerLostError", "ResourceError", "BootstrapError"), result
    assert "Too many open files" in results[who]["error"]["message"], results
    assert f"rank {who}" in results[1 - who]["error"]["message"], results


def forks() -> dict:
    from support.rank import sums_rightly

    ringcore.init()
    right = [sums_rightly(3), sums_rightly(1 << 20)]
    child = os.fork()
    if child == 0:
        # It has copies of all keys; whatever it does, and its end, are not to be seen by the others.
        refused = caught(ringcore.allreduce, np.ones(3, np.float32))
        os._exit(0 if refused["type"] is not None and "fork" in refused["message"] else 1)
    right += [sums_rightly(3), sums_rightly(1 << 20)]
    _, status = os.waitpid(child, 0)
    right += [sums_rightly(3), sums_rightly(1 << 20)]
    return {"right": right, "child": os.waitstatus_to_exitcode(status)}


def test_a_fork_in_between_disturbs_no_encrypted_connection(tmp_path: Path) -> None:
    for result in ranks.run(forks, 2, tmp_path, env=ENCRYPTED):
        assert result == {"right": [True] * 6, "child": 0}


def works_beside_another_openssl(other: str, own: str | None) -> dict:
    import ctypes
    import ssl

    from ringcore import _native
    from support.rank import sums_rightly

    if own is not None:
        os.environ["RINGCORE_OPENSSL_LIBRARY"] = own
    context = ssl.create_default_context()
    library = ctypes.CDLL(other)
    for function in (library.TLS_method, library.SSL_CTX_new, library.SSL_new):
        function.restype = ctypes.c_void_p
    library.OpenSSL_version.restype = ctypes.c_char_p

    def connections() -> bool:
        made = library.SSL_CTX_new(ctypes.c_void_p(library.TLS_method()))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        dialled = context.wrap_bio(incoming, outgoing, server_hostname="nobody")
        try:
            dialled.do_handshake()
        except ssl.SSLWantReadError:
            return bool(library.SSL_new(ctypes.c_void_p(made))) and len(outgoing.read()) > 100
        return False

    right = [connections()]
    ringcore.init()
    right += [sums_rightly(3), sums_rightly(1 << 20), connections(), sums_rightly(1 << 20)]
    used = _native.tls_library()
    ringcore.shutdown()
    return {
        "right": [*right, connections()],
        "used": used,
        "versions": [ssl.OPENSSL_VERSION, library.OpenSSL_version(0).decode()],
        "mapped": sorted(
            {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libssl" in line}
        ),
    }


def another_openssl() -> str:
    """That of a package of PyPI, which brings its own."""
    package = importlib.util.find_spec("psycopg2")
    assert package is not None and package.origin is not None
    folder = Path(package.origin).parents[1] / "psycopg2_binary.libs"
    return str(next(folder.glob("libssl-*.so.3")))


@pytest.mark.parametrize("is_own", [False, True])
def test_two_versions_of_openssl_in_one_process_do_not_meet(tmp_path: Path, is_own: bool) -> None:
    other = another_openssl()
    for result in ranks.run(works_beside_another_openssl, 2, tmp_path, other, other if is_own else None, env=ENCRYPTED):
        assert result["right"] == [True] * 6
        of_python, of_other = result["versions"]
        assert of_python != of_other
        # Python's is there already, and taken where nothing else is asked for.
        assert result["used"].startswith(f"{of_other if is_own else of_python} (")
        assert len(result["mapped"]) == 2, result
        assert other in result["mapped"]


SAYS = """
unsigned OPENSSL_version_major(void) {{ return {0}; }}
const char* OpenSSL_version(int of) {{ return "{0}.0"; }}
"""
# What a library has that calls itself libssl.so.3 -> what is said of it.
NO_OPENSSL_3 = {
    "of another version": (SAYS.format(4), "is 4.0, not OpenSSL 3"),
    "too old": ("unsigned long OpenSSL_version_num(void) { return 0x1010117f; }", "OPENSSL_version_major"),
    "broken": (SAYS.format(3), "TLS_method"),
    "no library": (None, "libssl.so.3"),
}


def starts_with(library: str) -> dict:
    os.environ["RINGCORE_OPENSSL_LIBRARY"] = library
    return caught(ringcore.init)


@pytest.mark.parametrize("kind", NO_OPENSSL_3)
def test_a_library_that_is_not_openssl_3_is_told_on_all_and_nothing_goes_in_clear_text(
    tmp_path: Path, kind: str
) -> None:
    source, reason = NO_OPENSSL_3[kind]
    library = tmp_path / "libssl.so.3"
    library.write_text("this is text")
    if source is not None:
        library.with_suffix(".c").write_text(source)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, library.with_suffix(".c")], check=True)
    for error in ranks.run(starts_with, 2, tmp_path, str(library), env=ENCRYPTED):
        assert error["type"] == "BootstrapError", error
        assert "traffic between ranks cannot be encrypted" in error["message"]
        assert str(library) in error["message"] and reason in error["message"]
        assert "Remedy: install OpenSSL 3" in error["message"]
