"""Values of ringrun's options: each function reads one kind of text, or says what would be accepted."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable

from ringcore._errors import InvalidArgument
from ringcore.environment import settings as _settings

_ELASTIC = "ringrun's elastic jobs are asked for by --min-np and --max-np, see docs/elastic.md"


def setting_text(name: str) -> Callable[[str], str]:
    """The check of a setting's text."""

    def check(text: str) -> str:
        try:
            _settings.parse(name, text, origin="value")
        except InvalidArgument as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return check


def _pattern(pattern: str, accepted: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if re.fullmatch(pattern, text, re.ASCII) is None:
            raise argparse.ArgumentTypeError(f"value is {text!r}, but accepted is {accepted}")
        return text

    return check


def positive(text: str) -> int:
    """A number of at least 1."""
    return int(_pattern(r"0*[1-9][0-9]{0,5}", "a whole number of at least 1")(text))


def count(text: str) -> int:
    """A number of at least 0."""
    return int(_pattern(r"[0-9]{1,6}", "a whole number")(text))


def port(text: str) -> int:
    """A port."""
    port = int(_pattern(r"[0-9]{1,5}", "a port from 1 to 65535")(text))
    if not 0 < port < 65536:
        raise argparse.ArgumentTypeError(f"value is {text!r}, but accepted is a port from 1 to 65535")
    return port


def command(text: str) -> tuple[str, ...]:
    """A program and its arguments."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"value is {text!r}, which is no command: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("names no program")
    return tuple(words)


def seconds(text: str) -> float:
    """A number of seconds."""
    return float(_pattern(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", "a number of seconds")(text))


def factor(text: str) -> float:
    """A number greater than 1."""
    number = float(_pattern(r"[0-9]+(\.[0-9]*)?", "a number greater than 1")(text))
    if number <= 1:
        raise argparse.ArgumentTypeError(f"value is {text!r}, but accepted is a number greater than 1")
    return number


def mebibytes(text: str) -> str:
    """A number of MiB, as bytes."""
    return str(int(float(_pattern(r"[0-9]+(\.[0-9]*)?", "a number of MiB")(text)) * 1024**2))


def nodes(text: str) -> tuple[int, int]:
    """A number of hosts, or torchrun's range of an elastic job."""
    low, sign, high = _pattern(r"[0-9]{1,6}(:[0-9]{1,6})?", "a number, or MIN:MAX")(text).partition(":")
    least, most = positive(low), positive(high if sign else low)
    if least > most:
        raise argparse.ArgumentTypeError(f"value is {text!r}, but MIN is more than MAX: the job could never run")
    return least, most


def place_to_listen(text: str) -> tuple[str | None, int]:
    """PORT or HOST:PORT."""
    host, sign, number = text.rpartition(":")
    if sign and not host.strip("[]"):
        raise argparse.ArgumentTypeError(f"value is {text!r}, but accepted is PORT or HOST:PORT")
    return host.strip("[]") or None, port(number)


def no_restart(text: str) -> int:
    """Zero."""
    if count(text) > 0:
        raise argparse.ArgumentTypeError(f"value is {text!r}, but {_ELASTIC}: only 0 is accepted")
    return 0


def ranks_per_node(text: str) -> int:
    """A number, or what this host has: cpu, gpu or auto."""
    if text not in ("cpu", "gpu", "auto"):
        return positive(text)
    gpus = _gpus()
    if text == "gpu" and not gpus:
        raise argparse.ArgumentTypeError("value is 'gpu', but there is none here")
    return gpus if gpus and text != "cpu" else len(os.sched_getaffinity(0))


def _gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([word for word in visible.split(",") if word.strip() not in ("", "-1")])
    return len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia[0-9]+", name)])


def numbers(text: str) -> frozenset[int]:
    """Numbers with commas between them."""
    return frozenset(map(int, _pattern(r"[0-9]+(,[0-9]+)*", "numbers such as 0,1")(text).split(",")))


def assignment(text: str) -> str:
    """NAME or NAME=VALUE."""
    return _pattern(r"[A-Za-z_][A-Za-z0-9_]*(=[^\0]*)?", "NAME or NAME=VALUE")(text)


def streams(text: str) -> dict[int | None, int]:
    """Parses `3`, or `0:3,1:2` with local ranks; the key `None` holds for all ranks."""
    checked = _pattern(r"[0-3]|[0-9]+:[0-3](,[0-9]+:[0-3])*", "0, 1, 2 or 3, or such as 0:3,1:2")(text)
    if ":" not in checked:
        return {None: int(checked)}
    return {int(part.partition(":")[0]): int(part[-1]) for part in checked.split(",")}
