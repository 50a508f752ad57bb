"""Clock of a host that leaves out the seconds in which the host's process did not run.

A process does not run while it is stopped (SIGSTOP, a debugger, a paused virtual machine), while a thread holds the
interpreter, or while the machine is suspended. Rules:

- R1: Silence counts only while the host runs. If a turn of the loop ends ``SLACK_S`` later than the loop asked for, the
  process did not run. The time beyond that is left out of the time that the core gets.
- R2: Such a turn still counts as ``SLACK_S``. So a host that is late in every turn still gives up silent hosts in the
  end.
- R3: A suspended machine stops the monotonic clock too. The lead that ``CLOCK_BOOTTIME`` gains shows the suspension.
- R4: An absence of ``WOKE_S`` or more is reported to the core (``Woke``) and logged. After ``STALE_S`` the other end of
  each connection has hung up, or is about to. Then all connections are dialled anew.
"""

from __future__ import annotations

from collections.abc import Callable

from thalweg.middleware.platform.clocks import boot_s

SLACK_S = 1.0
WOKE_S = 5.0
STALE_S = 30.0  # HEARTBEAT_TIMEOUT of sockets


class Awake:
    """Clock of one host, written only by the host's thread on duty.

    ``epoch`` grows by the time that is left out, so ``now - epoch`` is the time that the host has run. A reading of
    ``time.monotonic`` beyond ``limit_s`` shows that the process did not run (R1). Before a wait, the loop sets
    ``limit_s`` to ``SLACK_S`` after the latest end of the wait.
    """

    __slots__ = ("_ahead_s", "_boot", "epoch", "limit_s")

    def __init__(self, now: float, boot: Callable[[], float] = boot_s) -> None:
        self.epoch = now
        self.limit_s = now + SLACK_S
        self._boot = boot
        self._ahead_s = boot() - now

    def stopped(self, now: float) -> float:
        """Exclude the time by which ``now`` is beyond the limit, and return that time (R1, R2)."""
        stopped_s = max(0.0, now - self.limit_s)
        self.epoch += stopped_s
        self.limit_s = now + SLACK_S
        return stopped_s

    def suspended(self, now: float) -> float:
        """Return the seconds that the machine was suspended since the last call. 0 for less than ``SLACK_S`` (R3)."""
        ahead_s = self._boot() - now
        suspended_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        return suspended_s if suspended_s > SLACK_S else 0.0
