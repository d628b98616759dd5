"""The command `ringcore env`: what the environment says about this process, and who said it."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence

from ringcore._errors import InvalidArgument
from ringcore.environment import placement as _placement
from ringcore.environment import settings as _settings


def main(argv: Sequence[str] | None = None) -> int:
    """Print the placement with its source, why the other sources were not taken, and the settings.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0, or 1 if `ringcore.init()` would refuse this environment.
    """
    argparse.ArgumentParser(
        prog="ringcore env",
        description="Tells which launcher placed this process and why, and which settings it has.",
    ).parse_args(argv)
    lines, errors = report(os.environ)
    print("\n".join([*lines, *errors]))
    return 1 if errors else 0


def report(environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Describe an environment.

    Args:
        environ: Usually `os.environ`.

    Returns:
        Lines to show, and lines about what would be refused.
    """
    errors: list[str] = []
    lines = ["placement"]
    try:
        lines += _placement_lines(_placement.find_placement(environ))
    except InvalidArgument as error:
        errors.append(f"refused: {error}")
    lines += ["", "sources, first match wins"]
    for source, matched, reason in _placement.explain(environ):
        lines.append(f"  {'->' if matched else '  '} {source:<10}  {reason}")
    lines += ["", "settings"]
    for name in _settings.names():
        try:
            lines.append(_setting_line(name, environ))
        except InvalidArgument as error:
            errors.append(f"refused: {error}")
    lines += [f"  {line}" for line in _settings.told_unknown(environ)]
    return lines, ["", *errors] if errors else []


def _placement_lines(placement: _placement.Placement) -> Iterator[str]:
    for field in dataclasses.fields(placement):
        value = getattr(placement, field.name)
        if value is not None:
            yield f"  {field.name:<12} {value}"
    if placement.local_rank is None:
        yield "  local_rank   not told by the launcher; the ranks find it out when they meet"


def _setting_line(name: str, environ: Mapping[str, str]) -> str:
    variable = _settings.variable(name)
    text = environ.get(variable)
    if text:
        value = _settings.parse(name, text)
        origin = variable
    else:
        value = _settings.Settings.__dataclass_fields__[name].default
        origin = "default"
    shown = ",".join(value) if isinstance(value, tuple) else value
    return f"  {name:<24} {'-' if shown in (None, '') else shown}  ({origin})"
