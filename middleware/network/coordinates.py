"""Network coordinates: positions of hosts in a space in which distances predict latencies.

A host measures its latency to a second host, and then moves a little towards the position where the distance would be
right. So a spring between the two hosts would act. The host moves farther if it trusts its own position less, and that
of the second host more. The *height* of a host is the latency that it adds to every route, as an access link does. A
distance is that of the positions plus both heights. In a space without heights, every height is 0.

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
Rows = Any  # selection of hosts: a slice, or an array of numbers


class Coordinates(msgspec.Struct, frozen=True):
    """Coordinates of ``n`` hosts in ``d`` dimensions.

    ``places``: (n, d), seconds. ``heights``: (n,), seconds, or 0 in a space without heights. ``errors``: (n,), the
    relative error that each host expects of its distances.
    """

    places: Floats
    heights: Floats
    errors: Floats

    @classmethod
    def first(
        cls, hosts: int, random: np.random.Generator, *, dimensions: int = DIMENSIONS, heights: bool = False
    ) -> Coordinates:
        """Return random coordinates of hosts without measurements."""
        places = random.uniform(-FIRST_SIDE_S / 2, FIRST_SIDE_S / 2, (hosts, dimensions))
        return cls(places, np.full(hosts, FIRST_SIDE_S * heights), np.full(hosts, START_ERROR))

    def __len__(self) -> int:
        return len(self.places)

    def of(self, hosts: Rows) -> Coordinates:
        """Return the coordinates of the selected hosts."""
        return Coordinates(self.places[hosts], self.heights[hosts], self.errors[hosts])

    def distances_s(self, ones: Rows, others: Rows) -> Floats:
        """Return the distances from ``ones`` to ``others`` in seconds: (ones, others). Distances predict latencies."""
        squares = sum(np.subtract.outer(axis[ones], axis[others]) ** 2 for axis in self.places.T)
        distances: Floats = np.sqrt(squares) + np.add.outer(self.heights[ones], self.heights[others])
        return distances

    def measured(self, others: Coordinates, latency_s: Floats) -> Coordinates:
        """Return the coordinates after every host has measured its latency, (n,), to a host of ``others``.

        ``others``: the coordinates of the measured host, for each host. A latency that is not finite and above 0 is
        ignored.
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
    """Return the latency that samples of a link stand for, (samples, …) → (…): the 20th percentile, nearest rank.

    Busy hosts and links delay samples now and then, so the low samples show the route itself. A missing sample is inf.
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
    """Return the coordinates that hosts find if every host measures its latency to a random host in each round.

    ``latency_s``: (n, n). An infinite or nan latency is not measured.
    """
    coordinates = Coordinates.first(len(latency_s), random, dimensions=dimensions, heights=heights)
    own = np.arange(len(latency_s))
    for _ in range(rounds):
        partners = (own + 1 + random.integers(len(own) - 1, size=len(own))) % len(own)
        coordinates = coordinates.measured(coordinates.of(partners), latency_s[own, partners])
    return coordinates


def together(places: Sequence[Place]) -> Coordinates:
    """Return the coordinates of several hosts with known places."""
    heights, errors = ([getattr(place, name) for place in places] for name in ("height_s", "error"))
    return Coordinates(np.array([place.at for place in places]), np.array(heights), np.array(errors))
