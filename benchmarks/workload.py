"""Workload of every side of a benchmark: the same fixed arrays, combined by the same maximum.

A source gives one of ``VARIANTS`` arrays that are made once. So a benchmark times the transfer and combination of
partitions, and not their generation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.middleware.errors import OperatorError
from thalweg.operators.interface import Operator, Source

VARIANTS = 4  # partition i of a source has the bytes of partition i + VARIANTS

Bytes = NDArray[np.uint8]


class FixedSource(Source):
    """Source of ``size_bytes`` fixed pseudo-random bytes, chosen by ``site`` and ``index % VARIANTS``."""

    def __init__(self, site: int, size_bytes: int) -> None:
        draws = (np.random.default_rng([site, i]).integers(0, 256, size_bytes, np.uint8) for i in range(VARIANTS))
        self._arrays = [np.frombuffer(draw.tobytes(), np.uint8) for draw in draws]  # over bytes: not copied at delivery

    def produce(self, index: int) -> Bytes:
        return self._arrays[index % VARIANTS]

    def size_bytes(self) -> float:
        return float(self._arrays[0].nbytes)


class Maximum(Operator):
    """Operator that outputs the largest of its inputs, byte by byte."""

    def combine(self, inputs: Sequence[Any], index: int) -> Bytes:
        return maximum(inputs)


class Ballast(Operator):
    """Operator that ``bench move`` moves: the largest of its inputs, stamped with a byte of a state of ``state_bytes``.

    Every partition changes one byte of the state. So the output is right only if the whole state has moved. Without
    state, the output is the maximum alone.
    """

    def __init__(self, state_bytes: int) -> None:
        self._state = np.random.default_rng(state_bytes).integers(0, 256, state_bytes, dtype=np.uint8)

    def combine(self, inputs: Sequence[Any], index: int) -> Bytes:
        out = maximum(inputs)
        if self._state.size:
            place = index % self._state.size
            out[0] = self._state[place]
            self._state[place] = self._state[place - 1] ^ (index & 255)
        return out

    def snapshot(self) -> bytes:
        return self._state.tobytes()

    def restore(self, state: bytes) -> None:
        if len(state) != self._state.size:
            raise OperatorError(f"ballast: a state of {len(state)} bytes, not {self._state.size}")
        self._state = np.frombuffer(bytearray(state), np.uint8)


class Churning(Ballast):
    """Ballast of whose state every partition changes all bytes."""

    def combine(self, inputs: Sequence[Any], index: int) -> Bytes:
        self._state ^= 1 + index % 255
        return super().combine(inputs, index)


class Told(Ballast):
    """Ballast that reports the changed bytes of its state (``delta``): 4 bytes of the place, and the value."""

    def __init__(self, state_bytes: int) -> None:
        super().__init__(state_bytes)
        self._changed: dict[int, int] = {}

    def combine(self, inputs: Sequence[Any], index: int) -> Bytes:
        out, place = super().combine(inputs, index), index % self._state.size
        self._changed[place] = int(self._state[place])
        return out

    def snapshot(self) -> bytes:
        self._changed = {}
        return super().snapshot()

    def delta(self) -> bytes:
        changed, self._changed = self._changed, {}
        return b"".join([place.to_bytes(4, "little") + bytes([value]) for place, value in changed.items()])

    def apply(self, delta: bytes) -> None:
        for at in range(0, len(delta), 5):
            self._state[int.from_bytes(delta[at : at + 4], "little")] = delta[at + 4]


def maximum(inputs: Sequence[Bytes]) -> Bytes:
    """Return the largest of at least two arrays of equal shape, element by element."""
    out: Bytes = np.maximum(inputs[0], inputs[1])
    for other in inputs[2:]:
        np.maximum(out, other, out=out)
    return out


def expected_digest(sites: int, size_bytes: int, partitions: int) -> str:
    """Return the result of ``digest_of`` for partitions 0 and on of the maximum over ``sites`` sources."""
    sources = [FixedSource(site, size_bytes) for site in range(sites)]
    cycle = [sources[0].produce(i) if sites == 1 else maximum([s.produce(i) for s in sources]) for i in range(VARIANTS)]
    return digest_of(cycle[i % VARIANTS] for i in range(partitions))


def digest_of(values: Iterable[Any]) -> str:
    """Return the SHA-256 over the bytes of all values in their order."""
    state = hashlib.sha256()
    for value in values:
        state.update(value)
    return f"sha256:{state.hexdigest()}"
