"""What goes between hosts is encrypted: seen by somebody who records the network."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import ringcore
from ringcore.bootstrap.auth import fingerprint
from support import ranks
from support.namespaces import Host, namespaces, place_ranks
from support.rank import caught

NBYTES = 16 << 14
# Sixteen bytes of a gradient that do not occur by chance.
PATTERN = np.array([1.2345678e11, -7.654321e-7, 3.1415927e20, -2.7182818e-20], np.float32)


def sums(values: list[float]) -> dict:
    """One allreduce of zeros and a gradient that is easy to recognise; a name and an object that are, too."""
    error = caught(ringcore.init)
    if error["type"] is not None:
        return error
    pattern = np.array(values, np.float32)
    tensor = np.tile(pattern, 1 << 14) * (ringcore.rank() == 0)
    ringcore.allreduce_(tensor, op=ringcore.Sum, name="a.name.that.nobody.may.read")
    small = pattern * (ringcore.rank() == 0)
    ringcore.allreduce_(small, op=ringcore.Sum, name="a.name.that.nobody.may.read.either")
    told = ringcore.broadcast_object("an object that nobody may read", 0)
    right = bool((tensor.reshape(-1, 4) == pattern).all() and (small == pattern).all() and told.startswith("an object"))
    transports = ringcore.job.state.context().runtime.transports()
    return {"type": None, "right": right, "transports": transports, "clock": time.time()}


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with namespaces(2, sshd=False) as made:
        yield made


# Writes every packet of eth0 to standard output until its input ends; says first that it listens.
RECORDER = """
import select, socket, sys
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tap.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE
tap.bind(("eth0", 0))
sys.stdout.buffer.write(b"!")
sys.stdout.buffer.flush()
while True:
    ready = select.select([tap, sys.stdin], [], [])[0]
    if tap in ready:
        sys.stdout.buffer.write(tap.recv(1 << 17))
    elif sys.stdin in ready:
        break
"""


@contextlib.contextmanager
def recorded(host: Host, file: Path) -> Iterator[None]:
    """Records what host sends and receives."""
    with file.open("wb") as out:
        recorder = host.popen([sys.executable, "-c", RECORDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert recorder.stdout is not None and recorder.stdin is not None
        assert recorder.stdout.read(1) == b"!"
        copier = subprocess.Popen(["cat"], stdin=recorder.stdout, stdout=out)
        recorder.stdout.close()
        yield
        recorder.stdin.close()
        assert recorder.wait(60) == 0
        assert copier.wait(60) == 0


def run(hosts: Sequence[Host], directory: Path, own_env: dict[int, str] | None = None, **env: str) -> list[dict]:
    place = place_ranks(hosts, directory, 1, own_env)
    place["env"].update(env)
    with ranks.started(sums, len(hosts), directory, PATTERN.tolist(), **place) as job:
        outcomes = job.wait()
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.stderr
    return [outcome.result for outcome in outcomes]


# The gradient repeats the pattern: any sixteen bytes of it are one of its rotations.
ROTATIONS = [PATTERN.tobytes()[at:] + PATTERN.tobytes()[:at] for at in range(16)]
SECRETS = [PATTERN.tobytes(), b"a.name.that.nobody", b"an object that nobody"]


@pytest.mark.parametrize("connections", ["1", "3"])
def test_nothing_that_ranks_say_can_be_read_on_the_network(hosts: list[Host], tmp_path: Path, connections: str) -> None:
    record = tmp_path / "record"
    with recorded(hosts[0], record):
        results = run(hosts, tmp_path, RINGCORE_CONNECTIONS=connections)
    assert [result["right"] for result in results] == [True, True]
    assert [result["transports"] for result in results] == [["self", "tls"], ["tls", "self"]]
    wire = record.read_bytes()
    assert len(wire) > NBYTES
    folder = str(tmp_path).encode()
    paths = [folder[at : at + 16] for at in range(len(folder) - 16)]
    assert paths and not any(secret in wire for secret in [*SECRETS, *ROTATIONS, *paths])


def test_the_recorder_reads_what_is_not_encrypted(hosts: list[Host], tmp_path: Path) -> None:
    record = tmp_path / "record"
    with recorded(hosts[0], record):
        results = run(hosts, tmp_path, RINGCORE_ENCRYPTION="off")
    assert [result["transports"] for result in results] == [["self", "tcp"], ["tcp", "self"]]
    wire = record.read_bytes()
    assert [secret in wire for secret in SECRETS] == [True] * 3


def test_hosts_that_want_different_things_are_told_so(hosts: list[Host], tmp_path: Path) -> None:
    own = {0: "RINGCORE_ENCRYPTION=on", 1: "RINGCORE_ENCRYPTION=off"}
    for result in run(hosts, tmp_path, own):
        assert result["type"] == "BootstrapError"
        assert "rank 0 on host0 has RINGCORE_ENCRYPTION=on" in result["message"]
        assert "rank 1 on host1 has RINGCORE_ENCRYPTION=off" in result["message"]


def test_a_host_without_openssl_is_named_on_all_and_nothing_goes_in_clear_text(
    hosts: list[Host], tmp_path: Path
) -> None:
    own = {0: "RINGCORE_OPENSSL_LIBRARY=", 1: "RINGCORE_OPENSSL_LIBRARY=/nowhere/libssl.so.3"}
    for result in run(hosts, tmp_path, own):
        assert result["type"] == "BootstrapError"
        assert "rank 1 on host1: traffic between ranks cannot be encrypted" in result["message"]
        assert "/nowhere/libssl.so.3" in result["message"]
        assert "RINGCORE_ENCRYPTION=off on all ranks" in result["message"]


def test_different_keys_are_shown_by_their_fingerprints_on_both_hosts(hosts: list[Host], tmp_path: Path) -> None:
    other = tmp_path / "other"
    with open(os.open(other, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(os.urandom(32))
    own = {0: "RINGCORE_START_TIMEOUT_S=5", 1: f"RINGCORE_KEY_FILE={other}"}
    first, second = (result["message"] for result in run(hosts, tmp_path, own))
    keys = [(tmp_path / name).read_bytes() for name in ("key", "other")]
    assert "ranks [1] did not come" in first
    assert f"connections from {hosts[1].address} were refused" in first
    assert f"is the fingerprint of their job's key {fingerprint(keys[0])}, as on host0?" in first
    assert f"rank 1 on host1 at the rendezvous tcp:{hosts[0].address}:" in second
    assert f"does not know this job's key, whose fingerprint is {fingerprint(keys[1])} here" in second
    for key in keys:
        assert key.hex() not in first + second


YEAR_S = 365 * 24 * 3600
# The C library, but that it is twenty years earlier.
EARLIER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t which, struct timespec* now) {
  int (*real)(clockid_t, struct timespec*) = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(which, now);
  if (which == CLOCK_REALTIME) now->tv_sec -= 20L * 365 * 24 * 3600;
  return result;
}
time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
int gettimeofday(struct timeval* now, void* zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}
"""


def test_clocks_that_are_years_apart_do_not_matter(hosts: list[Host], tmp_path: Path) -> None:
    source, library = tmp_path / "earlier.c", tmp_path / "libearlier.so"
    source.write_text(EARLIER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    first, second = run(hosts, tmp_path / "job", {0: "LD_PRELOAD=", 1: f"LD_PRELOAD={library}"})
    assert first["clock"] - second["clock"] > 19 * YEAR_S
    assert [first["right"], second["right"]] == [True, True]
    assert [first["transports"], second["transports"]] == [["self", "tls"], ["tls", "self"]]
