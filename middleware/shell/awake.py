"""The time that a host has run: its monotonic clock without the seconds in which its process did not run.

A process does not run while it is stopped (SIGSTOP, a debugger, a paused virtual machine), while another part of it
holds the interpreter, or while the machine is suspended. Rules:

- R1: Silence counts only while the host runs. A turn of its loop that ends ``SLACK_S`` later than the loop asked for
  shows that it did not: what is beyond that is left out of the time that the core is told.
- R2: Such a turn still counts as ``SLACK_S``. So a host that is late in every turn gives up others in the end.
- R3: A suspended machine stops the monotonic clock too. What ``CLOCK_BOOTTIME`` has gained on it shows the suspension.
- R4: The core is told of ``WOKE_S`` or more (``Woke``), and it is logged. After ``STALE_S`` the other end of each
  connection has hung up, or is about to: all are dialled anew.
"""

from __future__ import annotations

from collections.abc import Callable

from thalweg.middleware.platform.clocks import boot_s

SLACK_S = 1.0
WOKE_S = 5.0
STALE_S = 30.0  # HEARTBEAT_TIMEOUT of sockets


class Awake:
    """Clock of one host; written by its thread on duty alone.

    ``epoch`` moves on by what is left out, so ``now - epoch`` is the time that the host has run. A reading of
    ``time.monotonic`` beyond ``limit_s`` shows that the process did not run (R1): the loop sets it, before it waits, to
    ``SLACK_S`` after the time at which it will go on at the latest.
    """

    __slots__ = ("_ahead_s", "_boot", "epoch", "limit_s")

    def __init__(self, now: float, boot: Callable[[], float] = boot_s) -> None:
        self.epoch = now
        self.limit_s = now + SLACK_S
        self._boot = boot
        self._ahead_s = boot() - now

    def stopped(self, now: float) -> float:
        """Leave out what ``now`` is beyond the limit, and return it (R1, R2)."""
        stopped_s = max(0.0, now - self.limit_s)
        self.epoch += stopped_s
        self.limit_s = now + SLACK_S
        return stopped_s

    def suspended(self, now: float) -> float:
        """Return for how long the machine has been suspended since the last call; 0 for less than ``SLACK_S`` (R3)."""
        ahead_s = self._boot() - now
        suspended_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        return suspended_s if suspended_s > SLACK_S else 0.0
