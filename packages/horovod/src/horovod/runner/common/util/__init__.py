"""Helpers of the launcher and of ranks."""
