"""Samples of the traffic of links, in bounded memory: an older sample covers a longer time.

The module does no input or output.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

FINEST_S = 0.1
"""Least time between two samples of a link."""
LEVEL_ROWS = 20_000
"""Most rows of a level: 2 MB."""
LINK_ROWS = 2
"""Rows of a level for each of its links, if this gives more rows. With fewer, a level would join no samples."""


class Sample(NamedTuple):
    """Traffic of a link from ``begin_s`` to ``end_s``. ``link``: number of the link.

    ``asked_begin_bits``, ``asked_end_bits``: bits that the link could have carried at the requested rates, from the
    first setting until begin and end. ``waiting_bytes``: longest queue at the readings. ``drops``: packets that the
    queue refused.
    """

    link: int
    begin_s: float
    end_s: float
    asked_begin_bits: float
    asked_end_bits: float
    sent_bytes: float
    packets: float
    drops: float
    waiting_bytes: float


WIDTH = len(Sample._fields)
BEGIN, END, ASKED_END, SENT, PACKETS, DROPS, WAITING = 1, 2, 4, 5, 6, 7, 8


class _Level:
    """Samples of one resolution, sorted by end. Successive samples of a link are joined up to ``width_s`` seconds."""

    def __init__(self, width_s: float) -> None:
        self._width_s = width_s
        self.rows = array("d")
        self._head = self._gone = 0  # removed rows: in the array, and no longer in it
        self._last: dict[int, int] = {}  # by link: number of the last row, counted from the first row of the level

    def __len__(self) -> int:
        return len(self.rows) // WIDTH - self._head

    @property
    def full(self) -> bool:
        """Return whether the oldest sample must leave. Every link has room for two samples to join."""
        return len(self) > max(LEVEL_ROWS, LINK_ROWS * len(self._last))

    def add(self, row: tuple[float, ...] | array[float]) -> None:
        """Add a sample that is later than the samples of the same link here, or join it with the last of them."""
        link, rows = int(row[0]), self.rows
        at = (self._last.get(link, -1) - self._gone) * WIDTH
        if at >= self._head * WIDTH and row[END] - rows[at + BEGIN] <= self._width_s:
            for column in (END, ASKED_END):
                rows[at + column] = row[column]
            for column in (SENT, PACKETS, DROPS):
                rows[at + column] += row[column]
            rows[at + WAITING] = max(rows[at + WAITING], row[WAITING])
            return
        self._last[link] = self._gone + len(rows) // WIDTH
        rows.extend(row)

    def pop(self) -> array[float]:
        """Remove and return the oldest sample."""
        at = self._head * WIDTH
        row = self.rows[at : at + WIDTH]
        self._head += 1
        if self._head > LEVEL_ROWS // 4:
            del self.rows[: self._head * WIDTH]
            self._gone, self._head = self._gone + self._head, 0
        return row

    def alive(self) -> array[float]:
        return self.rows[self._head * WIDTH :]


class Samples:
    """Samples of all links. A full level passes its oldest sample to the next level, which joins samples of a link.

    Every doubling of the covered time adds at most one level.
    """

    def __init__(self) -> None:
        self._levels = [_Level(0.0)]

    def add(self, sample: Sample) -> None:
        """Add a sample that is later than the samples of the same link so far."""
        row: tuple[float, ...] | array[float] = sample
        for level in self._coarser():
            level.add(row)
            if not level.full:
                return
            row = level.pop()

    def _coarser(self) -> Iterator[_Level]:
        number = 0
        while True:
            if number == len(self._levels):
                self._levels.append(_Level(FINEST_S * 2**number))
            yield self._levels[number]
            number += 1

    def rows(self) -> array[float]:
        """Return all samples in one flat array, from the coarsest level to the finest."""
        flat = array("d")
        for level in reversed(self._levels):
            flat.extend(level.alive())
        return flat

    @property
    def joined_s(self) -> float:
        """Longest time in seconds for which old samples are joined. 0: there is room for every sample."""
        return FINEST_S * 2 ** (len(self._levels) - 1) if len(self._levels) > 1 else 0.0

    def __len__(self) -> int:
        return sum(map(len, self._levels))
