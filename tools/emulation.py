"""The engine's tests on another processor, which is emulated."""

from __future__ import annotations

import nox

from tools.engine import FEWER_SEEDS, run_native_tests
from tools.environments import require_system

_SYSTEM = {"SYSTEM_NAME": "Linux", "SYSTEM_PROCESSOR": "aarch64", "CXX_COMPILER": "aarch64-linux-gnu-g++"}
# What an emulator of a processor cannot carry, as it is no emulator of the kernel: test cases -> why.
_LEFT_OUT = {
    "sleep: a process sleeps*": "/proc tells the system calls of the emulator, by the numbers of its processor",
    "sleep: of the threads that a clock wakes*": "of the same",
    "segment: of the arenas of many ranks*": "an emulator takes address space of its own, which the test limits",
    "readiness: encrypted links*": "the system beside the cross compiler has no OpenSSL",
    "tls:*": "of the same",
}


def run_emulated_tests(session: nox.Session) -> None:
    """Compile the engine's tests for aarch64 and run them by qemu's emulation of one process."""
    require_system(session, "aarch64-linux-gnu-g++", "qemu-aarch64")
    for name, reason in _LEFT_OUT.items():
        session.log(f"left out: {name!r}, because {reason}")
    options = [f"-DCMAKE_{name}={value}" for name, value in _SYSTEM.items()]
    # doctest's own handlers of signals run on a stack that is too small for what the emulator saves there.
    options.append("-DCMAKE_CXX_FLAGS=-DDOCTEST_CONFIG_NO_POSIX_SIGNALS")
    emulator = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
    run_native_tests(session, "aarch64", *options, emulator=emulator, without=_LEFT_OUT, env=FEWER_SEEDS)
