"""Best places of a query's operators in a space of coordinates, as if hosts were everywhere: springs at rest.

Streams are springs, each as strong as its rate. Pinned nodes stay. At rest the sum of rate · distance² is least. This
sum is not the network usage, but has a single minimum. The move of an operator depends only on the places of its
neighbours.

Two details differ from the paper's Figure 7, where they cannot be meant. In the figure the force points away from the
neighbours, and the loop ends *until* the force is above its threshold. Also, the printed version converges only if δ
times the sum of the rates is below 2. That depends on the unit of the rates, so the force is divided by the sum of the
rates here.

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
THRESHOLD_S = 1e-3  # F_t, for a force divided by the sum of the rates; the paper has 1, in its unit of coordinates
STEPS = 10_000  # most rounds over all operators; δ = 0.1 needs some hundred


def relaxed(
    query: Query,
    places: Mapping[int, Floats],
    random: np.random.Generator,
    *,
    damping: float = DAMPING,
    threshold_s: float = THRESHOLD_S,
) -> dict[int, Floats]:
    """Return the places (d,) of the operators at rest, by moving the operators with their forces.

    Each operator in turn is moved by its force until no force exceeds the threshold. ``places``: places of the pinned
    nodes. An operator begins near the origin. Raises UsageError for a damping that does not converge.
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
    """Return the places of all operators at rest, solved exactly as one linear system.

    Each operator is at the mean of its neighbours, weighted by the rates.
    """
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
