"""What commands show people: tables, texts and pictures, by libraries that may be missing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import IO, Any

from ringcore._errors import InvalidArgument


def print_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    right: bool = False,
    file: IO[str] | None = None,
) -> None:
    """Print a table; with rich where that is installed.

    Args:
        headings: Of its columns.
        rows: A cell for each column.
        title: Above it.
        right: Whether all columns but the first are aligned to the right.
        file: Where to; None is standard output.
    """
    out = file or sys.stdout
    if not _has_rich():
        _print_plain([headings, *rows], title, right, out)
        return
    table: Any = importlib.import_module("rich.table").Table(title=title or None)
    for column, heading in enumerate(headings):
        table.add_column(heading, justify="right" if right and column else "left")
    for row in rows:
        table.add_row(*row)
    importlib.import_module("rich.console").Console(file=out).print(table)


def _print_plain(table: Sequence[Sequence[str]], title: str, right: bool, file: IO[str]) -> None:
    width, *widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    aligned = str.rjust if right else str.ljust
    if title:
        print(title, file=file)
    for first, *others in table:
        print("  ".join([first.ljust(width), *map(aligned, others, widths)]).rstrip(), file=file)


def print_markdown(text: str) -> None:
    """Print a text that is written in Markdown: laid out, where rich is installed."""
    if not _has_rich():
        print(text)
        return
    importlib.import_module("rich.console").Console().print(importlib.import_module("rich.markdown").Markdown(text))


def _has_rich() -> bool:
    try:
        importlib.import_module("rich")
    except ImportError:
        return False
    return True


def new_figure(width: float, height: float) -> Any:
    """A figure of matplotlib, which is saved without a screen.

    Args:
        width: In inches.
        height: In inches.

    Raises:
        InvalidArgument: matplotlib is not installed.
    """
    try:
        return importlib.import_module("matplotlib.figure").Figure(figsize=(width, height))
    except ImportError:
        raise InvalidArgument("a picture needs matplotlib: pip install 'ringcore[simulate]'") from None
