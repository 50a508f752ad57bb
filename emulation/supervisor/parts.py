"""Requests that travel in parts: schedules and changes of a replay, which may have more figures than a line may have.

Both ends are here: the launcher divides, and the supervisor of a testbed puts together, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thalweg.emulation.links.effects import Effect
from thalweg.emulation.supervisor.player import Schedule
from thalweg.emulation.supervisor.requests import MAX_GIVEN_BYTES, PART_BYTES, Replay, ReplayChange, Steps
from thalweg.middleware.errors import UsageError

ROW_BYTES = 3 * 8
EFFECTS = 10_000  # in one request: each takes 200 to 400 bytes


def replays(steps: Sequence[Steps]) -> Iterator[Replay]:
    """Divide schedules into requests. A schedule of many steps goes on in the next request."""
    some, size = list[Steps](), 0
    for one in steps:
        for begin in range(0, len(one.times_s) or 1, PART_BYTES):
            part = slice(begin, begin + PART_BYTES)
            some.append(one._replace(times_s=one.times_s[part], rates_bps=one.rates_bps[part]))
            size += 2 * len(some[-1].times_s) + 100  # the names
            if size >= PART_BYTES:
                yield Replay(some, more=True)
                some, size = [], 0
    yield Replay(some)


def changes(effects: Sequence[Effect], rows: bytes) -> Iterator[ReplayChange]:
    """Divide changes into requests: the effects first, then the rows that number them."""
    for begin in range(0, len(effects) - EFFECTS, EFFECTS):
        yield ReplayChange([*effects[begin : begin + EFFECTS]], b"", more=True)
    last = [*effects[(max(len(effects), 1) - 1) // EFFECTS * EFFECTS :]]
    most = PART_BYTES // ROW_BYTES * ROW_BYTES
    for begin in range(0, len(rows) - most, most):
        yield ReplayChange(last, rows[begin : begin + most], more=True)
        last = []
    yield ReplayChange(last, rows[(max(len(rows), 1) - 1) // most * most :])


class Parts:
    """Parts of one request that have come so far. UsageError when they become too large."""

    def __init__(self) -> None:
        self._steps: list[tuple[tuple[str, ...], bytearray, bytearray, float]] = []
        self.effects: list[Effect] = []
        self.rows = bytearray()
        self._left_bytes = MAX_GIVEN_BYTES

    def _take(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise UsageError(f"a replay has more than {MAX_GIVEN_BYTES} bytes of figures; replay fewer links")

    def add_schedules(self, steps: Sequence[Steps]) -> None:
        for one in steps:
            self._take(len(one.times_s) + len(one.rates_bps) + 100)
            if not self._steps or self._steps[-1][0] != one.link:
                self._steps.append((one.link, bytearray(), bytearray(), one.period_s))
            self._steps[-1][1].extend(one.times_s)
            self._steps[-1][2].extend(one.rates_bps)

    def schedules(self) -> list[Schedule]:
        return [Schedule(link, bytes(times), bytes(rates), period_s) for link, times, rates, period_s in self._steps]

    def add_changes(self, effects: Sequence[Effect], rows: bytes) -> None:
        self._take(len(rows) + 400 * len(effects))
        for effect in effects:
            if wrong := effect.objection():
                raise UsageError(wrong)
        self.effects.extend(effects)
        self.rows.extend(rows)
