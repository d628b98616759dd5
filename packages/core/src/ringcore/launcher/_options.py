"""What ringrun was asked for: its command line, and the configuration file that it names, as one value."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ringcore._errors import InvalidArgument
from ringcore.environment import settings as _settings
from ringcore.launcher import _config, _parser
from ringcore.launcher._parser import UsageError, known_options

__all__ = ["Options", "UsageError", "known_options", "parse"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elastic:
    """How the ranks of an elastic job may come and go.

    Attributes:
        min_np: The job goes on with so many ranks.
        max_np: It takes no more; None: all slots.
        spares: So many processes more wait to be one.
        host_discovery_script: Tells the hosts; None: they are those of the command line.
        slots_per_host: Of a host that the script names without a number.
        elastic_timeout: Fewer ranks than `min_np` wait for so many seconds.
        reset_limit: The ranks may change so often; None: without limit.
        cooldown_s: The least and the most that a place rests after a failure.
        drain_when: A command that succeeds on a host that is about to go, whose ranks then leave; None: nobody asks.
        evict_slow: How many times as long as the others a rank works that is to be replaced; None: none is.
    """

    min_np: int
    max_np: int | None
    spares: int
    host_discovery_script: str | None
    slots_per_host: int | None
    elastic_timeout: float
    reset_limit: int | None
    cooldown_s: tuple[float, float]
    drain_when: tuple[str, ...] | None = None
    evict_slow: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one job. Those that are not described here are in `ringrun --help`.

    Attributes:
        command: Program and arguments.
        env: NAME or NAME=VALUE, for the ranks.
        tee: Local rank, or None for all of them -> bits of the streams that are shown beside log files.
        redirects: The same of those that are not shown.
        settings: Environment variables of settings -> what was asked for.
        notes: Lines about options without effect.
        elastic: Of an elastic job.
        nnodes: Hosts with a ringrun each; 1 also where their number changes.
        node_range: The least and the most of them, where it does.
        listen: Where this launcher, which has no ranks of its own, waits for them; the host may be None.
    """

    command: tuple[str, ...]
    np: int | None
    servers: int
    module: bool
    no_python: bool
    workdir: str | None
    env: tuple[str, ...]
    shutdown_timeout: float | None
    role: str
    verbose: bool
    hosts: str | None
    hostfile: str | None
    ssh_port: int | None
    ssh_identity_file: str | None
    remote_python: str | None
    agent_timeout: float
    nproc_per_node: int | None
    nnodes: int
    node_range: tuple[int, int] | None
    listen: tuple[str | None, int] | None
    node_rank: int
    master_addr: str | None
    master_port: int | None
    rdzv_endpoint: str | None
    log_dir: str | None
    tee: Mapping[int | None, int] | None
    redirects: Mapping[int | None, int] | None
    local_ranks_filter: frozenset[int] | None
    prefix_timestamp: bool
    settings: Mapping[str, str]
    notes: tuple[str, ...]
    elastic: Elastic | None

    @property
    def is_node(self) -> bool:
        """Whether this ringrun brings its ranks to the launcher of another host, who decides on the job."""
        return self.node_range is not None and self.listen is None


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Parse a command line, and the configuration file that it names.

    Args:
        argv: Without the program's name.
        environ: For torchrun's PET_* variables, which give defaults.

    Returns:
        The options.

    Raises:
        UsageError: An option is wrong.
        SystemExit: Help or the version was asked for, and printed.
    """
    parser = _parser.build(environ)
    found = parser.parse_args(argv)
    if found.config_file is not None:
        try:
            words = _config.read(found.config_file, known_options(parser))
        except _config.ConfigError as error:
            parser.error(str(error))
        found = parser.parse_args([*words, *argv])
    least, most = found.nnodes
    is_elastic = least < most or (found.listen is not None and most > 1)
    found.node_range, found.nnodes = (found.nnodes, 1) if is_elastic else (None, least)
    if found.servers and (found.nnodes > 1 or found.node_range or _elastic(parser, found) is not None):
        parser.error("--servers are for a job of one ringrun whose ranks stay: leave out --nnodes, --min-np, --max-np")
    command = found.command[1:] if found.command[:1] == ["--"] else found.command
    if found.node_range is not None or found.listen is not None:
        _check_coming_nodes(parser, found, command)
    elif not command:
        parser.error("no command; for example: ringrun -np 2 python train.py")
    values: dict[str, Any] = {**vars(found), "command": tuple(command), "settings": _collect_settings(found)}
    values.update(env=tuple(found.env), notes=tuple(found.notes or ()), elastic=_elastic(parser, found))
    _check_stragglers(parser, values["elastic"], {**environ, **values["settings"]})
    return Options(**{field.name: values[field.name] for field in dataclasses.fields(Options)})


def _check_coming_nodes(parser: argparse.ArgumentParser, found: argparse.Namespace, command: Sequence[str]) -> None:
    """Who decides on a job whose nodes come by themselves is its launcher; what runs on a node is said there alone."""
    for name in ("hosts", "hostfile", "host_discovery_script"):
        if getattr(found, name) is not None:
            parser.error(
                f"--{name.replace('_', '-')} is for a ringrun that starts the ranks on its hosts; those of --nnodes "
                "MIN:MAX come by themselves: leave out one of the two"
            )
    if found.listen is not None:
        if command:
            parser.error("--listen runs no command: give it to the ringrun of each node, and leave it out here")
        if found.slots_per_host is not None:
            parser.error("--slots-per-host is for a ringrun that looks for hosts; a node says --nproc-per-node")
        of_ranks = [f"setting_{name}" for name in _settings.names() if name not in _OF_LAUNCHERS]
        for name in ("env", "workdir", "log_dir", "drain_when", "module", "no_python", "tee", "redirects", *of_ranks):
            if getattr(found, name) not in (None, False, []):
                word = name.removeprefix("setting_").replace("_", "-")
                parser.error(f"--{word} is about what runs on a node: give it to the ringruns there")
        return
    if not command:
        parser.error("no command; for example: ringrun --nnodes 2:4 --rdzv-endpoint HOST:PORT python train.py")
    words = {name: f"--{name.replace('_', '-')}" for name in ("min_np", "max_np", *_FURTHER) if name != "drain_when"}
    for name, word in {"np": "-np", **words, "role": "--role", "setting_job_id": "--rdzv-id"}.items():
        if getattr(found, name) not in (None, parser.get_default(name)):
            parser.error(
                f"{word} is about the whole job: give it to its launcher (ringrun --listen); a node says how many "
                "ranks it has by --nproc-per-node"
            )


# Settings that a launcher without ranks has a use for.
_OF_LAUNCHERS = {
    "elastic", "elastic_timeout_s", "encryption", "job_id", "key_fd", "key_file", "log_level", "network",
    "network_interfaces", "rendezvous", "start_timeout_s", "transport",
}  # fmt: skip
# They say more about an elastic job.
_FURTHER = (
    "spares", "slots_per_host", "elastic_timeout", "reset_limit", "blacklist_cooldown_range", "drain_when",
    "evict_slow",
)  # fmt: skip


def _elastic(parser: argparse.ArgumentParser, found: argparse.Namespace) -> Elastic | None:
    if found.node_range is None and (found.min_np, found.max_np, found.host_discovery_script) == (None, None, None):
        if found.listen is not None:
            parser.error(
                "--listen has to know how many ranks may be there: give --nnodes MIN:MAX "
                "with a MAX of more than 1, or --min-np"
            )
        for name in _FURTHER:
            if getattr(found, name) is not None:
                parser.error(f"--{name.replace('_', '-')} is for elastic jobs: give --min-np, --max-np or both as well")
        return None
    few, many = (count and count * (found.nproc_per_node or 1) for count in found.node_range or (None, None))
    least, most, spares = found.min_np or few or found.np or 1, found.max_np or many, found.spares or 0
    if spares and most is None:
        most = found.np
    if spares and most is None:
        parser.error("--spares are more processes than ranks: say by -np or --max-np how many ranks there may be")
    if most is not None and least > most:
        limit = f"--max-np {most}" if found.max_np else "the {2} of --nnodes {0}:{1}".format(*found.node_range, most)
        parser.error(f"--min-np {least} is more than {limit}: the job could never run")
    if found.np is not None and found.np < least:
        parser.error(f"-np {found.np} is less than --min-np {least}")
    if found.np is not None and most is not None and found.np > most:
        parser.error(f"-np {found.np} is more than --max-np {most}")
    if found.nnodes > 1:
        parser.error("an elastic job has one ringrun for all its hosts: give --hosts instead of --nnodes")
    if found.local_ranks_filter is not None or {*(found.tee or ()), *(found.redirects or ())} - {None}:
        parser.error("local ranks change in an elastic job: give --tee and --redirects without them, and no filter")
    shortest, longest = found.blacklist_cooldown_range or (1.0, 60.0)
    if shortest > longest:
        parser.error(f"--blacklist-cooldown-range {shortest:g} {longest:g}: the first is the shorter one")
    timeout = 600.0 if found.elastic_timeout is None else found.elastic_timeout
    return Elastic(
        min_np=least, max_np=most, spares=spares, host_discovery_script=found.host_discovery_script,
        slots_per_host=found.slots_per_host, elastic_timeout=timeout, reset_limit=found.reset_limit,
        cooldown_s=(shortest, longest), drain_when=found.drain_when, evict_slow=found.evict_slow,
    )  # fmt: skip


def _check_stragglers(parser: argparse.ArgumentParser, asked: Elastic | None, environ: Mapping[str, str]) -> None:
    """Who waits for whom is known to engines that go on without others."""
    variable = _settings.variable("elastic")
    text = environ.get(variable)
    if asked is None or asked.evict_slow is None or not text:
        return
    with contextlib.suppress(InvalidArgument):  # It is told where all settings are read.
        if not _settings.parse("elastic", text):
            parser.error(f"--evict-slow needs ranks that go on without those that leave: leave out {variable}={text}")


def _collect_settings(found: argparse.Namespace) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name in _settings.names():
        value = getattr(found, f"setting_{name}")
        if isinstance(value, bool):
            value = "1" if value else "0"
        elif isinstance(value, list):
            value = ",".join(value)
        if value is not None:
            texts[_settings.variable(name)] = value
    return texts
