"""What the page about timelines says is true: its code runs, its commands say what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def blocks_of(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text()
    return [
        block
        for name, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if name == language
    ]


def run(command: str, folder: Path) -> str:
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_page_about_timelines(tmp_path: Path) -> None:
    (program,) = blocks_of("timeline.md", "python")
    (commands,) = blocks_of("timeline.md", "sh")
    # The one recording would begin within the other.
    (tmp_path / "train.py").write_text("\n".join(line for line in program.splitlines() if "_timeline" not in line))
    said = [run(command, tmp_path) for command in commands.splitlines()][-1]
    for words in ("recorded", "communicated", "not hidden", "for others", "who waited for whom", "slowest operations"):
        assert words in said, said
        assert words in (DOCS / "timeline.md").read_text()
    assert "<svg" in (tmp_path / "trace.html").read_text()
    (tmp_path / "part.py").write_text(program)
    run("ringrun -np 2 python part.py", tmp_path)
    assert "gradients" in run("ringcore timeline part.json --no-html", tmp_path)
