"""Modules wait for their parameters before their forward, where these are still to be made: see pending.py."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from typing import Any, Protocol

import torch
from ringcore import RingcoreError, adapter

from ringcore_torch.pending import PendingParameter


class Overlap(Protocol):
    """What makes parameters while the script goes on."""

    @property
    def is_pending(self) -> bool:
        """Whether any parameter is still to be made."""

    def settle(self) -> None:
        """Make all of them, now."""


_overlaps: weakref.WeakSet[Overlap] = weakref.WeakSet()


def watch(overlap: Overlap) -> None:
    """From now on modules, and the end of the job, wait for what this makes."""
    _overlaps.add(overlap)
    _watch_modules()


def why_not_now() -> str:
    """Why parameters may be read that nobody waits for; empty where they cannot."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.utils.counters["frames"]:
        return "torch.compile has compiled something, which reads parameters and asks nobody"
    return ""


def _before_forward(module: torch.nn.Module, _: Any) -> None:
    """A module waits for its own parameters, also where it hands them to what torch knows nothing of.

    Scripted modules read those of all modules inside; in `torch.func` a module may have others in their place.
    """
    if torch.compiler.is_compiling() or not any(overlap.is_pending for overlap in _overlaps):
        return
    if torch._C._functorch.peek_interpreter_stack() is not None:
        for overlap in list(_overlaps):
            overlap.settle()
    scripted = isinstance(module, torch.jit.ScriptModule)
    for parameter in list(module.parameters() if scripted else module._parameters.values()):
        if isinstance(parameter, PendingParameter):
            parameter._ring_update.settle()


@functools.cache
def _watch_modules() -> None:
    torch.nn.modules.module.register_module_forward_pre_hook(_before_forward)


def _settle_before_shutdown() -> None:
    for overlap in list(_overlaps):
        with contextlib.suppress(RingcoreError):  # the job ends, and nobody reads the parameters
            overlap.settle()


adapter.before_shutdown.append(_settle_before_shutdown)
