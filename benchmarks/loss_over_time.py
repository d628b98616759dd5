"""The loss of a net over the time that training takes, by every way of sending less, on four hosts at 100 Mbit/s.

    python benchmarks/loss_over_time.py [--ways float32 int8 ...] [--seconds 60]

A transformer of 1.1 million parameters guesses the next character of this repository's documentation, by SGD with the
same learning rate each way, from the same weights. Beside ringcore's ways of sending less are float32, float32 through
four servers on hosts of their own, and DistributedDataParallel over gloo; and what AsyncOptimizer makes of a rank that
pauses for a second at each step. Hosts are network namespaces of one machine.

Needs root. Writes results/loss-over-time.json, which keeps the ways that are not measured, and
docs/images/loss-over-time.svg.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from loss_over_time_rank import PAUSE_S, SLOW, WAYS
from network import HERE, run_ranks
from pictures import pyplot, save
from support.namespaces import namespaces

RANK = str(HERE / "loss_over_time_rank.py")
RESULTS = HERE / "results" / "loss-over-time.json"
PICTURE = HERE.parent / "docs" / "images" / "loss-over-time.svg"
RATE = "100mbit"
HOSTS, SERVERS = 4, 4


def measured(way: str, seconds: float) -> dict[str, Any]:
    """The curve of a way."""
    servers = SERVERS if "servers" in way else 0
    with namespaces(HOSTS + servers, sshd=False) as hosts:
        for host in hosts:
            host.shape(RATE, "64kb", "50ms")
        (found,) = run_ranks(
            hosts[:HOSTS], "ringcore", way, str(seconds), script=RANK, servers=hosts[HOSTS:],
            env={"RINGCORE_HEARTBEAT_S": "30"},  # hosts that share two cores may be silent for long
        )  # fmt: skip
    return found


def draw(found: dict[str, Any]) -> None:
    """The picture."""
    plt = pyplot()
    figure, (even, slow) = plt.subplots(1, 2, figsize=(9, 4.5), sharey=True, width_ratios=(2, 1))
    colours = plt.get_cmap("tab20").colors
    for number, (way, one) in enumerate(found.items()):
        seconds, _, losses = zip(*one["points"], strict=True)
        style = "--" if way.startswith(("float32", "Distributed")) else "-"
        (slow if SLOW in way else even).plot(seconds, losses, style, color=colours[number], label=way, lw=1.4)
    even.set_title("four hosts at 100 Mbit/s")
    slow.set_title(f"one of them pauses {PAUSE_S:.0f} s at each step")
    for axes in (even, slow):
        axes.set_xlabel("seconds of training")
        axes.set_ylabel("loss")
        axes.set_ylim(1.2, 3.8)  # what diverges leaves the picture
    save(figure, PICTURE)


def main() -> None:
    """Measure, write down, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for way in options.ways:
        known[way] = measured(way, options.seconds)
        seconds, steps, loss = known[way]["points"][-1]
        print(f"{way:24} {steps / seconds:6.2f} steps a second, loss {loss:.3f} after {seconds:.0f} s", flush=True)
        known = {name: known[name] for name in WAYS if name in known}
        RESULTS.write_text(json.dumps(known) + "\n")
    draw(known)


if __name__ == "__main__":
    main()
