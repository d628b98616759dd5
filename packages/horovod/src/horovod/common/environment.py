"""Horovod's variables: what they set here, and which of them set nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from ringcore.adapter import check_setting

# Horovod's variables and ringcore's for the same, where the values mean the same.
_SETTINGS = {
    "HOROVOD_FUSION_THRESHOLD": "RINGCORE_FUSION_THRESHOLD_BYTES",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "RINGCORE_STALL_WARNING_S",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "RINGCORE_TIMEOUT_S",
    "HOROVOD_START_TIMEOUT": "RINGCORE_START_TIMEOUT_S",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "RINGCORE_TIMEOUT_S",
    "HOROVOD_GLOO_IFACE": "RINGCORE_NETWORK_INTERFACES",
    "HOROVOD_LOG_LEVEL": "RINGCORE_LOG_LEVEL",
    "HOROVOD_AUTOTUNE": "RINGCORE_AUTOTUNE",
    "HOROVOD_AUTOTUNE_LOG": "RINGCORE_AUTOTUNE_LOG_FILE",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "RINGCORE_AUTOTUNE_WARMUP_SAMPLES",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "RINGCORE_AUTOTUNE_STEPS_PER_SAMPLE",
}
# What they say with these values has no counterpart, or is the default.
_MEANINGLESS = {
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": {"0"},
    "HOROVOD_LOG_LEVEL": {"trace", "fatal"},
}
# What is heeded elsewhere: where a rank is, and what timelines have.
_HEEDED = {
    *_SETTINGS, "HOROVOD_STALL_CHECK_DISABLE", "HOROVOD_TIMELINE", "HOROVOD_TIMELINE_MARK_CYCLES", "HOROVOD_ELASTIC",
    "HOROVOD_HOSTNAME", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE",
}  # fmt: skip
# What Horovod's installation reads: images have it set, and no job is any different by it.
_OF_THE_BUILD = (
    "HOROVOD_WITH_", "HOROVOD_WITHOUT_", "HOROVOD_BUILD_", "HOROVOD_CUDA_", "HOROVOD_ROCM_", "HOROVOD_NCCL_HOME",
    "HOROVOD_NCCL_INCLUDE", "HOROVOD_NCCL_LIB", "HOROVOD_NCCL_LINK", "HOROVOD_GPU",
    "HOROVOD_ALLOW_MIXED_GPU_IMPL", "HOROVOD_MIXED_INSTALL", "HOROVOD_SKIP_COMPILE", "HOROVOD_MPICXX_SHOW",
)  # fmt: skip
# horovodrun has told already what has no effect, so that its ranks need not.
_TOLD = "HOROVOD_RINGCORE_HAS_TOLD"


def translate_environment() -> None:
    """Set ringcore's variables by Horovod's, where they are not set themselves.

    Raises:
        InvalidArgument: One of Horovod's has a value that is not accepted.
    """
    for theirs, ours in _SETTINGS.items():
        value = os.environ.get(theirs, "")
        if not value or value.lower() in _MEANINGLESS.get(theirs, ()) or ours in os.environ:
            continue
        value = value.lower() if theirs == "HOROVOD_LOG_LEVEL" else value
        check_setting(ours, value, origin=f"{theirs} (here {ours})")
        os.environ[ours] = value
    if os.environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0"):
        os.environ.setdefault("RINGCORE_STALL_WARNING_S", "0")


def without_effect(environ: Mapping[str, str]) -> list[str]:
    """Horovod's variables that are set, and that nothing here reads."""
    return sorted(
        name
        for name, value in environ.items()
        if name.startswith("HOROVOD_") and value and name not in {*_HEEDED, _TOLD}
        if not name.startswith(_OF_THE_BUILD)
    )


def tell_without_effect(say: Callable[[str], object]) -> None:
    """Say in a line which of Horovod's variables have no effect, once in a job."""
    names = without_effect(os.environ)
    if names and _TOLD not in os.environ:
        os.environ[_TOLD] = "1"
        verb, pronoun = ("is", "it has") if len(names) == 1 else ("are", "they have")
        say(
            f"{', '.join(names)} {verb} set, but ringcore has no counterpart: {pronoun} no effect "
            "(docs/from-horovod.md#what-is-different)"
        )
