"""Clocks of a process: one that stops while the machine is suspended, and one that goes on."""

from __future__ import annotations

import time


def boot_s() -> float:
    """Return seconds that go on while the machine is suspended.

    Only Linux has such a clock beside ``time.monotonic``. On other systems this is ``time.monotonic``: Windows counts a
    suspension in it, and on macOS a suspension is not noticed.
    """
    clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
