"""System calls for namespaces and mounts, missing in the standard library of Python 3.11."""

from __future__ import annotations

import ctypes
import os
from functools import cache

NEWNS, NEWUTS, NEWNET, FS = 0x0002_0000, 0x0400_0000, 0x4000_0000, 0x0200  # linux/sched.h
NOSUID, NODEV, BIND, REC, PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x4_0000  # sys/mount.h


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library. The first call loads it, since systems without these calls import this module, too."""
    return ctypes.CDLL(None, use_errno=True)


def _check(status: int, what: str) -> None:
    if status != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(kind: int) -> None:
    """Move this thread into a new namespace of a kind, such as ``NEWNET``. Raise OSError if the kernel refuses."""
    _check(_libc().unshare(kind), "unshare")


def enter(namespace_fd: int, kind: int) -> None:
    """Move this thread into an existing namespace. Raise OSError if the kernel refuses."""
    _check(_libc().setns(namespace_fd, kind), "setns")


def mount(source: str, target: str, flags: int, options: str = "") -> None:
    """Mount ``source``: a path with BIND, else a kind of file system. Raise OSError where mounting is not allowed."""
    name = os.fsencode(source)
    _check(_libc().mount(name, os.fsencode(target), name, flags, options.encode()), "mount")
