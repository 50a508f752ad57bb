"""Cheapest tree over hosts that keeps a throughput, by the prices of bytes between hosts.

If operators are reorderable and results are as large as an input, every host but the root sends one result on. The
result combines the host's data with the received results. A tree then costs one link of every host. So the cheapest
tree is a minimum arborescence, with its streams towards the root.

- A1: A link on which a result takes longer than the period is left out. Edmonds' algorithm finds the cheapest tree of
  the remaining links.
- A2: A host receives and sends one result after another. If a host of the cheapest tree lacks the time, the program of
  all trees is solved, with the time of hosts as rows. Circles are excluded when they appear.

Source: Edmonds (1967), Optimum branchings, J. Res. Nat. Bur. Standards 71B, as implemented in networkx.
"""

from __future__ import annotations

import numpy as np

from thalweg.experiments.provisioning.instance import SLACK, Floats
from thalweg.middleware.planning.solver.program import NoSolutionError, Program


def cheapest_tree(price: Floats, took_s: Floats, root: int, period_s: float) -> dict[int, int]:
    """Return the cheapest tree: from every host but the root to the receiver of the host's result.

    ``price``: (n, n) of a result on the link from a host to another. ``took_s``: (n, n) seconds of the transfer. Raises
    NoSolutionError if no tree has such a period.
    """
    usable = took_s <= period_s * (1 + SLACK)
    np.fill_diagonal(usable, False)
    usable[root] = False
    tree = _by_edmonds(price, usable, root)
    if busiest_s(tree, took_s) <= period_s * (1 + SLACK):
        return tree
    return _by_program(price, took_s, usable, root, period_s)


def busiest_s(parent: dict[int, int], took_s: Floats) -> float:
    """Return the seconds for which the busiest host of a tree receives and sends one result."""
    busy = np.zeros(len(took_s))
    for host, other in parent.items():
        busy[[host, other]] += took_s[host, other]
    return float(busy.max())


def _by_edmonds(price: Floats, usable: np.ndarray, root: int) -> dict[int, int]:
    """Return the cheapest tree of the links that are fast enough (A1)."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(price)))
    # streams go towards the root, an arborescence's links away from it
    graph.add_weighted_edges_from((int(to), int(at), float(price[at, to])) for at, to in np.argwhere(usable))
    try:
        tree = networkx.minimum_spanning_arborescence(graph)
    except networkx.NetworkXException:
        raise NoSolutionError(f"a host has no link or route to host {root} that is fast enough") from None
    return {at: to for to, at in tree.edges}


def _by_program(price: Floats, took_s: Floats, usable: np.ndarray, root: int, period_s: float) -> dict[int, int]:
    """Return the cheapest tree in which every host has time to receive and send (A2)."""
    ends = np.argwhere(usable)
    source, target = ends.T
    program = Program()
    prices = price[source, target]
    sends = program.variables(len(ends), high=1.0, cost=prices / (float(prices.max()) or 1.0), integer=True)
    for host in range(len(price)):
        if host != root:
            own = source == host
            program.row(sends[own], np.ones(int(own.sum())), low=1.0, high=1.0)
        busy = (source == host) | (target == host)
        program.row(sends[busy], took_s[source[busy], target[busy]] / period_s, high=1.0)
    while True:
        chosen = program.solve().variables[sends] > 0.5
        parent = {int(at): int(to) for at, to in ends[chosen]}
        circle = _circle(parent, root)
        if not circle:
            return parent
        inside = np.isin(source, circle) & np.isin(target, circle)
        program.row(sends[inside], np.ones(int(inside.sum())), high=len(circle) - 1.0)


def _circle(parent: dict[int, int], root: int) -> list[int]:
    """Return hosts that send to each other in a circle. Empty: there is no circle."""
    for host in parent:
        seen = [host]
        while (host := parent.get(host, root)) != root:
            if host in seen:
                return seen[seen.index(host) :]
            seen.append(host)
    return []
