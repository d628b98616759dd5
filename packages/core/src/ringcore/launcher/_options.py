"""What ringrun was asked for: its command line, and the configuration file that it names, as one value."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ringcore.environment import settings as _settings
from ringcore.launcher import _config, _parser
from ringcore.launcher._parser import UsageError, known_options

__all__ = ["Options", "UsageError", "known_options", "parse"]


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
    """

    command: tuple[str, ...]
    np: int | None
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
    command = found.command[1:] if found.command[:1] == ["--"] else found.command
    if not command:
        parser.error("no command; for example: ringrun -np 2 python train.py")
    values: dict[str, Any] = {**vars(found), "command": tuple(command), "settings": _collect_settings(found)}
    values.update(env=tuple(found.env), notes=tuple(found.notes or ()))
    return Options(**{field.name: values[field.name] for field in dataclasses.fields(Options)})


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
