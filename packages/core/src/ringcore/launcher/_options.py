"""The command line of ringrun: its own words, and those that torchrun's and Horovod's users bring along."""

from __future__ import annotations

import argparse
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ringcore.environment import settings as _settings
from ringcore.launcher import _config

DESCRIPTION = "Starts the ranks of a job, here or on several hosts, and looks after them until all have ended."
EPILOG = """
examples:
  ringrun -np 4 python train.py             four processes on this machine
  ringrun -np 4 train.py --epochs 3         the same, with this interpreter
  ringrun -np 2 -m package.module           a module
  ringrun -np 8 -H node1:4,node2:4 train.py over ssh

Each rank of a job with --nnodes starts where its own ringrun runs; all of them need the same --key-file.
The exit code is that of the first rank that failed; 128 + n if signal n ended it.
"""

# Options of other launchers that change nothing here: how many values they take, and why.
_NO_CYCLE = "ringcore has no cycle and no cache to tune"
_PLANNED = "ringcore chooses the algorithm by itself"
_NO_TUNER = "there is nothing to tune by hand"
_WITHOUT_EFFECT: dict[str, tuple[int, str]] = {
    "--gloo": (0, "ringcore brings its own transports"),
    "--disable-cache": (0, "nothing is cached"),
    "--cycle-time-ms": (1, _NO_CYCLE),
    "--cache-capacity": (1, _NO_CYCLE),
    "--hierarchical-allreduce": (0, _PLANNED),
    "--no-hierarchical-allreduce": (0, _PLANNED),
    "--hierarchical-allgather": (0, _PLANNED),
    "--no-hierarchical-allgather": (0, _PLANNED),
    "--torus-allreduce": (0, _PLANNED),
    "--no-torus-allreduce": (0, _PLANNED),
    "--autotune": (0, _NO_TUNER),
    "--no-autotune": (0, _NO_TUNER),
    "--autotune-log-file": (1, _NO_TUNER),
    "--autotune-warmup-samples": (1, _NO_TUNER),
    "--autotune-steps-per-sample": (1, _NO_TUNER),
    "--autotune-bayes-opt-max-samples": (1, _NO_TUNER),
    "--autotune-gaussian-process-noise": (1, _NO_TUNER),
    "--timeline-mark-cycles": (0, _NO_CYCLE),
    "--no-timeline-mark-cycles": (0, _NO_CYCLE),
    "--stall-check": (0, "it is on unless --stall-warning-s is 0"),
    "--mpi-threads-disable": (0, "no MPI is used"),
    "--no-mpi-threads-disable": (0, "no MPI is used"),
    "--num-nccl-streams": (1, "no NCCL stream is used"),
    "--thread-affinity": (1, "threads are not pinned"),
    "--log-with-timestamp": (0, "see --prefix-timestamp"),
    "--log-without-timestamp": (0, "see --prefix-timestamp"),
    "--log-hide-timestamp": (0, "see --prefix-timestamp"),
    "--no-log-hide-timestamp": (0, "see --prefix-timestamp"),
    "--standalone": (0, "a job is alone unless --nnodes is given"),
    "--rdzv-backend": (1, "the ranks meet at ringrun's own rendezvous"),
    "--rdzv-conf": (1, "the ranks meet at ringrun's own rendezvous"),
    "--monitor-interval": (1, "ranks are not polled"),
    "--start-method": (1, "ranks are always spawned"),
    "--signals-to-handle": (1, "SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on"),
}
_ELASTIC = "elastic jobs are not supported by this version"
_MPI_ONLY = "to start with an MPI, use its mpirun: ringcore finds its place there"
_REFUSED: dict[str, tuple[int, str]] = {
    **dict.fromkeys(("--min-np", "--min-num-proc", "--max-np", "--max-num-proc"), (1, _ELASTIC)),
    **dict.fromkeys(("--slots-per-host", "--elastic-timeout", "--reset-limit"), (1, _ELASTIC)),
    "--blacklist-cooldown-range": (2, _ELASTIC),
    "--host-discovery-script": (1, _ELASTIC),
    **dict.fromkeys(("--mpi", "--jsrun", "--tcp"), (0, _MPI_ONLY)),
    **dict.fromkeys(("--mpi-args", "--binding-args"), (1, _MPI_ONLY)),
    "--numa-binding": (1, "binding is not supported by this version; numactl in the command does it"),
    "--virtual-local-rank": (0, "not supported by this version"),
    "--run-path": (0, "not supported by this version; ringrun -m runs a module"),
    "--check-build": (0, "`ringcore doctor` tells what is installed and usable"),
    "-cb": (0, "`ringcore doctor` tells what is installed and usable"),
}


class UsageError(ValueError):
    """The command line, or the configuration file that it names, cannot be used."""


class _Parser(argparse.ArgumentParser):
    """Takes torchrun's spelling with underscores too, and says which word was meant."""

    def _parse_optional(self, arg_string: str) -> Any:
        if arg_string.startswith("--"):
            name, sign, value = arg_string.partition("=")
            arg_string = name.replace("_", "-") + sign + value
        return super()._parse_optional(arg_string)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        if unknown:
            import difflib

            near = difflib.get_close_matches(unknown[1], self._option_string_actions, 1)
            message += f" (did you mean {near[0]}?)" if near else ""
        raise UsageError(message)


class _Note(argparse.Action):
    """Collects a line for each option that is accepted and changes nothing."""

    def __call__(self, _parser: Any, namespace: Any, _values: Any, option: str | None = None) -> None:
        notes = list(getattr(namespace, "notes", None) or [])
        namespace.notes = [*notes, f"{option} has no effect: {self.const}"]


class _Refuse(argparse.Action):
    def __call__(self, parser: Any, _namespace: Any, _values: Any, option: str | None = None) -> None:
        parser.error(f"{option}: {self.const}")


class _Version(argparse.Action):
    def __call__(self, parser: Any, _namespace: Any, _values: Any, _option: str | None = None) -> None:
        from importlib import metadata

        parser.exit(0, f"ringcore {metadata.version('ringcore')}\n")


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """Parse a command line, and the configuration file that it names.

    Args:
        argv: Without the program's name.
        environ: For torchrun's PET_* variables, which give defaults.

    Returns:
        The options. `settings` maps environment variables of settings to what was asked for, `notes` are lines
        about options without effect.

    Raises:
        UsageError: An option is wrong.
        SystemExit: Help or the version was asked for, and printed.
    """
    parser = _build(environ)
    options = parser.parse_args(argv)
    if options.config_file is not None:
        try:
            words = _config.read(options.config_file, known_options(parser))
        except _config.ConfigError as error:
            parser.error(str(error))
        options = parser.parse_args([*words, *argv])
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        parser.error("no command; for example: ringrun -np 2 python train.py")
    options.settings = _collect_settings(options)
    options.notes = options.notes or []
    return options


def known_options(parser: argparse.ArgumentParser | None = None) -> dict[str, bool]:
    """Long options of ringrun, and whether each takes a value."""
    parser = parser or _build({})
    return {
        word: action.nargs != 0
        for action in parser._actions
        for word in action.option_strings
        if word.startswith("--") and word not in ("--help", "--version", "--config-file")
    }


def _build(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ringrun",
        usage="ringrun [options] -np N command [argument ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        # A width, because argparse would import shutil to ask for it, once for each option.
        formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, width=100, max_help_position=36),
        allow_abbrev=False,
    )
    parser.set_defaults(notes=None)
    _add_general(parser)
    _add_hosts(parser, environ)
    _add_output(parser)
    _add_settings(parser)
    for table, action in ((_WITHOUT_EFFECT, _Note), (_REFUSED, _Refuse)):
        for word, (count, why) in table.items():
            parser.add_argument(word, nargs=count, action=action, const=why, dest="notes", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_general(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what to run").add_argument
    add("-np", "-n", "--np", "--num-proc", type=_positive, metavar="N", dest="np", help="number of ranks")
    add("-m", "--module", action="store_true", help="the command is a Python module and its arguments")
    add("--no-python", action="store_true", help="run the command as it is, even if it ends in .py")
    add("--workdir", "--wdir", metavar="DIR", help="working directory of the ranks (here)")
    add(
        "-x",
        "--env",
        action="append",
        type=_assignment,
        default=[],
        metavar="NAME[=VALUE]",
        help="set a variable for the ranks, or pass this one's value on (repeat for more)",
    )
    add("--config-file", metavar="FILE", help="read options from a TOML (Python 3.11 or newer) or JSON file")
    add(
        "--shutdown-timeout",
        type=_seconds,
        metavar="S",
        help="ranks that were told to end are killed after so long (0.35 after a failure, 5 after Ctrl-C, "
        "30 after SIGTERM)",
    )
    add("--max-restarts", type=_no_restart, metavar="0", help=argparse.SUPPRESS)
    add("--role", default="default", metavar="NAME", help=argparse.SUPPRESS)
    add("--verbose", action="store_true", help="say what is done")
    add("-v", "--version", action=_Version, nargs=0, help="print the version and exit")


def _add_hosts(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    add = parser.add_argument_group("where to run it").add_argument
    add("-H", "--hosts", metavar="H1:N,H2:N", help="hosts and how many ranks each takes; over ssh")
    add("-hostfile", "--hostfile", metavar="FILE", help="a host a line: 'H slots=N' or 'H:N'")
    add("-p", "--ssh-port", type=_port, metavar="PORT", help="port of sshd (ssh's configuration)")
    add("-i", "--ssh-identity-file", metavar="FILE", help="private key (ssh's configuration)")
    add("--remote-python", metavar="PATH", help="interpreter with ringcore on the other hosts (this one)")
    add(
        "--agent-timeout",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="a host that has not heard from ringrun for so long ends its ranks (30)",
    )
    add(
        "--nproc-per-node",
        type=_ranks_per_node,
        default=environ.get("PET_NPROC_PER_NODE"),
        metavar="N",
        help="ranks of this host: a number, cpu, gpu or auto",
    )
    add(
        "--nnodes",
        type=_nodes,
        default=environ.get("PET_NNODES", "1"),
        metavar="N",
        help="number of hosts on each of which a ringrun is started",
    )
    add(
        "--node-rank",
        type=_count,
        default=environ.get("PET_NODE_RANK", "0"),
        metavar="N",
        help="which of them this is; 0 serves the rendezvous",
    )
    add(
        "--master-addr",
        default=environ.get("PET_MASTER_ADDR"),
        metavar="HOST",
        help="address of node 0",
    )
    add(
        "--master-port",
        type=_port,
        default=environ.get("PET_MASTER_PORT"),
        metavar="PORT",
        help="MASTER_PORT for torch (free; 29500 with --nnodes)",
    )
    add(
        "--rdzv-endpoint",
        default=environ.get("PET_RDZV_ENDPOINT"),
        metavar="HOST[:PORT]",
        help="where node 0 serves the rendezvous (--master-addr, port 29400)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is shown").add_argument
    add(
        "--log-dir",
        "--output-filename",
        metavar="DIR",
        help="also write what ranks print to DIR/rank.N/stdout and stderr",
    )
    add(
        "-t",
        "--tee",
        type=_streams,
        metavar="STREAMS",
        help="with --log-dir, what the console still shows: 0 nothing, 1 stdout, 2 stderr, 3 both; "
        "or for each local rank: 0:3,1:2",
    )
    add(
        "-r",
        "--redirects",
        type=_streams,
        metavar="STREAMS",
        help="with --log-dir, what the console does not show; as for --tee",
    )
    add(
        "--local-ranks-filter",
        type=_numbers,
        metavar="0,1",
        help="the console shows these local ranks only",
    )
    add(
        "-prefix-timestamp",
        "--prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        help="put the time before each line",
    )


def _add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "settings", "Each is also a variable: --timeout-s is RINGCORE_TIMEOUT_S, which the ranks get."
    )
    for name, field in _settings.Settings.__dataclass_fields__.items():
        word = "--" + name.replace("_", "-")
        text = f"{field.metadata['help']} ({_shown(field.default)})".replace("%", "%%")
        dest = f"setting_{name}"
        if isinstance(field.default, bool):
            group.add_argument(word, action=argparse.BooleanOptionalAction, dest=dest, help=text)
        else:
            words = [word, *field.metadata["aliases"]]
            repeat = "append" if name in ("network", "network_interfaces") else "store"
            group.add_argument(*words, action=repeat, type=_setting_text(name), dest=dest, metavar="VALUE", help=text)
    group.add_argument(
        "--fusion-threshold-mb",
        type=_mebibytes,
        dest="setting_fusion_threshold_bytes",
        metavar="MIB",
        help="the same in MiB",
    )
    group.add_argument(
        "--no-stall-check",
        action="store_const",
        const="0",
        dest="setting_stall_warning_s",
        help="the same as --stall-warning-s 0",
    )
    group.add_argument(
        "--stall-check-shutdown-time-seconds",
        type=_setting_text("timeout_s"),
        dest="setting_timeout_s",
        metavar="S",
        help="the same as --timeout-s",
    )


def _shown(default: object) -> str:
    if isinstance(default, tuple) or default is None:
        return "unset"
    if isinstance(default, bool):
        return "yes" if default else "no"
    return str(default)


def _collect_settings(options: argparse.Namespace) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name in _settings.names():
        value = getattr(options, f"setting_{name}")
        if isinstance(value, bool):
            value = "1" if value else "0"
        elif isinstance(value, list):
            value = ",".join(value)
        if value is not None:
            texts[_settings.variable(name)] = value
    return texts


def _setting_text(name: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        try:
            _settings.parse(name, text, origin="value")
        except _settings.SettingError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return check


def _pattern(pattern: str, accepted: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if re.fullmatch(pattern, text, re.ASCII) is None:
            raise argparse.ArgumentTypeError(f"value is {text!r}, but accepted is {accepted}")
        return text

    return check


def _positive(text: str) -> int:
    return int(_pattern(r"0*[1-9][0-9]{0,5}", "a whole number of at least 1")(text))


def _count(text: str) -> int:
    return int(_pattern(r"[0-9]{1,6}", "a whole number")(text))


def _port(text: str) -> int:
    port = int(_pattern(r"[0-9]{1,5}", "a port from 1 to 65535")(text))
    if not 0 < port < 65536:
        raise argparse.ArgumentTypeError(f"value is {text!r}, but accepted is a port from 1 to 65535")
    return port


def _seconds(text: str) -> float:
    return float(_pattern(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", "a number of seconds")(text))


def _mebibytes(text: str) -> str:
    return str(int(float(_pattern(r"[0-9]+(\.[0-9]*)?", "a number of MiB")(text)) * 1024**2))


def _nodes(text: str) -> int:
    low, _, high = text.partition(":")
    if high and high != low:
        raise argparse.ArgumentTypeError(f"value is {text!r}, but {_ELASTIC}: give one number")
    return _positive(low)


def _no_restart(text: str) -> int:
    if _count(text) > 0:
        raise argparse.ArgumentTypeError(f"value is {text!r}, but {_ELASTIC}: only 0 is accepted")
    return 0


def _ranks_per_node(text: str) -> int:
    if text not in ("cpu", "gpu", "auto"):
        return _positive(text)
    gpus = _gpus()
    if text == "gpu" and not gpus:
        raise argparse.ArgumentTypeError("value is 'gpu', but there is none here")
    return gpus if gpus and text != "cpu" else len(os.sched_getaffinity(0))


def _gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([word for word in visible.split(",") if word.strip() not in ("", "-1")])
    return len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia[0-9]+", name)])


def _numbers(text: str) -> frozenset[int]:
    return frozenset(map(int, _pattern(r"[0-9]+(,[0-9]+)*", "numbers such as 0,1")(text).split(",")))


def _assignment(text: str) -> str:
    return _pattern(r"[A-Za-z_][A-Za-z0-9_]*(=[^\0]*)?", "NAME or NAME=VALUE")(text)


def _streams(text: str) -> dict[int | None, int]:
    """Parses `3`, or `0:3,1:2` with local ranks; the key `None` holds for all ranks."""
    checked = _pattern(r"[0-3]|[0-9]+:[0-3](,[0-9]+:[0-3])*", "0, 1, 2 or 3, or such as 0:3,1:2")(text)
    if ":" not in checked:
        return {None: int(checked)}
    return {int(part.partition(":")[0]): int(part[-1]) for part in checked.split(",")}
