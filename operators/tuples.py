"""Numbered tuples, with operators that join, select, forward and consume tuples: the queries of Pietzuch et al. (2006).

A partition is an array of ``TUPLES`` rows: a number that rises by one, and words that depend on the producer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from thalweg.middleware.errors import OperatorError
from thalweg.operators.interface import Operator, Source
from thalweg.operators.noise import hash_key
from thalweg.operators.reference import digest

Rows = NDArray[np.int64]

TUPLES = 100  # in a partition: a percentage of the tuples is a whole number


class Tuples(Source[Rows]):
    """Source of numbered tuples of ``words`` words of 8 bytes, the number included. Equal params give equal tuples."""

    def __init__(self, producer: int = 0, words: int = 10, seed: int = 1) -> None:
        if words < 1:
            raise OperatorError(f"a tuple has {words} words; give at least 1, its number")
        self.producer, self.words, self.seed = producer, words, seed

    def produce(self, index: int) -> Rows:
        rows = np.empty((TUPLES, self.words), dtype=np.int64)
        rows[:, 0] = np.arange(index * TUPLES, (index + 1) * TUPLES)
        key = hash_key(self.seed, self.producer, index) >> 1
        rows[:, 1:] = np.arange(TUPLES * (self.words - 1)).reshape(TUPLES, -1) ^ key
        return rows

    def partition_bytes(self, index: int) -> int:
        return TUPLES * self.words * 8

    def size_bytes(self) -> float:
        return float(self.partition_bytes(0))


class SelectJoin(Operator[Rows, Rows]):
    """Operator that selects ``percent`` of the numbers and puts the inputs' tuples of a number side by side.

    ``SELECT * FROM P1, P2 WHERE P1.data = P2.data AND mod(P1.data, 4) = 0`` (section 4.2) selects 25.
    """

    def __init__(self, percent: int = 25) -> None:
        if not 1 <= percent <= 100:
            raise OperatorError(f"percent is {percent}; give which share of the tuples is kept, 1 to 100")
        self.percent = percent

    def combine(self, inputs: Sequence[Rows], index: int) -> Rows:
        first = inputs[0][:, 0]
        if any(not np.array_equal(first, rows[:, 0]) for rows in inputs):
            raise OperatorError(f"partition {index}: the inputs' tuples have other numbers")
        selected = first * self.percent % 100 < self.percent  # evenly spread numbers
        return np.concatenate([rows[selected] for rows in inputs], axis=1)

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return sum(input_sizes) * self.percent / 100


class Pass(Operator[Rows, Rows]):
    """Operator with its input as output, so one copy goes on to several consumers."""

    def combine(self, inputs: Sequence[Rows], index: int) -> Rows:
        (only,) = inputs
        return only


class Consume(Operator[Rows, bytes]):
    """Operator with the digest of its input as output. ``number``: number of the consumer."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def combine(self, inputs: Sequence[Rows], index: int) -> bytes:
        return f"{self.number} {digest(inputs[0])}".encode()

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return 73.0
