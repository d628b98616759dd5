"""Which of this process's interpreters runs here."""

from __future__ import annotations

import importlib


def require_main_interpreter() -> None:
    """The engine's threads take the lock of the main interpreter: in another one the first of them would wait for ever.

    Raises:
        ImportError: This is a sub-interpreter.
    """
    # Python 3.13 and later; before. Neither is documented, and a Python without them has no sub-interpreters to offer.
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError(
                "ringcore works in the main interpreter of a process only, and this is a sub-interpreter. Remedy: "
                "import it in the main interpreter, or in a process of its own; under mod_wsgi set "
                "'WSGIApplicationGroup %{GLOBAL}'"
            )
        return
