"""Numbered tuples, and what joins, selects, passes on and sees them: the queries of Pietzuch et al. (2006).

A partition is an array of ``TUPLES`` rows: a number that rises by one, and words that only its producer gives.
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

TUPLES = 100  # of a partition, so that a percentage of them is a whole number


class Tuples(Source[Rows]):
    """What a producer gives: ``words`` of 8 bytes a tuple, its number among them; the same for the same params."""

    def __init__(self, producer: int = 0, words: int = 10, seed: int = 1) -> None:
        if words < 1:
            raise OperatorError(f"tuples of {words} words; give at least 1, its number")
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
    """Of so many ``percent`` of the numbers the tuples of all inputs, one beside the other.

    ``SELECT * FROM P1, P2 WHERE P1.data = P2.data AND mod(P1.data, 4) = 0`` (section 4.2) has 25.
    """

    def __init__(self, percent: int = 25) -> None:
        if not 1 <= percent <= 100:
            raise OperatorError(f"percent is {percent}; give which share of the tuples is kept, 1 to 100")
        self.percent = percent

    def combine(self, inputs: Sequence[Rows], index: int) -> Rows:
        first = inputs[0][:, 0]
        if any(not np.array_equal(first, each[:, 0]) for each in inputs):
            raise OperatorError(f"partition {index}: the inputs' tuples have other numbers")
        kept = first * self.percent % 100 < self.percent  # as far apart as can be
        return np.concatenate([each[kept] for each in inputs], axis=1)

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return sum(input_sizes) * self.percent / 100


class Pass(Operator[Rows, Rows]):
    """What comes, as it comes: the place from which one copy goes on to several."""

    def combine(self, inputs: Sequence[Rows], index: int) -> Rows:
        (only,) = inputs
        return only


class Consume(Operator[Rows, bytes]):
    """A consumer, which says what it has got by its digest. ``number``: whose."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def combine(self, inputs: Sequence[Rows], index: int) -> bytes:
        return f"{self.number} {digest(inputs[0])}".encode()

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return 73.0
