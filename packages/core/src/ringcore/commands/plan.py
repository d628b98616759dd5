"""The command `ringcore plan`: look at a plan in a file, verify it, predict it, run it."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ringcore._display import print_table
from ringcore._errors import InvalidArgument, RingcoreError
from ringcore.network import read_file
from ringcore.network.units import parse_bytes
from ringcore.planning import Plan
from ringcore.planning.hosts import place, spread
from ringcore.simulation import Network
from ringcore.simulation.job import collective_times
from ringcore.simulation.picture import bytes_text, time_text

_LIMIT_S = 300.0

# Each rank: registers the plan, runs it, and compares with what the collective is.
_PROGRAM = """
import sys, time
import numpy as np
import ringcore as ring
from ringcore import plans

path, count, repeat = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
plan = plans.Plan.load(path)
ring.init()
me, size = ring.rank(), ring.size()
if plan.ranks != size:
    sys.exit(f"ringcore plan run: the plan is for {plan.ranks} ranks, and there are {size}")
plans.register(lambda request: plan, collectives=[plan.collective], sizes=[count * 4], root=plan.root, always=True)
every = [(np.arange(count, dtype=np.float32) * 3 + rank * 7) % 61 for rank in range(size)]
own = every[me]
if plan.collective == "allreduce":
    run, right = lambda: ring.allreduce(own, op=ring.Sum), sum(every)
elif plan.collective == "reducescatter":
    run, right = lambda: ring.reducescatter(own, op=ring.Sum), np.array_split(sum(every), size)[me]
elif plan.collective == "allgather":
    own = np.array_split(own, size)[me]
    run, right = lambda: ring.allgather(own), np.concatenate([np.array_split(e, size)[r] for r, e in enumerate(every)])
elif plan.collective == "broadcast":
    run, right = lambda: ring.broadcast(own, root_rank=plan.root), every[plan.root]
elif plan.collective == "reduce":
    right = sum(every) if me == plan.root else None
    run = lambda: ring.reduce(own, root_rank=plan.root, op=ring.Sum)
elif plan.collective == "gather":
    right = np.concatenate([np.array_split(e, size)[r] for r, e in enumerate(every)]) if me == plan.root else None
    own = np.array_split(own, size)[me]
    run = lambda: ring.gather(own, root_rank=plan.root)
elif plan.collective == "scatter":
    blocks = np.array_split(every[plan.root], size)
    run, right = lambda: ring.scatter(own, plan.root, [len(block) for block in blocks]), blocks[me]
else:
    block = lambda rank, to: np.array_split(every[rank], size)[to]
    splits = [len(block(me, to)) for to in range(size)]
    run = lambda: ring.alltoall(own, splits=splits)
    right = np.concatenate([block(rank, me) for rank in range(size)])
seconds = []
for turn in range(repeat):
    ring.barrier()
    begin = time.perf_counter()
    result = run()
    seconds.append(time.perf_counter() - begin)
    result = result[0] if isinstance(result, tuple) else result
    if right is not None and not np.array_equal(result, right):
        wrong = int(np.flatnonzero(result != right)[0]) if result.shape == right.shape else -1
        sys.exit(f"ringcore plan run: the result of rank {me} is wrong from element {wrong} on")
slowest = ring.allreduce(np.array(seconds), op=ring.Max)
used = any(outcome.chosen and outcome.generator == plan.generator for outcome in plans.report())
if not used:
    sys.exit(f"ringcore plan run: {count * 4} bytes went another way than by the plan; try more with --bytes")
if me == 0:
    print(f"right in each of {repeat} runs; the quickest took {slowest.min() * 1e6:.0f} us")
ring.shutdown()
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The sub-command.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0; 1 when the plan is wrong; 2 when there is none.
    """
    options = _parser().parse_args(argv)
    action: Callable[[Plan, argparse.Namespace], int] = options.action
    try:
        return action(Plan.load(options.file), options)
    except RingcoreError as error:
        print(f"ringcore plan: {error}", file=sys.stderr)
        return 2


def _show(plan: Plan, options: argparse.Namespace) -> int:
    print(f"{plan.generator}: {plan.collective} among {_nodes(plan)}" + _of_root(plan))
    print(f"{plan.chunks} chunks, {plan.steps} steps, {plan.hash}")
    if options.rank is None:
        rows = [_row(plan, rank) for rank in range(plan.native.nodes)]
        print_table(("rank", "channels", "steps", "sends", "receives", "peers"), rows)
    else:
        for number, channel in enumerate(plan.program(options.rank)):
            print(f"rank {options.rank}, channel {number}:")
            print("\n".join(f"  {index:>4}  {step}" for index, step in enumerate(channel)))
    if options.save:
        plan.save(options.save)
        print(f"{options.save}: written")
    return 0


def _nodes(plan: Plan) -> str:
    return f"{plan.ranks} ranks" + (f" and {plan.serving} who serve" if plan.serving else "")


def _of_root(plan: Plan) -> str:
    way = {"broadcast": "from", "reduce": "to", "gather": "to", "scatter": "from"}.get(plan.collective)
    return f", {way} rank {plan.root}" if way else ""


def _row(plan: Plan, rank: int) -> tuple[str, ...]:
    channels = plan.program(rank)
    sends, receives, peers = plan.native.traffic(rank)
    steps = sum(map(len, channels))
    who = ", ".join(map(str, peers)) if len(peers) <= 8 else f"{len(peers)} others"
    name = str(rank) if rank < plan.ranks else f"{rank} (serves)"
    return name, str(len(channels)), str(steps), f"{sends} chunks", f"{receives} chunks", who


def _check(plan: Plan, options: argparse.Namespace) -> int:
    flaw = plan.check(spread(plan.ranks, plan.serving, options.hosts))
    if flaw is None:
        print(f"right: {plan.steps} steps of {_nodes(plan)} carry out {plan.collective}, in any timing")
        return 0
    print(f"wrong: {flaw}", file=sys.stderr)
    return 1


def _predict(plan: Plan, options: argparse.Namespace) -> int:
    network = Network.parse(options.network)
    topology = None if options.topology_file is None else read_file(options.topology_file)
    nbytes = parse_bytes(options.bytes)
    seconds = plan.predict(
        nbytes, bits_per_s=network.bits_per_s, latency_s=network.latency_s, message_s=network.message_s,
        hosts=options.hosts, topology=topology,
    )  # fmt: skip
    where = place(
        plan.ranks, plan.serving, (network.latency_s, network.bits_per_s / 8, []),
        hosts=options.hosts, topology=topology,
    )  # fmt: skip
    others = collective_times(
        plan.collective, nbytes, where.host_of, where.network, serving=plan.serving, message_s=network.message_s
    )
    named = [(seconds, f"{plan.generator} (this plan)"), *((each.seconds, each.algorithm) for each in others)]
    hosts, between = len(set(where.host_of)), options.topology_file or options.network
    print(f"{plan.collective} of {bytes_text(nbytes)} among {_nodes(plan)} on {hosts} hosts, {between}")
    print_table(("plan", "time"), [(name, time_text(each)) for each, name in sorted(named)])
    if topology is not None and any(link.price_per_gb is not None for link in topology.links):
        sent = plan.egress(nbytes, topology, hosts=options.hosts)
        print(
            f"this plan sends {bytes_text(sent.nbytes)} through links that have a price, and costs {sent.price:.3g} "
            f"each time, {1e6 * sent.price:.3g} a million times"
        )
    return 0


def _run(plan: Plan, options: argparse.Namespace) -> int:
    flaw = plan.check()
    if flaw is not None:
        print(f"wrong: {flaw}", file=sys.stderr)
        return 1
    if plan.serving and plan.collective != "allreduce":
        raise InvalidArgument(
            f"servers take part in allreduces alone, and {plan.serving} nodes serve in this plan of {plan.collective}; "
            "'predict' tells its time"
        )
    count = max(plan.ranks, parse_bytes(options.bytes) // 4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan.bin")
        plan.save(path)
        command = [sys.executable, "-m", "ringcore.launcher.main", "-np", str(plan.ranks)]
        command += ["--servers", str(plan.serving), "--no-python"]
        command += [sys.executable, "-c", _PROGRAM, str(path), str(count), str(options.repeat)]
        return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=_LIMIT_S, check=False).returncode


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} was given, but accepted is a whole number from 1 on")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ringcore plan", description="A plan in a file: JSON, binary, MSCCL's XML.")
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    def action(name: str, run: Callable[[Plan, argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=text, description=text)
        added.add_argument("file", metavar="FILE", help="of the plan")
        added.set_defaults(action=run)
        return added

    show = action("show", _show, "show what the ranks do")
    show.add_argument("--rank", type=int, help="all steps of this one")
    show.add_argument("--save", metavar="FILE", help="write it as JSON, or as .bin in the binary form")
    check = action("check", _check, "prove that it is right, or say which step is not")
    check.add_argument("--hosts", type=_positive, help="on how many the ranks are (one each)")
    predict = action("predict", _predict, "tell how long it would take, beside the engine's own plans")
    between = predict.add_mutually_exclusive_group()
    between.add_argument("--network", default="10gbit,25us", metavar="RATE,LATENCY", help="between hosts (%(default)s)")
    between.add_argument("--topology-file", metavar="FILE", help="between hosts that differ, as of ringrun")
    predict.add_argument("--hosts", type=_positive, help="on how many the ranks are (one each)")
    predict.add_argument("--bytes", default="16M", metavar="SIZE", help="of the data (%(default)s)")
    run = action("run", _run, "run it on ranks of this machine, and compare the results")
    run.add_argument("--bytes", default="4M", metavar="SIZE", help="of the data (%(default)s)")
    run.add_argument("--repeat", type=_positive, default=5, metavar="N", help="how often (%(default)s)")
    return parser
