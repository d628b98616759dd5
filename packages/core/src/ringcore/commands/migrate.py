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

# Horovod's module -> the adapter that takes its place.
_ADAPTERS = {"horovod.torch": "ringcore_torch"}
# Those that are run by the alias, and not rewritten -> the adapter, by its extra; the longer names first.
_ALIAS_ONLY = {
    "horovod.tensorflow.keras": "keras",
    "horovod.keras": "keras",
    "horovod.tensorflow": "tensorflow",
    "horovod.mxnet": "mxnet",
}
# Modules whose names are all in the adapter itself.
_INSIDE = ("mpi_ops", "compression", "functions", "optimizer", "sync_batch_norm")
_OTHER_IMPORTS = {
    "horovod.common.process_sets": "ringcore",
    "horovod.common.exceptions": "ringcore",
    "horovod": "ringcore",
}
_RENAMED = {"HorovodInternalError": "RingcoreError"}

_FACTORS = ("prescale_factor", "postscale_factor", "process_set")
# Horovod's positional arguments; behind the first `n` ringcore takes keywords only.
_SIGNATURES: dict[str, tuple[int, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("allreduce", "grouped_allreduce"), (1, ("tensor", "average", "name", "compression", "op", *_FACTORS))
    ),
    **dict.fromkeys(
        ("allreduce_", "allreduce_async", "allreduce_async_", "grouped_allreduce_", "grouped_allreduce_async",
         "grouped_allreduce_async_"),
        (1, ("tensor", "average", "name", "op", *_FACTORS)),
    ),
    "sparse_allreduce_async": (1, ("tensor", "name", "op", "process_set")),
    **dict.fromkeys(
        ("allgather", "allgather_async", "grouped_allgather", "grouped_allgather_async"),
        (1, ("tensor", "name", "process_set")),
    ),
    **dict.fromkeys(
        ("broadcast", "broadcast_", "broadcast_async", "broadcast_async_"),
        (2, ("tensor", "root_rank", "name", "process_set")),
    ),
    **dict.fromkeys(("alltoall", "alltoall_async"), (2, ("tensor", "splits", "name", "process_set"))),
    **dict.fromkeys(
        ("reducescatter", "grouped_reducescatter"),
        (1, ("tensor", "name", "compression", "op", "process_set", "prescale_factor", "postscale_factor")),
    ),
    **dict.fromkeys(
        ("reducescatter_async", "grouped_reducescatter_async"),
        (1, ("tensor", "name", "op", "process_set", "prescale_factor", "postscale_factor")),
    ),
    "broadcast_object": (2, ("obj", "root_rank", "name", "process_set")),
    "allgather_object": (1, ("obj", "name", "process_set")),
    "broadcast_optimizer_state": (2, ("optimizer", "root_rank", "model")),
    "barrier": (0, ("process_set",)),
    "join": (0, ("device",)),
    "DistributedOptimizer": (
        2,
        ("optimizer", "named_parameters", "compression", "backward_passes_per_step", "op", "gradient_predivide_factor",
         "num_groups", "groups", "sparse_as_dense", "process_set"),
    ),
}  # fmt: skip
_RENAMED_KEYWORDS = {("DistributedOptimizer", "num_groups"): "groups"}
_DROPPED_KEYWORDS = {("broadcast_optimizer_state", "model"), ("join", "device")}
# Values that said "the default".
_DEFAULTS: dict[str, tuple[object, ...]] = {
    "average": (True, None),
    "op": (None,),
    "num_groups": (0,),
    "groups": (None,),
}
_NO_COUNTERPART = {
    "run": "use ringcore.run(fn, args, kwargs, np=...)",
    **dict.fromkeys(
        ("mpi_built", "mpi_enabled", "mpi_threads_supported", "gloo_built", "gloo_enabled", "nccl_built", "ddl_built",
         "ccl_built", "cuda_built", "rocm_built", "check_extension"),
        "ringcore is not compiled for anything; delete the check",
    ),
}  # fmt: skip


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
        source: The new text.
        notes: (line, what is left to do by hand).
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
        self.uses_core = False  # the script needs `import ringcore`
        self.first_import: int | None = None
        self.indentation = ""
        self._modules: set[str] = set()  # names that stand for an adapter: "hvd"
        self._functions: dict[str, str] = {}  # imported name -> Horovod's name

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            target = _target_of(alias.name)
            if target is not None:
                self._note_import(node)
            if target is None:
                if alias.name.split(".")[0] == "horovod":
                    self._unavailable(node, alias.name)
                continue
            if alias.asname is not None:
                self._modules.add(alias.asname)
                self.edits.append(Edit(self.source.begin(alias), self.source.end(alias), f"{target} as {alias.asname}"))
            else:
                self._modules.add(alias.name)
                self.edits.append(Edit(self.source.begin(alias), self.source.end(alias), target))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level or module.split(".")[0] != "horovod":
            return
        self._note_import(node)
        target = _target_of(module) or _OTHER_IMPORTS.get(module)
        adapters = [alias for alias in node.names if f"{module}.{alias.name}" in _ADAPTERS]
        if adapters and len(node.names) == 1:  # from horovod import torch as hvd
            name = adapters[0].asname or adapters[0].name
            self._modules.add(name)
            text = f"import {_ADAPTERS[f'{module}.{adapters[0].name}']} as {name}"
            self.edits.append(Edit(self.source.begin(node), self.source.end(node), text))
            return
        if target is None:
            self._unavailable(node, module)
            return
        names = []
        for alias in node.names:
            if alias.name in _NO_COUNTERPART:
                self._no_counterpart(node.lineno, alias.name)
            self._functions[alias.asname or alias.name] = alias.name
            renamed = _RENAMED.get(alias.name)
            shown = alias.asname or (alias.name if renamed else None)
            names.append((renamed or alias.name) + (f" as {shown}" if shown else ""))
        self.edits.append(
            Edit(self.source.begin(node), self.source.end(node), f"from {target} import {', '.join(names)}")
        )

    def _note_import(self, node: ast.stmt) -> None:
        if self.first_import is None:
            self.first_import = self.source.begin(node)
            self.indentation = " " * node.col_offset

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._name_in_adapter(node)
        if name in _NO_COUNTERPART:
            self._no_counterpart(node.lineno, name)
        if name in _RENAMED:
            self.uses_core = True
            self.edits.append(Edit(self.source.begin(node), self.source.end(node), f"ringcore.{_RENAMED[name]}"))
            return
        module = ast.unparse(node.value) if _is_dotted(node.value) else ""
        if module in self._modules and "." in module:  # import horovod.torch; horovod.torch.rank()
            target = _target_of(module)
            self.edits.append(Edit(self.source.begin(node.value), self.source.end(node.value), str(target)))
            return
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._name_in_adapter(node.func)
        if name == "init" and (node.args or node.keywords):
            what = "init: takes no ranks, only a communicator of mpi4py; use add_process_set after it for some of them"
            self.notes.append((node.lineno, what))
        elif name in _SIGNATURES:
            self._arguments(node, name)
        self.generic_visit(node)

    def _arguments(self, node: ast.Call, name: str) -> None:
        positional, signature = _SIGNATURES[name]
        prefix = ast.unparse(node.func).rpartition(".")[0]
        prefix = f"{_target_of(prefix) or prefix}." if prefix else ""
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            if len(node.args) > positional:
                self.notes.append((node.lineno, f"{name}(*...): behind {positional} arguments only keywords are taken"))
            return
        for keyword, argument in zip(signature[positional:], node.args[positional:], strict=False):
            begin, end = self._with_parentheses(node, argument)
            self._argument(name, keyword, argument, (begin, begin, end), prefix)
        for given in node.keywords:
            if given.arg is not None:
                value, end = self.source.begin(given.value), self.source.end(given)
                self._argument(name, given.arg, given.value, (self.source.begin(given), value, end), prefix)

    def _argument(self, name: str, keyword: str, value: ast.expr, places: tuple[int, int, int], prefix: str) -> None:
        """Name an argument as ringcore does; the text of its value stays, for it may be changed as well.

        Args:
            name: The function.
            keyword: Horovod's name of the argument.
            value: What is passed.
            places: Where the argument begins (with its name, if it has one), where its value begins, and where it ends.
            prefix: "hvd." or whatever the module is called.
        """
        begin, inside, end = places
        constant = value if isinstance(value, ast.Constant) else None
        if (name, keyword) in _DROPPED_KEYWORDS or (
            constant and any(constant.value is default for default in _DEFAULTS.get(keyword, ()))
        ):
            return self._drop(begin, end)
        if keyword == "average" and constant:
            self.edits.append(Edit(begin, end, f"op={prefix}Sum"))
        elif keyword == "average":
            self.edits.append(Edit(begin, inside, f"op={prefix}Average if ("))
            self.edits.append(Edit(end, end, f") else {prefix}Sum"))
        else:
            self.edits.append(Edit(begin, inside, f"{_RENAMED_KEYWORDS.get((name, keyword), keyword)}="))
        return None

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
        self.edits.append(Edit(begin, end, ""))

    def _name_in_adapter(self, node: ast.expr) -> str:
        """Horovod's name of what an expression names; "" when it names nothing of Horovod."""
        if isinstance(node, ast.Name):
            return self._functions.get(node.id, "")
        if isinstance(node, ast.Attribute) and _is_dotted(node.value) and ast.unparse(node.value) in self._modules:
            return node.attr
        return ""

    def _no_counterpart(self, line: int, name: str) -> None:
        self.notes.append((line, f"{name}: {_NO_COUNTERPART[name]}"))

    def _unavailable(self, node: ast.stmt, module: str) -> None:
        extra = next((extra for prefix, extra in _ALIAS_ONLY.items() if f"{module}.".startswith(f"{prefix}.")), None)
        text = (
            f"{module} has no counterpart in this version of ringcore"
            if extra is None
            else f"{module} is not rewritten; pip install 'ringcore-horovod[{extra}]' runs it as it is, and "
            f"ringcore_{extra} has the same names with keyword arguments"
        )
        self.notes.append((node.lineno, text))


def _target_of(module: str) -> str | None:
    for theirs, ours in _ADAPTERS.items():
        if module == theirs or module in {f"{theirs}.{inside}" for inside in _INSIDE}:
            return ours
    return None


def _is_dotted(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_dotted(node.value))


def migrate(text: str) -> Migration:
    """Turn a script for Horovod into one for ringcore.

    Args:
        text: Python source.

    Returns:
        The new source, and what is left to do by hand.

    Raises:
        SyntaxError: It is no Python.
    """
    source = _Source(text)
    visitor = _Visitor(source)
    visitor.visit(ast.parse(text))
    if visitor.uses_core and visitor.first_import is not None:
        visitor.edits.append(
            Edit(visitor.first_import, visitor.first_import, f"import ringcore\n{visitor.indentation}")
        )
    dropped = [edit for edit in visitor.edits if not edit.text]
    for edit in sorted(visitor.edits, reverse=True):
        if any(whole is not edit and whole.begin <= edit.begin and edit.end <= whole.end for whole in dropped):
            continue  # inside of what is deleted
        text = text[: edit.begin] + edit.text + text[edit.end :]
    ast.parse(text)
    return Migration(text, sorted(visitor.notes))


def _diff(name: str, before: str, after: str) -> Iterator[str]:
    return difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"{name} (Horovod)", f"{name} (ringcore)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Show the differences, or apply them.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0; 1 when something is left to do by hand; 2 when a file cannot be used.
    """
    parser = argparse.ArgumentParser(
        prog="ringcore migrate",
        description="Shows what changes in scripts that were written for Horovod. Without changes they run as well: "
        "pip install ringcore-horovod.",
    )
    parser.add_argument("scripts", nargs="+", type=Path, metavar="script.py")
    parser.add_argument("--write", action="store_true", help="change the files")
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
        if options.write:
            script.write_text(migration.source, encoding="utf-8", newline="")
        for line, note in migration.notes:
            print(f"{script}:{line}: {note}", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
