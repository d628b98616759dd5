"""docs/settings.md: every setting, variable and option, made from the code by running this file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from ringcore.commands import cli
from ringcore.environment import settings
from ringcore.launcher import _parser

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
_HEAD = """# Settings, variables and options

<!-- Made from the code by `python tests/support/settings_page.py`. -->

Every setting is a variable of the environment, an option of `ringrun`, and a line of its configuration file. What the
command line says comes first, then the configuration file, then the environment. `ringcore env` prints which value each
setting has, and where it comes from; a variable that begins with `RINGCORE_` and means nothing is pointed out.

## Settings

"""
_PLACEMENT = """
## Variables that say where a rank is

Launchers set them; a rank that none of them has placed is a job of its own. `ringcore env` tells
which one was believed.

| launcher, in the order in which they are asked | variables |
|---|---|
| ringrun | `RINGCORE_RANK`, `RINGCORE_SIZE`, and the same with `LOCAL_` and `CROSS_`; `RINGCORE_SERVERS` |
| torchrun, or your own | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` |
| mpirun, mpiexec | those of Open MPI (`OMPI_COMM_WORLD_*`), MPICH and Intel MPI (`PMI_*`) |
| srun | `SLURM_*` |
| Horovod's launcher | `HOROVOD_*` |
| a Kubernetes Indexed Job | `JOB_COMPLETION_INDEX`, with `RINGCORE_SIZE` |

## Other variables

| variable | meaning |
|---|---|
"""


def page() -> str:
    """What docs/settings.md is to say."""
    return _HEAD + "\n".join([*_settings(), ""]) + _PLACEMENT + "\n".join([*_others(), *_commands(), *_options(), ""])


def _settings() -> Iterator[str]:
    yield from ("| variable, option | meaning; what is accepted | default |", "|---|---|---|")
    for name, field in settings.Settings.__dataclass_fields__.items():
        words = [f"--{name.replace('_', '-')}", *field.metadata["aliases"]]
        called = "<br>".join(f"`{word}`" for word in (settings.variable(name), *words))
        meaning = f"{field.metadata['help']}<br>*{field.metadata['accepts']}*"
        yield _row([called, meaning, _parser._shown(field.default)])


def _others() -> Iterator[str]:
    yield from (_row([f"`{name}`", text]) for name, text in settings.OTHER_VARIABLES.items())


def _commands() -> Iterator[str]:
    yield from ("", "## Commands", "", "| command | what it does |", "|---|---|")
    yield from (_row([f"`ringcore {name}`", text]) for name, (_, text) in cli.COMMANDS.items())


def _options() -> Iterator[str]:
    parser = _parser.build({})
    yield from ("", "## Options of ringrun", "", "Beside those of the settings above:")
    for group in parser._action_groups:
        rows = [_option(action) for action in group._group_actions if _is_shown(action)]
        if rows:
            yield from ("", f"### {(group.title or '').capitalize()}", "", "| option | meaning |", "|---|---|", *rows)


def _is_shown(action: argparse.Action) -> bool:
    own = not action.dest.startswith("setting_") and action.dest != "help"
    return own and action.help != argparse.SUPPRESS and bool(action.option_strings)


def _option(action: argparse.Action) -> str:
    metavar = " ".join(action.metavar) if isinstance(action.metavar, tuple) else action.metavar
    value = f" {metavar}" if metavar else ""
    return _row(["<br>".join(f"`{word}{value}`" for word in action.option_strings), action.help or ""])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"wrote {PAGE}\n")
