"""Memory of a host process: freed memory of partitions is kept for the next partitions.

By default glibc returns free memory at the end of its heap to the system as soon as there is a little. A larger piece
gets a mapping of its own, until glibc has seen a few. So the system would provide, clear and take back the pages of
every partition. The cost is highest if outputs are retained, and many are freed at a time.
"""

from __future__ import annotations

import contextlib
import ctypes

NO_GLIBC = (AttributeError, OSError, TypeError)  # a C library other than glibc; on Windows, none without a name
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 32 * 1024 * 1024  # free bytes that a heap keeps at its end: 18 outputs of 1 MiB, and more
IN_HEAP_BYTES = 8 * 1024 * 1024  # larger pieces have mappings of their own: two chunks of a transfer


def keep_freed() -> None:
    """Make the process keep freed memory, up to ``KEPT_BYTES``. Does nothing with a C library that cannot."""
    with contextlib.suppress(*NO_GLIBC):
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(M_MMAP_THRESHOLD, IN_HEAP_BYTES)


def give_back() -> None:
    """Return freed memory to the system. Does nothing with a C library that cannot, and the memory is then reused."""
    with contextlib.suppress(*NO_GLIBC):
        ctypes.CDLL(None).malloc_trim(0)
