"""Control connections without progress are dialled again before TCP itself retries."""

from __future__ import annotations

from typing import Any

from thalweg.middleware.shell.redialling import Redialling
from thalweg.middleware.shell.stalls import End, Outflow

END = "tcp://10.0.0.2:7800", "h2"


class Line:
    """Control connection whose link is cut for a span of time."""

    def __init__(self, cut_s: float, whole_s: float, rtt_s: float = 0.01) -> None:
        self.cut_s, self.whole_s, self.rtt_s, self.now = cut_s, whole_s, rtt_s, 0.0
        self.acked_bytes, self.dialled_s, self.connected = 5000, list[float](), True
        self.redialling = Redialling(self)  # type: ignore[arg-type]

    def control_ends(self) -> list[End]:
        return [END]

    def outflow(self, _: Any) -> Outflow | None:
        return Outflow(self.acked_bytes, True, self.rtt_s) if self.connected else None

    def redial(self, _: Any) -> None:
        self.dialled_s.append(self.now)
        self.connected = False

    def run(self, until_s: int) -> list[float]:
        """Return the times at which the host was reached again."""
        back = list[float]()
        for second in range(until_s):
            self.now = float(second)
            if not self.cut_s <= self.now < self.whole_s:
                waited_s = self.now - (self.dialled_s[-1] if self.dialled_s else 0.0)
                if not self.connected and waited_s >= 2 * self.rtt_s:
                    self.connected, self.acked_bytes = True, 0
                if self.connected:
                    self.acked_bytes += 100
            if self.redialling.check(self.now):
                back.append(self.now)
        return back


def test_a_connection_is_dialled_again_every_few_seconds_while_a_link_is_cut() -> None:
    line = Line(10.0, 25.0)
    (back_s,) = line.run(40)
    assert line.dialled_s[0] <= 10.0 + 4.0
    assert max(b - a for a, b in zip(line.dialled_s, line.dialled_s[1:], strict=False)) <= 4.0
    assert back_s <= 25.0 + 2.0


def test_a_connection_that_carries_bytes_stays() -> None:
    line = Line(1e9, 1e9)
    assert line.run(600) == []
    assert line.dialled_s == []


def test_a_connection_is_dialled_less_often_during_a_long_cut() -> None:
    line = Line(10.0, 500.0)
    line.run(500)
    assert 10 < len(line.dialled_s) < 30
    assert line.dialled_s[-1] - line.dialled_s[-2] > 60.0


def test_a_connection_with_a_long_round_trip_is_not_redialled_after_a_short_cut() -> None:
    line = Line(10.0, 12.0, rtt_s=10.0)
    line.run(60)
    assert line.dialled_s == []
