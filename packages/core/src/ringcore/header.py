"""What C code needs of an installed ringcore: where its header lies, and the functions that it calls."""

from __future__ import annotations

from pathlib import Path

from ringcore import _native


def get_include() -> str:
    """The folder of `ringcore.h`, for a compiler's `-I`."""
    return str(Path(__file__).parent / "include")


def capi() -> int:
    """The address of the `ringcore_functions` of `ringcore.h`: what C code is handed, and calls through."""
    return _native.capi()
