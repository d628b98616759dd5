"""Data-parallel training of PyTorch scripts."""
