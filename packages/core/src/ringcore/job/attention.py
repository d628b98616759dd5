"""A thread that does what the engine cannot: it logs, and tells peers and launcher how this rank stands."""

from __future__ import annotations

import logging
import sys
import threading
import traceback

from ringcore.environment.loss import tell_loss
from ringcore.job.membership import THREAD_NAME
from ringcore.job.state import Context

_log = logging.getLogger("ringcore")
_NAME = "ringcore-attention"
WATCH_NAME = "ringcore-watch"
_CALLS = 20  # of a stack, the innermost, are told; those of an import between two modules are left out


def start_attention_thread(context: Context) -> threading.Thread | None:
    """Start it for one runtime; it ends with the runtime, and must be joined then.

    A daemon thread that is still inside native code when the interpreter ends would abort the process.
    """
    if context.size + context.servers == 1:
        return None
    thread = threading.Thread(target=_attend, args=(context,), name=_NAME, daemon=True)
    thread.start()
    context.runtime.add_service_thread(thread.native_id or 0)
    return thread


def _attend(context: Context) -> None:
    running, told = True, False
    while running:  # once more at the end: for what was found just before
        running = context.runtime.wait_for_attention(3600.0)
        warnings, stacks_wanted, lost_rank, for_witness = context.runtime.take_attention()
        for message in for_witness:
            if context.launcher is not None:
                context.launcher.ask(message)
        if lost_rank is not None and not told:
            tell_loss(lost_rank)
            told = True
        if stacks_wanted:
            context.runtime.reply_stacks(format_stacks())
        for warning in warnings:
            _log.warning("rank %d: %s", context.rank, warning)


def format_stacks() -> str:
    """Where each Python thread of this process stands, innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, "?")
        if name not in (_NAME, WATCH_NAME, THREAD_NAME):
            calls = [call for call in traceback.extract_stack(frame) if not call.filename.startswith("<frozen ")]
            parts.append(f"thread {name}:\n" + "".join(traceback.format_list(calls[-_CALLS:])))
    return "\n".join(parts)
