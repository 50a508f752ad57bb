"""The memory of a host process: what partitions leave is kept for the next ones.

glibc gives what is free at the end of its heap back to the system as soon as there is a little of it, and has a mapping
of its own for each larger piece, until it has seen a few. So the pages of a partition were taken from the system,
cleared and given back for every one; the more so where outputs are retained, and let go of many at a time.
"""

from __future__ import annotations

import contextlib
import ctypes

NO_GLIBC = (AttributeError, OSError, TypeError)  # another C library; on Windows, none without a name
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 32 * 1024 * 1024  # that a heap keeps of what is free at its end: 18 outputs of 1 MiB, and more
IN_HEAP_BYTES = 8 * 1024 * 1024  # larger pieces have mappings of their own: two chunks of a transfer


def keep_freed() -> None:
    """Have this process keep what is freed, up to ``KEPT_BYTES``; where the C library knows no such thing, nothing."""
    with contextlib.suppress(*NO_GLIBC):
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(M_MMAP_THRESHOLD, IN_HEAP_BYTES)


def give_back() -> None:
    """Memory that was freed, to the system; where the C library cannot, it is used again for what comes next."""
    with contextlib.suppress(*NO_GLIBC):
        ctypes.CDLL(None).malloc_trim(0)
