"""Operations as NVIDIA's tools see them: a range of NVTX from the call until the program has the result."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringcore import _native
from ringcore._errors import InvalidArgument

if TYPE_CHECKING:
    from ringcore.environment.settings import Settings
    from ringcore.job.state import Context

_LIBRARIES = ("libnvToolsExt.so.1", "libnvToolsExt.so")
_NAMES: dict[int, str] = {code: name for name, code in _native.COLLECTIVES.items()}


class Nvtx:
    """NVTX's library.

    Args:
        settings: May name it.

    Raises:
        InvalidArgument: There is none.
    """

    def __init__(self, settings: Settings) -> None:
        failures = []
        for name in (settings.nvtx_library,) if settings.nvtx_library else _LIBRARIES:
            try:
                library = ctypes.CDLL(name)
                self._start, self._end = library.nvtxRangeStartA, library.nvtxRangeEnd
                break
            except (OSError, AttributeError) as error:
                failures.append(str(error))
        else:
            raise InvalidArgument(
                f"nvtx is set, but NVTX cannot be used: {'; '.join(failures)}. Remedy: install the CUDA toolkit's "
                "NVTX, or name its libnvToolsExt.so.1 with RINGCORE_NVTX_LIBRARY"
            )
        self._start.argtypes, self._start.restype = [ctypes.c_char_p], ctypes.c_uint64
        self._end.argtypes, self._end.restype = [ctypes.c_uint64], None

    def start(self, collective: int, name: str) -> int:
        """Begin the range of an operation."""
        found: int = self._start(f"ringcore {_NAMES.get(collective, '')} {name}".encode())
        return found

    def end(self, begun: int) -> None:
        """End it."""
        self._end(begun)


class MarkedRuntime:
    """A runtime whose operations are seen; everything else is its own.

    Args:
        runtime: Of the engine.
        nvtx: The library.
    """

    def __init__(self, runtime: _native.Runtime, nvtx: Nvtx) -> None:
        self.__dict__.update(_runtime=runtime, _nvtx=nvtx)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._runtime, name, value)

    def submit(self, collective: int, name: str, *more: Any, **options: Any) -> Any:
        """As the runtime's; the range of what is not waited for here ends with `Handle.synchronize`."""
        *given, blocking, result, finish = more
        begun = self._nvtx.start(collective, name)
        if blocking:
            try:
                return self._runtime.submit(collective, name, *given, blocking, result, finish, **options)
            finally:
                self._nvtx.end(begun)

        def ended(handle: Any) -> Any:
            self._nvtx.end(begun)
            return result if finish is None else finish(handle)

        try:
            return self._runtime.submit(collective, name, *given, blocking, None, ended, **options)
        except BaseException:
            self._nvtx.end(begun)
            raise

    def run_into(self, collective: int, array: Any, output: Any, name: str, *more: Any) -> None:
        """As the runtime's."""
        self._within(collective, name, lambda: self._runtime.run_into(collective, array, output, name, *more))

    def allreduce_in_place(self, array: Any, name: str, *more: Any) -> None:
        """As the runtime's."""
        code = _native.COLLECTIVES["allreduce"]
        self._within(code, name, lambda: self._runtime.allreduce_in_place(array, name, *more))

    def _within(self, collective: int, name: str, call: Callable[[], None]) -> None:
        begun = self._nvtx.start(collective, name)
        try:
            call()
        finally:
            self._nvtx.end(begun)


def mark_operations(current: Context) -> None:
    """From now on NVTX sees what this rank submits from Python.

    Raises:
        InvalidArgument: See `Nvtx`.
    """
    current.runtime = MarkedRuntime(current.runtime, Nvtx(current.settings))  # type: ignore[assignment]
