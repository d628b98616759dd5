"""Where secrets lie: files without a name, that nobody can change, and memory that core files leave out."""

from __future__ import annotations

import fcntl
import mmap
import os

# From <linux/fcntl.h>: nothing is written, cut or added any more, nor these seals taken off.
_SEALS = 0x1 | 0x2 | 0x4 | 0x8


def memory_file(name: str, data: bytes | memoryview) -> int:
    """Puts bytes where only this process and those that inherit the descriptor can read them, and nobody write."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


def hidden_room(size: int) -> memoryview:
    """Zeros that no core file shows; the kernel takes the pages when nobody has it any more."""
    pages = mmap.mmap(-1, size)
    pages.madvise(mmap.MADV_DONTDUMP)
    return memoryview(pages)[:size]


def hide(secret: bytes) -> memoryview:
    """A copy of a secret that no core file shows, nor its `repr` or pickle. The secret itself is wiped.

    Args:
        secret: An object that nobody else has.
    """
    hidden = hidden_room(len(secret))
    hidden[:] = secret
    wipe(secret)
    return hidden.toreadonly()


def wipe(secret: bytes) -> None:
    """Overwrite bytes that nobody else has, and that are not needed any more: freed memory keeps what it held."""
    import ctypes  # the launcher's start is part of every job

    ctypes.memset(ctypes.c_char_p(secret), 0, len(secret))
