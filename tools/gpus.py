"""Which GPUs this machine has, and what was measured on them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import nox

from tools.environments import ROOT


def found_gpus(session: nox.Session, without: str) -> list[str]:
    """The GPUs, a line each; skips the session, for this reason, where there are none."""
    if shutil.which("nvidia-smi") is None:
        session.skip(f"there is no GPU here (no nvidia-smi); {without}")
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines()


def keep_results(session: nox.Session, gpu: str, report: str) -> None:
    """Write the JSON lines of a report to benchmarks/results/gpu-NAME.json, where those of other cases stay."""
    rows = [json.loads(line[line.index("{") :]) for line in report.splitlines() if "{" in line]
    name = re.sub(r"[^a-z0-9]+", "-", gpu.partition(":")[2].partition("(")[0].strip().lower())
    target = ROOT / "benchmarks" / "results" / f"gpu-{name}.json"
    again = {row["case"] for row in rows}
    before = json.loads(target.read_text())["results"] if target.exists() else []
    kept = [row for row in before if row["case"] not in again]
    target.write_text(json.dumps({"gpu": gpu.partition(" (")[0], "results": kept + rows}, indent=1) + "\n")
    session.log(f"wrote {target.relative_to(ROOT)}")
