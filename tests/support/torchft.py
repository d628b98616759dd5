"""A Python that has torchft, beside which ringcore is measured and compared."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "build" / "torchft"
_PACKAGES = ["torch==2.13.0", "numpy", "torchft-nightly"]


def torchft_python() -> Path:
    """It, in an environment that is made now if there is none yet."""
    if not (_FOLDER / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(_FOLDER)], check=True)
        subprocess.run([str(_FOLDER / "bin" / "pip"), "install", "-q", *_PACKAGES], check=True)
        (_FOLDER / "complete").touch()
    return _FOLDER / "bin" / "python"


def lighthouse_command(address: str, port: int, replicas: int) -> list[str]:
    """What torchft's replicas meet at."""
    program = str(torchft_python().with_name("torchft_lighthouse"))
    words = ["--min_replicas", str(replicas), "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]
    return [program, *words, "--bind", f"{address}:{port}"]


@contextlib.contextmanager
def lighthouse(address: str, replicas: int) -> Iterator[str]:
    """One that runs on this host; gives its URL."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
    with subprocess.Popen(lighthouse_command(address, port, replicas), stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://{address}:{port}"
        finally:
            process.kill()
