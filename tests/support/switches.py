"""`ringcore-switch` on a host of a test."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.namespaces import Host

PROGRAM = str(Path(sys.executable).with_name("ringcore-switch"))
PORT = 29600


@dataclass
class Switch:
    """A running one.

    Attributes:
        address: Where it listens: HOST:PORT.
        process: It.
        counts: At its end: packets of ours, not ours, of another key, without a session.
    """

    address: str
    process: subprocess.Popen[bytes]
    counts: list[int] = field(default_factory=list)

    def kill(self) -> None:
        """Nothing is told to anybody."""
        self.process.kill()
        self.process.communicate(timeout=30)

    def end(self) -> None:
        """Let it end in order."""
        self.process.send_signal(signal.SIGTERM)
        said, _ = self.process.communicate(timeout=30)
        self.counts = [int(number) for number in re.findall(r"(\d+) (?:packets|that|of|without)", said.decode())]
        assert len(self.counts) == 4, said
        assert self.process.returncode == 0


def write_key(path: Path) -> Path:
    """A key that nobody else has."""
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(os.urandom(32))
    return path


@contextlib.contextmanager
def local_switch(key: Path) -> Iterator[Switch]:
    """Start one at loopback, at any port, and end it where it has not ended."""
    command = [PROGRAM, "--listen", "127.0.0.1:0", "--key-file", str(key)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = process.stdout.readline().decode()
    assert "listens at" in said, said
    started = Switch(said.split()[-1], process)
    try:
        yield started
    finally:
        if process.poll() is None:
            started.end()


@contextlib.contextmanager
def switch(host: Host, key: Path, *words: str) -> Iterator[Switch]:
    """Start one, and end it where it has not ended."""
    address = f"{host.address}:{PORT}"
    command = [PROGRAM, "--listen", address, "--key-file", str(key), *words]
    process = host.popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert b"listens at" in process.stdout.readline()
    started = Switch(address, process)
    try:
        yield started
    finally:
        if process.poll() is None:
            started.end()
