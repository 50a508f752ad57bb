"""Smallest cuts of networks, found through the largest flows that scipy computes.

scipy is imported at the first request for a cut: the import takes a tenth of a second, and few plans need scipy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
UNITS = 2**30  # largest capacity as a whole number: scipy counts flows in whole numbers
ROUNDED = 64  # units; a rest of a capacity up to this size comes from rounding


def smallest_cut(capacity: Floats, source: int, sink: int) -> tuple[float, npt.NDArray[np.bool_]]:
    """Return the largest flow from ``source`` to ``sink``, and the nodes on the source's side of a smallest cut.

    ``capacity``: (nodes, nodes) capacity of the edge from the first to the second node, at least 0. The side is
    (nodes,) flags. If several cuts are smallest, the cut nearest to the source is returned. The result is exact to
    about ``ROUNDED / UNITS`` of the largest capacity, or of the sum of the source's capacities if that sum is larger.
    Source: Dinic (1970), as implemented in scipy.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    side = np.zeros(len(capacity), dtype=bool)
    largest = float(capacity.max(initial=0.0))
    if largest > 0:
        largest = max(largest, float(capacity[source].sum()))  # so that the sum of the flow fits into 32 bits as well
        units = np.rint(capacity * (UNITS / largest)).astype(np.int32)
        flow = maximum_flow(csr_array(units), source, sink).flow.toarray()
        reached = breadth_first_order(csr_array(units - flow > ROUNDED), source, return_predecessors=False)
        side[reached] = True
    side[source] = True
    return float(capacity[np.ix_(side, ~side)].sum()), side
