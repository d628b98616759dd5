"""Several hosts on one machine: network namespaces that are joined by a bridge, with an sshd in each.

Each host has its own addresses, host name, /dev/shm, /run and System V IPC, so that nothing can take two of them
for one. The namespaces have no names, and vanish with the processes in them, which end with the test: see
`support.holder`. Needs root, iproute2, util-linux and openssh-server.

    with namespaces(3, rate="1gbit") as hosts:
        hosts[0].run(["ringrun", "-H", "host0:1,host1:1", ...])
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from support import holder, lossy

_START_LIMIT_S = 10.0
_LINK_LIMIT_S = 30.0
_MEETING_PORT = 29431  # in a network of the test's own
_DISTANT = Path(__file__).with_name("distant.cpp")  # compiled: in Python it takes most of a processor from the hosts


@dataclasses.dataclass(frozen=True)
class Host:
    """One of the hosts.

    Attributes:
        name: Its host name; the hosts resolve each other's.
        addresses: One in each network.
        interfaces: That to the first network is eth0; the others are called differently on each host.
        pid: The process that holds its namespaces.
        switch: The process that holds the network in which the other ends of its cables are.
        directory: What belongs to this group of hosts: keys, /etc/hosts, ssh's configuration.
    """

    name: str
    addresses: tuple[str, ...]
    interfaces: tuple[str, ...]
    pid: int
    switch: int
    directory: Path

    @property
    def address(self) -> str:
        """In the first network."""
        return self.addresses[0]

    def command(self, argv: Sequence[str], cwd: str | os.PathLike[str] | None = None) -> list[str]:
        """The words that run a command on this host, in a directory (the files are those of the machine)."""
        enter = ["nsenter", "-t", str(self.pid), "--net", "--uts", "--ipc", "--mount", f"--wd={cwd or Path.cwd()}"]
        return [*enter, "--", *argv]

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end; see `subprocess.run`."""
        defaults = {"timeout": 60, "check": False}
        command = self.command(argv, options.pop("cwd", None))
        return subprocess.run(command, capture_output=True, text=True, **{**defaults, **options})  # noqa: PLW1510

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a command there; see `subprocess.Popen`. Signals reach the command itself."""
        return subprocess.Popen(self.command(argv, options.pop("cwd", None)), **options)

    def set_link(self, up: bool, network: int = 0) -> None:
        """Plug the host's cable to a network in, or pull it out: packets get lost, nobody is told."""
        _in(self.pid, "ip", "link", "set", self.interfaces[network], "up" if up else "down")

    def shape(self, rate: str, burst: str, queue: str) -> None:
        """Limit what the host's cable carries in each direction: a token bucket (tbf) at either end.

        Args:
            rate: In the words of tc: `100mbit`.
            burst: Bytes that pass at once after a silence, `64kb`.
            queue: How long a packet waits at most, `50ms`: the depth of the queues, at the host and in the switch.
        """
        words = ["root", "tbf", "rate", rate, "burst", burst, "latency", queue]
        _in(self.pid, "tc", "qdisc", "add", "dev", "eth0", *words)
        _in(self.switch, "tc", "qdisc", "add", "dev", f"{self.name}.0", *words)

    @contextlib.contextmanager
    def losing(self, part: float) -> Iterator[None]:
        """Lose this part of the UDP packets on the host's cable, in each direction."""
        with contextlib.ExitStack() as stack:
            for pid, end in ((self.pid, "eth0"), (self.switch, f"{self.name}.0")):
                command = ["nsenter", "-t", str(pid), "--net", sys.executable, lossy.__file__, end, str(part)]
                loser = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                stack.callback(loser.communicate)  # closes its standard input
                assert loser.stdout is not None
                if loser.stdout.readline().strip() != b"ready":
                    raise RuntimeError(f"packets of {end} cannot be lost (XDP)")
            yield

    def shape_towards(self, rates: Mapping[str, str]) -> None:
        """Limit what the host sends to other hosts over its first cable, to each by itself: a class (htb) of its own.

        Args:
            rates: By the other host's address: a rate in the words of tc.
        """
        there = ["dev", "eth0"]
        _in(self.pid, "tc", "qdisc", "add", *there, "root", "handle", "1:", "htb", "r2q", "1000")
        for number, (address, rate) in enumerate(rates.items(), start=1):
            words = ["classid", f"1:{number}", "htb", "rate", rate, "burst", "16kb", "cburst", "16kb"]
            _in(self.pid, "tc", "class", "add", *there, "parent", "1:", *words)
            _in(self.pid, "tc", "qdisc", "add", *there, "parent", f"1:{number}", "bfifo", "limit", "256kb")
            match = ["match", "ip", "dst", f"{address}/32", "flowid", f"1:{number}"]
            _in(self.pid, "tc", "filter", "add", *there, "parent", "1:", "protocol", "ip", "prio", "1", "u32", *match)

    @property
    def link_bytes(self) -> tuple[int, int]:
        """Bytes that the host has received and sent over its first cable."""
        (found,) = self.cable_bytes()[:1]
        return found

    def cable_bytes(self) -> list[tuple[int, int]]:
        """Bytes that the host has received and sent over each of its cables."""
        # Not /sys, which shows the network of whoever mounted it.
        lines = self.run(["cat", "/proc/net/dev"]).stdout.splitlines()[2:]
        counts = {name.strip(): fields.split() for name, _, fields in (line.partition(":") for line in lines)}
        return [(int(counts[name][0]), int(counts[name][8])) for name in self.interfaces]


@contextlib.contextmanager
def namespaces(
    count: int, *, rate: str | Sequence[str] | None = None, sshd: bool = True, networks: int = 1, ipv6: bool = False
) -> Iterator[list[Host]]:
    """Make hosts; at the end, also of a test that is killed, there is no trace of them.

    Args:
        count: Number of hosts.
        rate: Limit of what each host sends over each cable, in the words of tc: `1gbit`; or one for each
            network. `None`: no limit.
        sshd: Start an ssh daemon on each, and let root of each into the others.
        networks: Each is a bridge to which every host has a cable.
        ipv6: The hosts have addresses of IPv6 only.

    Yields:
        The hosts, called host0, host1, ...
    """
    with contextlib.ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="ringcore-hosts-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        switch = _hold(stack, ["--net"], directory)
        for network in range(networks):
            _in(switch, "ip", "link", "add", f"bridge{network}", "up", "type", "bridge")
        pattern = "fd00:{net:x}::{host:x}" if ipv6 else "10.{net}.0.{host}"
        names = {
            f"host{i}": tuple(pattern.format(net=213 + n, host=i + 1) for n in range(networks)) for i in range(count)
        }
        _write_files(directory, names)
        hosts = []
        for index, (name, addresses) in enumerate(names.items()):
            interfaces = ("eth0", *(f"lan{index}{n}" for n in range(1, networks)))
            pid = _hold(stack, ["--net", "--uts", "--ipc", "--mount", "--propagation=private"], directory, name)
            hosts.append(Host(name, addresses, interfaces, pid, switch, directory))
            _connect(hosts[-1])
            rates = [rate] * networks if isinstance(rate, str) else rate or ()
            for interface, limit in zip(interfaces, rates, strict=bool(rates)):
                shape = ["tbf", "rate", limit, "burst", "256kb", "latency", "50ms"]
                _in(pid, "tc", "qdisc", "add", "dev", interface, "root", *shape)
        for host in hosts if sshd else ():
            _start_sshd(host)
        yield hosts


def _hold(stack: contextlib.ExitStack, namespaces: Sequence[str], *words: str | Path) -> int:
    """Start a holder in new namespaces, which options of `unshare` name; its process."""
    started = subprocess.Popen(
        ["unshare", *namespaces, sys.executable, holder.__file__, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,  # signals to the test's group are not for it
    )  # fmt: skip
    stack.callback(started.communicate)  # closes its standard input
    assert started.stdout is not None
    if started.stdout.readline().strip() != b"ready":
        raise RuntimeError(f"the namespaces ({' '.join(namespaces)}) could not be set up; are you root?")
    return started.pid


def _connect(host: Host) -> None:
    _in(host.pid, "ip", "link", "set", "lo", "up")
    # Addresses are there at once: nobody else has them.
    _in(host.pid, "sysctl", "-q", "-w", "net.ipv6.conf.default.accept_dad=0")
    for index, (interface, address) in enumerate(zip(host.interfaces, host.addresses, strict=True)):
        end, peer = f"{host.name}.{index}", ["name", interface, "netns", str(host.pid)]
        _in(host.switch, "ip", "link", "add", end, "type", "veth", "peer", *peer)
        _in(host.switch, "ip", "link", "set", end, "master", f"bridge{index}", "up")
        _in(host.pid, "ip", "address", "add", f"{address}/{64 if ':' in address else 24}", "dev", interface)
        _in(host.pid, "ip", "link", "set", interface, "up")


def _write_files(directory: Path, names: Mapping[str, Sequence[str]]) -> None:
    lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{addresses[0]} {name}" for name, addresses in names.items())]
    (directory / "hosts").write_text("\n".join(lines) + "\n")
    for key in ("host_key", "user_key"):
        _check("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ringcore test", "-f", str(directory / key))
    shutil.copy(directory / "user_key.pub", directory / "authorized_keys")
    public = (directory / "host_key.pub").read_text()
    known = [f"{','.join([name, *addresses])} {public}" for name, addresses in names.items()]
    (directory / "known_hosts").write_text("".join(known))
    (directory / "ssh_config").write_text(
        f"Host *\n  User root\n  IdentityFile {directory}/user_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {directory}/known_hosts\n  StrictHostKeyChecking yes\n"
    )
    (directory / "sshd_config").write_text(
        f"HostKey {directory}/host_key\nAuthorizedKeysFile {directory}/authorized_keys\nStrictModes no\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\nPidFile none\nMaxStartups 100\n"
    )
    # The system's ssh, with the configuration above; a job finds it by PATH.
    binary = directory / "bin"
    binary.mkdir()
    (binary / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {directory}/ssh_config "$@"\n')
    (binary / "ssh").chmod(0o755)


def _start_sshd(host: Host) -> None:
    server = shutil.which("sshd") or "/usr/sbin/sshd"
    started = host.run(
        [server, "-f", str(host.directory / "sshd_config"), "-E", f"{host.directory}/sshd.{host.name}.log"]
    )
    if started.returncode != 0:
        raise RuntimeError(f"sshd on {host.name}: {started.stderr}")
    probe = [sys.executable, "-c", f"import socket; socket.create_connection(({host.address!r}, 22), 1).close()"]
    deadline = time.monotonic() + _START_LIMIT_S
    while host.run(probe).returncode != 0:
        if time.monotonic() > deadline:
            raise RuntimeError(f"sshd on {host.name} does not listen")


def move_to_rack(hosts: Sequence[Host], rate: str) -> None:
    """Put hosts at a switch of their own, with a cable of a rate (in the words of tc) to the others'."""
    switch = hosts[0].switch
    _in(switch, "ip", "link", "add", "rack", "up", "type", "bridge")
    _in(switch, "ip", "link", "add", "there", "type", "veth", "peer", "name", "back")
    for end, bridge in (("there", "bridge0"), ("back", "rack")):
        _in(switch, "ip", "link", "set", end, "master", bridge, "up")
        _in(switch, "tc", "qdisc", "add", "dev", end, "root", "tbf", "rate", rate, "burst", "32kb", "latency", "50ms")
    for host in hosts:
        _in(switch, "ip", "link", "set", f"{host.name}.0", "master", "rack")


@contextlib.contextmanager
def far_apart(
    hosts: Sequence[Host],
    *,
    bytes_per_s: float,
    round_trip_s: float,
    loss: float = 0.0,
    queue_s: float = 0.1,
    congestion: str = "cubic",
) -> Iterator[None]:
    """Put each host in a network of its own, far from the others: see `distant.cpp`. For IPv4.

    Args:
        hosts: All; their first cables are those to the world.
        bytes_per_s: What a cable carries in each direction.
        round_trip_s: From each to each other one.
        loss: The part of the packets that is lost.
        queue_s: How long a packet waits at most at the end of a cable.
        congestion: How TCP controls congestion, whatever this machine does: nearly all systems come with cubic.
    """
    program = hosts[0].directory / "distant"
    subprocess.run(["g++", "-std=c++20", "-O2", str(_DISTANT), "-o", str(program)], check=True)
    places = [f"{host.address}={host.pid}" for host in hosts]
    words = [str(bytes_per_s), str(round_trip_s), str(loss), str(queue_s), *places]
    relay = subprocess.Popen([program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert relay.stdout is not None
        if relay.stdout.readline().strip() != b"ready":
            raise RuntimeError("packets cannot be carried (/dev/net/tun)")
        for host in hosts:
            _in(host.pid, "ip", "link", "set", "eth0", "down")
            _in(host.pid, "ip", "address", "flush", "dev", "eth0")
            _in(host.pid, "ip", "link", "set", "eth0", "name", "near0")
            _in(host.pid, "ip", "link", "set", "wan0", "name", "eth0")
            _in(host.pid, "ip", "address", "add", host.address, "dev", "eth0")
            _in(host.pid, "ip", "link", "set", "eth0", "up")
            _in(host.pid, "ip", "route", "add", "default", "dev", "eth0", "congctl", congestion)
        yield
    finally:
        relay.communicate()  # closes its standard input


def processes_of(host: Host) -> list[int]:
    """The processes that live on a host, its holder left out."""
    return holder.processes_in(host.pid)


def environ_with_ssh(host: Host, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which `ssh` is the one that knows the hosts."""
    base = dict(os.environ if environ is None else environ)
    return {**base, "PATH": f"{host.directory}/bin{os.pathsep}{base['PATH']}"}


def place_ranks(
    hosts: Sequence[Host], directory: Path, each: int = 1, own: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """What `ranks.started` takes to run `each` ranks on every host, and none of ringcore's launchers.

    Args:
        hosts: Filled one after the other.
        directory: The ranks' own; their key is put there.
        each: Ranks of a host.
        own: By host: a further variable of its ranks, as NAME=VALUE.

    Returns:
        The arguments `env` and `wrap`.
    """
    directory.mkdir(exist_ok=True)
    with open(os.open(directory / "key", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(os.urandom(32))
    address = f"[{hosts[0].address}]" if ":" in hosts[0].address else hosts[0].address
    env = {
        "RINGCORE_RENDEZVOUS": f"tcp:{address}:{_MEETING_PORT}", "RINGCORE_KEY_FILE": str(directory / "key"),
        "LOCAL_WORLD_SIZE": str(each),
    }  # fmt: skip

    def wrap(rank: int, command: list[str]) -> list[str]:
        further = [own[rank // each]] if own else []
        return hosts[rank // each].command(["env", f"LOCAL_RANK={rank % each}", *further, *command], directory)

    return {"env": env, "wrap": wrap}


def _in(holder_pid: int, *argv: str) -> None:
    """Run a command in the network of a holder."""
    _check("nsenter", "-t", str(holder_pid), "--net", *argv)


def _check(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_LINK_LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
