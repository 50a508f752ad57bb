"""Where a query's operators would be best in a space of coordinates, were there hosts everywhere: springs at rest.

Streams are springs, each as strong as its rate; what is pinned stays. At rest the sum of rate · distance² is least,
which is not the network usage, but has one minimum, and moving an operator needs to know its neighbours' places alone.

Two things stand otherwise in the paper's Figure 7, where they cannot be meant: the force there points away from the
neighbours, and the text ends *until* the force is above its threshold. And as printed it converges only where δ times
the sum of the rates is below 2, which depends on their unit: here the force is divided by that sum.

Source: Pietzuch et al. (2006), section 3.1.2, equations 2 and 3, Figure 7.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.errors import UsageError
from thalweg.middleware.planning.usage.streams import Query

Floats = npt.NDArray[np.float64]

DAMPING = 0.1  # δ
THRESHOLD_S = 1e-3  # F_t, of a force by the sum of the rates: the paper's 1, in its unit of coordinates
STEPS = 10_000  # of all operators; δ = 0.1 needs some hundred


def relaxed(
    query: Query,
    places: Mapping[int, Floats],
    random: np.random.Generator,
    *,
    damping: float = DAMPING,
    threshold_s: float = THRESHOLD_S,
) -> dict[int, Floats]:
    """The places (d,) of the operators, each moved by its force in turn until that of none exceeds the threshold.

    ``places``: of the nodes that are pinned. An operator begins near the origin. Raises UsageError for a damping that
    does not converge.
    """
    if not 0 < damping < 2:
        raise UsageError(f"the damping of relaxation is {damping}; it must be above 0 and below 2")
    at = {node: place.tolist() for node, place in places.items()}
    axes = range(len(next(iter(at.values()))))
    for node in query.operators:
        at[node] = random.uniform(-THRESHOLD_S, THRESHOLD_S, len(axes)).tolist()
    pulls = {
        node: [(other, rate / _sum(query, node)) for other, rate in query.beside[node]] for node in query.operators
    }
    for _ in range(STEPS):
        largest = 0.0
        for node, neighbours in pulls.items():
            own = at[node]
            force = [plain_sum(share * (at[other][axis] - own[axis]) for other, share in neighbours) for axis in axes]
            at[node] = [place + damping * along for place, along in zip(own, force, strict=True)]
            largest = max(largest, math.sqrt(plain_sum(along * along for along in force)))
        if largest < threshold_s:
            break
    return {node: np.array(at[node]) for node in query.operators}


def at_rest(query: Query, places: Mapping[int, Floats]) -> dict[int, Floats]:
    """The same, of all operators at once and exactly: each is at the mean of its neighbours by their rates."""
    row = {node: number for number, node in enumerate(query.operators)}
    pulls = np.zeros((len(row), len(row)))
    held = np.zeros((len(row), len(next(iter(places.values())))))
    for node, number in row.items():
        pulls[number, number] = _sum(query, node)
        for other, rate in query.beside[node]:
            if other in row:
                pulls[number, row[other]] -= rate
            else:
                held[number] += rate * places[other]
    solution = np.linalg.solve(pulls, held)
    return {node: solution[number] for node, number in row.items()}


def _sum(query: Query, node: int) -> float:
    return plain_sum(rate for _, rate in query.beside[node])
