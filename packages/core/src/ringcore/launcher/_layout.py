"""Which rank runs where, with which command and which variables."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence

from ringcore.environment.settings import Settings
from ringcore.launcher import _hosts
from ringcore.launcher._hosts import Host, HostError, Slot
from ringcore.launcher._options import Options

# torchrun's defaults, which its users' scripts and firewalls know.
_RENDEZVOUS_PORT, _MASTER_PORT = 29400, 29500
# Variables that describe this machine or this login, and would be wrong on another.
_NOT_FORWARDED = (
    "_", "BASH_*", "COLUMNS", "DBUS_*", "DISPLAY", "HOME", "HOSTNAME", "LINES", "LOGNAME", "LS_COLORS", "MAIL",
    "OLDPWD", "PWD", "RINGCORE_KEY_*", "SHELL", "SHLVL", "SSH_*", "SUDO_*", "TERM", "TMPDIR", "TMUX*", "USER",
    "WAYLAND_*", "WINDOWID", "XAUTHORITY", "XDG_*",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Node:
    """A host and the ranks that this launcher starts there.

    Attributes:
        name: As the user knows it.
        slots: Its ranks.
        remote: Where ssh leads to; `None` for this machine.
        address: Of `remote`.
        placed: A scheduler starts the agent, which dials the launcher.
    """

    name: str
    slots: tuple[Slot, ...]
    remote: Host | None = None
    address: str | None = None
    placed: bool = False

    @property
    def is_far(self) -> bool:
        """Whether its agent is another process, which answers when it is there."""
        return self.placed or self.remote is not None


@dataclasses.dataclass(frozen=True)
class JobLayout:
    """A job as it was asked for.

    Attributes:
        size: Number of ranks, those of other launchers included.
        group_size: Number of hosts, likewise.
        nodes: What this launcher starts.
        serves: Whether this launcher serves the rendezvous.
        bind: Address to serve at.
        rendezvous: Where to meet, if another launcher or the user serves it.
        port: Port to serve at; 0: any.
        master_addr: For torch; `None`: the host of rank 0.
        master_port: For torch; `None`: a free one there.
        servers: Processes behind the ranks that run no program.
    """

    size: int
    group_size: int
    nodes: tuple[Node, ...]
    serves: bool = True
    bind: str = "127.0.0.1"
    rendezvous: str | None = None
    port: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    servers: int = 0

    @property
    def has_remote(self) -> bool:
        """Whether agents have to answer before the job can start."""
        return any(node.is_far for node in self.nodes)


def make_layout(options: Options, settings: Settings) -> JobLayout:
    """Lay the job out.

    Args:
        options: From `_options.parse`.
        settings: Of the options and the environment together.

    Raises:
        HostError: The options do not fit together, or a host does not exist.
    """
    if options.is_node:
        return _lay_out_node(options)
    if options.elastic is not None:
        return _lay_out_elastic(options)
    if options.nnodes > 1:
        return _lay_out_one_of_several(options, settings)
    if options.hosts and options.hostfile:
        raise HostError("give --hosts or --hostfile, not both")
    if options.hosts or options.hostfile:
        return _lay_out_hosts(options, settings)
    size = options.np or options.nproc_per_node
    if size is None:
        raise HostError("say how many ranks to start, for example -np 2")
    slots = _hosts.slots_of([size])
    servers = _hosts.servers_on([Host("localhost", size)], slots, options.servers)
    return _with_rendezvous(JobLayout(size, 1, (Node("localhost", (*slots, *servers)),), servers=len(servers)), options)


def _lay_out_elastic(options: Options) -> JobLayout:
    """The slots of an elastic job as far as they are known, whoever will be a rank there."""
    asked = options.elastic
    assert asked is not None
    if asked.host_discovery_script is not None and (options.hosts or options.hostfile):
        raise HostError("give --host-discovery-script or hosts, not both")
    if options.settings.get("RINGCORE_RENDEZVOUS"):
        raise HostError("ringrun itself serves the rendezvous of an elastic job: leave --rendezvous out")
    hosts: list[Host] = []
    if options.hosts or options.hostfile:
        hosts = _hosts.parse_hosts(options.hosts) if options.hosts else _hosts.parse_hostfile(options.hostfile or "")
    elif asked.host_discovery_script is None:
        ranks = max(options.np or 0, asked.max_np or 0, asked.min_np)
        hosts = [Host("localhost", options.nproc_per_node or ranks + asked.spares)]
    if options.nproc_per_node is not None:
        hosts = [Host(host.name, options.nproc_per_node) for host in hosts]
    total = sum(host.slots for host in hosts)
    if hosts and total < asked.min_np:
        raise HostError(f"the hosts have {total} slots, and --min-np asks for {asked.min_np} ranks")
    slots = _hosts.slots_of([host.slots for host in hosts])
    nodes = tuple(Node(host.name, tuple(s for s in slots if s.host == index)) for index, host in enumerate(hosts))
    return JobLayout(total, len(hosts), nodes, master_addr=options.master_addr, master_port=options.master_port)


def bind_address(hosts: Sequence[Host], settings: Settings) -> str:
    """Where the rendezvous of an elastic job listens, by the hosts that it begins with.

    Raises:
        HostError: There is no such interface, or no way to the first host.
    """
    if settings.network_interfaces or settings.network:
        return _hosts.address_on(settings.network_interfaces, settings.network)
    remote = next((host for host in hosts if not _hosts.is_local(host)), None)
    return "127.0.0.1" if remote is None else _hosts.address_towards(_hosts.resolve([remote])[remote.name])


def _lay_out_hosts(options: Options, settings: Settings) -> JobLayout:
    hosts = _hosts.parse_hosts(options.hosts) if options.hosts else _hosts.parse_hostfile(options.hostfile or "")
    if options.nproc_per_node is not None:
        hosts = [Host(host.name, options.nproc_per_node) for host in hosts]
    size = options.np or sum(host.slots for host in hosts)
    ranks = _hosts.lay_out(hosts, size)
    slots = [*ranks, *_hosts.servers_on(hosts, ranks, options.servers)]
    hosts = hosts[: max(slot.host for slot in slots) + 1]
    remote = [host for host in hosts if not _hosts.is_local(host)]
    if len(hosts) - len(remote) > 1:
        raise HostError("this machine occurs under two names; give it all its slots in one place")
    addresses = _hosts.resolve(remote)
    nodes = []
    for index, host in enumerate(hosts):
        mine = tuple(slot for slot in slots if slot.host == index)
        nodes.append(Node(host.name, mine, host if host in remote else None, addresses.get(host.name)))
    layout = JobLayout(size, ranks[-1].host + 1, tuple(nodes), master_port=options.master_port, servers=options.servers)
    if not remote:
        return _with_rendezvous(layout, options)
    if settings.network_interfaces or settings.network:
        bind = _hosts.address_on(settings.network_interfaces, settings.network)
    else:
        bind = _hosts.address_towards(addresses[remote[0].name])
    master = options.master_addr or nodes[0].address or bind
    return _with_rendezvous(dataclasses.replace(layout, bind=bind, master_addr=master), options)


def _lay_out_node(options: Options) -> JobLayout:
    """What is known of a job whose launcher this node's ranks come to: that, and how many they are."""
    host, port = _endpoint(options)
    require_key(options)
    layout = JobLayout(options.nproc_per_node or 1, 1, (), rendezvous=f"tcp:{_bracketed(host)}:{port}", serves=False)
    common_environ(options, layout, "", "", 0)  # What is wrong with them is told before anybody counts on this node.
    return layout


def await_launcher(host: str, limit_s: float) -> None:
    """Wait until the name of the first node, or of the launcher, means something: in Kubernetes it takes a while."""
    if os.environ.get("JOB_COMPLETION_INDEX"):
        from ringcore.bootstrap.sockets import await_name

        await_name(host, limit_s)


def require_key(options: Options) -> None:
    """Find out that there is a key, where several ringruns share it.

    Raises:
        HostError: There is none.
    """
    if not ({"RINGCORE_KEY_FILE", "RINGCORE_KEY_FD"} & (options.settings.keys() | os.environ.keys())):
        raise HostError(
            "the ringruns of several nodes have to share a key: make one with `(umask 077; head -c 32 /dev/urandom > "
            "job.key)`, copy it to each node, and give --key-file job.key"
        )


def _lay_out_one_of_several(options: Options, settings: Settings) -> JobLayout:
    if options.hosts or options.hostfile:
        raise HostError("--nnodes means that each host has its own ringrun; with --hosts leave it out")
    if options.node_rank >= options.nnodes:
        raise HostError(f"--node-rank {options.node_rank} is not one of {options.nnodes} nodes; they count from 0")
    each = options.nproc_per_node
    if each is None and options.np is not None:
        if options.np % options.nnodes:
            raise HostError(f"{options.np} ranks are not the same number on each of {options.nnodes} nodes")
        each = options.np // options.nnodes
    each = each or 1
    host, port = _endpoint(options)
    await_launcher(host, settings.start_timeout_s)
    slots = _hosts.slots_of([each] * options.nnodes)
    mine = tuple(slot for slot in slots if slot.host == options.node_rank)
    require_key(options)
    return JobLayout(
        size=each * options.nnodes,
        group_size=options.nnodes,
        nodes=(Node(socket.gethostname(), mine),),
        serves=options.node_rank == 0 and not _asked_rendezvous(options),
        bind=host,
        rendezvous=_asked_rendezvous(options) or f"tcp:{_bracketed(host)}:{port}",
        port=port,
        master_addr=options.master_addr or host,
        master_port=options.master_port or _MASTER_PORT,
    )


def _endpoint(options: Options) -> tuple[str, int]:
    text = options.rdzv_endpoint or options.master_addr
    if text is None:
        asked = _asked_rendezvous(options)
        if asked is not None and asked.startswith("tcp:"):
            text = asked[len("tcp:") :]
        else:
            whose = "the launcher (ringrun --listen)" if options.is_node else "node 0"
            raise HostError(f"--nnodes needs --master-addr or --rdzv-endpoint: the address of {whose}")
    match = re.fullmatch(r"(\[[^\]]+\]|[^:]+)(?::([0-9]{1,5}))?", text)
    if match is None:
        raise HostError(f"{text!r} is no address; write HOST or HOST:PORT")
    return match[1].strip("[]"), int(match[2] or _RENDEZVOUS_PORT)


def _asked_rendezvous(options: Options) -> str | None:
    return options.settings.get("RINGCORE_RENDEZVOUS") or os.environ.get("RINGCORE_RENDEZVOUS") or None


def _with_rendezvous(layout: JobLayout, options: Options) -> JobLayout:
    """Takes an explicit --rendezvous: the user serves it. A variable alone may stem from an outer job."""
    asked = options.settings.get("RINGCORE_RENDEZVOUS")
    return dataclasses.replace(
        layout,
        serves=asked is None,
        rendezvous=asked,
        master_addr=layout.master_addr or options.master_addr or "127.0.0.1",
        master_port=layout.master_port or options.master_port,
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def make_argv(options: Options, python: str) -> tuple[str, ...]:
    """The command of each rank: a module or a .py file runs under the interpreter `python`."""
    command = tuple(options.command)
    if options.module:
        return (python, "-m", *command)
    if command and command[0].endswith(".py") and not options.no_python:
        return (python, *command)
    return command


def server_argv(python: str) -> tuple[str, ...]:
    """The command of a server."""
    return (python, "-m", "ringcore.job.server")


def common_environ(options: Options, layout: JobLayout, job_id: str, rendezvous: str, port: int) -> dict[str, str]:
    """The variables that all ranks get."""
    environ = {
        "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED") or "1",
        "MASTER_ADDR": layout.master_addr or "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": job_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") or "1",
        **options.settings,
        "RINGCORE_JOB_ID": job_id,
        "RINGCORE_RENDEZVOUS": rendezvous,
    }
    for assignment in options.env:
        name, sign, value = assignment.partition("=")
        if sign:
            environ[name] = value
        elif name in os.environ:
            environ[name] = os.environ[name]
        else:
            raise HostError(f"-x {name}: this variable is not set here; give its value as {name}=VALUE")
    return environ


def forwarded_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What ranks on another host get of this process's environment: all but what describes this machine."""
    return {
        name: value
        for name, value in environ.items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in _NOT_FORWARDED)
    }


def rank_environ(layout: JobLayout, slot: Slot, role: str) -> dict[str, str]:
    """The variables that only one rank gets: ringcore's own, torchrun's full set, and Horovod's; or a server."""
    if slot.serves:
        told = {"RANK": slot.rank, "SIZE": layout.size, "SERVERS": layout.servers}
        return {f"RINGCORE_{name}": str(n) for name, n in told.items()}
    places = {
        "RANK": slot.rank,
        "SIZE": layout.size,
        "LOCAL_RANK": slot.local_rank,
        "LOCAL_SIZE": slot.local_size,
        "CROSS_RANK": slot.cross_rank,
        "CROSS_SIZE": slot.cross_size,
    }
    torchrun = {
        "RANK": slot.rank,
        "WORLD_SIZE": layout.size,
        "LOCAL_RANK": slot.local_rank,
        "LOCAL_WORLD_SIZE": slot.local_size,
        "GROUP_RANK": slot.host,
        "GROUP_WORLD_SIZE": layout.group_size,
        "ROLE_RANK": slot.rank,
        "ROLE_WORLD_SIZE": layout.size,
        "ROLE_NAME": role,
    }
    environ = {f"{prefix}_{name}": str(n) for prefix in ("RINGCORE", "HOROVOD") for name, n in places.items()}
    environ.update({name: str(value) for name, value in torchrun.items()})
    environ["RINGCORE_SERVERS"] = str(layout.servers)  # Also 0: this launcher may run inside another job.
    return environ


def this_python() -> str:
    """The interpreter that ranks run under."""
    return sys.executable
