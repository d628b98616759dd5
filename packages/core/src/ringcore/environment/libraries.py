"""Where NVIDIA's libraries may be: given, or brought by a framework's wheels, or known to the system."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringcore.environment.settings import Settings

CUDA = ("libcuda.so.1",)
NCCL = ("libnccl.so.2", "libnccl.so")
NVRTC = ("libnvrtc.so.13", "libnvrtc.so.12")

# Below site-packages: of the wheels of CUDA 13, which share a folder, and of CUDA 12.
_FOLDERS = ("nvidia/nccl/lib", "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib")


def bundled(names: Sequence[str]) -> list[str]:
    """Libraries that wheels or conda have brought, where the dynamic linker does not look."""
    folders = [os.path.join(entry, folder) for entry in sys.path for folder in _FOLDERS]
    folders.append(os.path.join(sys.prefix, "lib"))
    paths = [os.path.join(folder, name) for folder in dict.fromkeys(folders) for name in names]
    return [path for path in paths if os.path.exists(path)]


def tell_engine(settings: Settings) -> None:
    """Let the engine know where to look. What a framework has loaded already, it takes without being told.

    NCCL looks for network interfaces itself: the environment tells it to use no others than ringcore.
    """
    from ringcore import _native

    if settings.network_interfaces:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "=" + ",".join(settings.network_interfaces))

    def paths(given: str | None, names: Sequence[str]) -> list[str]:
        return [given] if given else [*bundled(names), *names]

    _native.set_library_paths(
        paths(settings.cuda_library, CUDA), paths(settings.nccl_library, NCCL), paths(settings.nvrtc_library, NVRTC)
    )
