"""Sources of records and functions of tables for the tests of operators over records."""

from __future__ import annotations

import math
import random
from typing import Any

import pyarrow as pa

from thalweg import NOTHING
from thalweg.operators import Source
from thalweg.operators.records import as_map

Row = dict[str, Any]
KINDS = {"us": pa.timestamp("us", "UTC"), "s": pa.int64(), "float": pa.float64()}


def trips(site: int, index: int, rows: int = 6, disorder_s: float = 0.0) -> list[Row]:
    """Return the rows of one partition, about a second apart and up to ``disorder_s`` early."""
    chance = random.Random(1000 * site + index)
    if chance.random() < 0.2:
        return []
    times = [index * rows + row - chance.uniform(0, disorder_s) for row in range(rows)]
    plates = [f"p{chance.randrange(3)}" for _ in times]
    return [
        {"time": math.floor(t), "plate": plate, "speed": chance.random() * 100}
        for t, plate in zip(times, plates, strict=True)
    ]


class Trips(Source):
    """Source of batches of ``trips``. ``marks``: with watermarks. ``last``: index with the watermark of the end."""

    def __init__(
        self, site: int, rows: int = 6, disorder_s: float = 0.0, unit: str = "us", marks: bool = True, last: int = -1
    ) -> None:
        self.site, self.rows, self.disorder_s, self.unit, self.marks, self.last = (
            site,
            rows,
            disorder_s,
            unit,
            marks,
            last,
        )

    def produce(self, index: int) -> Any:
        if self.marks:
            self.watermark_s = math.inf if index == self.last else (index + 1) * self.rows - self.disorder_s
        rows = trips(self.site, index, self.rows, self.disorder_s)
        if not rows:
            return NOTHING
        scale = 1_000_000 if self.unit == "us" else 1
        times = pa.array([row["time"] * scale for row in rows], pa.int64()).cast(KINDS[self.unit])
        return pa.record_batch({"time": times, **{key: [row[key] for row in rows] for key in ("plate", "speed")}})


@as_map
def doubled(rows: Any, by: int = 2) -> Any:
    """Return every row ``by`` times."""
    return pa.concat_tables([rows] * by)


@as_map
def lists(rows: Any) -> Any:
    return rows.to_pylist()
