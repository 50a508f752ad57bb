"""Set-up of the system by the first process of a User-Mode Linux kernel: file systems, modules, power.

Standard library only (see ``uml.inside``).
"""

from __future__ import annotations

import ctypes
import fcntl
import gzip
import lzma
import os
import socket
import struct
import threading
import time
from contextlib import suppress

# x86-64's system call; sys/mount.h, linux/sockios.h
_INIT_MODULE = 175
_NOSUID, _REMOUNT = 2, 32
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

END_S = 5.0  # killed processes end within this time, unless the host's file system delays them

_libc = ctypes.CDLL(None, use_errno=True)


def _check(status: int, what: str) -> None:
    if status != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def _mount(kind: str, where: str, flags: int = 0, options: str = "") -> None:
    _check(_libc.mount(kind.encode(), where.encode(), kind.encode(), flags, options.encode()), f"mount {where}")


def mount_all(private: str) -> None:
    """Mount the kernel's own file systems over the host's, and create the folder ``private`` in memory.

    The root is mounted without set-user-ID, because in a user namespace root's programs belong to nobody.
    """
    _mount("proc", "/proc")
    _mount("sysfs", "/sys")
    _mount("none", "/", _REMOUNT | _NOSUID)
    for folder, kind, options in (("/dev/pts", "devpts", "ptmxmode=666"), ("/dev/shm", "tmpfs", "mode=1777")):
        os.makedirs(folder, exist_ok=True)
        _mount(kind, folder, 0, options)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        with suppress(FileExistsError):
            os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
    os.mkdir(private, 0o700)


def load_module(path: str) -> None:
    """Load a kernel module, compressed or not. A module that is already loaded is no error."""
    with open(path, "rb") as file:
        image = file.read()
    if path.endswith(".xz"):
        image = lzma.decompress(image)
    elif path.endswith(".gz"):
        image = gzip.decompress(image)
    with suppress(FileExistsError):
        _check(_libc.syscall(_INIT_MODULE, image, ctypes.c_ulong(len(image)), b""), path)


def loopback_up() -> None:
    """Set the loopback interface up, so that 127.0.0.1 answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh", b"lo", 0).ljust(40, b"\0")
        flags = struct.unpack_from("h", fcntl.ioctl(control, _SIOCGIFFLAGS, request), 16)[0]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP).ljust(40, b"\0"))


class Power:
    """Power switch of the kernel, opened while the kernel runs.

    If the kernel crashes, its processes continue as programs of the host. There, neither "kill all" nor "power off" may
    be requested. The first process has number 1 only within the kernel. Requests that affect every process are written
    to a file of the kernel, so that they do not reach the host.
    """

    def __init__(self) -> None:
        self._trigger = os.open("/proc/sysrq-trigger", os.O_WRONLY)

    def off(self) -> None:
        """End everything, with every file written back to the host. Does not return.

        At its end the kernel kills the host's processes behind its own, except processes that are just ending. These
        would continue as programs of the host, so ``off`` waits for every process.
        """
        if os.getpid() != 1:
            os._exit(1)
        os.write(self._trigger, b"i")  # SIGKILL to every process except the first
        burial = threading.Thread(target=_bury_all, daemon=True)
        burial.start()
        burial.join(END_S)
        os.sync()
        os.write(self._trigger, b"o")
        while os.getpid() == 1:
            time.sleep(1)  # the kernel is ending, and its first process must not end earlier
        os._exit(1)


def _bury_all() -> None:
    with suppress(ChildProcessError):  # no child is left
        while True:
            os.waitpid(-1, 0)
