"""Where NVIDIA's libraries may be: given, or brought by a framework's wheels, or known to the system."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringcore.environment.settings import Settings

CUDA = ("libcuda.so.1",)
NCCL = ("libnccl.so.2", "libnccl.so")
NVRTC = ("libnvrtc.so.13", "libnvrtc.so.12")

_LIMIT_S = 20.0

# Below site-packages: of the wheels of CUDA 13, which share a folder, and of CUDA 12.
_FOLDERS = ("nvidia/nccl/lib", "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib")

# Run by a child process, because a library that does not fit may end the process that opens it.
_OPEN_LIBRARY = """
import ctypes, sys
name = sys.argv[1]
try:
    library = ctypes.CDLL(name)
except OSError as error:
    print("no", error, sep="\\t")
    sys.exit()
version = ""
if hasattr(library, "ncclGetVersion"):
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    code = number.value
    # 2.9 and later: major * 10000 + minor * 100 + patch.
    version = f"NCCL {code // 10000}.{code // 100 % 100}.{code % 100}"
elif hasattr(library, "cuInit"):
    text, number = ctypes.c_char_p(), ctypes.c_int()
    result = library.cuInit(0)
    if result != 0:
        library.cuGetErrorString(result, ctypes.byref(text))
        print("no", f"the driver does not start: {(text.value or b'').decode()} (CUDA error {result})", sep="\\t")
        sys.exit()
    library.cuDriverGetVersion(ctypes.byref(number))
    version = f"CUDA {number.value // 1000}.{number.value % 1000 // 10}"
elif hasattr(library, "nvrtcVersion"):
    numbers = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(*map(ctypes.byref, numbers))
    version = f"NVRTC {numbers[0].value}.{numbers[1].value}"
elif hasattr(library, "OpenSSL_version"):
    library.OpenSSL_version.restype = ctypes.c_char_p
    version = library.OpenSSL_version(0).decode(errors="replace")
elif hasattr(library, "MPI_Get_library_version"):
    text, length = ctypes.create_string_buffer(16384), ctypes.c_int()
    library.MPI_Get_library_version(text, ctypes.byref(length))
    version = text.value.decode(errors="replace").split("\\n")[0].split(",")[0].strip()
stem = name.rsplit("/", 1)[-1].split(".so")[0]
path = name
with open("/proc/self/maps") as maps:
    for line in maps:
        mapped = line.split(maxsplit=5)[-1].strip()
        if mapped.startswith("/") and mapped.rsplit("/", 1)[-1].startswith(stem):
            path = mapped
print("yes", version, path, sep="\\t")
"""


def bundled(names: Sequence[str]) -> list[str]:
    """Libraries that wheels or conda have brought, where the dynamic linker does not look."""
    folders = [os.path.join(entry, folder) for entry in sys.path for folder in _FOLDERS]
    folders.append(os.path.join(sys.prefix, "lib"))
    paths = [os.path.join(folder, name) for folder in dict.fromkeys(folders) for name in names]
    return [path for path in paths if os.path.exists(path)]


def tell_engine(settings: Settings) -> None:
    """Let the engine know where to look. What a framework has loaded already, it takes without being told.

    NCCL looks for network interfaces itself: the environment tells it to use no others than ringcore. It encrypts
    nothing, so that it is not used where everything is to be encrypted.
    """
    from ringcore import _native

    if settings.network_interfaces:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "=" + ",".join(settings.network_interfaces))

    def paths(given: str | None, names: Sequence[str]) -> list[str]:
        return [given] if given else [*bundled(names), *names]

    _native.set_library_paths(
        paths(settings.cuda_library, CUDA),
        [] if settings.encryption == "on" else paths(settings.nccl_library, NCCL),
        paths(settings.nvrtc_library, NVRTC),
    )


def nccl_shares_gpus(environ: Mapping[str, str]) -> bool:
    """Whether the user lets NCCL run several ranks on one GPU, which it does from version 2.30 on.

    Args:
        environ: Usually `os.environ`.
    """
    return environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"


@functools.cache
def version_here(kind: str) -> tuple[int, ...] | None:
    """The version of the first of the libraries that can be opened and used here; None: there is none.

    A child process opens it: CUDA's driver settles which devices a process sees when it is first used.

    Args:
        kind: "cuda" or "nccl".
    """
    given = os.environ.get(f"RINGCORE_{kind.upper()}_LIBRARY")
    names = {"cuda": CUDA, "nccl": NCCL}[kind]
    for name in [given] if given else [*bundled(names), *names]:
        found = try_library(name)
        if found["found"]:
            return tuple(map(int, re.findall(r"\d+", found["version"])))
    return None


def try_library(name: str) -> dict[str, Any]:
    """Open a library in a child process: `name`, whether it is `found`, and `version` and `path`, or the `reason`."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", _OPEN_LIBRARY, name],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"name": name, "found": False, "reason": f"opening it takes more than {_LIMIT_S:g} s"}
    words = child.stdout.strip().split("\t")
    if child.returncode != 0 or words[0] not in ("yes", "no"):
        said = child.stderr.strip().splitlines()
        reason = f"opening it ended the process with exit code {child.returncode}" + (f": {said[-1]}" if said else "")
        return {"name": name, "found": False, "reason": reason}
    if words[0] == "no":
        return {"name": name, "found": False, "reason": words[1]}
    return {"name": name, "found": True, "version": words[1], "path": words[2]}
