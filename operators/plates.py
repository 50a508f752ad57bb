"""Cameras along a road: records of the plates that a camera has read, as a streaming application gets them.

Cars enter the road and pass the cameras in order. A camera gives a partition for every ``span_s`` seconds. A partition
has a row for every plate that was read, with the time and a small picture. Links of cameras have gaps, so some rows
come out of order, and a few come very late. Most late rows come within ``LATENESS_S``, which the watermark allows
for. The remaining rows come after the watermark has passed.

Every value depends on (seed, camera, index) alone, in any order, process and machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import Any

from thalweg.middleware.errors import OperatorError
from thalweg.middleware.shell.packing import arrow
from thalweg.operators.interface import Source

pa = arrow()

Table = Any  # pyarrow has no types of its own
PLATES = 400  # different ones
CARS_PER_S = 2.0
GAP_M = 250.0  # between two cameras
MEAN_MPS, DEVIATION_MPS, SLOWEST_MPS = 28.0, 4.0, 15.0
LATENESS_S = 10.0
DISORDER, LATE = 0.07, 0.03  # shares of the rows that come up to LATENESS_S later, and up to LATEST_S
LATEST_S = 60.0
SLOT_S = 5.0  # cars that enter within these seconds are drawn together
SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("ms")),
        ("camera", pa.string()),
        ("plate", pa.string()),
        ("speed", pa.float64()),  # m/s
        ("picture", pa.binary()),
    ]
)


class PlateSource(Source[Table]):
    """Source of the plates that camera ``camera`` (0, 1, …) reads: ``length`` partitions of ``span_s`` seconds each.

    Cameras with one ``seed`` see the same cars. ``picture_bytes``: size of the picture in every row.
    """

    def __init__(self, camera: int, seed: int, length: int, span_s: float = 5.0, picture_bytes: int = 2000) -> None:
        if camera < 0 or length < 0 or picture_bytes < 0 or not 0 < span_s < 2**20:
            raise OperatorError(
                f"plates: camera={camera}, length={length}, span_s={span_s}, picture_bytes={picture_bytes}; give"
                " numbers of at least 0, and seconds above 0"
            )
        self.camera, self.seed, self.span_s, self.picture_bytes = camera, seed, span_s, picture_bytes
        self.length: int = length

    def produce(self, index: int) -> Table | None:
        """Return the rows that come from the camera in span ``index``. None: ``index`` is at least ``length``."""
        if index >= self.length:
            return None
        begin_s, end_s = index * self.span_s, (index + 1) * self.span_s
        self.watermark_s = math.inf if index + 1 == self.length else end_s - LATENESS_S
        rows = [row for row in self._near(begin_s, end_s) if begin_s <= row[0] < end_s]
        columns = zip(*rows, strict=True) if rows else ((),) * 4
        _, times, plates, speeds = map(list, columns)
        pictures = [self._picture(plate, at_ms) for plate, at_ms in zip(plates, times, strict=True)]
        camera = [f"camera {self.camera + 1}"] * len(rows)
        return pa.table([times, camera, plates, speeds, pictures], schema=SCHEMA)

    def size_bytes(self) -> float:
        return 1000.0 + CARS_PER_S * self.span_s * (self.picture_bytes + 50)

    def _near(self, begin_s: float, end_s: float) -> Iterator[tuple[float, int, str, float]]:
        """Yield rows that include every row from ``begin_s`` to ``end_s``."""
        first_s = begin_s - LATEST_S - self.camera * GAP_M / SLOWEST_MPS
        for slot in range(max(0, math.floor(first_s / SLOT_S)), math.ceil(end_s / SLOT_S)):
            yield from _seen(self.seed, self.camera, slot)

    def _picture(self, plate: str, at_ms: int) -> bytes:
        return Random(f"{self.seed} {self.camera} {plate} {at_ms}").randbytes(self.picture_bytes)


def plate_of(number: int) -> str:
    return f"{chr(65 + number % 26)}{chr(65 + number // 26 % 26)}-{number:03d}"


def wanted(seed: int, count: int) -> list[str]:
    """Return ``count`` plates for the search of the workload."""
    return sorted(map(plate_of, Random(f"wanted {seed}").sample(range(PLATES), count)))


@lru_cache(maxsize=1024)
def _seen(seed: int, camera: int, slot: int) -> list[tuple[float, int, str, float]]:
    """Return the rows of one camera for the cars of one slot.

    A row has its time of arrival (s), the time in the row (ms), the plate, and the car's speed at the camera (m/s).
    """
    cars, dice = Random(f"cars {seed} {slot}"), Random(f"camera {seed} {camera} {slot}")
    rows = []
    for _ in range(math.floor(CARS_PER_S * SLOT_S + cars.random())):
        enters_s = SLOT_S * (slot + cars.random())
        plate, mean_mps = plate_of(cars.randrange(PLATES)), max(SLOWEST_MPS, cars.gauss(MEAN_MPS, DEVIATION_MPS))
        at_s = enters_s + camera * GAP_M / mean_mps
        chance, share = dice.random(), dice.random()
        late_s = share * (LATEST_S if chance < LATE else LATENESS_S if chance < LATE + DISORDER else 0.0)
        rows.append((at_s + late_s, round(at_s * 1e3), plate, round(mean_mps + dice.uniform(-1.0, 1.0), 1)))
    return rows
