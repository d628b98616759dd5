"""Every mistake in the folders here makes the errors that its script announces, on every rank.

A script says in its docstring what each rank raises (one name: all ranks; "-": nothing) and the words that must be in
every rank's message; docs/errors.md is made from the same lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import mistakes, ranks

RANKS = 2
TABLE = mistakes.read_all()


def make_mistakes(scripts: list) -> dict:
    import os
    import sys
    import traceback

    import ringcore

    environ = dict(os.environ)
    found = {}
    for script in scripts:
        try:
            exec(compile(Path(script).read_text(), script, "exec"), {"__name__": "__main__"})
            found[script] = ["-", ""]
        except Exception as error:
            found[script] = [type(error).__name__, "".join(traceback.format_exception_only(error))]
            sys.excepthook(*sys.exc_info())  # as if it ended the script
        ringcore.shutdown()
        os.environ.clear()
        os.environ.update(environ)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each rank has raised, by script: all of them in one start, with an init() and a shutdown() each."""
    scripts = [str(mistake.path) for mistake in TABLE]
    return ranks.run(make_mistakes, RANKS, tmp_path_factory.mktemp("mistakes"), scripts)


@pytest.mark.parametrize("mistake", TABLE, ids=lambda mistake: mistake.name)
def test_the_error_is_announced_and_has_the_words_on_every_rank(mistake: mistakes.Mistake, found: list[Any]) -> None:
    for rank, kind in enumerate(mistake.raised_on(RANKS)):
        raised, message = found[rank][str(mistake.path)]
        assert raised == kind, f"rank {rank}: {message}"
        if kind == "-":
            continue
        assert message.startswith(f"ringcore.{kind}: "), f"rank {rank}: {message}"
        missing = [word for word in mistake.words if word not in message]
        assert not missing, f"rank {rank}: {message}"
        assert "See `ringcore explain " in message, f"rank {rank}: {message}"


def test_there_are_as_many_mistakes_as_people_make() -> None:
    assert len(TABLE) >= 60
    assert len({mistake.title for mistake in TABLE}) == len(TABLE)


def test_the_page_is_made_from_the_table() -> None:
    assert mistakes.PAGE.read_text() == mistakes.page(), "out of date; write it with: python tests/support/mistakes.py"
