"""What a launcher has left in the environment."""

import os

from ringcore.adapter import find_placement

__all__ = ["get_env_rank_and_size"]


def get_env_rank_and_size() -> tuple[int, int]:
    """This process's rank and how many there are; 0 and 1 without a launcher."""
    placement = find_placement(os.environ)
    return placement.rank, placement.size
