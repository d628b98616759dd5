"""Measures steps of training whose communication takes as long as computing, half and twice as long, on four hosts.

    python benchmarks/overlap.py [--models layers embedding] [--ratios 0.5 1 2] [--encryption auto off] [--repeats 2]
                                 [--optimizers distributed sharded] [--fresh]

Hosts are network namespaces. A first run without communication says how long a step computes; the links are then
shaped so that the ring's 2 (R - 1) / R of the gradients take RATIO times that. "backward" (the anchor: in the order of
release, and step() waits), "forward" and DistributedDataParallel over gloo take turns in the same processes, and so do
ShardedOptimizer as it is and with an overlap. gloo sends in clear text, and ringcore encrypts between hosts
unless it is told not to: both are measured, as four hosts of one machine pay for it with the processors that they
compute with.
Needs root. Lines are added to results/overlap.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from network import HERE, goodput, run_ranks
from support.namespaces import namespaces

RANK = str(HERE / "overlap_rank.py")
RESULTS = HERE / "results" / "overlap.jsonl"
HOSTS = 4
# By the optimizer: what takes turns, and what is divided by what.
STRATEGIES = {
    "distributed": ("alone", "backward", "forward", "ddp"),
    "sharded": ("alone", "sharded", "sharded-backward", "sharded-forward"),
}
RATIOS = {
    "distributed": {"forward_over_backward": ("backward", "forward"), "forward_over_ddp": ("ddp", "forward")},
    "sharded": {
        "backward_over_sharded": ("sharded", "sharded-backward"),
        "forward_over_sharded": ("sharded", "sharded-forward"),
    },
}


def measured(model: str, rate: str, encryption: str, *strategies: str) -> tuple[dict[str, Any], float]:
    """Milliseconds of the steps of each strategy, and the goodput of the shaped links in bytes a second."""
    with namespaces(HOSTS, rate=rate, sshd=False) as hosts:
        stream = goodput(hosts, 16 << 20)
        environ = {"RINGCORE_ENCRYPTION": encryption}
        found = run_ranks(hosts, "ringcore", model, *strategies, script=RANK, env=environ)
    return found[0], stream


def main() -> None:
    """Measure, and write down what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["layers", "embedding"])
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.5, 1.0, 2.0])
    parser.add_argument("--encryption", nargs="+", default=["auto", "off"])
    parser.add_argument("--optimizers", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="begin the file anew")
    options = parser.parse_args()
    if options.fresh:
        RESULTS.unlink(missing_ok=True)
    for model in options.models:
        alone, _ = measured(model, "10gbit", "auto", "alone")
        computing_s = statistics.median(alone["milliseconds"]["alone"]) / 1e3
        for ratio in options.ratios:
            bits = 8 * 2 * (HOSTS - 1) / HOSTS * alone["bytes"] / (ratio * computing_s)
            for encryption, optimizer in itertools.product(options.repeats * options.encryption, options.optimizers):
                found, stream = measured(model, f"{bits / 1e6:.0f}mbit", encryption, *STRATEGIES[optimizer])
                medians = {name: statistics.median(times) for name, times in found["milliseconds"].items()}
                line = {
                    "model": model, "encryption": encryption, "ratio": ratio, "mbit": bits / 1e6,
                    "stream_bytes_per_s": stream, **medians,
                    **{name: medians[above] / medians[below] for name, (above, below) in RATIOS[optimizer].items()},
                }  # fmt: skip
                print(json.dumps(line), flush=True)
                with Path(RESULTS).open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
