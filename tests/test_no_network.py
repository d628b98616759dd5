"""To import ringcore, any module of it, or an adapter that is here asks nothing of a network."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

ADAPTERS = [f"ringcore_{name}" for name in ("torch", "tensorflow", "keras", "jax", "mxnet", "lightning")]
HERE = [name for name in ADAPTERS if all(map(importlib.util.find_spec, (name, name.removeprefix("ringcore_"))))]

# Python itself tells of each: nothing can open a connection past it, but a library of C.
WATCH = """
import sys
asked = []

def hear(event, arguments):
    if event.startswith(("socket.connect", "socket.bind", "socket.get", "socket.send", "urllib.", "http.")):
        asked.append((event, arguments))

sys.addaudithook(hear)
"""
IMPORT_ALL = """
import importlib, pkgutil, ringcore
for module in pkgutil.walk_packages(ringcore.__path__, "ringcore."):
    if not module.name.endswith("__main__") and ".lib" not in module.name:  # nor what only MPI loads
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:  # of an extra that is not installed
            assert not error.name.startswith("ringcore"), error
assert len([name for name in sys.modules if name.startswith("ringcore.")]) > 50
"""
SAY = "assert not asked, asked\n"


IMPORT_ADAPTERS = "".join(f"import {name}\n" for name in HERE)


@pytest.mark.parametrize("imports", [IMPORT_ALL, IMPORT_ADAPTERS], ids=["the core", "adapters"])
def test_an_import_uses_no_network(imports: str) -> None:
    subprocess.run([sys.executable, "-c", WATCH + imports + SAY], check=True, timeout=300)


def test_what_looks_for_the_network_finds_it() -> None:
    uses = "import socket\nwith socket.socket() as probe:\n    probe.connect_ex(('127.0.0.1', 9))\n"
    done = subprocess.run([sys.executable, "-c", WATCH + uses + SAY], capture_output=True, timeout=300, check=False)
    assert b"AssertionError" in done.stderr and b"socket.connect" in done.stderr
