"""The command `ringcore topology`: measure what lies between hosts, show it, write it for jobs to plan with."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any

from ringcore._errors import InvalidArgument, RingcoreError
from ringcore.job import lifecycle
from ringcore.job.topology import Measured, measure
from ringcore.launcher.api import LaunchError, RankError, run
from ringcore.network import Topology, read_file
from ringcore.network.picture import describe, draw, print_tables


def main(argv: Sequence[str] | None = None) -> int:
    """The sub-command.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0; 1 when the hosts could not be measured; 2 when what was asked for is wrong.
    """
    options = _parser().parse_args(argv)
    try:
        topology = _checked(options.check) if options.check else _measured(options)
        if options.save:
            topology.save(options.save)
            print(f"{options.save}: for ringrun --topology-file")
        if options.picture:
            draw(topology, options.picture)
            print(f"{options.picture}: drawn")
    except (LaunchError, RankError) as error:
        print(f"ringcore topology: {error}", file=sys.stderr)
        return 1
    except (RingcoreError, OSError) as error:
        print(f"ringcore topology: {error}", file=sys.stderr)
        return 2
    return 0


def _checked(path: str) -> Topology:
    topology = read_file(path)
    print(f"{path}: {describe(topology)}")
    return topology


def _measured(options: argparse.Namespace) -> Topology:
    where: dict[str, Any] = {}
    if options.hosts:
        where["hosts"] = ",".join(map(_with_slots, options.hosts.split(",")))
    elif options.hostfile:
        where["hostfile"] = options.hostfile
    else:
        raise InvalidArgument("no hosts were named. Remedy: -H node1,node2,node3, or --hostfile FILE")
    found = run(_on_rank, (options.seconds,), np=None, **where)[0]
    print_tables(found.topology, found.findings)
    return found.topology


def _with_slots(host: str) -> str:
    """One rank, unless a number is named."""
    return host if re.search(r"[^:]:\d+$|\]:\d+$", host) else f"{host}:1"


def _on_rank(seconds: float) -> Measured:
    lifecycle.init()
    try:
        return measure(seconds=seconds)
    finally:
        lifecycle.shutdown()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ringcore topology",
        description="Measure rates and latencies between hosts, and who shares a port; over ssh, as ringrun.",
    )
    add = parser.add_argument
    add("-H", "--hosts", metavar="H1,H2", help="hosts, one rank of each measures")
    add("--hostfile", metavar="FILE", help="of ringrun")
    add("--seconds", type=float, default=0.05, metavar="S", help="of a round; there are some four a host (%(default)s)")
    add("--save", metavar="FILE", help="write it, for ringrun --topology-file")
    add("--picture", metavar="FILE", help="draw it, as .svg, .png or .pdf (needs matplotlib)")
    add("--check", metavar="FILE", help="measure nothing: read this file, say what it means, or what is wrong with it")
    return parser
