"""The supervisor's samples of what the links carry.

Times are ``time.monotonic()``, one clock for all processes of a machine.
"""

from __future__ import annotations

import time
from array import array

from thalweg.emulation.kernel.world import World
from thalweg.middleware.network.view import Cable, Link

MAX_ROWS = 16_000_000  # that nobody has taken: 1 GiB
READING_S = 0.02  # of an interval: a reading that takes longer may be off by as much


class Sampler:
    """Reads every link's counters periodically and keeps a row for each link that was not idle."""

    def __init__(self, world: World, interval_s: float) -> None:
        self._world, self.interval_s = world, interval_s
        self._targets: list[Cable] = list(dict.fromkeys(link.ends[1] for link in world.links))
        self._networks = list(dict.fromkeys(end.via for end in world.ends.values()))
        self._last: dict[Link, tuple[float, int, int, float]] = {}
        self._rows = array("d")
        self.next_s = time.monotonic()
        self.refusal = ""
        """Why it has stopped by itself."""

    def sample(self) -> None:
        """Take one sample of all links; rows cover the time since the sample before.

        Raises ValueError if nobody takes the rows.
        A reading that was held up, so that nobody knows when the counters were read, is left out: the next row covers
        its time.
        """
        if len(self._rows) > 8 * MAX_ROWS:
            raise ValueError(f"nobody has taken the last {MAX_ROWS} rows")
        for target in self._targets:
            if target in self._world.gone:
                continue
            began_s = time.monotonic()
            counters = self._world.counters(target)
            now_s = time.monotonic()
            end = self._world.ends[target]
            links = {source: Link(source, end.name, end.via) for source in counters}
            if now_s - began_s > READING_S * self.interval_s and any(one in self._last for one in links.values()):
                continue
            now_s = (began_s + now_s) / 2
            for source, counted in counters.items():
                key = links[source]
                link = self._world.links.get(key)
                if link is None:  # a class of a link whose setting up the kernel refused halfway
                    continue
                asked_bits = link.asked_bits(now_s)
                before = self._last.get(key)
                self._last[key] = (now_s, counted.sent_bytes, counted.backlog_bytes, asked_bits)
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
                        float(self._networks.index(end.via)),
                        seconds,
                    )
                )
        self.next_s = max(self.next_s + self.interval_s, time.monotonic())

    def take(self) -> bytes:
        """The rows since the last call, in float64: end, source's number, target's, asked, delivered, backlogged,
        network's number, seconds.
        """
        rows, self._rows = self._rows, array("d")
        return rows.tobytes()
