"""Smallest cuts of networks, by the largest flows that scipy finds.

scipy is imported when a cut is first asked for: it takes a tenth of a second to load, and few plans need it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
UNITS = 2**30  # the largest capacity of a flow, in the whole numbers that scipy counts flows in
ROUNDED = 64  # units; so little left of a capacity is what rounding has left


def smallest_cut(capacity: Floats, source: int, sink: int) -> tuple[float, npt.NDArray[np.bool_]]:
    """The largest flow from ``source`` to ``sink``, and those on the source's side of a smallest cut.

    ``capacity``: (nodes, nodes) of the edge from one to another, at least 0. Of several smallest cuts it is that next
    to the source. Exact to about ``ROUNDED / UNITS`` of the largest capacity. Source: Dinic (1970), as scipy has it.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    side = np.zeros(len(capacity), dtype=bool)
    largest = float(capacity.max(initial=0.0))
    if largest > 0:
        largest = max(largest, float(capacity[source].sum()))  # so that the flow fits as well
        units = np.rint(capacity * (UNITS / largest)).astype(np.int32)
        flow = maximum_flow(csr_array(units), source, sink).flow.toarray()
        reached = breadth_first_order(csr_array(units - flow > ROUNDED), source, return_predecessors=False)
        side[reached] = True
    side[source] = True
    return float(capacity[np.ix_(side, ~side)].sum()), side
