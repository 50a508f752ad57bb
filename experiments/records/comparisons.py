"""Result of a comparison of simulation and emulation: ``comparison.json``, and the check against a limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from thalweg.middleware.errors import UsageError
from thalweg.middleware.files.reading import MAX_JSON_BYTES, read_bounded, reason

COMPARISON = "comparison.json"
CLOSE = 0.08  # default limit of the relative difference


class Latency(msgspec.Struct, frozen=True):
    """Latency at one sink, in emulated seconds. Over several runs, each figure is a median. None without deliveries."""

    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None


class Query(msgspec.Struct, frozen=True):
    """Latency of one sink in simulation and in emulation."""

    simulated: Latency
    emulated: Latency


class Row(msgspec.Struct, frozen=True):
    """Mean inter-arrival times of one placement and seed in emulated seconds, simulated and emulated, and their ratio.

    ``emulated_each_s``: of every emulated run. ``emulated_s`` is the median of these. ``spread``: slowest emulated run
    divided by the quickest, minus 1 (None for a single run). ``same_start``: whether operators began on the same hosts
    in all runs. ``simulated_moves``, ``emulated_moves``: number of operators that moved, the latter for every run.
    ``queries``: latencies by sink.
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
        """Relative difference of simulation from emulation: 0.08 is 8 %."""
        return None if self.ratio is None else abs(self.ratio - 1)

    def is_close(self, limit: float) -> bool:
        """Return whether both sides have a result and differ by at most ``limit``."""
        return self.off is not None and self.off <= limit


class Furthest(msgspec.Struct, frozen=True):
    """Row with the largest relative difference, ``off``."""

    placement: str
    seed: int
    off: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``comparison.json``.

    ``failures``: places where runs lost, repeated or changed images. ``config``: configuration of all runs, except
    testbed and seed.
    """

    rows: list[Row]
    worst: Furthest | None = None
    limit: float = CLOSE
    repeats: int = 1
    notes: list[str] = []
    failures: list[str] = []
    config: dict[str, Any] = {}
    versions: dict[str, str] = {}
    item: str = "image"  # noun for a delivered partition


def load_comparison(path: Path) -> Comparison:
    """Read ``comparison.json``. Raise UsageError if the file is damaged."""
    try:
        return msgspec.json.decode(read_bounded(path, MAX_JSON_BYTES), type=Comparison)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({reason(error)}); make the comparison again") from None


def furthest(rows: Sequence[Row]) -> Furthest | None:
    """Return the row with the largest relative difference. None: no row can be compared."""
    candidates = [Furthest(row.placement, row.seed, row.off) for row in rows if row.off is not None]
    return max(candidates, key=lambda one: one.off, default=None)


def beyond(made: Comparison) -> list[str]:
    """Return a line for each reason why the comparison does not hold. An empty list means that it holds."""
    lines = list(made.failures)
    for row in made.rows:
        where = f"{row.placement}, seed {row.seed}"
        if row.ratio is None:
            lines.append(f"{where}: nothing can be compared, because a side delivered less than two {made.item}s")
        elif not row.is_close(made.limit):
            lines.append(f"{where}: simulated is {row.ratio:.3f} of emulated, beyond {made.limit:.0%}")
    return lines
