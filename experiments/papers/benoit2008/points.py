"""Points of the figures of Benoit et al., the heuristics at each point, and values of results at points."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from thalweg.experiments.papers.benoit2008.instances import BASE
from thalweg.experiments.papers.benoit2008.renting import CHEAPEST, SERIES, SUBTREE
from thalweg.experiments.papers.claims import NotTested, Result, Value, known
from thalweg.experiments.papers.study import TIE, Pooled, pooled
from thalweg.experiments.sweeps.trial import Arm

TREES = 40  # per point; the paper has one
GREEDY = ("comp-greedy", "comm-greedy", "object-greedy")
OBJECTS = ("object-grouping", "object-availability")
SHORT = {
    "random": "Random",
    "comp-greedy": "Comp",
    "comm-greedy": "Comm",
    "object-greedy": "Object",
    SUBTREE: "Subtree",
    "object-grouping": "Grouping",
    "object-availability": "Avail.",
}
ALMOST_NONE = 15.0  # % of the trees
SHARES = ("found", "lost", "lost_servers", "short_servers")  # columns in %
N_SMALL = (20, 40, 60, 70, 80, 100, 120, 140, 160, 180)
N_BIG = (5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 60)
ALPHAS = (0.5, 0.7, 0.9, 1.1, 1.2, 1.3, *(round(1.35 + 0.05 * at, 2) for at in range(23)))
ALPHAS_BIG = tuple(round(0.5 + 0.1 * at, 1) for at in range(15))
PERIODS_S = (2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0, 50.0)
N_ONE = (10, 20, 30, 36, 40, 50, 60)
TABLE_2: Mapping[str, Mapping[float, Sequence[float]]] = {  # $ of N = 115 … 119, by 1/f
    "comm-greedy": {2.0: (7947, 15495, 7947, 15495, 15495), 50.0: (7548, 15096, 7548, 15096, 15096)},
    "object-greedy": {2.0: (13547,) * 5, 50.0: (13547,) * 5},
    SUBTREE: {2.0: (8745, 7947, 7947, 7548, 8745), 50.0: (8745, 7548, 7548, 7548, 8745)},
}
N_TABLE = (115, 116, 117, 118, 119)


class Platform(Arm, frozen=True, order=True):
    """Heuristic that buys, and the parameters of its trees."""

    heuristic: str
    nodes: int = 60
    alpha: float = 0.9
    sizes: str = "small"
    period_s: float = 2.0
    copies: int = 3
    machines: str = "all"


Point = Mapping[str, Any]


class Points:
    """Grid of every heuristic at every listed point."""

    def __init__(self, *listed: Point, series: Sequence[str] = SERIES) -> None:
        self.listed, self.series = listed, series

    def arms(self) -> list[Platform]:
        """Return, for every point, the seven heuristics, the cheapest of the seven, and further series."""
        return [Platform(heuristic, **given) for given, heuristic in itertools.product(self.listed, self.series)]


def points(**values: Iterable[Any]) -> list[dict[str, Any]]:
    """Return every combination of these values of factors."""
    return [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]


def points_of(result: Result) -> Sequence[Point]:
    """Return the points of a figure."""
    sweep = result.definition.sweep
    assert isinstance(sweep, Points)
    return sweep.listed


FACTORS = Platform.__struct_fields__[1:]
SAYS: Mapping[str, Callable[[Any], str]] = {
    "nodes": "N = {}".format,
    "alpha": "α = {:g}".format,
    "sizes": "{} objects".format,
    "period_s": "f = 1/{:g} s".format,
    "copies": lambda copies: f"on {copies} server{'s' if copies > 1 else ''}",
    "machines": lambda machines: "one class" if machines == "one" else "all classes",
}


def at(heuristic: str, column: str, point: Point) -> Value:
    """Return a heuristic's column at a point, as a function of the result."""

    def found(result: Result) -> Pooled:
        row = next((row for row in result.rows if row.arm == Platform(heuristic, **point)), None)
        value: Pooled | None = row and row.value(column)
        if value is None:
            raise NotTested(f"{heuristic} finds no machines at {told(point)}" if row else f"not run: {told(point)}")
        return value

    return found


def told(point: Point) -> str:
    """Return a point as text: ``N = 20, α = 0.9``."""
    return ", ".join(SAYS[factor](value) for factor, value in point.items())


def over_points(result: Result, heuristics: Iterable[str], column: str, where: Iterable[Point]) -> Pooled:
    """Return the mean over the points and heuristics that have a value. Raise NotTested if there is none."""
    figures = [known(at(name, column, point), result) for name, point in itertools.product(heuristics, where)]
    by_pool: dict[int, list[float]] = {}
    for figure in figures:
        for seed, value in (figure.by_pool if figure else {}).items():
            by_pool.setdefault(seed, []).append(value)
    mean = pooled({seed: statistics.fmean(values) for seed, values in by_pool.items()})
    if mean is None:
        raise NotTested(f"no machines are found by {', '.join(heuristics)}")
    return mean


TURNS = ("where cost rises", "with two machines", "with no platform")


def thresholds(result: Result, nodes: int) -> dict[str, Pooled]:
    """Return, by ``TURNS``, the first α of every tree where the cheapest costs more than at the smallest α, has two
    machines, or finds no platform. Raise NotTested if an α was not run, or no tree reaches a turn.
    """
    singles = [
        (alpha, result.singles[row.label])
        for alpha in ALPHAS
        for row in result.rows
        if row.arm == Platform(CHEAPEST, nodes=nodes, alpha=alpha)
    ]
    if len(singles) < len(ALPHAS):
        raise NotTested(f"not run: some α with N = {nodes}")
    firsts: dict[str, dict[int, float | None]] = {turn: {} for turn in TURNS}
    for tree, costs in enumerate(zip(*(values for _, values in singles), strict=True)):
        # a machine that is alone needs no large card, so it costs less than two machines
        limits = costs[0] and costs[0] * (1 + TIE), 2 * BASE, math.inf
        for turn, limit in zip(TURNS, limits, strict=True):
            under = [at for at, cost in enumerate(costs) if cost is not None and limit and cost < limit]
            after = max(under, default=-1) + 1
            firsts[turn][tree] = ALPHAS[after] if after < len(ALPHAS) else None
    alphas = {turn: pooled(first) for turn, first in firsts.items()}
    reached = {turn: figure for turn, figure in alphas.items() if figure is not None}
    if len(reached) < len(TURNS):
        raise NotTested("α ends before any tree has no platform")
    return reached


def threshold(nodes: int, turn: str) -> Value:
    """Return the α of one turn as a function of the result."""
    return lambda result: thresholds(result, nodes)[turn]
