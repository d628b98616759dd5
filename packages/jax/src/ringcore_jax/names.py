"""What parameters are called in messages and by what averages their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax


def names_of(paths: Sequence[Any]) -> list[str]:
    """As people write them; quoted where two would read alike, as "a.b" may be one key, or two."""
    plain = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
    return plain if len(set(plain)) == len(plain) else [jax.tree_util.keystr(path) for path in paths]
