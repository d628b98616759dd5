"""A process that has imported what ranks and their agents need, and forks them: to start Python twice takes longer.

Nothing is inherited that a new process would not have. It has one thread, has run nothing of the user's, and has the
environment in which it was started; what a job sets besides is read when the rank's function runs. Only numpy looks at
a variable when it is imported: a rank that is to have another number of threads is a new interpreter.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from ringcore._objects import unpickle
from ringcore.launcher import _process, agent
from ringcore.launcher.external.answers import CODE_RANK_FAILED, ENDED, RANK_FAILED
from ringcore.launcher.external.ready import ReadyRank, Threads

_MODULES = (
    "cloudpickle", "encodings.idna", "importlib.metadata", "ringcore.adapter", "ringcore.bootstrap.mesh",
    "ringcore.job.lifecycle",
)  # fmt: skip
_ARRAYS = ("numpy", "ringcore.arrays")


def main() -> None:
    """Fork an agent, with a rank, for each job that comes through a socket, until the other end is closed."""
    line = socket.socket(fileno=int(sys.argv[1]))
    _import(_MODULES)
    imported_for: str | None = None  # so many threads
    while descriptors := socket.recv_fds(line, 16, 2)[1]:
        said, say = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        pid = _fork_agent(line, descriptors, Threads(say, imported_for))
        for fd in (*descriptors, say):
            os.close(fd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        line.send(RANK_FAILED if code == CODE_RANK_FAILED else ENDED)
        with open(said, "rb", buffering=0) as file:
            threads = (file.read(64) or b"").decode()
        if threads and imported_for is None:
            _import_arrays(threads)
            imported_for = threads


def _import(names: Sequence[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:  # The function may do without; if not, it fails and tells.
            pass
    gc.freeze()  # A collection in a fork would copy the pages of everything that it looks at.


def _import_arrays(threads: str) -> None:
    """Import numpy for ranks that are like the last one."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = threads
    _import(_ARRAYS)
    if before is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = before


def _fork_agent(line: socket.socket, descriptors: Sequence[int], threads: Threads) -> int:
    arm = _process.die_with_parent()
    pid = os.fork()
    if pid == 0:
        arm()
        os.setsid()
        line.close()
        _be_agent(descriptors[0], descriptors[1], threads)
    return pid


def _be_agent(connection: int, given_fd: int, threads: Threads) -> NoReturn:
    rank = ReadyRank(threads)  # Before anything is here that a rank does not have.
    code = 1
    try:
        with open(given_fd, "rb") as file:
            given: dict[str, Any] = unpickle(file.read())
        for standard in (0, 1):
            os.dup2(connection, standard)
        os.close(connection)
        os.environ.update(given["environ"])
        code = CODE_RANK_FAILED if agent.serve(given, rank.start) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # It has nothing to tidy up, and the interpreter would take its time for that.


if __name__ == "__main__":
    main()
