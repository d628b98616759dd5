"""What trials have found, kept in a file of the user for later jobs: an entry for each shape of a job.

Several jobs may write it at the same time, so that whoever adds an entry locks it. Nobody waits for long: what is kept
is a hint.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringcore.job.state import context

_PATIENCE_S = 10.0


def kept_in() -> Path:
    """Where it is kept, on this host.

    Raises:
        RuntimeError: The user has no home, and no other place was named.
    """
    asked = context().settings.autotune_file
    if asked is not None:
        return Path(asked)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ringcore", "tuned.json")


def entries(path: Path) -> dict[str, Any]:
    """All that is kept, by key; nothing where the file is not there, or is none of ours."""
    try:
        every = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return every if isinstance(every, dict) else {}


def add(path: Path, key: str, entry: dict[str, Any]) -> None:
    """Keep an entry beside all others, in place of one of the same key.

    Raises:
        OSError: It cannot be written, or another process does not end writing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with _locked(path.with_name(f"{path.name}.lock")):
        every = {**entries(path), key: entry}
        beside.write_text(json.dumps(every, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        beside.replace(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock goes with its holder, however that ends; its file stays."""
    deadline = time.monotonic() + _PATIENCE_S
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError(0, f"another process has held {path.name} for {_PATIENCE_S:g} s") from None
                time.sleep(0.005)
        yield
