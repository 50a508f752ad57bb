"""File descriptors: how many a host takes, and whether a process has that many before it begins what needs them.

libzmq aborts a process, or fails halfway, where it gets none.
"""

from __future__ import annotations

import errno
import os

from thalweg.middleware.errors import CapabilityError
from thalweg.middleware.platform.processes import descriptor_limits

OWN = 40  # of a host without peers: 28 over TCP with keys, the others for what its operators open
OF_A_PEER = 8  # its two connections; and for each of the two dealers itself, its connection, and what tells of that
INHERITED = 5  # of a process that is just started


def soft_limit() -> int:
    """How many this process may open; below 0 for any number."""
    return descriptor_limits()[0]


def check_free(what: str, needed: int) -> None:
    """CapabilityError unless this process may open ``needed`` more, for ``what``."""
    opened: list[int] = []
    try:
        while len(opened) < needed:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return  # there is no /dev/null, so nobody knows
        free, soft = len(opened), soft_limit()
        raise CapabilityError(
            f"{what} needs {needed} more file descriptors, and of {soft} here {free} are free;"
            f" raise the limit: ulimit -n {soft + needed - free}"
        ) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def check_for_hosts(count: int) -> None:
    """CapabilityError unless this process can start ``count`` hosts that talk to each other, and keep them."""
    needed, hard = INHERITED + OWN + OF_A_PEER * count, descriptor_limits()[1]
    if 0 <= hard < needed:
        raise CapabilityError(
            f"each host of a cluster of {count} needs {needed} file descriptors, and may open {hard};"
            f" raise the hard limit: ulimit -Hn {needed}"
        )
    check_free(f"a cluster of {count}", 3 * count + 8)
