"""Horovod's names in a script, wherever they stand, become ringcore's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import PositionProvider, QualifiedNameProvider, QualifiedNameSource

from ringcore.commands import _horovod_names as _tables
from ringcore.commands._horovod_calls import Function, argument_of, of_lightning_2, without


class ScriptTransformer(cst.CSTTransformer):
    """Rewrites imports, names and calls; comments and layout stay.

    Attributes:
        notes: (line, what has no counterpart, and what to do).
        needs: Modules of ringcore that the script does not import by itself.
    """

    METADATA_DEPENDENCIES = (PositionProvider, QualifiedNameProvider)

    def __init__(self, *, elastic: bool) -> None:
        super().__init__()
        self.notes: list[tuple[int, str]] = []
        self.needs: set[str] = set()
        self._elastic = elastic
        self._imports_horovod = False

    # ---- Imports ----

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        return updated_node.with_changes(names=[self._alias(original_node, alias) for alias in updated_node.names])

    def _alias(self, statement: cst.CSTNode, alias: cst.ImportAlias) -> cst.ImportAlias:
        module = get_full_name_for_node(alias.name) or ""
        if module.split(".")[0] != "horovod":
            return alias
        self._imports_horovod = True
        if module in _tables.MODULES:
            return alias.with_changes(name=_dotted(_tables.MODULES[module]))
        self._unavailable(statement, module)
        return alias

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        statements = self._statements(original_node.body, updated_node.body)
        if len(statements) == len(updated_node.body):
            return updated_node.with_changes(body=statements)
        lines = [cst.SimpleStatementLine([statement]) for statement in statements]
        lines[0] = lines[0].with_changes(leading_lines=updated_node.leading_lines)
        lines[-1] = lines[-1].with_changes(trailing_whitespace=updated_node.trailing_whitespace)
        return cst.FlattenSentinel(lines)

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        return updated_node.with_changes(body=self._statements(original_node.body, updated_node.body))

    def _statements(
        self, originals: Sequence[cst.BaseSmallStatement], updated: Sequence[cst.BaseSmallStatement]
    ) -> list[cst.BaseSmallStatement]:
        """With an import from a module of Horovod as one or several from ours."""
        found: list[cst.BaseSmallStatement] = []
        for original, statement in zip(originals, updated, strict=True):
            module = ""
            if isinstance(statement, cst.ImportFrom) and not statement.relative and statement.module is not None:
                module = get_full_name_for_node(statement.module) or ""
            if isinstance(statement, cst.ImportFrom) and module.split(".")[0] == "horovod":
                self._imports_horovod = True
                found += self._import_from(original, statement, module) or [statement]
            else:
                found.append(statement)
        return found

    def _import_from(
        self, original: cst.CSTNode, statement: cst.ImportFrom, module: str
    ) -> list[cst.BaseSmallStatement]:
        if isinstance(statement.names, cst.ImportStar):
            self._note(original, f"from {module} import *: import what is used by its name")
            return []
        lines: dict[str, list[str]] = {}
        for alias in statement.names:
            imported = alias.evaluated_name
            path, name = f"{module}.{imported}", alias.evaluated_alias or imported
            if path in _tables.CONSTANTS:
                lines[f"{name} = {_tables.CONSTANTS[path]}"] = []
            elif path in _tables.MODULES:  # from horovod import torch as hvd
                lines[f"import {_tables.MODULES[path]} as {name}"] = []
            elif module in _tables.MODULES:
                self._missing(original, path)
                target, theirs = _ours(path)
                shown = f" as {name}" if alias.asname or theirs != imported else ""
                lines.setdefault(f"from {target} import ", []).append(f"{theirs}{shown}")
            else:
                self._unavailable(original, module)
        return [_small(head + ", ".join(names)) for head, names in lines.items()]

    # ---- Uses ----

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        path = self._path(original_node)
        module, _, name = path.rpartition(".")
        if (
            self._imports_horovod
            and not path
            and original_node.attr.value == "lr"
            and _is_optimizer(original_node.value)
        ):
            return updated_node.with_changes(attr=cst.Name("learning_rate"))  # its name since Keras 2.3
        if path in _tables.MODULES:  # through an alias of another module it is found there
            return self._module(original_node, updated_node, path)
        if module not in _tables.MODULES:  # nothing of Horovod, or an attribute of what a module has
            return updated_node
        self._missing(original_node, path)
        moved = _tables.MOVED.get(path) or _tables.MOVED.get(name)
        if moved is not None:
            self.needs.add(moved.rpartition(".")[0])
            return _dotted(moved)
        return updated_node.with_changes(attr=cst.Name(_tables.RENAMED.get(path, name)))

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        path = self._path(original_node)
        return self._module(original_node, updated_node, path) if path in _tables.MODULES else updated_node

    @staticmethod
    def _module(original: cst.CSTNode, updated: cst.BaseExpression, path: str) -> cst.BaseExpression:
        """What names a module in full gets its new name; an alias stays, with what is inside of it."""
        return _dotted(_tables.MODULES[path]) if get_full_name_for_node(original) == path else updated

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        path = self._path(original_node.func)
        module, _, name = path.rpartition(".")
        of_trainer = of_lightning_2(updated_node.args)
        if of_trainer is not None:
            return updated_node.with_changes(args=of_trainer)
        if name in _tables.ANSWERS and module in _tables.MODULES:
            return cst.Name(_tables.ANSWERS[name])
        if path:
            return updated_node.with_changes(args=self._arguments(original_node, updated_node, path))
        if not self._imports_horovod:
            return updated_node
        # What every example of Horovod says, and Keras 3 does not take.
        updated_node = updated_node.with_changes(args=without(updated_node.args, "experimental_run_tf_function"))
        return self._of_keras_2(original_node, updated_node)

    def _of_keras_2(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        """With what reads and writes a variable of Keras by its methods, in the place of functions of the backend."""
        known = {name.name for name in self.get_metadata(QualifiedNameProvider, original.func, set())}
        for function, method in (("set_value", "assign"), ("get_value", "numpy")):
            if any(name.endswith(f"keras.backend.{function}") for name in known) and updated.args:
                variable, *values = updated.args
                return updated.with_changes(func=cst.Attribute(variable.value, cst.Name(method)), args=values)
        return updated

    def _arguments(self, original: cst.Call, updated: cst.Call, path: str) -> list[cst.Arg]:
        module, _, name = path.rpartition(".")
        target = _tables.MOVED.get(path, "").rpartition(".")[0] or _tables.MODULES.get(module, "")

        def operation(which: str) -> cst.BaseExpression:
            if isinstance(updated.func, cst.Attribute):
                return updated.func.with_changes(attr=cst.Name(which))
            self.needs.add(target)  # the function is imported, its operations may be not
            return _dotted(f"{target}.{which}")

        function = Function(target, name, operation, lambda text: self._note(original, text))
        arguments = function.migrated(updated.args)
        if name == "broadcast_variables" and arguments:
            arguments[0] = _of_keras_3(arguments[0])
        if (target, name) == ("ringcore_keras", "DistributedOptimizer") and self._elastic:
            # Such scripts fit a batch before their state is synchronized, so that there is a state.
            arguments.append(argument_of("check_weights=False"))
        return arguments

    def _path(self, node: cst.CSTNode) -> str:
        """What of Horovod an expression names: "horovod.torch.rank"; "" when it names nothing of it."""
        if not isinstance(node, cst.Name | cst.Attribute) or get_full_name_for_node(node) is None:
            return ""
        inner: Any = node
        while isinstance(inner, cst.Attribute):
            inner = inner.value
        if not isinstance(inner, cst.Name):
            return ""
        found = self.get_metadata(QualifiedNameProvider, node, set())
        return next(
            (
                name.name
                for name in found
                if name.source is QualifiedNameSource.IMPORT and name.name.split(".")[0] == "horovod"
            ),
            "",
        )

    # ---- Notes ----

    def _missing(self, node: cst.CSTNode, path: str) -> None:
        name = path.rpartition(".")[2]
        why = _tables.LACKS.get(path) or _tables.LACKS.get(name)
        if why is not None:
            self._note(node, f"{name}: {why}")

    def _unavailable(self, node: cst.CSTNode, module: str) -> None:
        self._note(node, f"{module} has no counterpart in this version of ringcore")

    def _note(self, node: cst.CSTNode, text: str) -> None:
        self.notes.append((self.get_metadata(PositionProvider, node).start.line, text))


def _ours(path: str) -> tuple[str, str]:
    """The module of ringcore, and the name in it, of what a script imports."""
    module, _, name = path.rpartition(".")
    moved = _tables.MOVED.get(path) or _tables.MOVED.get(name)
    if moved is not None:
        target, _, theirs = moved.rpartition(".")
        return target, theirs
    return _tables.MODULES[module], _tables.RENAMED.get(path, name)


def _of_keras_3(argument: cst.Arg) -> cst.Arg:
    """What was a method of optimizers is a property of Keras 3."""
    value = argument.value
    if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value == "variables":
        return argument.with_changes(value=value.func)
    return argument


def _is_optimizer(node: cst.BaseExpression) -> bool:
    """Whether it is called like one."""
    name = (get_full_name_for_node(node) or "").rpartition(".")[2]
    return name in ("opt", "optimizer")


def _dotted(path: str) -> cst.Name | cst.Attribute:
    inner, _, name = path.rpartition(".")
    return cst.Attribute(_dotted(inner), cst.Name(name)) if inner else cst.Name(name)


def _small(text: str) -> cst.BaseSmallStatement:
    return cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine).body[0]
