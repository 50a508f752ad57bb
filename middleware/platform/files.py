"""Locks, positions, permissions and owners of files."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

BINARY: int = getattr(os, "O_BINARY", 0)  # Windows else rewrites the ends of lines
NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)  # to open a pipe takes a process at the other end
LOCKED_AT = 0x7FFF_FFFE  # Windows locks bytes against reading: take a byte behind the content


def lock(descriptor: int) -> None:
    """Take the exclusive lock of an open file until the file is closed.

    Raises BlockingIOError if another process has the lock, OSError where the file system has no locks.
    """
    if sys.platform == "win32":
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, LOCKED_AT, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            raise BlockingIOError(errno.EWOULDBLOCK, "another process has the lock") from None
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def open_folder(folder: Path, name: str) -> int:
    """Open a folder for ``lock``, or on Windows the file ``name`` in the folder. Raises OSError."""
    if sys.platform == "win32":
        return os.open(folder / name, os.O_RDWR | os.O_CREAT | BINARY)
    return os.open(folder, os.O_RDONLY)


def open_private(path: Path) -> tuple[int, bool]:
    """Open a file for reading and writing that only its owner may read, and return whether it was made.

    Neither a link is followed nor anything truncated. Raises OSError, also if the path names no regular file.
    """
    flags = os.O_RDWR | BINARY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    flags |= NO_WAIT
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        if path.is_symlink():
            raise OSError(errno.ELOOP, f"{path.name} is a symbolic link") from None
    descriptor = os.open(path, flags)
    status = os.fstat(descriptor)
    try:
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, f"{path.name} is no regular file")
        if others_may(status, 0o077) and hasattr(os, "fchmod"):
            os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, False


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. Raises OSError, without waiting, if the path names anything else.

    A pipe has no end that can be relied on, and a read from a device may have an effect. Neither is opened.
    """
    _check_kind(os.stat(path).st_mode, path)
    flags = os.O_RDONLY | BINARY | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags | NO_WAIT | getattr(os, "O_NOCTTY", 0))
    try:
        _check_kind(os.fstat(descriptor).st_mode, path)  # the name may have another file meanwhile
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise OSError as ``open_regular`` does, for a library that opens the file itself."""
    open_regular(path).close()


def _check_kind(mode: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if stat.S_ISFIFO(mode):
        why = "it is a pipe, which may never end; save its content in a file, and name the file"
    else:
        why = f"it is a {'socket' if stat.S_ISSOCK(mode) else 'device'}; name a regular file"
    raise OSError(errno.EINVAL, why, os.fspath(path))


def write_at(descriptor: int, data: bytes, at: int) -> int:
    """Write at a position, and return the number of bytes written. One thread writes to the file."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, at)
    os.lseek(descriptor, at, os.SEEK_SET)
    return os.write(descriptor, data)


def allocate(descriptor: int, size_bytes: int) -> None:
    """Reserve disk space for an empty file. Raises OSError if there is no room."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        zeros = memoryview(bytes(size_bytes))
        while zeros:
            zeros = zeros[os.write(descriptor, zeros) :]


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk. Folders are skipped on Windows."""
    if sys.platform == "win32" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def user() -> int:
    """Return the number of the user who has started the process; 0 on Windows, as in ``os.stat``."""
    return os.getuid() if hasattr(os, "getuid") else 0


def owner() -> int:
    """Return the number of the user who owns new files of the process; 0 on Windows."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def of_another_user(found: os.stat_result) -> bool:
    """Return whether a file belongs to another user than that of the process; False on Windows, which does not say."""
    return sys.platform != "win32" and found.st_uid != user()


def others_may(found: os.stat_result, rights: int) -> bool:
    """Return whether users besides the owner of a file have one of ``rights``; False on Windows, which has no modes."""
    return sys.platform != "win32" and bool(found.st_mode & rights)
