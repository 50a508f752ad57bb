"""Network coordinates: a place for every host in a space in which distances are about the latencies between hosts.

Every host has its own place, and after each measurement of the latency to another one moves a little towards where
that would be right, as if a spring joined the two; the less it trusts its place, and the more that of the other, the
farther. The *height* of a host is what it takes to and from all others, as an access link does: a distance is that of
the places and both heights. In a space without heights all are 0.

Source: Dabek, Cox, Kaashoek, Morris (SIGCOMM 2004), sections 2 and 5.4; Pietzuch et al. (2006), section 3.1.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.middleware.network.place import (
    DIMENSIONS,
    FIRST_SIDE_S,
    LEARNING,
    LEAST_S,
    MOST_ERROR,
    START_ERROR,
    STEP,
    Place,
)

Floats = npt.NDArray[np.float64]
Rows = Any  # of hosts: a slice, or an array of their numbers


class Coordinates(msgspec.Struct, frozen=True):
    """Hosts' coordinates, with ``n`` the hosts and ``d`` the dimensions.

    ``places``: (n, d), seconds. ``heights``: (n,), seconds, all 0 in a space without. ``errors``: (n,), the relative
    error that each expects of its distances.
    """

    places: Floats
    heights: Floats
    errors: Floats

    @classmethod
    def first(
        cls, hosts: int, random: np.random.Generator, *, dimensions: int = DIMENSIONS, heights: bool = False
    ) -> Coordinates:
        """Of hosts that have measured nothing yet."""
        places = random.uniform(-FIRST_SIDE_S / 2, FIRST_SIDE_S / 2, (hosts, dimensions))
        return cls(places, np.full(hosts, FIRST_SIDE_S * heights), np.full(hosts, START_ERROR))

    def __len__(self) -> int:
        return len(self.places)

    def of(self, hosts: Rows) -> Coordinates:
        """Those of some hosts alone."""
        return Coordinates(self.places[hosts], self.heights[hosts], self.errors[hosts])

    def distances_s(self, ones: Rows, others: Rows) -> Floats:
        """From each of some hosts to each of others, (ones, others), in seconds: what the latencies are about."""
        squares = sum(np.subtract.outer(axis[ones], axis[others]) ** 2 for axis in self.places.T)
        distances: Floats = np.sqrt(squares) + np.add.outer(self.heights[ones], self.heights[others])
        return distances

    def measured(self, others: Coordinates, latency_s: Floats) -> Coordinates:
        """After every host has measured the latency, (n,), to one other, whose coordinates are given.

        A latency that is not above 0 and finite says nothing.
        """
        away = self.places - others.places
        length = np.sqrt(sum(axis**2 for axis in away.T))
        above = self.heights + others.heights
        distance = np.maximum(length + above, LEAST_S)
        valid = np.isfinite(latency_s) & (latency_s > 0)
        latency = np.where(valid, np.maximum(latency_s, LEAST_S), 1.0)
        trust = self.errors / (self.errors + others.errors)
        error = LEARNING * trust * np.abs(distance - latency) / latency + (1 - LEARNING * trust) * self.errors
        move = np.where(valid, STEP * trust * (latency - distance), 0.0)
        places = self.places + (move / np.maximum(length, LEAST_S))[:, None] * away
        heights = np.where(self.heights > 0, np.maximum(self.heights + move * above / distance, LEAST_S), 0.0)
        return Coordinates(places, heights, np.where(valid, np.minimum(error, MOST_ERROR), self.errors))


def baseline(samples_s: Floats, share: float = 0.2) -> Floats:
    """What a link's last measurements come to, (samples, …) → (…): their 20th percentile, the nearest rank.

    Delays scatter upwards, as hosts and links are busy now and then; what is below is the way itself. A measurement
    that there is not yet is inf.
    """
    known = np.isfinite(samples_s).sum(axis=0, keepdims=True)
    rank = np.maximum(np.ceil(share * known).astype(int) - 1, 0)
    quantile: Floats = np.take_along_axis(np.sort(samples_s, axis=0), rank, axis=0)[0]
    return quantile


def embedded(
    latency_s: Floats,
    random: np.random.Generator,
    *,
    rounds: int,
    dimensions: int = DIMENSIONS,
    heights: bool = False,
) -> Coordinates:
    """The coordinates that hosts find among themselves, if each measures the latency to a random other in every round.

    ``latency_s``: (n, n); where it is not finite nothing is measured.
    """
    coordinates = Coordinates.first(len(latency_s), random, dimensions=dimensions, heights=heights)
    own = np.arange(len(latency_s))
    for _ in range(rounds):
        partners = (own + 1 + random.integers(len(own) - 1, size=len(own))) % len(own)
        coordinates = coordinates.measured(coordinates.of(partners), latency_s[own, partners])
    return coordinates


def together(places: Sequence[Place]) -> Coordinates:
    """The coordinates of several hosts, of which all are known."""
    heights, errors = ([getattr(place, name) for place in places] for name in ("height_s", "error"))
    return Coordinates(np.array([place.at for place in places]), np.array(heights), np.array(errors))
