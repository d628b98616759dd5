"""The helpers that scripts import from here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Whether operations run at once instead of becoming part of a graph."""
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Callable[..., Any]:
    """A `tf.function`."""
    made: Callable[..., Any] = tf.function(function)
    return made


def _cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """Remember what a function returned, for its arguments and for eager mode and graphs apart."""
    known: dict[Any, Any] = {}

    def call(*arguments: Any) -> Any:
        key = arguments, _executing_eagerly()
        if key not in known:
            known[key] = function(*arguments)
        return known[key]

    return call


def vars_to_refs(variables: Any) -> Any:
    """Variables, in nested lists, as what can be a key of a dictionary."""
    if isinstance(variables, list):
        return tuple(map(vars_to_refs, variables))
    return variables.ref()


def refs_to_vars(refs: Any) -> Any:
    """The variables of `vars_to_refs`."""
    if isinstance(refs, tuple):
        return list(map(refs_to_vars, refs))
    return refs.deref()
