"""Tells PyTorch of the backend "ring"; PyTorch calls `register` at the end of every `import torch`.

It says where the backend is, and imports nothing of ringcore until a process group is made.
"""

import contextlib


def register() -> None:
    """Make `torch.distributed.init_process_group("ring")` possible. Never raises: `import torch` would fail."""
    with contextlib.suppress(Exception):
        import torch.distributed as dist

        if dist.is_available() and not hasattr(dist.Backend, "RING"):
            dist.Backend.register_backend("ring", _create, extended_api=True, devices=["cpu", "cuda"])
            # From PyTorch 2.15 on a recorder is attached to all other groups, which fails where Python has made them.
            alone: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
            alone.add("ring")


def _create(options, _):  # type: ignore[no-untyped-def]
    """Called by PyTorch on every member of a new group."""
    from ringcore_torch.distributed import create_process_group

    return create_process_group(options)
