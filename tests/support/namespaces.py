"""Several hosts on one machine: network namespaces that are joined by a bridge, with an sshd in each.

Each host has its own addresses, host name, /dev/shm, /run and System V IPC, so that nothing can take two of them
for one. Needs root, iproute2, util-linux and openssh-server.

    with namespaces(3, rate="1gbit") as hosts:
        hosts[0].run(["ringrun", "-H", "host0:1,host1:1", ...])
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_START_LIMIT_S = 10.0
_LINK_LIMIT_S = 30.0


@dataclasses.dataclass(frozen=True)
class Host:
    """One of the hosts.

    Attributes:
        name: Its host name; the hosts resolve each other's.
        address: In the network of the bridge.
        pid: The process that holds its namespaces.
        netns: The name under which iproute2 knows its network.
        directory: What belongs to this group of hosts: keys, /etc/hosts, ssh's configuration.
    """

    name: str
    address: str
    pid: int
    netns: str
    directory: Path

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

    def set_link(self, up: bool) -> None:
        """Plug the host's cable in, or pull it out: packets get lost, nobody is told."""
        _ip("-n", self.netns, "link", "set", "eth0", "up" if up else "down")

    def shape(self, rate: str, burst: str, queue: str) -> None:
        """Limit what the host's cable carries in each direction: a token bucket (tbf) at either end.

        Args:
            rate: In the words of tc: `100mbit`.
            burst: Bytes that pass at once after a silence, `64kb`.
            queue: How long a packet waits at most, `50ms`: the depth of the queues, at the host and in the switch.
        """
        words = ["root", "tbf", "rate", rate, "burst", burst, "latency", queue]
        _check("tc", "-n", self.netns, "qdisc", "add", "dev", "eth0", *words)
        (cable,) = json.loads(_output("ip", "-n", self.netns, "-j", "link", "show", "eth0"))
        _check("tc", "qdisc", "add", "dev", socket.if_indextoname(cable["link_index"]), *words)

    @property
    def link_bytes(self) -> tuple[int, int]:
        """Bytes that the host has received and sent over its cable."""
        folder = Path(f"/proc/{self.pid}/root/sys/class/net/eth0/statistics")
        counts = self.run(["cat", str(folder / "rx_bytes"), str(folder / "tx_bytes")]).stdout.split()
        return int(counts[0]), int(counts[1])


@contextlib.contextmanager
def namespaces(count: int, *, rate: str | None = None, sshd: bool = True) -> Iterator[list[Host]]:
    """Make hosts, and remove every trace of them at the end.

    Args:
        count: Number of hosts.
        rate: Limit of what each host sends, in the words of tc: `1gbit`. `None`: no limit.
        sshd: Start an ssh daemon on each, and let root of each into the others.

    Yields:
        The hosts, called host0, host1, ...
    """
    tag = f"rc{os.getpid() % 10000:04d}{os.urandom(2).hex()}"
    with contextlib.ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="ringcore-hosts-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        bridge = f"{tag}b"
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_quietly, "ip", "link", "del", bridge)
        _ip("link", "set", bridge, "up")
        names = {f"host{i}": f"10.213.{int(tag[-2:], 16)}.{i + 1}" for i in range(count)}
        _write_files(directory, names)
        hosts = []
        for index, (name, address) in enumerate(names.items()):
            netns = f"{tag}n{index}"
            pid = _start_host(stack, directory, netns, bridge, f"{tag}v{index}", name, address)
            hosts.append(Host(name, address, pid, netns, directory))
            if rate is not None:
                shape = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
                _check("tc", "-n", netns, "qdisc", "add", "dev", "eth0", "root", *shape)
        if sshd:
            for host in hosts:
                stack.callback(_end_processes, host)
                _start_sshd(host)
        else:
            for host in hosts:
                stack.callback(_end_processes, host)
        yield hosts


def _start_host(
    stack: contextlib.ExitStack, directory: Path, netns: str, bridge: str, veth: str, name: str, address: str
) -> int:
    _ip("netns", "add", netns)
    stack.callback(_quietly, "ip", "netns", "del", netns)
    _ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", netns)
    stack.callback(_quietly, "ip", "link", "del", veth)
    _ip("link", "set", veth, "master", bridge, "up")
    _ip("-n", netns, "link", "set", "lo", "up")
    _ip("-n", netns, "address", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", netns, "link", "set", "eth0", "up")
    # The holder keeps the other namespaces alive until its standard input is closed.
    holder = subprocess.Popen(
        ["ip", "netns", "exec", netns, "unshare", "--uts", "--ipc", "--mount", "--propagation", "private",
         sys.executable, "-c", _HOLDER, name, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    stack.callback(_close_holder, holder)
    assert holder.stdout is not None
    if holder.stdout.readline().strip() != b"ready":
        raise RuntimeError(f"the namespaces of {name} could not be set up; are you root?")
    return holder.pid


# Runs inside the new namespaces. `ip netns exec` and `unshare` exec, so that its process is the holder.
_HOLDER = """
import socket, subprocess, sys
name, directory = sys.argv[1:]
socket.sethostname(name)
for target in ("/dev/shm", "/run"):
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", target], check=True)
subprocess.run(["mkdir", "-p", "/run/sshd"], check=True)
subprocess.run(["mount", "--bind", directory + "/hosts", "/etc/hosts"], check=True)
print("ready", flush=True)
sys.stdin.read()
"""


def _close_holder(holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.communicate()


def _write_files(directory: Path, names: Mapping[str, str]) -> None:
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
    (directory / "hosts").write_text("\n".join(lines) + "\n")
    for key in ("host_key", "user_key"):
        _check("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ringcore test", "-f", str(directory / key))
    shutil.copy(directory / "user_key.pub", directory / "authorized_keys")
    public = (directory / "host_key.pub").read_text()
    known = [f"{name},{address} {public}" for name, address in names.items()]
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


def processes_of(host: Host) -> list[int]:
    """The processes that live on a host, its holder left out."""
    network = Path(f"/proc/{host.pid}/ns/net").stat().st_ino
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has just ended.
            if (process / "ns/net").stat().st_ino == network and int(process.name) != host.pid:
                found.append(int(process.name))
    return found


def _end_processes(host: Host) -> None:
    for pid in processes_of(host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def environ_with_ssh(host: Host, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which `ssh` is the one that knows the hosts."""
    base = dict(os.environ if environ is None else environ)
    return {**base, "PATH": f"{host.directory}/bin{os.pathsep}{base['PATH']}"}


def _ip(*words: str) -> None:
    _check("ip", *words)


def _check(*argv: str) -> None:
    _output(*argv)


def _output(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_LINK_LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def _quietly(*argv: str) -> None:
    subprocess.run(argv, capture_output=True, timeout=_LINK_LIMIT_S, check=False)
