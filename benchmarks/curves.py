"""Simulated jobs of 8 to 10,000 ranks on three networks, beside what was measured among few: curves for the docs.

    python benchmarks/curves.py [--ranks 8 32 128 512 2048 10000]

Writes results/curves.json, and docs/images/simulated.svg from it and from results/simulated.json (`simulated.py`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pictures import pyplot, save
from ringcore.simulation import Simulation, simulate

HERE = Path(__file__).parent
PICTURE = HERE.parent / "docs" / "images" / "simulated.svg"
NETWORKS = {"25 Gbit/s": "25gbit,10us", "100 Gbit/s": "100gbit,10us", "400 Gbit/s": "400gbit,10us"}
NBYTES = 100_000_000
LOCAL = 8  # ranks of a host
ALGORITHMS = ("ring", "hierarchical", "racks", "double_tree", "pat")
COLOURS = {"ring": "C0", "hierarchical": "C1", "double_tree": "C2", "pat": "C3", "binomial_tree": "C4", "racks": "C5"}


def row(name: str, job: Simulation) -> dict[str, Any]:
    """What a job takes."""
    return {
        "network": name,
        "ranks": job.ranks,
        "hosts": job.hosts,
        "bytes": job.nbytes,
        "algorithms": {
            each.algorithm: {
                "seconds": each.seconds,
                "parts": each.parts,
                "sent_bytes": each.sent_bytes,
                "program_bytes": each.program_bytes,
                "peers": each.peers,
            }
            for each in job.times
        },
        "agreement_s": job.agreement.again_s,
        "agreement_bytes": job.agreement.step_bytes,
        "agreement_records": job.agreement.step_records,
    }


def simulated(ranks: list[int]) -> list[dict[str, Any]]:
    """All jobs."""
    rows = []
    for name, network in NETWORKS.items():
        for count in ranks:
            hosts = max(1, count // LOCAL)
            # On one host there is nothing between hosts, and no hierarchy.
            names = [each for each in ALGORITHMS if hosts > 1 or each not in ("hierarchical", "racks")]
            rows.append(row(name, simulate(count, hosts=hosts, network=network, nbytes=NBYTES, algorithms=names)))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def draw_network(axes: Any, name: str, rows: list[dict[str, Any]]) -> None:
    """Time over ranks, on one network."""
    rows = [each for each in rows if each["network"] == name]
    for algorithm in ALGORITHMS:
        found = [(each["ranks"], each["algorithms"][algorithm]["seconds"]) for each in rows
                 if algorithm in each["algorithms"]]  # fmt: skip
        axes.plot(*zip(*found, strict=True), ".-", color=COLOURS[algorithm], label=algorithm.replace("_", " "))
    axes.plot([each["ranks"] for each in rows], [each["agreement_s"] for each in rows], "k--", label="agreement")
    axes.set_title(f"100 MB, {name}, {LOCAL} ranks a host")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylim=(1e-5, 1))


def draw_measured(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Simulated curves, and measured points."""
    for algorithm in dict.fromkeys(each["algorithm"] for each in rows):
        found = [each for each in rows if each["algorithm"] == algorithm]
        hosts = [each["hosts"] for each in found]
        colour = COLOURS[algorithm]
        axes.plot(hosts, [each["simulated_s"] for each in found], "-", color=colour)
        label = algorithm.replace("_", " ")
        axes.plot(hosts, [each["measured_s"] for each in found], "o", color=colour, label=label)
    axes.set_title("4 MiB, 100 Mbit/s: measured on simulated")
    axes.set(xscale="log", yscale="log", xlabel="hosts", xticks=[2, 4, 8, 16], xticklabels=["2", "4", "8", "16"])
    axes.minorticks_off()


def draw(rows: list[dict[str, Any]], measured: list[dict[str, Any]]) -> None:
    """The picture."""
    figure, all_axes = pyplot().subplots(2, 2, figsize=(8, 6.4))
    for axes, name in zip(all_axes.flat, NETWORKS, strict=False):
        draw_network(axes, name, rows)
    draw_measured(all_axes.flat[-1], measured)
    for axes in all_axes.flat:
        axes.set_ylabel("seconds")
    save(figure, PICTURE)


def main() -> None:
    """Simulate, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 32, 128, 512, 2048, 10_000])
    options = parser.parse_args()
    rows = simulated(options.ranks)
    (HERE / "results" / "curves.json").write_text(json.dumps(rows, indent=1) + "\n")
    draw(rows, json.loads((HERE / "results" / "simulated.json").read_text()))


if __name__ == "__main__":
    main()
