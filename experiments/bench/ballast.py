"""The operator that ``bench move`` moves: a maximum that carries a state of any size along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.experiments.bench.workload import Bytes, maximum
from thalweg.middleware.errors import OperatorError
from thalweg.operators.interface import Operator


class Ballast(Operator):
    """The largest of the inputs, stamped with a byte of a state of ``state_bytes`` that every partition changes.

    Its output is right only if the state has come along whole. Without state it is the maximum alone.
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
