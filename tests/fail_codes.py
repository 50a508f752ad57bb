"""Operators and functions that fail for some inputs, and sources with some bad rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from thalweg import NOTHING
from thalweg.operators import Operator, Source
from thalweg.operators.records import as_map

BAD = (3, 4, 9)  # partitions


class Flaky(Source):
    """Source of four rows a partition. In partitions of ``BAD`` the second row has no time and divides by 0."""

    def __init__(self, site: int = 0) -> None:
        self.site = site

    def produce(self, index: int) -> Any:
        self.watermark_s = float(index)
        bad = index in BAD
        times = [float(index), float("nan") if bad else index + 0.25, index + 0.5, index + 0.75]
        by = [1, 0 if bad else 1, 1, 1]
        return pa.record_batch({"time": times, "k": ["a", "b", "a", "b"], "v": [2**61, 1, 1, 1], "by": by})


class Numbers(Source):
    """Source of one number a partition."""

    def produce(self, index: int) -> Any:
        return np.array([index], np.int64)


class Total(Operator):
    """Sum of all numbers so far. Fails for partitions of ``BAD`` without a change of the state."""

    def __init__(self) -> None:
        self.total = 0

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        if index in BAD:
            raise ValueError(f"the number {index} is bad")
        self.total += int(inputs[0][0])
        return np.array([self.total], np.int64)

    def snapshot(self) -> bytes:
        return self.total.to_bytes(8, "little")

    def restore(self, state: bytes) -> None:
        self.total = int.from_bytes(state, "little")


class Odd(Operator):
    """Operator that returns or raises a different odd value for each partition."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        if index == 1:
            return None
        if index == 2:
            return {1, 2}
        if index == 3:
            return np.array([object()])
        if index == 4:
            raise KeyError("x" * 1000)
        return NOTHING if index == 5 else inputs[0]


class Greedy(Operator):
    """Operator without memory for partition 2."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        if index == 2:
            raise MemoryError("2 TB")
        return inputs[0]


@as_map
def halves(rows: Any) -> Any:
    if 0 in rows.column("by").to_pylist():
        raise ZeroDivisionError("by is 0")
    return rows


class Truck(Source):
    """Source of one row a partition: load and axles of a truck. Truck 2 has no axles at partition 4."""

    def __init__(self, number: int) -> None:
        self.number = number

    def produce(self, index: int) -> Any:
        axles = 0 if (self.number, index) == (2, 4) else 3
        return pa.record_batch({"truck": [self.number], "load": [900], "axles": [axles]})
