"""Differences between operating systems, and the refusal of parts that need Linux.

Runs are tested on Linux. ``files``, ``processes`` and ``waiting`` have one function for every need that systems meet in
different ways. ``packages`` advises on the installation of programs. No other portable module uses a name that macOS
or Windows lacks. Testbeds and the guard of a host's connections need Linux as a whole: callers of these modules call
``check_linux`` or ``on_linux`` before the import.
"""

from __future__ import annotations

import os
import sys

from thalweg.middleware.errors import CapabilityError

NAMES = {"darwin": "macOS", "win32": "Windows"}
INSTEAD = "simulate with --testbed sim, or use a Linux machine"


def on_linux() -> bool:
    """Return whether the system is Linux."""
    return sys.platform == "linux"


def needs_linux(what: str, instead: str = INSTEAD) -> str:
    """Return the line that refuses ``what`` on another system; ``what`` ends with a verb, as ``namespaces need``."""
    return f"{what} Linux, and this is {NAMES.get(sys.platform, sys.platform)}; {instead}"


def check_linux(what: str, instead: str = INSTEAD) -> None:
    """Raise CapabilityError unless the system is Linux."""
    if not on_linux():
        raise CapabilityError(needs_linux(what, instead))


def usable_processors() -> int:
    """Return the number of processors that the process may use."""
    return len(os.sched_getaffinity(0)) if on_linux() else os.cpu_count() or 1


def memory_bytes() -> int:
    """Return the memory of the machine, in bytes."""
    if on_linux():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    import psutil  # slow to import

    return int(psutil.virtual_memory().total)


def load_average() -> float:
    """Return the machine's load average of the last minute."""
    if hasattr(os, "getloadavg"):
        return os.getloadavg()[0]
    import psutil  # counts the load on Windows

    return float(psutil.getloadavg()[0])
