"""The command `ringcore migrate`: shows what changes in a script that was written for Horovod."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Migration:
    """What a script becomes.

    Attributes:
        source: The new text; the old one where there are notes.
        notes: (line, what has no counterpart, and what to do).
    """

    source: str
    notes: list[tuple[int, str]]


def migrate(text: str) -> Migration:
    """Turn a script for Horovod into one for ringcore.

    Args:
        text: Python source.

    Returns:
        The new source; or the same one, and what stands in the way.

    Raises:
        SyntaxError: It is no Python.
    """
    import libcst
    from libcst.codemod import CodemodContext
    from libcst.codemod.visitors import AddImportsVisitor

    from ringcore.commands._horovod_script import ScriptTransformer

    try:
        wrapper = libcst.MetadataWrapper(libcst.parse_module(text))
    except libcst.ParserSyntaxError as error:
        raise SyntaxError(str(error)) from error
    transformer = ScriptTransformer(elastic=".elastic." in text)
    module = wrapper.visit(transformer)
    if transformer.notes:
        return Migration(text, sorted(set(transformer.notes)))
    context = CodemodContext()
    for name in sorted(transformer.needs):
        AddImportsVisitor.add_needed_import(context, name)
    return Migration(AddImportsVisitor(context).transform_module(module).code, [])


def _diff(name: str, before: str, after: str) -> Iterator[str]:
    return difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"{name} (Horovod)", f"{name} (ringcore)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Show the differences, or apply them.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0; 1 when a file stays as it is, as something in it has no counterpart; 2 when one cannot be used, or libcst is
        not installed.
    """
    parser = argparse.ArgumentParser(
        prog="ringcore migrate",
        description="Shows what changes in scripts that were written for Horovod. One in which something has no "
        "counterpart stays as it is. Without changes they run as well: pip install ringcore-horovod.",
    )
    parser.add_argument("scripts", nargs="+", type=Path, metavar="script.py")
    parser.add_argument("--write", action="store_true", help="change the files, each as a whole or not at all")
    options = parser.parse_args(argv)
    if importlib.util.find_spec("libcst") is None:
        print(
            "ringcore migrate reads scripts with libcst, which is not installed: pip install 'ringcore[migrate]'",
            file=sys.stderr,
        )
        return 2
    code = 0
    for script in options.scripts:
        try:
            before = script.read_bytes().decode()  # with the ends of its lines as they are
            migration = migrate(before)
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            print(f"ringcore migrate: {script}: {error}", file=sys.stderr)
            return 2
        sys.stdout.writelines(_diff(str(script), before, migration.source))
        if options.write and not migration.notes:
            script.write_text(migration.source, encoding="utf-8", newline="")
        for line, note in migration.notes:
            print(f"{script}:{line}: {note}", file=sys.stderr)
        if migration.notes:
            print(f"{script}: stays as it is; it runs with pip install ringcore-horovod", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
