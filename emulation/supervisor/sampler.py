"""The supervisor's samples of what the links carry.

Times are ``time.monotonic()``, one clock for all processes of a machine.
"""

from __future__ import annotations

import time
from array import array

from thalweg.emulation.kernel.world import World
from thalweg.middleware.network.view import Pair

READING_S = 0.02  # of an interval: a reading that takes longer may be off by as much


class Sampler:
    """Reads every link's counters periodically and keeps a row for each link that was not idle."""

    def __init__(self, world: World, interval_s: float) -> None:
        self._world, self.interval_s = world, interval_s
        self._sources = sorted({source for source, _ in world.links})
        self._last: dict[Pair, tuple[float, int, int, float]] = {}
        self._rows = array("d")
        self.next_s = time.monotonic()
        self.refusal = ""
        """Why it has stopped by itself."""

    def sample(self) -> None:
        """Take one sample of all links; rows cover the time since the sample before.

        A reading that was held up, so that nobody knows when the counters were read, is left out: the next row covers
        its time.
        """
        for source in self._sources:
            began_s = time.monotonic()
            counters = self._world.counters(source)
            now_s = time.monotonic()
            if now_s - began_s > READING_S * self.interval_s and any(
                (source, target) in self._last for target in counters
            ):
                continue
            now_s = (began_s + now_s) / 2
            for target, counted in counters.items():
                link = self._world.links.get((source, target))
                if link is None:  # a class of a link whose setting up the kernel refused halfway
                    continue
                asked_bits = link.asked_bits(now_s)
                before = self._last.get((source, target))
                self._last[source, target] = (now_s, counted.sent_bytes, counted.backlog_bytes, asked_bits)
                if before is None or now_s <= before[0]:
                    continue
                seconds, sent = now_s - before[0], counted.sent_bytes - before[1]
                if not sent and not counted.backlog_bytes:
                    continue
                self._rows.extend(
                    (
                        now_s,
                        link.source.number,
                        link.target.number,
                        (asked_bits - before[3]) / seconds,
                        sent * 8 / seconds,
                        float(before[2] > 0 and counted.backlog_bytes > 0),
                    )
                )
        self.next_s = max(self.next_s + self.interval_s, time.monotonic())

    def take(self) -> bytes:
        """The rows since the last call, in float64: end, source's number, target's, asked, delivered, backlogged."""
        rows, self._rows = self._rows, array("d")
        return rows.tobytes()
