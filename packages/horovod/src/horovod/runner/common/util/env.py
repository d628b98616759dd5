"""This process's place, before `init`."""

from __future__ import annotations

import os

from ringcore.adapter import find_placement


def get_env_rank_and_size() -> tuple[int, int]:
    """This process's number in the job and the number of its processes, as the launcher has told them."""
    placement = find_placement(os.environ)
    return placement.rank, placement.size
