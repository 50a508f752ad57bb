"""Differences between operating systems, and the refusal of what Linux alone has.

Runs are tested on Linux. ``files``, ``processes`` and ``waiting`` have a function for each need that systems meet in
different ways, so that no other module of the portable part uses a name which macOS or Windows lacks. Testbeds, and the
guard of a host's connections, need Linux as a whole: who imports them calls ``check_linux`` or ``on_linux`` first.
"""

from __future__ import annotations

import os
import sys

from thalweg.middleware.errors import CapabilityError

NAMES = {"darwin": "macOS", "win32": "Windows"}
INSTEAD = "simulate with --testbed sim, or use a Linux machine"


def on_linux() -> bool:
    """Return whether this system is Linux."""
    return sys.platform == "linux"


def needs_linux(what: str, instead: str = INSTEAD) -> str:
    """Return the line that refuses ``what`` on this system; ``what`` ends with its verb, as ``namespaces need``."""
    return f"{what} Linux, and this is {NAMES.get(sys.platform, sys.platform)}; {instead}"


def check_linux(what: str, instead: str = INSTEAD) -> None:
    """Raise CapabilityError unless this system is Linux."""
    if not on_linux():
        raise CapabilityError(needs_linux(what, instead))


def usable_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if on_linux() else os.cpu_count() or 1


def memory_bytes() -> int:
    """Return the memory of this machine."""
    if on_linux():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    import psutil  # takes longer to import than all else here

    return int(psutil.virtual_memory().total)


def load_average() -> float:
    """Return the machine's load average of the last minute."""
    if hasattr(os, "getloadavg"):
        return os.getloadavg()[0]
    import psutil  # which counts it on Windows

    return float(psutil.getloadavg()[0])
