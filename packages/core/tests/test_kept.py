"""What trials have found is kept for later jobs, whoever else writes at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ringcore.adapter import kept

WRITER = """
import sys
from pathlib import Path
from ringcore.adapter import kept

print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    kept.add(Path(sys.argv[1]), f"{sys.argv[2]}.{number}", {"way": "a way", "seconds": 0.5})
"""


def test_jobs_that_end_their_trials_at_once_lose_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "tuned.json"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(writer)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )
        for writer in range(4)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    assert kept.entries(path).keys() == {f"{writer}.{number}" for writer in range(4) for number in range(20)}


def test_nobody_waits_for_who_holds_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_PATIENCE_S", 0.02)
    path = tmp_path / "tuned.json"
    with kept._locked(tmp_path / "tuned.json.lock"), pytest.raises(OSError, match="another process has held"):
        kept.add(path, "key", {})
    kept.add(path, "key", {"way": "a way"})
    path.with_name("tuned.json.lock").unlink()
    kept.add(path, "other", {})
    assert kept.entries(path) == {"key": {"way": "a way"}, "other": {}}


def test_what_is_no_file_of_ours_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    for text in ("{", "[1]"):
        path.write_text(text)
        assert kept.entries(path) == {}
    kept.add(path, "key", {})
    assert kept.entries(path) == {"key": {}}
