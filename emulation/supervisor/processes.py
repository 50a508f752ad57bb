"""Identities and ends of processes. A process number alone may have been reused.

Standard library only (see ``uml.inside``).
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
    """Return the start of a process in clock ticks since boot (proc_pid_stat(5), field 22). None: no such process."""
    try:
        text = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


@cache
def boot_id() -> str:
    """Return the identity of this run of the kernel (random(4)). Empty if the system has none."""
    try:
        return _read("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        return ""


@cache
def _process_namespace() -> str:
    """Return the identity of the namespace of process numbers (pid_namespaces(7)), empty if unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def identity(pid: int) -> str:
    """Return a unique name of a process: its number, its start, the kernel's run and the namespace."""
    return f"{pid}:{start_ticks(pid)}:{boot_id()}:{_process_namespace()}"


def elsewhere(named: str) -> bool:
    """Return whether an ``identity`` is of a different namespace of this kernel. Its end cannot be seen here."""
    parts = named.split(":", 3)
    return len(parts) == 4 and parts[2] == boot_id() and parts[3] != _process_namespace()


def living(named: str) -> int | None:
    """Return the number of the process that an ``identity`` names. None: the process has ended."""
    number = named.partition(":")[0]
    if not number.isdigit() or start_ticks(int(number)) is None:
        return None
    return int(number) if identity(int(number)) == named else None


def name(pid: int) -> str:
    """Return the name that a process has given itself. Empty if there is no such process."""
    try:
        return _read(f"/proc/{pid}/comm").strip()
    except OSError:
        return ""


def wait_ended(pid: int, timeout_s: float) -> bool:
    """Wait for the end of a process, which need not be a child. Return whether it ended in time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


def signal_pipe() -> int:
    """Return a non-blocking descriptor that becomes readable at a signal, also at a child's end. Only for one loop."""
    wake, written = os.pipe()
    for descriptor in (wake, written):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wake


def drain(wake: int) -> None:
    """Read the bytes that signals have written to the ``signal_pipe``."""
    with suppress(BlockingIOError):
        os.read(wake, 512)


def ended_children() -> Iterator[int]:
    """Yield the numbers of ended children. Wait for each child before the next number is requested."""
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            yield ended.si_pid
