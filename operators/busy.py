"""Synthetic work: sources and operators with a given size of output and a given use of a processor.

Outputs depend on names, indices and inputs alone. So an output shows whether all inputs arrived, and in order.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from thalweg.middleware.errors import OperatorError
from thalweg.operators.interface import Operator, Source

BLOCK_BYTES = 4096
BURNT = bytes(65_536)  # hashed at a time, in about 0.1 ms, while other threads of the process continue


class Filled(Source[bytes]):
    """Source of partitions of ``size_bytes`` that depend on ``key`` and their index alone.

    ``length``: number of partitions. None: the source never ends.
    """

    def __init__(self, key: str, size_bytes: int, length: int | None = None) -> None:
        _check(size_bytes=size_bytes)
        self.key, self.size, self.length = key, size_bytes, length

    def produce(self, index: int) -> bytes | None:
        if self.length is not None and index >= self.length:
            return None
        return _filled(f"{self.key} {index}".encode(), self.size)

    def partition_bytes(self, index: int) -> int | None:
        return None if self.length is not None and index >= self.length else self.size

    def size_bytes(self) -> float:
        return self.size


class Busy(Operator[bytes, bytes]):
    """Operator that takes ``seconds`` of processor time for an output of ``size_bytes``.

    The output depends on ``key`` and the inputs. The time is the thread's own, so a host with half of a processor needs
    twice as long.
    """

    def __init__(self, key: str, size_bytes: int, seconds: float = 0.0) -> None:
        _check(size_bytes=size_bytes, seconds=seconds)
        self.key, self.size, self.seconds = key, size_bytes, seconds

    def combine(self, inputs: Sequence[bytes], index: int) -> bytes:
        until_s = time.thread_time() + self.seconds
        seen = hashlib.blake2b(f"{self.key} {index}".encode())
        for value in inputs:
            seen.update(hashlib.blake2b(value).digest())
        output = _filled(seen.digest(), self.size)
        while time.thread_time() < until_s:
            hashlib.blake2b(BURNT)
        return output

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return self.size

    def compute_s(self, input_sizes: Sequence[float]) -> float:
        return self.seconds


def _check(**figures: float) -> None:
    for name, value in figures.items():
        if not 0 <= value < float("inf"):
            raise OperatorError(f"{name} is {value}; it must be finite and at least 0")


def _filled(seed: bytes, size_bytes: int) -> bytes:
    block = hashlib.shake_128(seed).digest(BLOCK_BYTES)
    return (block * -(-size_bytes // BLOCK_BYTES))[:size_bytes]
