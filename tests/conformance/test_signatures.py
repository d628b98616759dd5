"""Every surface has the same verbs, with the same arguments in the same order and of the same defaults."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import warnings

import pytest
from ringcore.adapter import Exchange, Verbs

VERBS = {
    name: inspect.signature(verb)
    for name, verb in inspect.getmembers(Verbs, inspect.isfunction)
    if not name.startswith(("_", "start_"))
}

# Module -> what has to be installed besides, what its verbs take more than the others, and what it does not have.
WITHOUT_PROMISES = {name for name in VERBS if "async" in name}
IN_PLACE = {name for name in VERBS if name.endswith("_")}
SURFACES = {
    "ringcore": ("numpy", {"compression"}, set()),
    "ringcore_keras": ("keras", {"compression"}, set()),
    "ringcore_torch": ("torch", {"compression"}, set()),
    # Arrays of JAX do not change.
    "ringcore_jax": ("jax", {"compression"}, IN_PLACE),
    # A graph goes on with what does not need a result; tensors do not change, variables do.
    "ringcore_tensorflow": (
        "tensorflow",
        {"priority", "compression"},
        WITHOUT_PROMISES | IN_PLACE - {"broadcast_"},
    ),
    # All operations are tasks of MXNet's engine, which has priorities.
    "ringcore_mxnet": ("mxnet", {"priority", "compression"}, WITHOUT_PROMISES),
}


def is_here(surface: str) -> bool:
    needed = (surface, SURFACES[surface][0])
    return all(importlib.util.find_spec(module) is not None for module in needed)


def loaded(surface: str) -> object:
    backends = (name for name in ("torch", "jax", "tensorflow") if importlib.util.find_spec(name) is not None)
    os.environ.setdefault("KERAS_BACKEND", next(backends, "numpy"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet's own, at its import
        return importlib.import_module(surface)


# Whose arrays do not change, or are written by tasks of their own.
WITHOUT_OUTPUTS = {"ringcore_jax", "ringcore_tensorflow", "ringcore_mxnet"}

HERE = [surface for surface in SURFACES if is_here(surface)]


@pytest.mark.parametrize("surface", HERE)
def test_a_surface_has_the_verbs(surface: str) -> None:
    _, _, lacks = SURFACES[surface]
    exported = set(loaded(surface).__all__)
    assert exported & set(VERBS) == set(VERBS) - lacks


@pytest.mark.parametrize(("surface", "verb"), [(surface, verb) for surface in HERE for verb in VERBS])
def test_a_verb_has_the_arguments_that_it_has_everywhere(surface: str, verb: str) -> None:
    _, more, lacks = SURFACES[surface]
    if verb in lacks:
        assert not hasattr(loaded(surface), verb)
        return
    function = getattr(loaded(surface), verb)
    found = [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]
    expected = [(p.name, p.kind, p.default) for p in VERBS[verb].parameters.values()][1:]
    if surface in WITHOUT_OUTPUTS:
        found = [argument for argument in found if argument[0] != "out"]
        expected = [argument for argument in expected if argument[0] != "out"]
    if surface == "ringcore_tensorflow" and verb == "broadcast_":
        expected[0] = ("variable", *expected[0][1:])
    assert found[: len(expected)] == expected
    assert {name for name, _, _ in found[len(expected) :]} <= more
    assert function.__doc__


@pytest.mark.parametrize("kind", ["powersgd", "topk", "onebit", "blocks", "error_feedback"])
@pytest.mark.parametrize("surface", [surface for surface in HERE if surface != "ringcore"])
def test_what_takes_all_gradients_of_a_step_is_there(surface: str, kind: str) -> None:
    assert isinstance(getattr(loaded(surface).Compression, kind)(), Exchange)  # type: ignore[attr-defined]
