"""Mapping of a place in the space of coordinates to a host: the nearest host that has the operator, or has room for it.

A host's load is one more coordinate. The coordinate of a place is 0 there, so a host with load is farther from every
place.

Source: Pietzuch et al. (2006), section 3.1.3, the five steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

from thalweg.middleware.errors import PlacementError, UsageError

Floats = npt.NDArray[np.float64]

NEAREST = 10  # k


class Mapper:
    """Hosts by their places, (n, d), in seconds, for the choice of a host near a place.

    ``load``: (n,) the load of each host. A load of 1 counts as ``load_s`` seconds. Raises UsageError for a load that is
    negative or not finite.
    """

    def __init__(self, places: Floats, load: Floats | None = None, *, load_s: float = 1.0) -> None:
        self._places = places
        self._beyond = np.zeros(len(places))
        if load is not None:
            if bad := np.flatnonzero(~(np.isfinite(load) & (load >= 0))).tolist():
                raise UsageError(f"the load of host {bad[0]} is {load[bad[0]]}; it must be at least 0 and finite")
            self._beyond = (load_s * load) ** 2

    def host(
        self,
        place: Floats,
        *,
        nearest: int = NEAREST,
        has: Collection[int] = (),
        lacks: Callable[[int], str | None] = lambda host: None,
    ) -> int:
        """Return the first of the nearest hosts that has the operator, else the first host that lacks nothing for it.

        ``lacks`` returns the resource that a host lacks, and None if it lacks nothing. If none of the ``nearest`` hosts
        is suitable, the search goes on with twice as many. Raises PlacementError with the nearest host's lack if no
        host is suitable.
        """
        away = sum((axis - at) ** 2 for axis, at in zip(self._places.T, place, strict=True)) + self._beyond
        order = np.argsort(away, kind="stable")
        begun = 0
        while begun < len(order):
            looked = order[begun:nearest].tolist()
            for host in looked:
                if host in has:
                    return int(host)
            for host in looked:
                if lacks(host) is None:
                    return int(host)
            begun, nearest = nearest, 2 * nearest
        raise PlacementError(f"no host can take the operator: the nearest, {order[0]}, lacks {lacks(int(order[0]))}")
