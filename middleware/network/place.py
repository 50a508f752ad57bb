"""Coordinates of one host, as the host keeps and sends them, without arrays. ``coordinates`` has those of many hosts.

Source: Dabek, Cox, Kaashoek, Morris (SIGCOMM 2004), sections 2 and 5.4; Pietzuch et al. (2006), section 3.1.1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import msgspec

from thalweg.middleware.network.figures import HostFigures

DIMENSIONS = 3  # section 3.1.1
STEP = 0.25  # c_c: share of the way that a host moves for one measurement
LEARNING = 0.25  # c_e: weight of one measurement in the host's error
START_ERROR = 1.0  # of a host without measurements: as large as the distance
LEAST_S = 1e-9  # the least latency and distance: smaller values count as this
FIRST_SIDE_S = 1e-3  # side of the cube of the first places; two places must differ
ALIKE_S = 1e-3  # smaller latencies are alike, because delays of a machine say nothing about the network
FARTHEST_S = 3600.0  # the farthest valid position along an axis
MOST_ERROR = 10 * START_ERROR
NEIGHBOURS = 16  # hosts that a host measures to: a random sample is enough (Dabek et al., section 4.2)


class Place(msgspec.Struct, frozen=True):
    """Coordinates of one host.

    ``at`` and ``height_s``: position and height, in seconds. ``error``: the expected relative error of distances.
    ``count``: the number of measurements. ``host``: further figures of the host.
    """

    at: tuple[float, ...]
    height_s: float
    error: float = START_ERROR
    count: int = 0
    host: HostFigures = HostFigures()

    @classmethod
    def first(cls, name: str, dimensions: int = DIMENSIONS) -> Place:
        """Return the place of a host without measurements. A name always gives the same place, and two names differ."""
        at = [(_drawn(f"{name} {axis}", 2**32) / 2**32 - 0.5) * FIRST_SIDE_S for axis in range(dimensions)]
        return cls(tuple(at), FIRST_SIDE_S)

    def odd(self, dimensions: int) -> str:
        """Return why these are no coordinates of ``dimensions`` dimensions.

        The text is empty if the coordinates are valid.
        """
        if len(self.at) != dimensions:
            return f"{len(self.at)} dimensions instead of {dimensions}"
        if not all(abs(axis) <= FARTHEST_S for axis in self.at) or not 0 <= self.height_s <= FARTHEST_S:
            return "not finite, or farther than an hour"
        return "" if 0 <= self.error <= MOST_ERROR else f"an error of {self.error:g}"

    def distance_s(self, other: Place) -> float:
        """Return the predicted latency to a host at ``other``."""
        return max(math.dist(self.at, other.at) + self.height_s + other.height_s, ALIKE_S)

    def measured(self, other: Place, latency_s: float) -> Place:
        """Return the place after a measured latency to a host at ``other``, like ``Coordinates.measured``."""
        away = [own - remote for own, remote in zip(self.at, other.at, strict=True)]
        length, above = math.hypot(*away), self.height_s + other.height_s
        distance, latency_s = max(length + above, LEAST_S), max(latency_s, LEAST_S)
        trust = self.error / (self.error + other.error)
        error = LEARNING * trust * abs(distance - latency_s) / latency_s + (1 - LEARNING * trust) * self.error
        move = STEP * trust * (latency_s - distance)
        at = [own + move / max(length, LEAST_S) * along for own, along in zip(self.at, away, strict=True)]
        at = [min(max(axis, -FARTHEST_S), FARTHEST_S) for axis in at]  # wrong figures of a peer move no host farther
        height_s = max(self.height_s + move * above / distance, LEAST_S) if self.height_s > 0 else 0.0
        return Place(tuple(at), height_s, min(error, MOST_ERROR), self.count + 1, self.host)


UNPLACED = Place((), math.inf)  # of a host without coordinates


def baseline(samples_s: Collection[float]) -> float:
    """Return the latency that recent samples of a link stand for: the 20th percentile, nearest rank (section 3.1.1)."""
    return sorted(samples_s)[max(math.ceil(0.2 * len(samples_s)) - 1, 0)]


def neighbours(host: str, hosts: Iterable[str], count: int = NEIGHBOURS) -> list[str]:
    """Return ``count`` hosts, drawn from ``hosts`` for ``host``. The draw gives the same result on every machine."""
    candidates = sorted(set(hosts) - {host})
    drawn: dict[str, None] = {}
    draws = 0
    while len(drawn) < min(count, len(candidates)):
        drawn[candidates[_drawn(f"{host} {draws}", len(candidates))]] = None
        draws += 1
    return list(drawn)


def _drawn(what: str, below: int) -> int:
    """Return a number from 0 to ``below`` - 1 that depends on a text alone."""
    from hashlib import blake2b  # loads a library of 5 MB, which only a draw needs

    return int.from_bytes(blake2b(what.encode(), digest_size=8).digest()) % below
