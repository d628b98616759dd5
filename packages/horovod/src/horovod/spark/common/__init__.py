"""Horovod's names for what its estimators have in common."""
