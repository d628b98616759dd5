"""The command `ringcore migrate`: shows what changes in a script that was written for Horovod.

The script is parsed, and only the pieces of text that mean something else are replaced: comments and layout stay.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringcore.commands import _horovod as _tables


@dataclass(frozen=True, order=True)
class Edit:
    """Characters `begin` to `end` of the source become `text`."""

    begin: int
    end: int
    text: str


@dataclass(frozen=True)
class Migration:
    """What a script becomes.

    Attributes:
        source: The new text; the old one where there are notes.
        notes: (line, what has no counterpart, and what to do).
    """

    source: str
    notes: list[tuple[int, str]]


class _Source:
    """Text by the positions that `ast` gives: lines from 1, columns in bytes of UTF-8."""

    def __init__(self, text: str) -> None:
        self.text = text
        # As Python's parser splits them: not at form feeds and the like.
        self._lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", text)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def begin(self, node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> int:
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> int:
        # `ast.parse` always sets them.
        return self.offset(node.end_lineno or 0, node.end_col_offset or 0)

    def of(self, node: ast.expr) -> str:
        return self.text[self.begin(node) : self.end(node)]


class _Visitor(ast.NodeVisitor):
    def __init__(self, source: _Source) -> None:
        self.source = source
        self.edits: list[Edit] = []
        self.notes: list[tuple[int, str]] = []
        self.needs: set[str] = set()  # modules of ringcore that the script does not import by itself
        self.first_import: int | None = None
        self.indentation = ""
        self._paths: dict[str, str] = {}  # name in the script -> what of Horovod it stands for: "horovod.torch"

    # ---- Imports ----

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] != "horovod":
                continue
            self._note_import(node)
            target = _tables.MODULES.get(alias.name)
            if target is None:
                self._unavailable(node, alias.name)
                continue
            self._paths[alias.asname or "horovod"] = alias.name if alias.asname else "horovod"
            text = target if alias.asname is None else f"{target} as {alias.asname}"
            self._replace(alias, text)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level or module.split(".")[0] != "horovod":
            return
        self._note_import(node)
        lines: dict[str, list[str]] = {}
        for alias in node.names:
            path = f"{module}.{alias.name}"
            name = alias.asname or alias.name
            self._paths[name] = path
            if path in _tables.CONSTANTS:
                lines[f"{name} = {_tables.CONSTANTS[path]}"] = []
            elif path in _tables.MODULES:  # from horovod import torch as hvd
                lines[f"import {_tables.MODULES[path]} as {name}"] = []
            elif module in _tables.MODULES:
                self._missing(node.lineno, path)
                target, theirs = self._ours(path, alias.name)
                shown = f" as {name}" if alias.asname or theirs != alias.name else ""
                lines.setdefault(f"from {target} import ", []).append(f"{theirs}{shown}")
            else:
                self._unavailable(node, module)
        separator = "\n" + " " * node.col_offset
        self._replace(node, separator.join(head + ", ".join(names) for head, names in lines.items()))

    def _ours(self, path: str, name: str) -> tuple[str, str]:
        """The module of ringcore, and the name in it, of what a script imports."""
        moved = _tables.MOVED.get(path) or _tables.MOVED.get(name)
        if moved is not None:
            module, _, theirs = moved.rpartition(".")
            return module, theirs
        return _tables.MODULES[path.rpartition(".")[0]], _tables.RENAMED.get(path, name)

    def _note_import(self, node: ast.stmt) -> None:
        if self.first_import is None:
            self.first_import = self.source.begin(node)
            self.indentation = " " * node.col_offset

    # ---- Uses ----

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node) or ""
        module, _, name = path.rpartition(".")
        if path in _tables.MODULES:
            self._name_module(node, path)
        elif module in _tables.MODULES:
            self._missing(node.lineno, path)
            self._name(node, path, name)
        else:  # nothing of Horovod, or an attribute of what a module has
            self.generic_visit(node)

    def _name(self, node: ast.Attribute, path: str, name: str) -> None:
        moved = _tables.MOVED.get(path) or _tables.MOVED.get(name)
        if moved is not None:
            self.needs.add(moved.rpartition(".")[0])
            self._replace(node, moved)
        elif path in _tables.RENAMED:
            self._replace(node, f"{self.source.of(node.value)}.{_tables.RENAMED[path]}")
        else:
            self._name_module(node.value, path.rpartition(".")[0])

    def _name_module(self, node: ast.expr, module: str) -> None:
        """What names a module in full gets its new name; an alias stays, with what is inside of it."""
        if isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node) == module:
            self._replace(node, _tables.MODULES[module])

    def visit_Call(self, node: ast.Call) -> None:
        path = self._path(node.func)
        module, _, name = (path or "").rpartition(".")
        if self._is_trainer_of_lightning(node):
            self._lightning(node)
        elif name in _tables.ANSWERS and module in _tables.MODULES:
            self._replace(node, _tables.ANSWERS[name])
            return
        elif path is not None:
            self._call(node, path)
        elif self._paths:
            self._keras_2(node)
        self.generic_visit(node)

    def _call(self, node: ast.Call, path: str) -> None:
        module, _, name = path.rpartition(".")
        target = _tables.MOVED.get(path, "").rpartition(".")[0] or _tables.MODULES.get(module, "")
        signature = _tables.SIGNATURES.get(target, {}).get(name)
        if signature is None:
            return
        self._arguments(node, target, name, signature)
        given = {*signature[1][: len(node.args)], *(keyword.arg for keyword in node.keywords)}
        if name == "broadcast_variables":
            for argument in node.args[:1]:  # what was a method of optimizers is a property of Keras 3
                if isinstance(argument, ast.Call) and ast.unparse(argument).endswith(".variables()"):
                    self._replace(argument, self.source.of(argument.func))
        unless, added = _tables.ADDED.get((target, name), (set(), ""))
        if added and not {*unless, None} & given:
            self._append(node, added)
        passes = {"backward_passes_per_step", "average_aggregated_gradients"} & given
        if target == "ringcore_keras" and passes == {"backward_passes_per_step"}:
            self._append(node, "average_aggregated_gradients=False")
        if (target, name) == ("ringcore_keras", "DistributedOptimizer") and ".elastic." in self.source.text:
            # Such scripts fit a batch before their state is synchronized, so that there is a state.
            self._append(node, "check_weights=False")

    def _keras_2(self, node: ast.Call) -> None:
        """What every example of Horovod says, and Keras 3 does not take."""
        for given in node.keywords:
            if given.arg == "experimental_run_tf_function":
                self._drop(self.source.begin(given), self.source.end(given))

    def _append(self, node: ast.Call, text: str) -> None:
        end = self.source.end(node) - 1
        comma = "" if self.source.text[:end].rstrip().endswith((",", "(")) else ", "
        self.edits.append(Edit(end, end, f"{comma}{text}"))

    def _arguments(self, node: ast.Call, target: str, name: str, signature: tuple[int, tuple[str, ...]]) -> None:
        positional, names = signature
        prefix = ""
        if isinstance(node.func, ast.Attribute):
            whole = ast.unparse(node.func.value)
            prefix = f"{_tables.MODULES.get(whole, whole)}."
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            if len(node.args) > positional:
                self.notes.append((node.lineno, f"{name}(*...): behind {positional} arguments only keywords are taken"))
            return
        function = _Function(target, name, prefix, frozenset(keyword.arg for keyword in node.keywords))
        for keyword, argument in zip(names[positional:], node.args[positional:], strict=False):
            begin, end = self._with_parentheses(node, argument)
            self._argument(function, keyword, argument, (begin, begin, end))
        if len(node.args) > max(len(names), positional):
            self.notes.append((node.lineno, f"{name}: takes no more than {len(names)} arguments"))
        for given in node.keywords:
            if given.arg is not None:
                value, end = self.source.begin(given.value), self.source.end(given)
                self._argument(function, given.arg, given.value, (self.source.begin(given), value, end))

    def _argument(self, function: _Function, keyword: str, value: ast.expr, places: tuple[int, int, int]) -> None:
        """Name an argument as ringcore does; the text of its value stays, for it may be changed as well.

        Args:
            function: What is called.
            keyword: Horovod's name of the argument.
            value: What is passed.
            places: Where the argument begins (with its name, if it has one), where its value begins, and where it ends.
        """
        begin, inside, end = places
        target, name = function.module, function.name
        constant = value if isinstance(value, ast.Constant) else None
        dropped = {*_tables.DROPPED.get(target, ()), *_tables.DROPPED_OF.get((target, name), ())}
        if keyword in dropped or (
            constant and any(constant.value is default for default in _tables.DEFAULTS.get(keyword, ()))
        ):
            return self._drop(begin, end)
        if keyword in _tables.BY_HAND and _tables.BY_HAND_ONLY_OF.get(keyword, target) == target:
            what = name if name == "init" else f"{name}({keyword}=...)"
            self.notes.append((value.lineno, f"{what}: {_tables.BY_HAND[keyword]}"))
        elif keyword == "checkpoint_callback":
            self.edits += [Edit(begin, inside, "callbacks=["), Edit(end, end, "]")]
            if "callbacks" in function.given:
                self.notes.append((value.lineno, f"{name}(checkpoint_callback=...): add it to callbacks="))
        elif keyword == "verbose" and target in _tables.VERBOSE:
            self._verbose(constant, places)
        elif keyword == "average" and constant:
            self.edits.append(Edit(begin, end, f"op={function.prefix}Sum"))
        elif keyword == "average":
            self.edits.append(Edit(begin, inside, f"op={function.prefix}Average if ("))
            self.edits.append(Edit(end, end, f") else {function.prefix}Sum"))
        else:
            ours = _tables.RENAMED_KEYWORDS.get((target, keyword)) or _tables.RENAMED_KEYWORDS.get(keyword, keyword)
            self.edits.append(Edit(begin, inside, f"{ours}="))
        return None

    def _verbose(self, constant: ast.Constant | None, places: tuple[int, int, int]) -> None:
        begin, inside, end = places
        if constant is None:
            self.edits.append(Edit(begin, inside, "verbose=("))
            self.edits.append(Edit(end, end, ") > 1"))
        elif isinstance(constant.value, int) and constant.value > 1:
            self.edits.append(Edit(begin, end, "verbose=True"))
        else:
            self._drop(begin, end)

    @staticmethod
    def _is_trainer_of_lightning(node: ast.Call) -> bool:
        asked = [keyword.value for keyword in node.keywords if keyword.arg in ("accelerator", "strategy")]
        return any(isinstance(value, ast.Constant) and value.value == "horovod" for value in asked)

    def _lightning(self, node: ast.Call) -> None:
        """`Trainer(accelerator="horovod", gpus=1)` of Lightning 1, in the words of Lightning 2."""
        for given in node.keywords:
            begin, value, end = self.source.begin(given), self.source.begin(given.value), self.source.end(given)
            if isinstance(given.value, ast.Constant) and given.value.value == "horovod":
                self.edits.append(Edit(begin, end, 'strategy="ring"'))
            elif given.arg == "gpus":
                before, behind = self._with_parentheses(node, given.value)
                value, end = min(value, before), max(end, behind)
                self.edits.append(Edit(begin, value, 'accelerator="gpu" if ('))
                self.edits.append(Edit(end, end, ') else "cpu"'))

    def _with_parentheses(self, call: ast.Call, argument: ast.expr) -> tuple[int, int]:
        """Where an argument begins and ends, with the parentheses around it."""
        begin, end = self.source.begin(argument), self.source.end(argument)
        text, first = self.source.text, self.source.text.index("(", self.source.end(call.func)) + 1
        while True:
            before = text[first:begin].rstrip()
            after = text[end:].lstrip()
            if not (before.endswith("(") and after.startswith(")")):
                return begin, end
            begin = first + len(before) - 1
            end = text.index(")", end) + 1

    def _drop(self, begin: int, end: int) -> None:
        """Delete an argument, with the comma before it, or behind it."""
        before = self.source.text[:begin].rstrip()
        if before.endswith(","):
            begin = len(before) - 1
        elif self.source.text[end:].lstrip().startswith(","):
            end = self.source.text.index(",", end) + 1
            end += len(self.source.text[end:]) - len(self.source.text[end:].lstrip(" "))
        self.edits.append(Edit(begin, end, ""))

    def _replace(self, node: ast.expr | ast.stmt | ast.alias, text: str) -> None:
        self.edits.append(Edit(self.source.begin(node), self.source.end(node), text))

    def _path(self, node: ast.expr) -> str | None:
        """What of Horovod an expression names: "horovod.torch.rank"; None when it names nothing of it."""
        if isinstance(node, ast.Name):
            return self._paths.get(node.id)
        if isinstance(node, ast.Attribute) and (inner := self._path(node.value)) is not None:
            return f"{inner}.{node.attr}"
        return None

    def _missing(self, line: int, path: str) -> None:
        name = path.rpartition(".")[2]
        why = _tables.LACKS.get(path) or _tables.LACKS.get(name)
        if why is not None:
            self.notes.append((line, f"{name}: {why}"))

    def _unavailable(self, node: ast.stmt, module: str) -> None:
        self.notes.append((node.lineno, f"{module} has no counterpart in this version of ringcore"))


@dataclass(frozen=True)
class _Function:
    """What is called: a function of a module of ringcore; `prefix` is what the script calls the module, "hvd."."""

    module: str
    name: str
    prefix: str
    given: frozenset[str | None]  # keywords


def migrate(text: str) -> Migration:
    """Turn a script for Horovod into one for ringcore.

    Args:
        text: Python source.

    Returns:
        The new source; or the same one, and what stands in the way.

    Raises:
        SyntaxError: It is no Python.
    """
    source = _Source(text)
    visitor = _Visitor(source)
    visitor.visit(ast.parse(text))
    if visitor.notes:
        return Migration(text, sorted(set(visitor.notes)))
    if visitor.first_import is not None:
        for module in sorted(visitor.needs):
            text_of_import = f"import {module}\n{visitor.indentation}"
            visitor.edits.append(Edit(visitor.first_import, visitor.first_import, text_of_import))
    dropped = [edit for edit in visitor.edits if not edit.text]
    for edit in sorted(visitor.edits, reverse=True):
        if any(whole is not edit and whole.begin <= edit.begin and edit.end <= whole.end for whole in dropped):
            continue  # inside of what is deleted
        text = text[: edit.begin] + edit.text + text[edit.end :]
    ast.parse(text)
    return Migration(text, [])


def _diff(name: str, before: str, after: str) -> Iterator[str]:
    return difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"{name} (Horovod)", f"{name} (ringcore)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Show the differences, or apply them.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0; 1 when a file stays as it is, as something in it has no counterpart; 2 when one cannot be used.
    """
    parser = argparse.ArgumentParser(
        prog="ringcore migrate",
        description="Shows what changes in scripts that were written for Horovod. One in which something has no "
        "counterpart stays as it is. Without changes they run as well: pip install ringcore-horovod.",
    )
    parser.add_argument("scripts", nargs="+", type=Path, metavar="script.py")
    parser.add_argument("--write", action="store_true", help="change the files, each as a whole or not at all")
    options = parser.parse_args(argv)
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
