"""What ringcore logs: by Python's logger "ringcore", from the level that `RINGCORE_LOG_LEVEL` names."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter

from ringcore.environment.placement import Placement
from ringcore.environment.survivors import why_none_survives
from ringcore.job.state import Context

_log = logging.getLogger("ringcore")
# Logging has no name for what is below its debug level.
_LEVELS = {
    "trace": 5, "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}  # fmt: skip


class _LastResort(logging.Handler):
    """Shows on stderr what nobody else does, as logging itself does from its warnings on."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            print(f"ringcore {record.levelname.lower()}: {self.format(record)}", file=sys.stderr, flush=True)


_last_resort = _LastResort()


def set_level(level: str | None) -> None:
    """Log from this level on; None: from where the program says, else logging, which is its warnings.

    Where the program has no handlers, what is logged goes to stderr.
    """
    if level is None:
        return
    logging.addLevelName(_LEVELS["trace"], "TRACE")
    _log.setLevel(_LEVELS[level])
    if not _log.handlers:
        _log.addHandler(_last_resort)


def warn_of_launcher(placement: Placement) -> None:
    """Tell, where it is so, that the launcher ends the ranks which are to go on when one is lost."""
    why = why_none_survives(placement, os.environ)
    if why is not None:
        _log.warning("rank %d: RINGCORE_ELASTIC asks that ranks go on without a lost one, but %s", placement.rank, why)


def log_start(context: Context, source: str, kernels: str) -> None:
    """Tell how this rank is connected.

    Args:
        context: Of the job.
        source: Who has placed this rank.
        kernels: The instruction set of the reduction kernels.
    """
    transports = context.runtime.transports()
    links = Counter(kind for kind in transports if kind != "self")
    _log.info(
        "rank %d of %d has started, placed by %s, local rank %d of %d; links to the others: %s; kernels: %s",
        context.rank, context.size, source, context.local_rank, context.local_size,
        ", ".join(f"{count} over {kind}" for kind, count in links.items()) or "none", kernels,
    )  # fmt: skip
    for peer, kind in enumerate(transports):  # servers are behind the ranks
        if kind != "self" and peer < context.size:
            _log.debug("rank %d: rank %d, host %d, over %s", context.rank, peer, context.host_of[peer], kind)
    _log.log(_LEVELS["trace"], "rank %d: %s", context.rank, context.settings)
