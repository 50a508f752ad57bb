"""Requests divided into parts: schedules and changes of a replay with more figures than one line may have.

The launcher divides requests, and the supervisor of a testbed joins their parts, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thalweg.emulation.links.effects import Effect
from thalweg.emulation.supervisor.player import Schedule
from thalweg.emulation.supervisor.requests import MAX_GIVEN_BYTES, PART_BYTES, Replay, ReplayChange, Steps
from thalweg.middleware.errors import UsageError

ROW_BYTES = 3 * 8
EFFECTS = 10_000  # limit of effects in one request. An effect takes 200 to 400 bytes


def replays(steps: Sequence[Steps]) -> Iterator[Replay]:
    """Divide schedules into requests. A schedule of many steps continues in the next request."""
    some, size = list[Steps](), 0
    for schedule in steps:
        for begin in range(0, len(schedule.times_s) or 1, PART_BYTES):
            part = slice(begin, begin + PART_BYTES)
            some.append(schedule._replace(times_s=schedule.times_s[part], rates_bps=schedule.rates_bps[part]))
            size += 2 * len(some[-1].times_s) + 100  # 100 bytes for the names
            if size >= PART_BYTES:
                yield Replay(some, more=True)
                some, size = [], 0
    yield Replay(some)


def changes(effects: Sequence[Effect], rows: bytes) -> Iterator[ReplayChange]:
    """Divide changes into requests: first the effects, then the rows that refer to effects by number."""
    for begin in range(0, len(effects) - EFFECTS, EFFECTS):
        yield ReplayChange([*effects[begin : begin + EFFECTS]], b"", more=True)
    last = [*effects[(max(len(effects), 1) - 1) // EFFECTS * EFFECTS :]]
    most = PART_BYTES // ROW_BYTES * ROW_BYTES
    for begin in range(0, len(rows) - most, most):
        yield ReplayChange(last, rows[begin : begin + most], more=True)
        last = []
    yield ReplayChange(last, rows[(max(len(rows), 1) - 1) // most * most :])


class Parts:
    """Parts of one request received so far. Methods raise UsageError if the parts become too large."""

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
        for schedule in steps:
            self._take(len(schedule.times_s) + len(schedule.rates_bps) + 100)
            if not self._steps or self._steps[-1][0] != schedule.link:
                self._steps.append((schedule.link, bytearray(), bytearray(), schedule.period_s))
            self._steps[-1][1].extend(schedule.times_s)
            self._steps[-1][2].extend(schedule.rates_bps)

    def schedules(self) -> list[Schedule]:
        return [Schedule(link, bytes(times), bytes(rates), period_s) for link, times, rates, period_s in self._steps]

    def add_changes(self, effects: Sequence[Effect], rows: bytes) -> None:
        self._take(len(rows) + 400 * len(effects))
        for effect in effects:
            if wrong := effect.objection():
                raise UsageError(wrong)
        self.effects.extend(effects)
        self.rows.extend(rows)
