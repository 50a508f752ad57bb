"""What a comparison of simulation and emulation came to: ``comparison.json``, and whether it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from thalweg.middleware.errors import UsageError
from thalweg.middleware.files.reading import MAX_JSON_BYTES, read_bounded, reason

COMPARISON = "comparison.json"
CLOSE = 0.08  # how far simulation may be from emulation, unless told otherwise


class Latency(msgspec.Struct, frozen=True):
    """Of one sink, emulated seconds; of several runs each figure is their median. None where nothing came."""

    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None


class Query(msgspec.Struct, frozen=True):
    """One sink's latency on either side."""

    simulated: Latency
    emulated: Latency


class Row(msgspec.Struct, frozen=True):
    """One placement and seed. Mean inter-arrival times in emulated seconds, and the first over the second.

    ``emulated_each_s``: of every emulated run; ``emulated_s`` is their median, and ``spread`` the slowest by the
    quickest of them, less 1 (None of one run). ``same_start``: whether operators began at the same hosts in all runs.
    ``simulated_moves``, ``emulated_moves``: how many operators moved, of the latter in every run. ``queries``: by sink.
    """

    placement: str
    seed: int
    simulated_s: float | None = None
    emulated_s: float | None = None
    ratio: float | None = None
    emulated_each_s: list[float | None] = []
    spread: float | None = None
    same_start: bool | None = None
    simulated_moves: int | None = None
    emulated_moves: list[int] = []
    queries: dict[str, Query] = {}

    @property
    def off(self) -> float | None:
        """How far simulation is from emulation, of 1."""
        return None if self.ratio is None else abs(self.ratio - 1)

    def is_close(self, limit: float) -> bool:
        """Whether both sides are there, and no further apart than that."""
        return self.off is not None and self.off <= limit


class Furthest(msgspec.Struct, frozen=True):
    """The row that is furthest off: by ``off``, of 1."""

    placement: str
    seed: int
    off: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What ``comparison.json`` holds.

    ``failures``: where runs lost, repeated or changed images; ``config``: of all the runs, but for testbed and seed.
    """

    rows: list[Row]
    worst: Furthest | None = None
    limit: float = CLOSE
    repeats: int = 1
    notes: list[str] = []
    failures: list[str] = []
    config: dict[str, Any] = {}
    versions: dict[str, str] = {}
    item: str = "image"  # what is delivered, in a word


def load_comparison(path: Path) -> Comparison:
    """Read ``comparison.json``; UsageError when it is damaged."""
    try:
        return msgspec.json.decode(read_bounded(path, MAX_JSON_BYTES), type=Comparison)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({reason(error)}); make the comparison again") from None


def furthest(rows: Sequence[Row]) -> Furthest | None:
    """The row that is furthest off; None when nothing can be compared."""
    found = [Furthest(row.placement, row.seed, row.off) for row in rows if row.off is not None]
    return max(found, key=lambda one: one.off, default=None)


def beyond(made: Comparison) -> list[str]:
    """Why the comparison does not hold, a line each; none when it does."""
    lines = list(made.failures)
    for row in made.rows:
        where = f"{row.placement}, seed {row.seed}"
        if row.ratio is None:
            lines.append(f"{where}: nothing to compare, a side delivered less than two {made.item}s")
        elif not row.is_close(made.limit):
            lines.append(f"{where}: simulated is {row.ratio:.3f} of emulated, beyond {made.limit:.0%}")
    return lines
