"""The command `ringcore-switch`: a daemon in user space that sums what ranks send it over UDP."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from ringcore import _native
from ringcore._errors import RingcoreError
from ringcore._version import __version__
from ringcore.bootstrap.aggregation import switch_key
from ringcore.bootstrap.keys import ensure_users_key
from ringcore.environment.settings import parse


class _EndError(Exception):
    """Somebody has asked this process to end."""


def main(argv: Sequence[str] | None = None) -> int:
    """The sub-command.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0 when it was asked to end; 2 when what was asked for is wrong.
    """
    options = _parser().parse_args(argv)
    try:
        host, port = _address(options.listen, "--listen")
        parent = None if options.parent is None else _address(options.parent, "--parent")
        if options.key_file is None:
            ensure_users_key()
        switch = _native.Switch(
            host, port, switch_key(options.key_file), parent=parent, members=options.members, sessions=options.sessions
        )
    except (RingcoreError, OSError) as error:
        print(f"ringcore-switch: {error}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    try:
        print(f"ringcore-switch {__version__} listens at {switch.address}", flush=True)
        switch.run()
    except _EndError:
        pass
    packets, foreign, forged, refused, *_ = switch.counts()
    print(f"{packets} packets; {foreign} that were not ours, {forged} of another key, {refused} without a session")
    return 0


def _end(_number: int, _frame: FrameType | None) -> None:
    raise _EndError


def _address(text: str, origin: str) -> tuple[str, int]:
    """HOST:PORT; of the own address the port may be 0: any."""
    if text.endswith(":0"):
        return text[:-2].strip("[]"), 0
    host, port = parse("switch", text, origin=origin)
    return host, port


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ringcore-switch",
        description="Sum on the way what the ranks of jobs send: for ringrun --switch HOST:PORT.",
        epilog="Ranks have the same key: RINGCORE_SWITCH_KEY_FILE, or ~/.ringcore/key in a home directory that all "
        "hosts share.",
    )
    add = parser.add_argument
    add("--listen", default="127.0.0.1:29600", metavar="HOST:PORT", help="address of this host (%(default)s)")
    add("--key-file", metavar="FILE", help="of mode 0600: 32 bytes, or 64 hex digits; else ~/.ringcore/key")
    add("--parent", metavar="HOST:PORT", help="the next switch, whose worker this one is")
    add("--members", type=_count, default=0, metavar="N", help="workers and switches of a job below this one; 0: ranks")
    add("--sessions", type=_count, default=64, metavar="N", help="at most, three a job (%(default)s)")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


if __name__ == "__main__":
    sys.exit(main())
