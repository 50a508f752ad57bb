"""Real rates of the links of a testbed during its replays, beside the estimates of hosts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path

import msgspec

from thalweg.emulation.traces.trace import Rates
from thalweg.middleware.files.writing import whole
from thalweg.middleware.network.view import Link, link_of
from thalweg.middleware.platform.files import open_regular

"""A link's rate over time, in emulated seconds and bit/s."""


class Replayed(msgspec.Struct, frozen=True):
    """One replay: its start and end (Unix time), and the links' rates, in emulated seconds since the start."""

    began_s: float
    ended_s: float
    rates: Mapping[Link, Rates]


class Truth:
    """Real rates of links, in emulated bit/s, by the clock on the wall."""

    def __init__(self, time_scale: float) -> None:
        self._time_scale = time_scale
        self._replays: list[Replayed] = []

    def add(self, replay: Replayed) -> None:
        """Add a replay that is later than the replays before."""
        self._replays.append(replay)

    def mean_bps(self, link: Link, wall_s: float, duration_s: float) -> float | None:
        """Return the mean rate of a link over the ``duration_s`` emulated seconds before ``wall_s`` (Unix time).

        Without a duration, return the rate at that moment. None: no replay ran, or the link has no trace. If the replay
        stopped before ``wall_s``, only the time until the stop counts.
        """
        number = bisect_right(self._replays, wall_s, key=lambda one: one.began_s) - 1
        if number < 0:
            return None
        replay = self._replays[number]
        rates = replay.rates.get(link)
        if rates is None or wall_s - duration_s / self._time_scale > replay.ended_s:
            return None
        start_s = max(0.0, (wall_s - replay.began_s) * self._time_scale - duration_s)
        stop_s = (min(wall_s, replay.ended_s) - replay.began_s) * self._time_scale
        return rates.bits_between(start_s, stop_s) / (stop_s - start_s) if stop_s > start_s else rates.rate_at(stop_s)


def add_truth(path: Path, truth: Truth) -> None:
    """Add the emulator's ``truth_bps`` to every ``estimate`` in the log of one host (JSON Lines), line by line.

    Other lines stay as they are, also a half-written line.
    """
    with whole(path, "free space there") as part, open_regular(path) as source, part.open("wb") as target:
        for line in source:
            target.write(_with_truth(line, truth) if b'"estimate"' in line else line)


def _with_truth(line: bytes, truth: Truth) -> bytes:
    try:
        row = msgspec.json.decode(line)
        if row["kind"] != "estimate":
            return line
        detail = row["detail"]
        rate_bps = truth.mean_bps(link_of(detail), row["wall"], row.get("duration_s") or 0.0)
    except (msgspec.DecodeError, KeyError, TypeError):  # the reader of the log reports the error
        return line
    if rate_bps is None:
        return line
    detail["truth_bps"] = rate_bps
    return msgspec.json.encode(row) + b"\n"
