"""Calls of Horovod's functions, with the arguments that ringcore's take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from ringcore.commands import _horovod_names as _tables

_NO_CONSTANT = object()


@dataclass(frozen=True)
class Function:
    """What is called.

    Attributes:
        module: Of ringcore.
        name: Horovod's, in that module.
        operation: The expression for an operation of the module, such as "Sum", in this script.
        note: Tells of what has no counterpart.
    """

    module: str
    name: str
    operation: Callable[[str], cst.BaseExpression]
    note: Callable[[str], None]

    def migrated(self, arguments: Sequence[cst.Arg]) -> list[cst.Arg]:
        """The arguments by the names that ringcore has for them, without those that say nothing here."""
        signature = _tables.SIGNATURES.get(self.module, {}).get(self.name)
        if signature is None:
            return list(arguments)
        positional, names = signature
        found: list[cst.Arg] = []
        given: set[str] = set(names[: sum(not argument.keyword and not argument.star for argument in arguments)])
        given |= {argument.keyword.value for argument in arguments if argument.keyword}
        for index, argument in enumerate(arguments):
            if argument.keyword is not None:
                kept = self._argument(argument.keyword.value, argument, given)
            elif argument.star or index < positional:
                kept = argument
                if argument.star == "*" and len(arguments) > positional:
                    self.note(f"{self.name}(*...): behind {positional} arguments only keywords are taken")
            elif index < len(names):
                kept = self._argument(names[index], argument, given)
            else:
                kept = argument
                self.note(f"{self.name}: takes no more than {len(names)} arguments")
            found.append(kept) if kept is not None else _close(found, argument)
        if not any(argument.star == "**" for argument in arguments):
            found += self._added(given)
        return found

    def _argument(self, keyword: str, argument: cst.Arg, given: set[str]) -> cst.Arg | None:
        """One argument as ringcore takes it; None where it says nothing here.

        Args:
            keyword: Horovod's name for it.
            argument: With its value, which is migrated already.
            given: All keywords of this call.
        """
        constant = _constant(argument.value)
        dropped = {*_tables.DROPPED.get(self.module, ()), *_tables.DROPPED_OF.get((self.module, self.name), ())}
        if keyword in dropped or any(constant is default for default in _tables.DEFAULTS.get(keyword, ())):
            return None
        if keyword in _tables.BY_HAND and _tables.BY_HAND_ONLY_OF.get(keyword, self.module) == self.module:
            what = self.name if self.name == "init" else f"{self.name}({keyword}=...)"
            self.note(f"{what}: {_tables.BY_HAND[keyword]}")
            return argument
        if keyword == "checkpoint_callback":
            if "callbacks" in given:
                self.note(f"{self.name}(checkpoint_callback=...): add it to callbacks=")
            return named(argument, "callbacks", cst.List([cst.Element(argument.value)]))
        if keyword == "verbose" and self.module in _tables.VERBOSE:
            return self._verbose(argument, constant)
        if keyword == "average":
            return named(argument, "op", self._operation(argument.value, constant))
        ours = _tables.RENAMED_KEYWORDS.get((self.module, keyword)) or _tables.RENAMED_KEYWORDS.get(keyword, keyword)
        return named(argument, ours, argument.value)

    def _operation(self, average: cst.BaseExpression, constant: object) -> cst.BaseExpression:
        total = self.operation("Sum")
        if constant is not _NO_CONSTANT:
            return total
        return cst.IfExp(test=in_parentheses(average), body=self.operation("Average"), orelse=total)

    @staticmethod
    def _verbose(argument: cst.Arg, constant: object) -> cst.Arg | None:
        if constant is _NO_CONSTANT:
            more = cst.ComparisonTarget(cst.GreaterThan(), cst.Integer("1"))
            return named(argument, "verbose", cst.Comparison(in_parentheses(argument.value), [more]))
        if isinstance(constant, int) and constant > 1:
            return named(argument, "verbose", cst.Name("True"))
        return None

    def _added(self, given: set[str]) -> Iterator[cst.Arg]:
        """What has to be said to ringcore, as Horovod's default was another one."""
        unless, text = _tables.ADDED.get((self.module, self.name), (set(), ""))
        if text and not unless & given:
            yield argument_of(text)
        passes = {"backward_passes_per_step", "average_aggregated_gradients"} & given
        if self.module == "ringcore_keras" and passes == {"backward_passes_per_step"}:
            yield argument_of("average_aggregated_gradients=False")


def without(arguments: Sequence[cst.Arg], keyword: str) -> list[cst.Arg]:
    """The arguments of a call but one."""
    found: list[cst.Arg] = []
    for argument in arguments:
        if argument.keyword is None or argument.keyword.value != keyword:
            found.append(argument)
        else:
            _close(found, argument)
    return found


def of_lightning_2(arguments: Sequence[cst.Arg]) -> list[cst.Arg] | None:
    """The arguments of `Trainer(accelerator="horovod", gpus=1)` of Lightning 1; None for those of something else."""
    if not any(
        argument.keyword is not None
        and argument.keyword.value in ("accelerator", "strategy")
        and _constant(argument.value) == "horovod"
        for argument in arguments
    ):
        return None
    return [_of_lightning_2(argument) for argument in arguments]


def _of_lightning_2(argument: cst.Arg) -> cst.Arg:
    if argument.keyword is not None and _constant(argument.value) == "horovod":
        return named(argument, "strategy", cst.SimpleString('"ring"'))
    if argument.keyword is not None and argument.keyword.value == "gpus":
        gpu, cpu = cst.SimpleString('"gpu"'), cst.SimpleString('"cpu"')
        return named(argument, "accelerator", cst.IfExp(in_parentheses(argument.value), gpu, cpu))
    return argument


def argument_of(text: str) -> cst.Arg:
    """The argument that a text such as "check_weights=False" is."""
    call = cst.ensure_type(cst.parse_expression(f"f({text})"), cst.Call)
    return call.args[0]


def named(argument: cst.Arg, keyword: str, value: cst.BaseExpression) -> cst.Arg:
    """An argument with this keyword and value, laid out as it was."""
    if argument.keyword is not None:
        return argument.with_changes(keyword=cst.Name(keyword), value=value)
    bare = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return argument.with_changes(keyword=cst.Name(keyword), equal=bare, value=value)


def in_parentheses(value: cst.BaseExpression) -> cst.BaseExpression:
    """An expression that may stand anywhere."""
    if value.lpar or isinstance(value, cst.Name | cst.Attribute | cst.Call | cst.Subscript):
        return value
    return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _close(kept: list[cst.Arg], dropped: cst.Arg) -> None:
    """The last argument that is kept ends as the dropped one did: a comma may not be followed by nothing."""
    if kept:
        kept[-1] = kept[-1].with_changes(comma=dropped.comma)


def _constant(value: cst.BaseExpression) -> object:
    """True, False, None, a number or a text; `_NO_CONSTANT` where it is something else."""
    if isinstance(value, cst.Name):
        return {"True": True, "False": False, "None": None}.get(value.value, _NO_CONSTANT)
    return value.evaluated_value if isinstance(value, cst.Integer | cst.SimpleString) else _NO_CONSTANT
