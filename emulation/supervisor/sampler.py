"""Samples of the traffic on links, taken by the supervisor.

Times are ``time.monotonic()``, one clock for all processes of a machine.
"""

from __future__ import annotations

import time
from array import array

from thalweg.emulation.kernel.world import World
from thalweg.middleware.network.view import Cable, Link

MAX_ROWS = 16_000_000  # limit of rows that wait for ``take``: 1 GiB
READING_S = 0.02  # share of an interval. If a reading takes longer, its time is too uncertain


class Sampler:
    """Periodic reading of every link's counters, with a row for every link that was not idle."""

    def __init__(self, world: World, interval_s: float) -> None:
        self._world, self.interval_s = world, interval_s
        self._targets: list[Cable] = list(dict.fromkeys(link.ends[1] for link in world.links))
        self._networks = list(dict.fromkeys(end.via for end in world.ends.values()))
        self._last: dict[Link, tuple[float, int, int, float]] = {}
        self._rows = array("d")
        self.next_s = time.monotonic()
        self.refusal = ""
        """Why the sampling has stopped by itself."""

    def sample(self) -> None:
        """Take one sample of all links. Its rows cover the time since the sample before.

        If a reading was held up, the time of its counters is uncertain. The reading is then left out, and the next row
        covers its time. Raises ValueError if too many rows wait for ``take``.
        """
        if len(self._rows) > 8 * MAX_ROWS:
            raise ValueError(f"no client has fetched the last {MAX_ROWS} rows")
        for target in self._targets:
            if target in self._world.gone:
                continue
            began_s = time.monotonic()
            counters = self._world.counters(target)
            now_s = time.monotonic()
            end = self._world.ends[target]
            links = {source: Link(source, end.name, end.via) for source in counters}
            if now_s - began_s > READING_S * self.interval_s and any(
                target_link in self._last for target_link in links.values()
            ):
                continue
            now_s = (began_s + now_s) / 2
            for source, counted in counters.items():
                key = links[source]
                link = self._world.links.get(key)
                if link is None:  # the kernel refused to set up the link, and its class remained
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
        """Return the rows since the last call, in float64, and forget them.

        Columns: end, number of the source, number of the target, asked rate, delivered rate, whether packets waited,
        number of the network, seconds.
        """
        rows, self._rows = self._rows, array("d")
        return rows.tobytes()
