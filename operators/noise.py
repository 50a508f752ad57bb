"""Smooth random fields that are the same on every machine, because hosts of different make must draw the same scenes.

Only integer arithmetic and single IEEE operations (add, subtract, multiply, compare) touch the values. Reductions,
transcendental functions and BLAS are avoided, because their last bit depends on the processor. numpy.random would add 7
MB to a process that otherwise needs 15 MB of numpy. A counter-based hash also needs no order of calls.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # increment and multipliers of SplitMix64 (Steele, Lea, Flood 2014)
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def hash_key(*parts: int) -> int:
    """Return one 64-bit key from any integers, by SplitMix64's finaliser folded over the integers."""
    key = 0
    for part in parts:
        key = (key + _GAMMA + (part & _MASK)) & _MASK
        key = ((key ^ (key >> 30)) * _MIX_1) & _MASK
        key = ((key ^ (key >> 27)) * _MIX_2) & _MASK
        key ^= key >> 31
    return key


def uniform(*parts: int) -> float:
    """Return a number in (0, 1) that belongs to these integers (53 bits, never 0 or 1)."""
    return ((hash_key(*parts) >> 12) + 0.5) / (1 << 52)


def lattice(key: int, rows: int, columns: int) -> F32:
    """Return (rows, columns) independent values in [0, 1), 24 bits each."""
    state = np.arange(1, rows * columns + 1, dtype=np.uint64)
    state *= np.uint64(_GAMMA)
    state += np.uint64(key)
    state ^= state >> np.uint64(30)
    state *= np.uint64(_MIX_1)
    state ^= state >> np.uint64(27)
    state *= np.uint64(_MIX_2)
    state >>= np.uint64(40)
    values = state.astype(np.float32)
    values *= np.float32(2.0**-24)
    return values.reshape(rows, columns)


def nearest(length: int, target: int) -> NDArray[np.intp]:
    """Return, for each of ``target`` pixels, the index of the pixel of ``length`` that contains its centre."""
    index = np.arange(1, 2 * target, 2, dtype=np.intp)
    index *= length
    index //= 2 * target
    return index


def _weights(points: int, target: int, fade: bool) -> tuple[NDArray[np.intp], F32]:
    """Return the left neighbour and the right neighbour's weight of ``target`` positions spread over ``points``."""
    position = np.arange(target, dtype=np.float32) * np.float32((points - 1) / max(target - 1, 1))
    left = np.minimum(position.astype(np.intp), max(points - 2, 0))
    weight = position - left.astype(np.float32)
    if fade:
        weight = weight * weight * (np.float32(3) - np.float32(2) * weight)
    return left, weight


WHOLE = slice(None)


def upsample(field: F32, rows: int, columns: int, *, fade: bool = False, part: slice = WHOLE) -> F32:
    """Return the field stretched to (rows, columns), linearly. With ``fade``, it has no creases at its points.

    ``part``: the rows of the result that are wanted.
    """
    top, weight = _weights(field.shape[0], rows, fade)
    top, weight = top[part], weight[part]
    step = field[1:] - field[:-1]
    tall = step.take(top, axis=0)
    tall *= weight[:, None]
    tall += field.take(top, axis=0)
    left, weight = _weights(field.shape[1], columns, fade)
    step = tall[:, 1:] - tall[:, :-1]
    wide = step.take(left, axis=1)
    wide *= weight
    wide += tall.take(left, axis=1)
    return wide


def fractal(key: int, rows: int, columns: int, *, cells: int, octaves: int, gain: float = 0.5) -> F32:
    """Return value noise in (0, 1): a sum of ``octaves`` fields.

    Each field is twice as fine and ``gain`` times as strong as the last. ``cells``: cells along the shorter side in the
    first octave.
    """
    total = np.zeros((rows, columns), np.float32)
    strength = 1.0
    weight = 0.0
    short = min(rows, columns)
    for octave in range(octaves):
        fine = cells << octave
        points = lattice(hash_key(key, octave), fine * rows // short + 2, fine * columns // short + 2)
        layer = upsample(points, rows, columns, fade=True)
        layer *= np.float32(strength)
        total += layer
        weight += strength
        strength *= gain
    total *= np.float32(1 / weight)
    return total
