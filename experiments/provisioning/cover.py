"""Lower bound of the cost of a number of machines: the cover bound.

Machines that sustain the throughput have processors for all work and cards for every object once. Units are a tree, so
m machines cut it m - 1 times or more. The cards therefore carry at least the m - 1 smallest streams twice. A small
program finds the cheapest machines with this capacity, whatever runs on them. Egress is at least that of every object
once, from its cheapest server to the cheapest kind, and of the results.
"""

from __future__ import annotations

import math

import numpy as np

from thalweg.experiments.provisioning.parts import ProblemUnits
from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.planning.solver.program import NoSolutionError, Program


def cover(parts: ProblemUnits, machines: int) -> float:
    """Return the least cost of a number of machines, or inf if so few or so many cannot sustain the throughput."""
    rates, wanted = parts.instance.rate_bytes_s, {leaf for objects in parts.objects for leaf in objects}
    smallest = sorted(sent for *_, sent in parts.streams)[: machines - 1]
    asked, carried = plain_sum(parts.mop_s), float(rates[list(wanted)].sum()) + 2 * plain_sum(smallest)
    program, menus = Program(), list[np.ndarray]()
    speeds, cards, counts = list[float](), list[float](), list[np.ndarray]()
    for kind in parts.kinds:
        most = min(kind.limit, machines)
        first: np.ndarray | None = None
        for menu in kind.menus:
            chosen = program.variables(len(menu), high=most, cost=np.array([price for *_, price in menu]), integer=True)
            speeds += [min(speed / asked, 1.0) if asked else 1.0 for speed, _, _ in menu]
            cards += [min(card / carried, 1.0) if carried else 1.0 for _, card, _ in menu]
            if first is not None:
                both = np.concatenate((first, chosen))
                program.row(both, np.repeat([1.0, -1.0], (len(first), len(chosen))), low=0.0, high=0.0)
            else:
                first = chosen
                counts.append(chosen)
                if most < machines:
                    program.row(chosen, np.ones(len(chosen)), high=most)
            menus.append(chosen)
    own, every = np.concatenate(counts), np.concatenate(menus)
    program.row(own, np.ones(len(own)), low=machines, high=machines)
    program.row(every, np.array(speeds), low=1.0 - 1e-9)
    program.row(every, np.array(cards), low=1.0 - 1e-9)
    least = [min(parts.fetched[leaf]) for leaf in wanted]
    try:
        return program.solve().bound + plain_sum(least) + min(parts.results)
    except NoSolutionError:
        return math.inf
