"""What a launcher has left in the environment."""

from ringcore.adapter import rank_and_size as get_env_rank_and_size

__all__ = ["get_env_rank_and_size"]
