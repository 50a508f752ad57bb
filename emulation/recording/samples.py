"""Samples of what links carried, in bounded memory: the older they are, the longer the time that each covers.

No input or output.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

FINEST_S = 0.1
"""The least time between two samples of a link."""
LEVEL_ROWS = 20_000
"""The rows of a level: 2 MB."""
LINK_ROWS = 2
"""The rows of a level for each of its links, if these are more. With fewer a level would join none."""


class Sample(NamedTuple):
    """What a link carried from ``begin_s`` to ``end_s``. ``link`` is its number.

    ``asked_begin_bits``, ``asked_end_bits``: what it would have carried at the rates asked, counted from its first
    setting to the two moments. ``waiting_bytes``: the most that was found waiting. ``drops``: packets that it dropped.
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
    """Samples of one fineness in the order of their ends. Neighbours are joined up to ``width_s`` seconds."""

    def __init__(self, width_s: float) -> None:
        self._width_s = width_s
        self.rows = array("d")
        self._head = self._gone = 0  # rows that have left: still in the array, and no longer
        self._last: dict[int, int] = {}  # by link: the number of its last row, counted from the first ever

    def __len__(self) -> int:
        return len(self.rows) // WIDTH - self._head

    @property
    def full(self) -> bool:
        """Whether the oldest sample is to leave. A level has room for its links, so that each meets its next sample."""
        return len(self) > max(LEVEL_ROWS, LINK_ROWS * len(self._last))

    def add(self, row: tuple[float, ...] | array[float]) -> None:
        """Add a sample that is later than those of the same link here."""
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
        """Remove the oldest sample, and return it."""
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
    """All samples. A level that is full gives its oldest sample to the next, which joins two and more of a link.

    With every doubling of the time covered there is at most one level more.
    """

    def __init__(self) -> None:
        self._levels = [_Level(0.0)]

    def add(self, sample: Sample) -> None:
        """Add a sample that is later than all others of its link."""
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
        """Return all samples, oldest first, one behind the other."""
        found = array("d")
        for level in reversed(self._levels):
            found.extend(level.alive())
        return found

    @property
    def joined_s(self) -> float:
        """The time up to which old samples are joined; 0 as long as there is room for all."""
        return FINEST_S * 2 ** (len(self._levels) - 1) if len(self._levels) > 1 else 0.0

    def __len__(self) -> int:
        return sum(map(len, self._levels))
