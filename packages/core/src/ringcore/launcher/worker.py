"""The far end of `ringcore.run`: calls the function in a rank and sends back what it returned."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from ringcore._objects import pickled, unpickle
from ringcore.launcher.outcomes import outcome_of

_READ_BYTES = 1 << 20


def main() -> int:
    """Call the function that RINGCORE_CALL_FD holds, and write its outcome to RINGCORE_RESULT_FD.

    Returns:
        The rank's exit code: 1 if the function raised.
    """
    result_fd = int(os.environ.pop("RINGCORE_RESULT_FD"))
    os.set_inheritable(result_fd, False)  # What the function starts must not hold the launcher up.
    try:
        call_fd = int(os.environ.pop("RINGCORE_CALL_FD"))
        call = _read_call(call_fd)
        os.close(call_fd)
        # As multiprocessing does: functions of the caller's own modules are pickled by name.
        sys.path[:] = _path_with(call)
        function, args, kwargs = unpickle(call["function"])
        outcome, code = _returned(function(*args, **kwargs)), 0
    except SystemExit as error:
        if not error.code:
            outcome, code = _returned(None), 0
        else:
            outcome = _raised(error)
            code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        traceback.print_exc()
        outcome, code = _raised(error), 1
    sys.stdout.flush()
    _write(result_fd, outcome)
    return code


def search_path() -> list[str]:
    """Where the function's modules are looked for: what `sys.path` will be when it runs."""
    return _path_with(_read_call(int(os.environ["RINGCORE_CALL_FD"])))


def _path_with(call: Mapping[str, Any]) -> list[str]:
    return [*call["path"], *(entry for entry in sys.path if entry not in call["path"])]


def _read_call(fd: int) -> dict[str, Any]:
    # All ranks of a host share the file and so its position, which pread does not use.
    pieces = []
    offset = 0
    while piece := os.pread(fd, _READ_BYTES, offset):
        pieces.append(piece)
        offset += len(piece)
    call: dict[str, Any] = unpickle(b"".join(pieces))
    return call


def _returned(value: Any) -> bytes:
    try:
        return pickled(("returned", value))
    except Exception as error:
        raise TypeError(
            f"what the function returned, a {type(value).__name__}, cannot be sent back: {error}. Return what can be "
            "pickled, such as numbers, arrays and dictionaries of them"
        ) from error


def _raised(error: BaseException) -> bytes:
    return pickled(("raised", tuple(outcome_of(error))))


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
