"""Measures what the trials of `--autotune` choose beside what is done without them, on six networks.

    python benchmarks/tuning.py [--networks shm 100mbit 1gbit uneven long lossy] [--framework torch] [--repeats 1]
        [--fresh]

Hosts are network namespaces. In each job one optimizer is tuned from scratch; then it and one that is not take turns,
some steps at a time, in the same processes. Batches are such that computing takes about as long as communication.
Needs root. Lines are added to results/tuning.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from network import HERE, far, run_ranks
from support.namespaces import Host, namespaces

RANK = str(HERE / "tuning_rank.py")
RESULTS = HERE / "results" / "tuning.jsonl"
# Of a rank: the examples of a step.
BATCHES = {"shm": 64, "1gbit": 256, "100mbit": 3072, "uneven": 1536, "long": 3072, "lossy": 3072}
# Four hosts in a star: the first is reached five times as quickly as the others reach each other.
SPOKE, RIM = "200mbit", "40mbit"


@contextlib.contextmanager
def places(network: str) -> Iterator[list[Host]]:
    """The hosts of the ranks."""
    with contextlib.ExitStack() as stack:
        if network == "shm":
            (host,) = stack.enter_context(namespaces(1, sshd=False))
            yield [host, host]
            return
        rate = network if network.endswith("bit") else None
        hosts = stack.enter_context(namespaces(4, rate=rate, sshd=False))
        if network == "uneven":
            for host in hosts:
                others = [other for other in hosts if other is not host]
                rates = {other.address: SPOKE if hosts[0] in (host, other) else RIM for other in others}
                host.shape_towards(rates)
        if network in ("long", "lossy"):
            stack.enter_context(far(hosts, loss=0.001 if network == "lossy" else 0.0))
        yield hosts


def measured(network: str, framework: str) -> dict[str, Any]:
    """Milliseconds of steps as they are without trials, and as they were chosen."""
    with places(network) as hosts, tempfile.TemporaryDirectory() as folder:
        environ = {
            "TF_CPP_MIN_LOG_LEVEL": "2", "JAX_PLATFORMS": "cpu",
            "RINGCORE_AUTOTUNE": "1", "RINGCORE_AUTOTUNE_FILE": str(Path(folder, "tuned.json")),
            "RINGCORE_AUTOTUNE_WARMUP_SAMPLES": "2", "RINGCORE_AUTOTUNE_STEPS_PER_SAMPLE": "3",
        }  # fmt: skip
        asked = str(BATCHES[network]), framework
        (found,) = run_ranks(hosts, "ringcore", *asked, script=RANK, env=environ, limit_s=1200)
    static, tuned = (statistics.median(found["milliseconds"][name]) for name in ("static", "tuned"))
    return {"network": network, "framework": framework, **found, "static_over_tuned": static / tuned}


def main() -> None:
    """Measure, and write down what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=BATCHES, default=list(BATCHES))
    parser.add_argument("--framework", choices=("torch", "tensorflow", "jax"), default="torch")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="begin the file anew")
    options = parser.parse_args()
    if options.fresh:
        RESULTS.unlink(missing_ok=True)
    for network in options.repeats * options.networks:
        line = json.dumps(measured(network, options.framework))
        print(line, flush=True)
        with RESULTS.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
