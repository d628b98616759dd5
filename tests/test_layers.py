"""Imports and includes only go down."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ROOT / "packages" / "core" / "src"
ADAPTERS = sorted(path.name for path in (ROOT / "packages").iterdir() if path.name != "core")

# Rooms of the core, the lower ones first, and what each knows besides what lies at the bottom.
BOTTOM = {"_closing", "_display", "_errors", "_native", "_objects", "_version"}
ROOMS = {
    "network": set(),
    "environment": set(),
    "bootstrap": {"environment", "network"},
    "launcher": {"environment", "bootstrap"},
    "planning": {"network"},
    "job": {"environment", "bootstrap", "network", "planning"},
    "adapter": {"environment", "job"},
    "arrays": {"job", "adapter"},
    "data": {"job"},
    "elastic": {"environment", "job", "adapter"},
    "header": set(),
    "simulation": {"network", "bootstrap"},
    "plans": {"planning", "job"},
    "commands": {"environment", "bootstrap", "launcher", "network", "planning", "job", "simulation"},
    "__main__": {"commands"},
}
# What an adapter may know of the core; Horovod's commands and what they tell are ringcore's under other names.
DOORS = {"ringcore", "ringcore.adapter", "ringcore.elastic"}
MORE_DOORS = {
    "horovod": {"ringcore.commands.cli", "ringcore.bootstrap.interfaces"},
    "tensorflow": {"ringcore.bootstrap.board", "ringcore.bootstrap.interfaces"},
    "ray": {"ringcore.launcher.external"},
    "spark": {"ringcore.launcher.external", "ringcore.data"},
    "dask": {"ringcore.launcher.external"},
}

# Layers of the engine, and what each knows besides itself. The binding is what lies in the core's package.
LAYERS = {
    "base": set(),
    "transport": {"base"},
    "device": {"base"},
    "plan": {"base", "transport"},
    "aggregation": {"base"},
    "engine": {"base", "transport", "plan"},
    "carriers": {"base", "transport", "device", "plan", "aggregation", "engine"},
    "runtime": {"base", "transport", "plan", "engine", "carriers"},
    "simulation": {"base", "transport", "plan", "engine"},
    "capi": {"base", "transport", "device", "plan", "engine", "carriers", "runtime"},
    "fuzz": {"base", "transport", "plan", "aggregation", "engine", "carriers"},
}


def imported(file: Path, modules: set[str]) -> Iterator[str]:
    """The modules that a file imports, those of functions and of the type checker too.

    Args:
        file: The file.
        modules: Names that are modules: `from a import b` is an import of `a.b` if that is one.
    """
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{file}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules or alias.name.startswith("_") else node.module


def modules_below(source: Path) -> dict[str, Path]:
    found = {}
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


CORE_MODULES = modules_below(CORE)
IMPORTS = {
    module: {name for name in imported(path, set(CORE_MODULES)) if name.split(".")[0] == "ringcore"}
    for module, path in CORE_MODULES.items()
}


def room_of(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_the_core_knows_only_what_lies_below_it(room: str) -> None:
    inside = {name: targets for name, targets in IMPORTS.items() if name != "ringcore" and room_of(name) == room}
    assert inside
    for module, targets in inside.items():
        for target in targets:
            assert target != "ringcore", f"{module} imports the whole of ringcore"
            assert room_of(target) in ROOMS[room] | BOTTOM | {room}, f"{module} imports {target}"


def test_every_room_of_the_core_is_known() -> None:
    assert {room_of(module) for module in CORE_MODULES if module != "ringcore"} == {*ROOMS, *BOTTOM} - {"_native"}
    for room, below in ROOMS.items():
        assert below <= set(list(ROOMS)[: list(ROOMS).index(room)]), room


def test_no_file_of_the_core_is_in_a_circle() -> None:
    # The public API is a table of names: it loads what is asked for.
    graph = {module: targets for module, targets in IMPORTS.items() if module != "ringcore"}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises, with the circle


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_comes_in_by_the_door(adapter: str) -> None:
    files = modules_below(ROOT / "packages" / adapter / "src")
    assert files
    for module, path in files.items():
        core = {name for name in imported(path, set(CORE_MODULES)) if name.split(".")[0] == "ringcore"}
        wrong = {name for name in core if name not in DOORS | MORE_DOORS.get(adapter, set()) | {"ringcore.__version__"}}
        assert not wrong, f"{module} imports {sorted(wrong)}"


def includes(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in [*folder.rglob("*.cpp"), *folder.rglob("*.hpp"), *folder.rglob("*.h")]:
        for name in re.findall(r'#include "([^"]+)"', path.read_text()):
            yield path, name


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_of_the_engine_includes_only_what_lies_below_it(layer: str) -> None:
    found = list(includes(ROOT / "native" / layer))
    assert found
    for path, name in found:
        if "/" in name:  # else generated, for the layer itself
            assert name.split("/")[0] in LAYERS[layer] | {layer}, f"{path} includes {name}"


def test_every_layer_of_the_engine_is_known() -> None:
    layers = {path.parent.relative_to(ROOT / "native").parts[0] for path in (ROOT / "native").rglob("*.cpp")}
    assert layers - {"tests"} <= set(LAYERS)
    for layer, below in LAYERS.items():
        assert below <= set(list(LAYERS)[: list(LAYERS).index(layer)]), layer


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_compiled_half_of_an_adapter_knows_the_c_interface_only(adapter: str) -> None:
    for path, name in includes(ROOT / "packages" / adapter / "src"):
        layer = name.split("/")[0]
        assert layer not in LAYERS or name in ("capi/ringcore.h", "capi/ringcore.hpp"), f"{path} includes {name}"
