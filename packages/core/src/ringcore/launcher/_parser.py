"""The words of ringrun's command line: its own, and those that torchrun's and Horovod's users bring along."""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from ringcore.environment import settings as _settings
from ringcore.launcher import _foreign, _values

DESCRIPTION = "Starts the ranks of a job, here or on several hosts, and looks after them until all have ended."
EPILOG = """
examples:
  ringrun -np 4 python train.py             four processes on this machine
  ringrun -np 4 train.py --epochs 3         the same, with this interpreter
  ringrun -np 2 -m package.module           a module
  ringrun -np 8 -H node1:4,node2:4 train.py over ssh

  ringrun --nnodes 2:4 --listen 29400 --key-file job.key
                                            somewhere, for an elastic job whose nodes come by themselves,
  ringrun --nnodes 2:4 --rdzv-endpoint HOST:29400 --key-file job.key train.py
                                            and on each node

Each rank of a job with --nnodes starts where its own ringrun runs; all of them need the same --key-file.
The exit code is that of the first rank that failed; 128 + n if signal n ended it.
"""


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


def known_options(parser: argparse.ArgumentParser | None = None) -> dict[str, bool]:
    """Long options of ringrun, and whether each takes a value."""
    parser = parser or build({})
    return {
        word: action.nargs != 0
        for action in parser._actions
        for word in action.option_strings
        if word.startswith("--") and word not in ("--help", "--version", "--config-file")
    }


def build(environ: Mapping[str, str]) -> argparse.ArgumentParser:
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
    _add_elastic(parser)
    _add_output(parser)
    _add_settings(parser)
    for table, action in ((_foreign.WITHOUT_EFFECT, _Note), (_foreign.REFUSED, _Refuse)):
        for word, (count, why) in table.items():
            parser.add_argument(word, nargs=count, action=action, const=why, dest="notes", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_general(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what to run").add_argument
    add(
        "-np",
        "-n",
        "--np",
        "--num-proc",
        type=_values.positive,
        metavar="N",
        dest="np",
        help="number of ranks; of an elastic job, at least so many begin",
    )
    add(
        "--servers",
        type=_values.count,
        default=0,
        metavar="N",
        help="processes more, which add up gradients and run no program, on slots that are left (0)",
    )
    add("-m", "--module", action="store_true", help="the command is a Python module and its arguments")
    add("--no-python", action="store_true", help="run the command as it is, even if it ends in .py")
    add("--workdir", "--wdir", metavar="DIR", help="working directory of the ranks (here)")
    add(
        "-x",
        "--env",
        action="append",
        type=_values.assignment,
        default=[],
        metavar="NAME[=VALUE]",
        help="set a variable for the ranks, or pass this one's value on (repeat for more)",
    )
    add("--config-file", metavar="FILE", help="read options from a TOML (Python 3.11 or newer) or JSON file")
    add(
        "--shutdown-timeout",
        type=_values.seconds,
        metavar="S",
        help="ranks that were told to end are killed after so long (0.35 after a failure, 5 after Ctrl-C, "
        "30 after SIGTERM)",
    )
    add("--max-restarts", type=_values.no_restart, metavar="0", help=argparse.SUPPRESS)
    add("--role", default="default", metavar="NAME", help=argparse.SUPPRESS)
    add("--verbose", action="store_true", help="say what is done")
    add("-v", "--version", action=_Version, nargs=0, help="print the version and exit")


def _add_hosts(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    add = parser.add_argument_group("where to run it").add_argument
    add("-H", "--hosts", metavar="H1:N,H2:N", help="hosts and how many ranks each takes; over ssh")
    add("-hostfile", "--hostfile", metavar="FILE", help="a host a line: 'H slots=N' or 'H:N'")
    add("-p", "--ssh-port", type=_values.port, metavar="PORT", help="port of sshd (ssh's configuration)")
    add("-i", "--ssh-identity-file", metavar="FILE", help="private key (ssh's configuration)")
    add("--remote-python", metavar="PATH", help="interpreter with ringcore on the other hosts (this one)")
    add(
        "--agent-timeout",
        type=_values.seconds,
        default=30.0,
        metavar="S",
        help="a host that has not heard from ringrun for so long ends its ranks (30)",
    )
    add(
        "--nproc-per-node",
        type=_values.ranks_per_node,
        default=environ.get("PET_NPROC_PER_NODE"),
        metavar="N",
        help="ranks of this host: a number, cpu, gpu or auto",
    )
    add(
        "--nnodes",
        type=_values.nodes,
        default=environ.get("PET_NNODES", "1"),
        metavar="N or MIN:MAX",
        help="number of hosts on each of which a ringrun is started; with MIN:MAX hosts may come and go",
    )
    add(
        "--node-rank",
        type=_values.count,
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
        type=_values.port,
        default=environ.get("PET_MASTER_PORT"),
        metavar="PORT",
        help="MASTER_PORT for torch (free; 29500 with --nnodes)",
    )
    add(
        "--rdzv-endpoint",
        default=environ.get("PET_RDZV_ENDPOINT"),
        metavar="HOST[:PORT]",
        help="where node 0 serves the rendezvous, or ringrun --listen waits (--master-addr, port 29400)",
    )
    add(
        "--listen",
        type=_values.place_to_listen,
        metavar="[HOST:]PORT",
        help="run no command: be the launcher that the ringruns of --nnodes MIN:MAX come to, and that decides",
    )


def _add_elastic(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "elastic jobs", "With --min-np, --max-np or --host-discovery-script ranks may come and go; see docs/elastic.md."
    ).add_argument
    add("--min-np", "--min-num-proc", type=_values.positive, metavar="N", help="go on with so many ranks (-np, or 1)")
    add(
        "--max-np",
        "--max-num-proc",
        type=_values.positive,
        metavar="N",
        help="take no more ranks (all slots of the hosts, from the beginning, also where -np is less)",
    )
    add(
        "--spares",
        type=_values.count,
        metavar="N",
        help="so many processes more than --max-np (-np) have started, and take the place of a lost rank at once (0)",
    )
    add(
        "--host-discovery-script",
        metavar="COMMAND",
        help="is run every second, by no shell, and prints the hosts of that moment: H or H:N a line",
    )
    add("--slots-per-host", "--slots", type=_values.positive, metavar="N", help="of hosts printed without a number (1)")
    add(
        "--elastic-timeout",
        type=_values.seconds,
        metavar="S",
        help="fewer than --min-np ranks wait for others for so long (600)",
    )
    add(
        "--reset-limit",
        type=_values.count,
        metavar="N",
        help="the ranks may change, or one that never came to be a rank be started again, so often; then the job ends "
        "(no limit)",
    )
    add(
        "--blacklist-cooldown-range",
        nargs=2,
        type=_values.seconds,
        metavar=("MIN", "MAX"),
        help="a failed rank is started again in its place after MIN seconds, then twice as many, MAX at most (1 60)",
    )
    add(
        "--drain-when",
        type=_values.command,
        metavar="COMMAND",
        help="is run every 5 s beside each rank, by no shell; once it succeeds the host is to go and the rank leaves",
    )
    add(
        "--evict-slow",
        type=_values.factor,
        metavar="FACTOR",
        help="a rank that again and again works FACTOR times as long between commits as the median of all is replaced",
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
        type=_values.streams,
        metavar="STREAMS",
        help="with --log-dir, what the console still shows: 0 nothing, 1 stdout, 2 stderr, 3 both; "
        "or for each local rank: 0:3,1:2",
    )
    add(
        "-r",
        "--redirects",
        type=_values.streams,
        metavar="STREAMS",
        help="with --log-dir, what the console does not show; as for --tee",
    )
    add(
        "--local-ranks-filter",
        type=_values.numbers,
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
            group.add_argument(
                *words, action=repeat, type=_values.setting_text(name), dest=dest, metavar="VALUE", help=text
            )
    group.add_argument(
        "--fusion-threshold-mb",
        type=_values.mebibytes,
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
        type=_values.setting_text("timeout_s"),
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
