"""The command `ringcore simulate`: what a job on so many ranks would take, without them."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence

from ringcore._errors import RingcoreError
from ringcore.simulation.job import Simulation, simulate
from ringcore.simulation.picture import draw, print_times

_FIRST_OF_CURVE = 8


def main(argv: Sequence[str] | None = None) -> int:
    """The sub-command.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0; 2 when there is no such job.
    """
    options = _parser().parse_args(argv)
    begin = time.monotonic()
    try:
        jobs = [_job(options, ranks) for ranks in _curve(options)]
        print_times(jobs[-1])
        if options.picture:
            draw(jobs, options.picture)
            print(f"{options.picture}: {len(jobs)} jobs of {jobs[0].ranks} to {jobs[-1].ranks} ranks")
    except RingcoreError as error:
        print(f"ringcore simulate: {error}", file=sys.stderr)
        return 2
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"simulated in {time.monotonic() - begin:.1f} s, with {peak_mib:.0f} MiB of memory")
    return 0


def _job(options: argparse.Namespace, ranks: int) -> Simulation:
    hosts = max(1, round(ranks * (options.hosts or options.ranks) / options.ranks))
    slow = {host: factor for host, factor in options.slow if host < hosts or ranks == options.ranks}
    return simulate(
        ranks,
        hosts=hosts,
        network=options.network,
        nbytes=options.bytes,
        collective=options.collective,
        algorithms=options.algorithm,
        jitter=options.jitter,
        slow=slow,
        operations=options.operations,
        seed=options.seed,
    )


def _curve(options: argparse.Namespace) -> list[int]:
    """The numbers of ranks of a picture: doubled up to the one that was asked for."""
    numbers = [options.ranks]
    while options.picture and numbers[0] // 2 >= _FIRST_OF_CURVE:
        numbers.insert(0, numbers[0] // 2)
    return numbers


def _slow_host(text: str) -> tuple[int, float]:
    host, _, factor = text.partition("=")
    try:
        return int(host), float(factor)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} was given, but accepted is HOST=FACTOR, as in 3=4") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ringcore simulate",
        description="Simulate a job that is not there: the plans that it would run and how its ranks agree.",
    )
    add = parser.add_argument
    add("--ranks", type=int, required=True, help="how many ranks")
    add("--hosts", type=int, help="on how many hosts; without this one each")
    add("--network", default="100gbit,10us", metavar="RATE,LATENCY", help="between hosts (%(default)s)")
    add("--bytes", default="100M", metavar="SIZE", help="of the tensor (%(default)s)")
    add("--collective", default="allreduce", help="which collective (%(default)s)")
    add("--algorithm", action="append", default=[], metavar="NAME", help="only this one; may be given several times")
    add("--jitter", default="0s", metavar="TIME", help="messages between hosts arrive up to so much later")
    add("--slow", action="append", default=[], type=_slow_host, metavar="HOST=FACTOR", help="a host that is slower")
    add("--operations", type=int, default=50, metavar="N", help="of a step, for the agreement (%(default)s)")
    add("--seed", type=int, default=1, help="of the jitter (%(default)s)")
    add("--picture", metavar="FILE", help="draw a curve over the number of ranks (needs matplotlib)")
    return parser
