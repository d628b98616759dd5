"""The command `ringcore`: a table of sub-commands, each imported only when it is called."""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence

from ringcore._version import __version__

# As the shell tells it of programs that SIGPIPE has ended, which Python ignores; ringrun has the same.
_EXIT_PIPE = 128 + signal.SIGPIPE

# Name -> (where its function `(argv) -> exit code` is, one line of help). Without a name behind the module: `main`.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("ringcore.launcher.main", "start the ranks of a job (also: ringrun)"),
    "doctor": ("ringcore.commands.doctor", "try what is installed here, and tell what to do about what does not work"),
    "explain": ("ringcore.commands.explain", "tell what an error means, and which mistakes lead to it"),
    "migrate": ("ringcore.commands.migrate", "show what changes in a script that was written for Horovod"),
    "demo": ("ringcore.commands.demo", "let two ranks sum an array, and draw what they did: ten seconds"),
    "status": ("ringcore.commands.status", "tell what the ranks of a running job do, and wait for"),
    "top": ("ringcore.commands.top", "show a running job as it goes"),
    "stacks": ("ringcore.commands.stacks", "tell where the Python threads of a running job stand"),
    "timeline": ("ringcore.commands.timeline", "tell who waited for whom, and what was slow, in a timeline"),
    "plan": ("ringcore.commands.plan", "look at a plan of a collective in a file, verify, predict and run it"),
    "topology": ("ringcore.commands.topology", "measure what lies between hosts, and draw it, for jobs to plan with"),
    "switch": ("ringcore.commands.switch", "sum on the way what the ranks of jobs send (also: ringcore-switch)"),
    "simulate": ("ringcore.commands.simulate", "tell what a job of many ranks would take, without them"),
    "scale": ("ringcore.commands.orders:scale", "let an elastic job have more ranks or fewer"),
    "drain": ("ringcore.commands.orders:drain", "let a rank leave an elastic job"),
    "env": ("ringcore.launcher.env", "tell which launcher placed this process, and which settings it has"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command.

    Args:
        argv: Without the program's name; `None` is `sys.argv[1:]`.

    Returns:
        The exit code.
    """
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:  # Also behind the help that argparse prints: what is written later, Python complains about.
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        if not _let_readers_go():
            raise
        return _EXIT_PIPE


def _let_readers_go() -> bool:
    """Whether who read standard output or standard error has gone, as `head` does; nothing more is written there."""
    gone = [fd for fd in (1, 2) if _has_no_reader(fd)]
    for fd in gone:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, fd)
        os.close(null)
    return bool(gone)


def _has_no_reader(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _run(words: list[str]) -> int:
    if words and words[0] in COMMANDS:
        module, _, function = COMMANDS[words[0]][0].partition(":")
        run: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function or "main")
        return run(words[1:])
    if words and words[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if words and words[0] == "--version":
        print(f"ringcore {__version__}")
        return 0
    print((_wrong(words[0]) if words else "") + _usage(), file=sys.stderr)
    return 2


def _wrong(word: str) -> str:
    import difflib

    near = difflib.get_close_matches(word, COMMANDS, 1)
    return f"ringcore: there is no command {word!r}" + (f"; did you mean {near[0]!r}?\n" if near else "\n")


def _usage() -> str:
    width = max(map(len, COMMANDS))
    rows = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(["usage: ringcore COMMAND [options]", "       ringcore --version", "", "commands:", *rows])
