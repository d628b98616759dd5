"""What a rank does that mpirun has started for a function: the call, and what comes of it, lie in a folder."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringcore.adapter import unpickle

from horovod.runner.common.util.env import get_env_rank_and_size

__all__ = ["leave_call", "take_results"]

_CALL = "call"


def leave_call(folder: Path, function: Callable[[], Any]) -> None:
    """Put a function where the ranks take it from; only this user can, as it is code.

    Args:
        folder: Only this user can read it.
        function: Called without arguments.

    Raises:
        TypeError: It cannot be pickled, as cloudpickle is not installed.
    """
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    try:
        call = pickler.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"the function cannot be pickled: {error}; cloudpickle can do more") from error
    (folder / _CALL).write_bytes(pickle.dumps({"path": sys.path, "function": call}))


def take_results(folder: Path) -> list[Any]:
    """What the function returned, in the order of ranks.

    Args:
        folder: The ranks have ended, and none has failed.
    """
    ranks = sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    return [unpickle((folder / str(rank)).read_bytes()) for rank in ranks]


def main() -> None:
    """Call the function, and leave its result."""
    folder = Path(sys.argv[1])
    try:
        call = unpickle((folder / _CALL).read_bytes())
    except FileNotFoundError:
        sys.exit(f"{folder} is not on this host: let TMPDIR name a folder that all hosts share, or leave use_mpi out")
    sys.path[:] = call["path"]
    result = unpickle(call["function"])()
    rank, _ = get_env_rank_and_size()
    (folder / str(rank)).write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()
