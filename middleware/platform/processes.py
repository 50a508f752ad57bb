"""Processes: what one may open and has in memory, and the starts and ends of children."""

from __future__ import annotations

import os
import queue
import select
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

if sys.platform != "win32":
    import resource

if TYPE_CHECKING:
    import subprocess

OPEN_MAX = 10_240  # macOS refuses a higher limit, also where it says that there is none: setrlimit(2)
STOPS_WHEN_ASKED = sys.platform != "win32"
"""Whether a process can handle SIGTERM; on Windows it ends at once."""
_PIECE = 4096

# --- this process -----------------------------------------------------------------------------------


def descriptor_limits() -> tuple[int, int]:
    """Return how many descriptors this process may open, and up to where it may raise that; below 0 for any number."""
    if sys.platform == "win32":
        return -1, -1
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_descriptor_limit() -> None:
    """Let this process open as many descriptors as it may."""
    if sys.platform != "win32":
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft = min(hard, OPEN_MAX) if sys.platform == "darwin" else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes(statm: int | None = None) -> int:
    """Return the memory of this process; where ``/proc`` cannot be read, the most it has had so far.

    ``statm``: what ``open_statm`` returned, which is read sooner, and where no descriptor is left.
    """
    if sys.platform != "linux":
        import psutil  # takes longer to import than all else here

        return int(psutil.Process().memory_info().rss)
    kept = open_statm() if statm is None else statm
    try:
        return int(os.pread(kept, 128, 0).split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    finally:
        if statm is None and kept >= 0:
            os.close(kept)


def open_statm() -> int:
    """Return a descriptor for ``resident_bytes``; -1 where there is none.

    By "self": where ``/proc`` is that of an outer process namespace, the number of this process there is another.
    """
    try:
        return os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return -1


def peak_bytes() -> int:
    """Return the most memory that this process has had resident.

    Linux's getrusage would tell that of the parent, if it had more.
    """
    if sys.platform == "linux":
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    import psutil

    found = psutil.Process().memory_info()
    if sys.platform == "win32":
        return int(found.peak_wset)
    return max(int(found.rss), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # in bytes, on macOS


def processor_s(pid: int) -> float:
    """Return what a process has taken of processors so far, in seconds; 0 for one that has ended."""
    if sys.platform == "linux":
        with suppress(OSError):
            return time.clock_gettime(~pid << 3 | 2)  # of a process, by its number: clock_getcpuclockid(3)
        return 0.0
    import psutil

    with suppress(psutil.NoSuchProcess):
        taken = psutil.Process(pid).cpu_times()
        return float(taken.user + taken.system)
    return 0.0


def in_forked_children(call: Callable[[], None]) -> None:
    """Have a function called in each process that this one forks; Windows forks none."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


# --- children ---------------------------------------------------------------------------------------


def apart() -> dict[str, Any]:
    """Return the options of ``subprocess.Popen`` for a child that the terminal's interrupts do not reach."""
    if sys.platform == "win32":
        import subprocess

        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def interrupt(child: subprocess.Popen[bytes]) -> None:
    """Ask a child to end by SIGINT; on Windows, by closing its standard input, as the child watches that as well."""
    if sys.platform == "win32":
        if child.stdin is not None:
            with suppress(OSError):
                child.stdin.close()
    else:
        child.send_signal(signal.SIGINT)


def ended_within(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for the end of a child, and return whether it came in time. The child's status is left for ``Popen.wait``.

    An interrupt within ``Popen.wait`` can leave its lock taken for ever, so a descriptor is waited for if there is one.
    """
    if not hasattr(os, "pidfd_open"):
        import subprocess  # which a host process does without

        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout_s)
        return child.returncode is not None
    handle = os.pidfd_open(child.pid)
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


def kill_group(leader: subprocess.Popen[bytes]) -> None:
    """Kill a child with all of its process group; where there are no groups, with all that it has started."""
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
    """The ends of children: one thread waits for them, any thread may add one."""

    def add(self, child: subprocess.Popen[bytes], name: str) -> None:
        """Watch a child that nobody has waited for."""

    def wait(self) -> list[str]:
        """Wait for ends, and return the names of these children, each once."""

    @property
    def waiting(self) -> bool:
        """Whether there are children whose ends have not been told."""

    def close(self) -> None:
        """Forget all."""


def new_ends() -> Ends:
    """Return a watch of children: by descriptors of processes where there are any, else by a thread for each."""
    return _ByDescriptors() if hasattr(os, "pidfd_open") else _ByThreads()


class _ByDescriptors:
    """pidfd_open(2): all are waited for at once, and numbers of processes are not mistaken."""

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
    """``Popen.wait`` may be called by several threads, each of which gets the status."""

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


def first_lines(pipes: Mapping[str, int], timeout_s: float) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the first line of each pipe as they come; an empty line for a pipe that is closed before.

    After the timeout the lines that are missing are left out.
    """
    return (_lines_by_threads if sys.platform == "win32" else _lines_by_selector)(pipes, timeout_s)


def _lines_by_selector(pipes: Mapping[str, int], timeout_s: float) -> Iterator[tuple[str, bytes]]:
    texts = dict.fromkeys(pipes, b"")
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for name, descriptor in pipes.items():
            selector.register(descriptor, selectors.EVENT_READ, name)
        while selector.get_map():
            events = selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                return
            for key, _ in events:
                piece = os.read(key.fd, _PIECE)
                texts[key.data] += piece
                if not piece or b"\n" in piece:
                    selector.unregister(key.fd)
                    yield key.data, texts[key.data].partition(b"\n")[0] if piece else b""


def _lines_by_threads(pipes: Mapping[str, int], timeout_s: float) -> Iterator[tuple[str, bytes]]:
    """Read each pipe in a thread: on Windows, select does not wait for pipes."""
    lines: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()

    def read(name: str, descriptor: int) -> None:
        text = piece = b""
        with suppress(OSError):  # closed at this end
            while b"\n" not in text and (piece := os.read(descriptor, _PIECE)):
                text += piece
        lines.put((name, text.partition(b"\n")[0] if piece else b""))

    for name, descriptor in pipes.items():
        threading.Thread(target=read, args=(name, descriptor), name=f"thalweg-line-{name}", daemon=True).start()
    deadline = time.monotonic() + timeout_s
    for _ in pipes:
        try:
            yield lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return
