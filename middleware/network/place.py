"""The coordinates of one host, as it keeps them and tells them, without arrays; see ``coordinates``.

Source: Dabek, Cox, Kaashoek, Morris (SIGCOMM 2004), sections 2 and 5.4; Pietzuch et al. (2006), section 3.1.1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import msgspec

from thalweg.middleware.network.figures import HostFigures

DIMENSIONS = 3  # section 3.1.1
STEP = 0.25  # c_c: how far a host goes towards where one measurement has it
LEARNING = 0.25  # c_e: how much of its error one measurement is
START_ERROR = 1.0  # of who has measured nothing: as large as what is measured
LEAST_S = 1e-9  # latencies and distances below are taken for it
FIRST_SIDE_S = 1e-3  # of the cube in which places are drawn at first; no two may be the same
ALIKE_S = 1e-3  # latencies below are alike: what a machine is late with says nothing of the network
FARTHEST_S = 3600.0  # what is farther along an axis is nowhere
MOST_ERROR = 10 * START_ERROR
NEIGHBOURS = 16  # hosts to which a host measures: some at random are enough; Dabek et al., section 4.2


class Place(msgspec.Struct, frozen=True):
    """The coordinates of one host, which has measured ``count`` times: ``at``, and its height, in seconds; the relative
    error that it expects of its distances. ``host``: what it says of itself besides.
    """

    at: tuple[float, ...]
    height_s: float
    error: float = START_ERROR
    count: int = 0
    host: HostFigures = HostFigures()

    @classmethod
    def first(cls, name: str, dimensions: int = DIMENSIONS) -> Place:
        """Of a host that has measured nothing yet: the same whenever it begins, and of no two the same."""
        at = [(_drawn(f"{name} {axis}", 2**32) / 2**32 - 0.5) * FIRST_SIDE_S for axis in range(dimensions)]
        return cls(tuple(at), FIRST_SIDE_S)

    def odd(self, dimensions: int) -> str:
        """Why these are no coordinates of so many dimensions; empty if they are."""
        if len(self.at) != dimensions:
            return f"{len(self.at)} dimensions instead of {dimensions}"
        if not all(abs(axis) <= FARTHEST_S for axis in self.at) or not 0 <= self.height_s <= FARTHEST_S:
            return "not finite, or farther than an hour"
        return "" if 0 <= self.error <= MOST_ERROR else f"an error of {self.error:g}"

    def distance_s(self, other: Place) -> float:
        """What the latency to another host, which is there, is about."""
        return max(math.dist(self.at, other.at) + self.height_s + other.height_s, ALIKE_S)

    def measured(self, other: Place, latency_s: float) -> Place:
        """After the latency to another host, which is there, has been measured: as ``Coordinates.measured``."""
        away = [own - remote for own, remote in zip(self.at, other.at, strict=True)]
        length, above = math.hypot(*away), self.height_s + other.height_s
        distance, latency_s = max(length + above, LEAST_S), max(latency_s, LEAST_S)
        trust = self.error / (self.error + other.error)
        error = LEARNING * trust * abs(distance - latency_s) / latency_s + (1 - LEARNING * trust) * self.error
        move = STEP * trust * (latency_s - distance)
        at = [own + move / max(length, LEAST_S) * along for own, along in zip(self.at, away, strict=True)]
        at = [min(max(axis, -FARTHEST_S), FARTHEST_S) for axis in at]  # who says odd things draws nobody to nowhere
        height_s = max(self.height_s + move * above / distance, LEAST_S) if self.height_s > 0 else 0.0
        return Place(tuple(at), height_s, min(error, MOST_ERROR), self.count + 1, self.host)


UNPLACED = Place((), math.inf)  # of a host that did not say


def baseline(samples_s: Collection[float]) -> float:
    """What a link's last measurements come to: their 20th percentile, the nearest rank (section 3.1.1)."""
    return sorted(samples_s)[max(math.ceil(0.2 * len(samples_s)) - 1, 0)]


def neighbours(host: str, hosts: Iterable[str], count: int = NEIGHBOURS) -> list[str]:
    """So many others, drawn from ``hosts`` for that host, the same wherever it is worked out."""
    candidates = sorted(set(hosts) - {host})
    drawn: dict[str, None] = {}
    draws = 0
    while len(drawn) < min(count, len(candidates)):
        drawn[candidates[_drawn(f"{host} {draws}", len(candidates))]] = None
        draws += 1
    return list(drawn)


def _drawn(what: str, below: int) -> int:
    """A number drawn for a text."""
    from hashlib import blake2b  # it loads a library of 5 MB; what knows links and draws nothing does without

    return int.from_bytes(blake2b(what.encode(), digest_size=8).digest()) % below
