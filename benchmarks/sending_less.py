"""Measures every way of sending less beside what it is compared with, on four hosts with shaped links.

    python benchmarks/sending_less.py [--cases quantised powersgd diloco sites adamw muon] [--repeats 3] [--fresh]

Hosts are network namespaces of one machine. All ways of a case take turns in the same processes, and are verified
there.

`quantised`: allreduces of 64 MiB at 100 Mbit/s, as they are and by int8 and int4, and by uint8 of PCCL where it is.
`powersgd`: steps of a net of 25 million parameters at 1 Gbit/s, by PowerSGD of rank 4, beside DistributedDataParallel's
hook over gloo, and whole.
`diloco`: one allreduce of 64 MiB at 100 Mbit/s beside gloo's, and DiLoCo every 50 steps by int8 beside computing alone.
`sites`: the same DiLoCo among hosts far apart: 100 Mbit/s, 80 ms there and back, one packet of 1000 lost; with a delay
of 25 steps, as what is sent takes longer there. A pause of 0.3 s a step stands for a device: what carries the
packets takes most of a processor. Then torchft's DiLoCo there, over gloo, with the largest delay that it allows.
`adamw`: bytes of the optimizer's state and a step, sharded, beside ZeroRedundancyOptimizer, the first stage of
DeepSpeed where that is installed, and whole.
`muon`: the time of orthogonalising and of a step at 1 Gbit/s, sharded and not.

Needs root. Lines are added to results/sending-less.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from network import HERE, far, goodput, run_ranks
from pccl_rank import BUILT
from support.namespaces import Host, namespaces
from support.torchft import lighthouse_command, torchft_python

RANK = str(HERE / "sending_less_rank.py")
TORCHFT_RANK = str(HERE / "torchft_rank.py")
LIGHTHOUSE_PORT = 29510
TORCHFT_LIMIT_S = 1500
RESULTS = HERE / "results" / "sending-less.jsonl"
HOSTS = 4
FAR = "100mbit, 80 ms, 0.1 % lost"
# By case: what each host's cable carries, in the words of tc.
CASES = {
    "quantised": "100mbit", "powersgd": "1gbit", "diloco": "100mbit", "sites": FAR, "adamw": "1gbit", "muon": "1gbit",
}  # fmt: skip


@contextlib.contextmanager
def places(rate: str) -> Iterator[Sequence[Host]]:
    """The hosts, with such cables."""
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(namespaces(HOSTS, sshd=False))
        if rate == FAR:
            stack.enter_context(far(hosts, loss=0.001))
        else:
            for host in hosts:
                host.shape(rate, "64kb", "50ms")
        yield hosts


def by_torchft(hosts: Sequence[Host]) -> dict[str, Any]:
    """Milliseconds of a step by way, of torchft's ranks, one on each host."""
    with hosts[0].popen(lighthouse_command("0.0.0.0", LIGHTHOUSE_PORT, HOSTS)) as lighthouse:
        try:
            found = run_ranks(
                hosts, "torchft", str(LIGHTHOUSE_PORT), script=TORCHFT_RANK, limit_s=TORCHFT_LIMIT_S,
                python=str(torchft_python()),
            )  # fmt: skip
            times: dict[str, Any] = found[0]["milliseconds"]
            return times
        finally:
            lighthouse.kill()


def main() -> None:
    """Measure, and write down what was found."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=BUILT, formatter_class=formatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fresh", action="store_true", help="begin the file anew")
    options = parser.parse_args()
    if options.fresh:
        RESULTS.unlink(missing_ok=True)
    for case in options.repeats * options.cases:
        with places(CASES[case]) as hosts:
            stream = goodput(hosts, 16 << 20)
            # Hosts that share two cores may be silent for long.
            found = run_ranks(hosts, "ringcore", case, script=RANK, env={"RINGCORE_HEARTBEAT_S": "30"})
            if case == "sites":
                found[0]["milliseconds"] |= by_torchft(hosts)
        line = {"case": case, "rate": CASES[case], "stream_bytes_per_s": stream, **found[0]}
        print(json.dumps(line), flush=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
