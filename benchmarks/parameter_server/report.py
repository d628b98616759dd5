"""The figure and the tables of the comparison, from the lines that `measure` has written."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parameter_server.bounds import ring_s, servers_range_s, servers_s
from parameter_server.setting import BATCH, COMPUTE_S, LAYERS, RING, SERVERS, WIDTH, WORKERS, is_ours

# Weights and biases, in the order of the layers, float32.
TENSORS = [4 * size for _ in range(LAYERS) for size in (WIDTH * WIDTH, WIDTH)]
LATENCY_S = 100e-6
_COLORS = {"1 server": "tab:red", "1:1 servers": "tab:orange", "2:1 servers": "tab:green"}
COLORS = {RING: "tab:blue", **_COLORS, **{f"{RING}, {name}": f"dark{color[4:]}" for name, color in _COLORS.items()}}

Key = tuple[str, int]


def bound_s(system: str, workers: int, rate: float) -> float:
    """What bandwidth allows a step's communication, in seconds."""
    if system == RING:
        return ring_s(workers, sum(TENSORS), rate)
    servers = SERVERS[system](workers)
    if is_ours(system):  # a tensor is divided, and its parts overlap
        return servers_range_s(workers, servers, sum(TENSORS), rate)[0]
    return servers_s(workers, servers, TENSORS, rate)


def throughput(workers: int, communication_s: float) -> float:
    """Samples a second where computing and communication follow each other."""
    return workers * BATCH / (COMPUTE_S + communication_s)


class Measured:
    """The lines of a file: of each start with right weights one number, the median of its steps."""

    def __init__(self, path: Path) -> None:
        self.rows = [json.loads(line) for line in path.read_text().splitlines()]
        self.wrong = [row for row in self.rows if "wrong" in row]
        self._right = [row for row in self.rows if "wrong" not in row]
        self.rate = statistics.median(row["stream_bytes_per_s"] for row in self.rows)

    def of(self, system: str, workers: int, number: Callable[[dict[str, Any]], float]) -> list[float]:
        """A number of every start."""
        return [number(row) for row in self._right if (row["system"], row["workers"]) == (system, workers)]

    def measured(self) -> list[Key]:
        """What was measured, by workers."""
        found = {(row["system"], row["workers"]) for row in self._right}
        return [(system, workers) for workers in WORKERS for system in SERVERS if (system, workers) in found]


def communication_ms(row: dict[str, Any]) -> float:
    """Of one start."""
    return statistics.median(row["communication_ms"])


def samples_per_s(row: dict[str, Any]) -> float:
    """Of one start, all workers together."""
    return row["workers"] * BATCH / statistics.median(row["step_ms"]) * 1e3


def busy_cores(row: dict[str, Any]) -> float:
    """Of one start."""
    return float(row["busy_cores"])


def tables(
    found: Measured, table: Callable[[list[str], list[list[str]]], str], spread: Callable[[list[float]], str]
) -> str:
    """Communication beside its bounds, and what machines give."""
    times, costs = [], []
    for system, workers in found.measured():
        bound = bound_s(system, workers, found.rate)
        ring = bound_s(RING, workers, found.rate)
        servers = SERVERS[system](workers)
        taken = found.of(system, workers, communication_ms)
        middle = statistics.median(taken)
        allowed = f"{bound * 1e3:.0f}"
        if servers:
            low, high = servers_range_s(workers, servers, sum(TENSORS), found.rate)
            allowed += f" ({low * 1e3:.0f} to {high * 1e3:.0f})"
        times.append(
            [
                str(workers), system, spread(taken), allowed,
                f"{middle / (bound * 1e3) - 1:+.0%}" if bound else "",
                f"{middle / (ring * 1e3):.2f}" if ring else "",
                f"{statistics.median(found.of(system, workers, busy_cores)):.1f}",
            ]
        )  # fmt: skip
        rates = found.of(system, workers, samples_per_s)
        machines = workers + servers
        efficiency = statistics.median(rates) * COMPUTE_S / BATCH / workers
        costs.append(
            [
                str(workers), system, str(machines), spread(rates), f"{efficiency:.0%}",
                f"{statistics.median(rates) / machines:.2f}",
            ]
        )  # fmt: skip
    text = table(
        ["workers", "system", "communication of a step, ms", "bandwidth allows, ms", "over it", "of the ring's bound",
         "cores busy"],
        times,
    )  # fmt: skip
    text += "\n\n" + table(["workers", "system", "machines", "samples/s", "efficiency", "samples/s and machine"], costs)
    wrong = [f"{row['system']} with {row['workers']} workers ({row['wrong']})" for row in found.wrong]
    text += f"\n\n{len(found.rows)} starts"
    return text + (f"; wrong weights, left out: {'; '.join(wrong)}" if wrong else ", all with the right weights") + "."


def predictions(program: Path, rate: float) -> dict[str, dict[int, float]]:
    """Seconds of communication by system and workers, up to 64, from the engine's cost model."""
    words = [str(program), f"{rate:.0f}", str(LATENCY_S), str(sum(TENSORS)), str(LAYERS)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, dict[int, float]] = {system: {} for system in SERVERS}
    for line in map(json.loads, done.stdout.splitlines()):
        for system in SERVERS:
            if system.removeprefix(f"{RING}, ") == line["system"]:
                found[system][line["workers"]] = line["seconds"]
    return found


def plot(found: Measured, program: Path, to: Path) -> None:
    """Throughput and efficiency as measured, and up to 64 workers as the cost model has them."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import matplotlib.ticker

    figure, (bars, lines) = plt.subplots(1, 2, figsize=(13, 5.2))
    efficiency = bars.twinx()
    counts = sorted({workers for _, workers in found.measured()})
    predicted = predictions(program, found.rate)
    width = 0.8 / len(SERVERS)
    for index, system in enumerate(SERVERS):
        color = COLORS[system]
        measured = [found.of(system, workers, samples_per_s) for workers in counts]
        middle = [statistics.median(values) for values in measured]
        reach = [[m - min(v) for m, v in zip(middle, measured, strict=True)],
                 [max(v) - m for m, v in zip(middle, measured, strict=True)]]  # fmt: skip
        places = [place + (index - (len(SERVERS) - 1) / 2) * width for place in range(len(counts))]
        bars.bar(places, middle, 0.95 * width, yerr=reach, capsize=2, color=color, alpha=0.75, label=system)
        allowed = [throughput(workers, bound_s(system, workers, found.rate)) for workers in counts]
        bars.plot(places, allowed, ls="", marker="_", ms=14, mew=2, color="black", label="bandwidth allows")
        share = [rate * COMPUTE_S / BATCH / workers for rate, workers in zip(middle, counts, strict=True)]
        efficiency.plot(range(len(counts)), share, marker="o", ms=4, lw=1.5, color=color)
        curve = predicted[system]
        lines.plot(list(curve), [throughput(n, s) for n, s in curve.items()], color=color, label=system)
        lines.errorbar(counts, middle, yerr=reach, ls="", marker="o", ms=5, capsize=2, color=color)
    lines.plot([], [], ls="", marker="o", color="grey", label="measured")
    # Every system has drawn its own bounds: one entry says what they are.
    handles, labels = bars.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    bars.legend(unique.values(), unique.keys(), loc="upper center", fontsize=9)
    bars.set_xticks(range(len(counts)), [str(count) for count in counts])
    bars.set(xlabel="workers", ylabel="samples a second (bars)", title="Throughput and scaling efficiency, measured")
    efficiency.set(ylabel="throughput / workers, of one that does not communicate (lines)", ylim=(0, 1.05))
    lines.set_xscale("log", base=2)
    lines.set_yscale("log", base=2)
    for axis in (lines.xaxis, lines.yaxis):
        axis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
    lines.set(xlabel="workers", ylabel="samples a second", title="The cost model up to 64 workers, and measured points")
    lines.grid(alpha=0.3)
    lines.legend(fontsize=9)
    figure.tight_layout()
    to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(to, dpi=110)
