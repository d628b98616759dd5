"""Holds the namespaces of a host of `support.namespaces`, and takes everything in them along when the test ends.

A program that is started in new namespaces with a pipe as its standard input. Also of a test that is killed the kernel
closes the other end; then whatever runs in the network namespace is killed, and the namespaces vanish with it.

Arguments: the directory of the group of hosts; the host's name. Without a name it is the switch between the hosts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_END_LIMIT_S = 20.0


def processes_in(holder: int) -> list[int]:
    """The processes in the network namespace of a holder, itself left out."""
    network = os.stat(f"/proc/{holder}/ns/net").st_ino
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has just ended.
            if (process / "ns/net").stat().st_ino == network and int(process.name) != holder:
                found.append(int(process.name))
    return found


def _become(name: str, directory: str) -> None:
    socket.sethostname(name)
    # The system's /sys shows the network that it was mounted in.
    for kind, target in (("tmpfs", "/dev/shm"), ("tmpfs", "/run"), ("sysfs", "/sys")):
        subprocess.run(["mount", "-t", kind, kind, target], check=True)
    Path("/run/sshd").mkdir()
    subprocess.run(["mount", "--bind", f"{directory}/hosts", "/etc/hosts"], check=True)


def _end_processes() -> None:
    deadline = time.monotonic() + _END_LIMIT_S
    while left := processes_in(os.getpid()):  # again: they may be starting others
        if time.monotonic() > deadline:
            sys.exit(f"processes {left} of the host do not end, though they were killed")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def main(directory: str, name: str = "") -> None:
    """Hold the namespaces until standard input is closed."""
    if name:
        _become(name, directory)
    print("ready", flush=True)
    sys.stdin.read()
    _end_processes()
    if not name:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
