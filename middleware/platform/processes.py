"""Processes: limits and memory of the current process, and starts and ends of children."""

from __future__ import annotations

import os
import queue
import select
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

if sys.platform != "win32":
    import resource

if TYPE_CHECKING:
    import subprocess

OPEN_MAX = 10_240  # macOS refuses a higher limit, also where it says that there is none: setrlimit(2)
STOPS_WHEN_ASKED = sys.platform != "win32"
"""True if a process can handle SIGTERM. On Windows, SIGTERM ends the process at once."""
_PIECE = 4096

# --- this process -----------------------------------------------------------------------------------


def descriptor_limits() -> tuple[int, int]:
    """Return the soft and the hard limit of open descriptors; a negative number means no limit."""
    if sys.platform == "win32":
        return -1, -1
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open descriptors as far as the system permits."""
    if sys.platform != "win32":
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        soft = min(hard, OPEN_MAX) if sys.platform == "darwin" else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes(statm: int | None = None) -> int:
    """Return the resident memory of the process; if ``/proc`` cannot be read, the peak so far.

    ``statm``: the result of ``open_statm``. Reading from it is quicker, and works without a free descriptor.
    """
    if sys.platform != "linux":
        import psutil  # slow to import

        return int(psutil.Process().memory_info().rss)
    descriptor = open_statm() if statm is None else statm
    try:
        return int(os.pread(descriptor, 128, 0).split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    finally:
        if statm is None and descriptor >= 0:
            os.close(descriptor)


def open_statm() -> int:
    """Return a descriptor for ``resident_bytes``, or -1.

    The path has "self" and no number: ``/proc`` may be of an outer process namespace, with another number.
    """
    try:
        return os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return -1


def peak_bytes() -> int:
    """Return the peak of the resident memory of the process.

    On Linux getrusage is not used: if the parent had more, getrusage returns the peak of the parent.
    """
    if sys.platform == "linux":
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    import psutil

    memory = psutil.Process().memory_info()
    if sys.platform == "win32":
        return int(memory.peak_wset)
    return max(int(memory.rss), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # in bytes, on macOS


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far, in seconds; 0 if the process has ended."""
    if sys.platform == "linux":
        with suppress(OSError):
            return time.clock_gettime(~pid << 3 | 2)  # of a process, by its number: clock_getcpuclockid(3)
        return 0.0
    import psutil

    with suppress(psutil.NoSuchProcess):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def in_forked_children(call: Callable[[], None]) -> None:
    """Register a function that is called in every forked child; Windows does not fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


# --- children ---------------------------------------------------------------------------------------


def apart() -> dict[str, Any]:
    """Return options of ``subprocess.Popen`` that keep interrupts from the terminal away from a child."""
    if sys.platform == "win32":
        import subprocess

        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def interrupt(child: subprocess.Popen[bytes]) -> None:
    """Ask a child to end: by SIGINT, or on Windows by closing the standard input, which the child watches as well."""
    if sys.platform == "win32":
        if child.stdin is not None:
            with suppress(OSError):
                child.stdin.close()
    else:
        child.send_signal(signal.SIGINT)


def ended_within(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for the end of a child, and return whether the child ended in time. ``Popen.wait`` still gets the status.

    An interrupt within ``Popen.wait`` can leave a lock taken for ever. Where the system has pidfd_open, a descriptor is
    used instead.
    """
    if not hasattr(os, "pidfd_open"):
        import subprocess  # host processes do without

        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout_s)
        return child.returncode is not None
    handle = os.pidfd_open(child.pid)
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


def kill_group(leader: subprocess.Popen[bytes]) -> None:
    """Kill a child with the whole process group, or on Windows with the descendants."""
    if hasattr(os, "killpg"):
        os.killpg(leader.pid, signal.SIGKILL)
        return
    import psutil

    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(leader.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
    leader.kill()


class Ends(Protocol):
    """Watch of children: one thread waits for ends, every thread may add a child."""

    def add(self, child: subprocess.Popen[bytes], name: str) -> None:
        """Watch a child. Nobody may have called ``wait`` for the child before."""

    def wait(self) -> list[str]:
        """Wait until a child has ended, and return the names of ended children. A name is returned once."""

    @property
    def waiting(self) -> bool:
        """Whether ``wait`` has more names to return."""

    def close(self) -> None:
        """Stop watching."""


def new_ends() -> Ends:
    """Return a watch of children: by process descriptors on Linux, else by a thread per child."""
    return _ByDescriptors() if hasattr(os, "pidfd_open") else _ByThreads()


class _ByDescriptors:
    """Watch by pidfd_open(2): one call waits for every child, and a reused process number is not mistaken."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add(self, child: subprocess.Popen[bytes], name: str) -> None:
        self._selector.register(os.pidfd_open(child.pid), selectors.EVENT_READ, name)

    def wait(self) -> list[str]:
        ended = []
        for key, _ in self._selector.select():
            self._selector.unregister(key.fd)
            os.close(key.fd)
            ended.append(key.data)
        return ended

    @property
    def waiting(self) -> bool:
        return bool(self._selector.get_map())

    def close(self) -> None:
        for key in list((self._selector.get_map() or {}).values()):
            self._selector.unregister(key.fd)
            os.close(key.fd)
        self._selector.close()


class _ByThreads:
    """Watch by threads: several threads may call ``Popen.wait``, and every thread gets the status."""

    def __init__(self) -> None:
        self._ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._names: set[str] = set()

    def add(self, child: subprocess.Popen[bytes], name: str) -> None:
        self._names.add(name)
        threading.Thread(target=self._await, args=(child, name), name=f"thalweg-end-{name}", daemon=True).start()

    def _await(self, child: subprocess.Popen[bytes], name: str) -> None:
        child.wait()
        self._ended.put(name)

    def wait(self) -> list[str]:
        name = self._ended.get()
        self._names.discard(name)
        return [name]

    @property
    def waiting(self) -> bool:
        return bool(self._names)

    def close(self) -> None:
        self._names.clear()


class Progress:
    """Progress of processes that are being started: which of them use processor time, or wait for some.

    A process that needs half a second of it takes half a minute where 60 others want each processor.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._used_s: dict[str, float] = {}

    def stuck(self, name: str) -> str:
        """Say why a process is not getting on since the last call; empty while it is."""
        import psutil  # slow to import, and needed on a busy machine only

        try:
            process = psutil.Process(self._pids[name])
            times, state = process.cpu_times(), process.status()
        except psutil.Error:
            return "its process cannot be looked at"
        used_s = times.user + times.system
        before_s, self._used_s[name] = self._used_s.get(name, 0.0), used_s
        if state == psutil.STATUS_STOPPED:
            return "its process is stopped"
        if used_s > before_s or state in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP):
            return ""
        return f"its process is {state}, after {used_s:.1f} s of processor time"


def first_lines(
    pipes: Mapping[str, int], timeout_s: float, more: Callable[[Collection[str]], bool] = lambda names: False
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the first line of every pipe, in order of arrival.

    If a pipe is closed before the first line ends, the line is empty. After the timeout ``more`` is asked whether the
    missing lines are waited for as long again. If they are not, they are left out.
    """
    return (_lines_by_threads if sys.platform == "win32" else _lines_by_selector)(pipes, timeout_s, more)


def _lines_by_selector(
    pipes: Mapping[str, int], timeout_s: float, more: Callable[[Collection[str]], bool]
) -> Iterator[tuple[str, bytes]]:
    texts = dict.fromkeys(pipes, b"")
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for name, descriptor in pipes.items():
            selector.register(descriptor, selectors.EVENT_READ, name)
        while selector.get_map():
            events = selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                if not more([key.data for key in selector.get_map().values()]):
                    return
                deadline = time.monotonic() + timeout_s
            for key, _ in events:
                piece = os.read(key.fd, _PIECE)
                texts[key.data] += piece
                if not piece or b"\n" in piece:
                    selector.unregister(key.fd)
                    yield key.data, texts[key.data].partition(b"\n")[0] if piece else b""


def _lines_by_threads(
    pipes: Mapping[str, int], timeout_s: float, more: Callable[[Collection[str]], bool]
) -> Iterator[tuple[str, bytes]]:
    """Read every pipe in a thread, because select does not wait for pipes on Windows."""
    lines: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()

    def read(name: str, descriptor: int) -> None:
        text = piece = b""
        with suppress(OSError):  # closed at this end
            while b"\n" not in text and (piece := os.read(descriptor, _PIECE)):
                text += piece
        lines.put((name, text.partition(b"\n")[0] if piece else b""))

    for name, descriptor in pipes.items():
        threading.Thread(target=read, args=(name, descriptor), name=f"thalweg-line-{name}", daemon=True).start()
    deadline, missing = time.monotonic() + timeout_s, set(pipes)
    while missing:
        try:
            name, text = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            if not more(sorted(missing)):
                return
            deadline = time.monotonic() + timeout_s
        else:
            missing.discard(name)
            yield name, text


def unmapped_owner() -> int:
    """Return the user number of all files whose owner this user namespace does not map."""
    try:
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as number:
            return int(number.read())
    except (OSError, ValueError):
        return 65534


def maps_root() -> bool:
    """Return whether this user namespace has the root of the namespace above. Source: user_namespaces(7)."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as rows:
            return any(int(row.split()[1]) == 0 for row in rows)
    except (OSError, ValueError, IndexError):
        return True  # no such system
