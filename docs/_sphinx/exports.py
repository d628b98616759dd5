"""The directive `exports`: all that a module offers, under the names that people import, read from the sources.

    ```{exports} ringcore_torch
    ```

Nothing is imported, so that one environment without any framework makes the pages of all adapters. What an adapter
hands on from `ringcore` is a table of links; what is its own is described in full. A name without a docstring, or one
that leads nowhere, is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.util.docutils import SphinxDirective

PACKAGES = Path(__file__).parents[2] / "packages"
# What a module makes by a function when it is asked for.
MADE_LATER = {
    "ringcore_lightning.RingStrategy": "ringcore_lightning.strategies.RingStrategyMixin",
    "ringcore_lightning.FabricRingStrategy": "ringcore_lightning.strategies.RingStrategyMixin",
}
# Where what several modules offer is described.
HOMES = ("ringcore", "ringcore.elastic", "ringcore.launcher.external")
# What has no docstring where it is defined.
TEXTS = {
    "ringcore._native.UnsupportedArray": "An array that cannot be taken as it lies in memory.",
    "ringcore.job.process_sets.global_process_set": "The process set of all ranks.",
    "ringcore.arrays.Adasum": "`ReduceOp.ADASUM`.",
    **{
        f"ringcore.arrays.{name}": f"`ReduceOp.{name.upper()}`." for name in ("Average", "Max", "Min", "Product", "Sum")
    },
}


class Sources:
    """The packages, as griffe reads them."""

    def __init__(self) -> None:
        folders = sorted(PACKAGES.glob("*/src"))
        self._loader = griffe.GriffeLoader(search_paths=folders, allow_inspection=False)
        for folder in folders:
            for package in folder.glob("ringcore*/__init__.py"):
                self._loader.load(package.parent.name)
        self._loader.resolve_aliases(implicit=True, external=False)

    def exports(self, module: str) -> dict[str, griffe.Object]:
        """Exported name -> what it is in the end; an alias of what is no part of the packages."""
        found = self._loader.modules_collection[module]
        return {name: self._resolved(found, name) for name in sorted(map(str, found.exports or ()), key=_order)}

    def _resolved(self, module: griffe.Module, name: str) -> griffe.Object:
        found = module.members.get(name) or self._at(MADE_LATER[f"{module.path}.{name}"])
        while found.is_alias:
            if found.target_path.partition(".")[0] not in self._loader.modules_collection.members:
                return found
            found = found.final_target
        return self._described(found) if found.is_attribute and found.path not in TEXTS else found

    def _described(self, attribute: griffe.Attribute) -> griffe.Object:
        """The method behind `name = verbs.name`, or `name = wrapper(verbs.name)`."""
        value = attribute.value
        while isinstance(value, griffe.ExprCall):
            value = value.arguments[0]
        owner, _, name = str(value).rpartition(".")
        if owner.lstrip("_") == "verbs":
            return self._at(f"ringcore.adapter.verbs.Verbs.{name}")
        if name == "synchronize":
            return self._at("ringcore._native.Handle.synchronize")
        return self._at("ringcore._native.Handle.done") if name == "done" else attribute

    def _at(self, path: str) -> Any:
        return self._loader.modules_collection[path]


def _order(name: str) -> tuple[bool, str]:
    """As people look for names: regardless of case."""
    return name.startswith("_"), name.lower()


def parameters(function: griffe.Function) -> str:
    """What stands between the brackets, without `self`."""
    shown, starred = [], False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not starred:
            shown.append("*")
            starred = True
        starred = starred or kind is griffe.ParameterKind.var_positional
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        annotation = f": {parameter.annotation}" if parameter.annotation else ""
        default = f" = {parameter.default}" if parameter.default is not None and not stars else ""
        shown.append(f"{stars}{parameter.name}{annotation}{default}")
    return ", ".join(shown)


def first_sentence(thing: griffe.Object) -> str:
    text = " ".join(thing.docstring.value.split("\n\n")[0].split()) if thing.docstring else TEXTS.get(thing.path, "")
    return text.partition(". ")[0].rstrip(".") + "."


class Exports(SphinxDirective):
    """See the module."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        """Make the nodes."""
        module = self.arguments[0]
        sources = getattr(self.env.app, "ringcore_sources", None) or Sources()
        self.env.app.ringcore_sources = sources  # type: ignore[attr-defined]
        self.homes = {home: sources.exports(home) for home in HOMES}
        lines = list(self._lines(module, sources.exports(module)))
        holder = nodes.container()
        self.state.nested_parse(StringList(lines, source=module), self.content_offset, holder)
        return list(holder.children)

    def _lines(self, module: str, exports: dict[str, griffe.Object]) -> Iterator[str]:
        handed_on = {}
        for name, thing in exports.items():
            home = None if thing.is_alias else self._home(module, name, thing)
            if home or thing.is_alias:
                handed_on[name] = (home, thing)
            elif not (name.startswith("_") or thing.is_module):  # modules have sections of their own
                yield from self._entry(f"{module}.{name}", thing)
        if handed_on:
            yield from ("", "Offered here as well:", "", "| | |", "|---|---|")
            for name, (home, thing) in handed_on.items():
                if thing.is_alias:
                    yield f"| `{module}.{name}` | That of `{thing.target_path}`. |"
                    continue
                yield f"| {{py:obj}}`{module}.{name} <{home}.{name}>` | {first_sentence(thing)} |"
            yield ""

    def _home(self, module: str, name: str, thing: griffe.Object) -> str | None:
        """The other module that describes it; verbs are an adapter's own, for tensors of its framework."""
        if thing.path.startswith("ringcore.adapter.verbs.") and module not in ("ringcore_keras", "ringcore.adapter"):
            return None
        homes = (home for home in HOMES if home != module and self.homes[home].get(name) is thing)
        return None if module in HOMES else next(homes, None)

    def _entry(self, path: str, thing: griffe.Object) -> Iterator[str]:
        if thing.is_class:
            yield from self._class(path, thing)
        elif thing.is_function:
            returned = f" -> {thing.returns}" if thing.returns else ""
            yield from self._directive("function", f"{path}({parameters(thing)}){returned}", self._text(path, thing))
        else:
            known = thing.docstring or thing.path in TEXTS
            yield from self._directive("data", path, self._text(path, thing) if known else f"`{thing.value}`")

    def _class(self, path: str, thing: Any) -> Iterator[str]:
        bases = [str(base) for base in thing.bases]
        kind = "exception" if any("Error" in base for base in bases) or path.endswith("Error") else "class"
        yield f"::::{{py:{kind}}} {path}({self._made_by(thing)})"
        yield from ("", *self._text(path, thing).splitlines(), "")
        for name, member in thing.members.items():
            if not name.startswith("_") and member.docstring and not member.is_alias:
                yield from self._member(name, member)
        yield from ("::::", "")

    def _member(self, name: str, member: Any) -> Iterator[str]:
        if not member.is_function or "property" in member.labels:
            kind = "property" if member.is_function else "attribute"
            yield from self._directive(kind, name, self._docstring(member))
            return
        returned = f" -> {member.returns}" if member.returns else ""
        kind = next((word for word in ("classmethod", "staticmethod") if word in member.labels), "method")
        yield from self._directive(kind, f"{name}({parameters(member)}){returned}", self._docstring(member))

    def _made_by(self, thing: Any) -> str:
        if "dataclass" in thing.labels:
            fields = (each for each in thing.attributes.values() if "instance-attribute" in each.labels)
            return ", ".join(each.name + (f" = {each.value}" if each.value is not None else "") for each in fields)
        maker = thing.members.get("__init__") or thing.all_members.get("__init__")
        return parameters(maker) if maker is not None and maker.is_function else ""

    def _text(self, path: str, thing: griffe.Object) -> str:
        if not thing.docstring and thing.path not in TEXTS:
            raise ExtensionError(f"{path} ({thing.path}) has no docstring")
        return self._docstring(thing) if thing.docstring else TEXTS[thing.path]

    def _docstring(self, thing: griffe.Object) -> str:
        return str(GoogleDocstring(thing.docstring.value, self.config))  # type: ignore[union-attr]

    def _directive(self, kind: str, head: str, text: str) -> Iterator[str]:
        yield from (f":::{{py:{kind}}} {head}", "", *text.splitlines(), ":::", "")


def setup(app: Sphinx) -> dict[str, Any]:
    """Tell Sphinx of it."""
    app.add_directive("exports", Exports)
    return {"parallel_read_safe": True}
