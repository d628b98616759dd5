"""The compute job: `ringrun -np 4 python -m ringcore_tensorflow.data_service.compute_worker config.json`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import ringcore
from ringcore.adapter import rank_and_size
from ringcore.bootstrap.board import Board
from ringcore.bootstrap.interfaces import own_address

from ringcore_tensorflow.data_service.config import TfDataServiceConfig
from ringcore_tensorflow.data_service.service import compute_worker_fn

_KEY_BYTES = 32


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: float) -> None:
    """Be a process of the compute job. The first one serves where the jobs meet, and writes the file that tells it.

    Args:
        dispatchers: How many there are to be.
        dispatcher_side: The job that they are in, "training" or "compute".
        configfile: The file; it goes when the job ends.
        timeout: Seconds that either job waits for what the other one has to start.

    Raises:
        ValueError: The dispatchers cannot have as many workers each.
    """
    rank, size = rank_and_size()
    if dispatchers < 1 or size % dispatchers:
        raise ValueError(f"{size} workers cannot be dealt out to {dispatchers} dispatchers: start a multiple of them")
    if rank != 0:
        compute_worker_fn(_from_first(None))
        return
    key = os.urandom(_KEY_BYTES)
    with Board(key, host=own_address()) as board:
        config = TfDataServiceConfig(dispatchers, size // dispatchers, dispatcher_side, board.address, key, timeout)
        if size > 1:
            _from_first(config)
        config.write(configfile)
        try:
            compute_worker_fn(config)
        finally:
            _remove(Path(configfile), config)


def _from_first(config: TfDataServiceConfig | None) -> TfDataServiceConfig:
    """The configuration that the first process has, for all of them: a file could be an older job's still."""
    told = json.dumps(config.to_dict()).encode() if config is not None else b""
    ringcore.init()
    try:
        gathered = ringcore.allgather(np.frombuffer(told, np.uint8), name="compute_config")
    finally:
        ringcore.shutdown()
    return TfDataServiceConfig.from_dict(json.loads(gathered.tobytes()))


def _remove(path: Path, config: TfDataServiceConfig) -> None:
    """The file leads nowhere now; another job's stays."""
    with contextlib.suppress(OSError, ValueError):
        if TfDataServiceConfig.read(path) == config:
            path.unlink()


def run_commandline(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ringcore_tensorflow.data_service.compute_worker",
        description="Prepares data for a training job, by TensorFlow's data service; every process is a worker.",
    )
    parser.add_argument("configfile", metavar="CONFIGFILE", help="tells the training job where this one is; made here")
    parser.add_argument(
        "--dispatchers", type=int, default=1, help="1, or as many as the training has ranks (default: 1)"
    )
    parser.add_argument(
        "--dispatcher-side", choices=("training", "compute"), default="compute",
        help="the job that the dispatchers are in (default: compute)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=float, default=60,
        help="seconds that either job waits for what the other one has to start (default: 60)",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    try:
        main(given.dispatchers, given.dispatcher_side, given.configfile, given.timeout)
    except (ringcore.RingcoreError, ValueError, OSError) as error:
        sys.exit(f"compute_worker: {error}")


if __name__ == "__main__":
    run_commandline()
