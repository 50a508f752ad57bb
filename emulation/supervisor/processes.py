"""Processes: telling them apart, since a number alone may have been given away again, and learning of their ends.

Standard library only, see ``uml.inside``.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

KEPT = "thalweg-kept"
"""Name of a supervisor that outlives its launcher (at most 15 bytes, prctl(2))."""


def _read(file: str) -> str:
    with open(file) as opened:
        return opened.read()


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (proc_pid_stat(5), field 22); None if there is none."""
    try:
        text = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


@cache
def boot_id() -> str:
    """What tells this run of the kernel from others (random(4)); empty where the system has none."""
    try:
        return _read("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        return ""


@cache
def _process_namespace() -> str:
    """Which numbers of processes are meant: those of this namespace (pid_namespaces(7))."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def identity(pid: int) -> str:
    """What names a process for good: its number, when it started, and in which run of the kernel and namespace."""
    return f"{pid}:{start_ticks(pid)}:{boot_id()}:{_process_namespace()}"


def elsewhere(named: str) -> bool:
    """Whether an ``identity`` is of another namespace of this kernel, so that nobody here can tell if it lives."""
    parts = named.split(":", 3)
    return len(parts) == 4 and parts[2] == boot_id() and parts[3] != _process_namespace()


def living(named: str) -> int | None:
    """The number of the process that an ``identity`` names; None when it has ended."""
    number = named.partition(":")[0]
    if not number.isdigit() or start_ticks(int(number)) is None:
        return None
    return int(number) if identity(int(number)) == named else None


def name(pid: int) -> str:
    """The name that a process has given itself; empty when there is none."""
    try:
        return _read(f"/proc/{pid}/comm").strip()
    except OSError:
        return ""


def wait_ended(pid: int, timeout_s: float) -> bool:
    """Wait for the end of a process that need not be our child; whether it came in time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


def signal_pipe() -> int:
    """A descriptor that can be read, without waiting, when a signal has come, of a child's end too; for one loop."""
    wake, written = os.pipe()
    for descriptor in (wake, written):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wake


def drain(wake: int) -> None:
    """Read what ``signal_pipe`` gives."""
    with suppress(BlockingIOError):
        os.read(wake, 512)


def ended_children() -> Iterator[int]:
    """The numbers of children that have ended; each is to be waited for before the next is asked for."""
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            yield ended.si_pid
