"""File descriptors of hosts: the number that a host needs, and checks before their use.

Without a free descriptor, libzmq aborts the process or fails halfway.
"""

from __future__ import annotations

import errno
import os

from thalweg.middleware.errors import CapabilityError
from thalweg.middleware.platform.processes import descriptor_limits

OWN = 40  # of a host without peers: 28 over TCP with keys, and 12 for files of its operators
OF_A_PEER = 8  # the peer's two connections, and for each of the two dealers the socket, its connection and its monitor
INHERITED = 5  # of a process that has just started


def soft_limit() -> int:
    """Return the number of descriptors that the process may open. Below 0: no limit."""
    return descriptor_limits()[0]


def check_free(what: str, needed: int) -> None:
    """Raise CapabilityError unless the process may open ``needed`` more descriptors. ``what`` names their use."""
    opened: list[int] = []
    try:
        while len(opened) < needed:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return  # without /dev/null there is no way to know
        free, soft = len(opened), soft_limit()
        raise CapabilityError(
            f"{what} needs {needed} more file descriptors, and of {soft} here {free} are free;"
            f" raise the limit: ulimit -n {soft + needed - free}"
        ) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def check_for_hosts(count: int) -> None:
    """Raise CapabilityError unless the process can start and keep ``count`` connected hosts."""
    needed, hard = INHERITED + OWN + OF_A_PEER * count, descriptor_limits()[1]
    if 0 <= hard < needed:
        raise CapabilityError(
            f"each host of a cluster of {count} needs {needed} file descriptors, and may open {hard};"
            f" raise the hard limit: ulimit -Hn {needed}"
        )
    check_free(f"a cluster of {count}", 3 * count + 8)
