"""Table 1 and Figures 8 and 9 of Pietzuch et al. (2006): placements by network usage on transit-stub topologies.

A pool is a topology, a configuration a query. The paper's numbers are from its table and text (section 4.1), none is
read off a curve. Penalties are in percent of the optimum's usage, and of the delay of the longest route from a producer
to the consumer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from thalweg.emulation.traces.topologies import PRESETS
from thalweg.experiments.papers.claims import CLEARLY, Result, Value, between, check, falls, lacking, of
from thalweg.experiments.papers.pietzuch2006.placing import OURS, PLACEMENTS, Placing
from thalweg.experiments.papers.study import (
    Claim,
    Column,
    Figure,
    Finding,
    Grid,
    Over,
    Pooled,
    Published,
    Study,
    spread,
)
from thalweg.experiments.papers.tables import finished
from thalweg.experiments.sweeps.trial import Arm
from thalweg.experiments.views.tables import NONE

QUERIES = 10_000  # 1,000 on each of ten topologies
USAGE, DELAY = "usage_penalty", "delay_penalty"
PUBLISHED: Mapping[str, Mapping[str, float]] = {  # Table 1, percent
    USAGE: {"optimal": 0, "relaxation": 15, "ip-multicast": 27, "producer": 43, "consumer": 60, "random": 81},
    DELAY: {"optimal": 13, "relaxation": 24, "ip-multicast": 0, "producer": 75, "consumer": 0, "random": 76},
}
WORST_FIRST = ("random", "consumer", "producer", "ip-multicast", "relaxation", "optimal")
POINTS, QUOTED = 5.0, 0.15  # tolerance to a number of Table 1: in points, or as a share of the number
OPERATORS = Over("operators", (1, 3), "operators")
QUANTILE, EIGHTIETH = 0.8, {"relaxation": 14.0, "producer": 48.0}  # of usage, percent above the optimum's; Figure 8
BELOW = 0.15  # "lower delay penalties than CONSUMER for about 15% of the queries"
GOAL = {1: 4.0, 3: 6.0}  # of ours, by the number of operators


class Placer(Arm, frozen=True, order=True):
    """Placement, and the query's number of operators."""

    placement: str
    operators: int = 1


TABLE = tuple(
    Published(own=f"{name}, {column.split('_')[0]}", value=value, ours=of(name, column), unit="%", points=POINTS)
    for column, values in PUBLISHED.items()
    for name, value in values.items()
)


@check
def _as_published(result: Result, column: str) -> Finding:
    """Check that every placement's mean is the paper's, within ``POINTS`` or ``QUOTED`` of it."""
    off, parts, numbers = [], [], {}
    for name, paper in PUBLISHED[column].items():
        figure = of(name, column)(result)
        numbers[name] = figure.mean
        parts.append(f"{name} {spread(figure, 0)} ({paper:g})")
        if abs(figure.mean - paper) > max(POINTS, QUOTED * paper):
            off.append(name)
    detail = ", ".join(parts) + (f"; off: {', '.join(off)}" if off else "")
    return Finding(not off if result.binding else None, detail, numbers)


@check
def _no_penalty(result: Result, *names: str) -> Finding:
    """Check that the named placements have no delay penalty in the mean."""
    numbers = {}
    for name in names:
        numbers[name] = of(name, DELAY)(result).mean
    detail = ", ".join(f"{name} {value:.1f} %" for name, value in numbers.items())
    return Finding(all(abs(value) < 0.05 for value in numbers.values()), detail, numbers)


def _known(result: Result, name: str) -> list[float]:
    """Return the values of a placement's single queries, in figures that show them."""
    values = [value for value in result.singles.get(name, ()) if value is not None]
    if not values:
        raise lacking(result, name)
    return values


def _above(result: Result, name: str) -> float:
    """Return the excess over the optimum, in percent, of the usage that 80 % of a placement's queries do not exceed."""
    base, own = (float(np.quantile(_known(result, placement), QUANTILE)) for placement in ("optimal", name))
    return 100 * (own / base - 1)


def _below(result: Result, name: str) -> float:
    """Return the share of the queries on which a placement has less delay than the routes."""
    return float(np.mean(np.array(_known(result, name)) < -1e-6))


def _single(told: Callable[[Result, str], float], name: str, factor: float = 1.0) -> Value:
    """Return a value of a placement's single queries, over every pool, as a function of the result."""

    return lambda result: Pooled(mean=factor * told(result, name), deviation=None, by_pool={})


@check
def _at_quantile(result: Result, within: float) -> Finding:
    """Check that the usage that 80 % of the queries do not exceed is as far above the optimum's as published."""
    excess = {name: _above(result, name) for name in EIGHTIETH}
    listed = ", ".join(f"{name} {excess[name]:+.0f} % (paper {paper:+.0f})" for name, paper in EIGHTIETH.items())
    good = all(abs(excess[name] - paper) <= within for name, paper in EIGHTIETH.items())
    return Finding(good if result.binding else None, listed, excess)


@check
def _below_none(result: Result, *names: str, low: float, high: float) -> Finding:
    """Check that each placement has less delay than the routes on ``low`` to ``high`` of the queries."""
    shares = {name: _below(result, name) for name in names}
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    good = all(low <= share <= high for share in shares.values())
    return Finding(good if result.binding else None, f"{listed}; accepted {low:.0%} to {high:.0%}", shares)


def _paper(column: str) -> Callable[[Any, Any], str]:
    """Return a function for a cell: Table 1's value in a column."""

    def cell(row: Any, result: Any) -> str:
        known = PUBLISHED[column].get(row.arm.placement)
        return NONE if known is None or row.arm.operators != 1 else f"{known:g}"

    return cell


COLUMNS = (
    Column("placement", lambda row, result: row.label),
    Column("queries", finished),
    Column("usage %", USAGE),
    Column("paper", _paper(USAGE)),
    Column("delay %", DELAY),
    Column("paper", _paper(DELAY)),
    Column("ms", "planning_ms", digits=2),
)


def _pairs(own: Any, other: Any, usual: bool) -> bool:
    """Return whether to compare two placements: ours with every placement, on queries of as many operators."""
    return own.placement in OURS and own.operators == other.operators and own != other


def _told(ratio: Any) -> bool:
    return bool(ratio.own.placement == "cost-space" and ratio.other.placement in ("relaxation", "ip-multicast"))


def _figure(number: str, **given: Any) -> Figure:
    """Return a figure of every placement, on queries with one operator."""
    usual: dict[str, Any] = {
        "sweep": Grid(Placer, ((*PLACEMENTS, *OURS), (1,))),
        "columns": COLUMNS,
        "pairs": _pairs,
        "told": _told,
        "configurations": QUERIES,
    }
    return Figure(number=number, **usual | given)


def _goal(operators: int) -> Claim:
    return Claim(
        f"cost-space-{operators}",
        f"cost-space needs at most {GOAL[operators]:g} % more than the optimum (our goal, not the paper's)",
        "mean penalty over all queries",
        between(of("cost-space", USAGE, operators=operators), -math.inf, GOAL[operators], "penalty", "penalty {}"),
    )


_FIGURES = (
    _figure(
        "sbon-table1",
        head="Table 1",
        title="Increase in network usage and delay",
        published=TABLE,
        question="How much more network does a placement use than the best one, and how much later is the data?",
        claims=(
            Claim(
                "order",
                "RELAXATION performs well; IP MULTICAST is less efficient; PRODUCER does better than CONSUMER; RANDOM"
                " exhibits poor network usage",
                f"the mean usage, by the optimum's, falls from each to the next {CLEARLY}",
                falls("usage_ratio", *WORST_FIRST, digits=2, unit=""),
                1,
            ),
            Claim(
                "usage",
                "network usage penalties of Table 1: 0, 15, 27, 43, 60, 81 %",
                f"each mean is within {POINTS:g} points or {QUOTED:.0%} of the paper's",
                _as_published(USAGE),
            ),
            Claim(
                "delay",
                "delay penalties of Table 1: 13, 24, 0, 75, 0, 76 %",
                f"each mean is within {POINTS:g} points or {QUOTED:.0%} of the paper's",
                _as_published(DELAY),
                1,
            ),
            Claim(
                "no-penalty",
                "CONSUMER and IP MULTICAST have no delay penalty",
                "their means are below 0.05 %",
                _no_penalty("consumer", "ip-multicast"),
            ),
            _goal(1),
        ),
    ),
    _figure(
        "sbon-8",
        head="Fig. 8",
        singles="usage_kb",
        title="Network usage",
        published=tuple(
            Published(own=f"{name}, 80 %", value=paper, ours=_single(_above, name), unit="%", points=2 * POINTS)
            for name, paper in EIGHTIETH.items()
        ),
        question="How is the network usage of single queries distributed?",
        claims=(
            Claim(
                "eightieth",
                "Looking at the 80th percentile, RELAXATION manages to cause only 14% more network traffic than"
                " OPTIMAL, whereas PRODUCER results in 48% more traffic",
                f"the 80th percentiles of usage over that of optimal, each within {2 * POINTS:g} points",
                _at_quantile(2 * POINTS),
            ),
        ),
    ),
    _figure(
        "sbon-9",
        head="Fig. 9",
        singles=DELAY,
        title="Delay penalty",
        published=tuple(
            Published(own=f"{name}, below 0", value=100 * BELOW, ours=_single(_below, name, 100), unit="%", points=10)
            for name in ("optimal", "relaxation")
        ),
        question="How is the delay penalty of single queries distributed?",
        claims=(
            Claim(
                "below-consumer",
                "both OPTIMAL and RELAXATION achieve lower delay penalties than CONSUMER for about 15% of the queries",
                "the share of the queries with a penalty below 0, of each within 10 points",
                _below_none("optimal", "relaxation", low=BELOW - 0.1, high=BELOW + 0.1),
            ),
        ),
    ),
    _figure(
        "sbon-operators",
        head="Three operators",
        varied=("operators",),
        sweep=Grid(Placer, ((*PLACEMENTS, *OURS), OPERATORS.values)),
        configurations=500,
        title="Queries of one operator and of three",
        question="Does the placement of one operator carry over to trees of them?",
        claims=(_goal(1), _goal(3)),
    ),
)


STUDY = Study(
    name="pietzuch2006",
    trial=Placing,
    arm=Placer,
    figures={figure.number: figure for figure in _FIGURES},
    series=tuple(PLACEMENTS),
    ours=tuple(OURS),
    pools=tuple(PRESETS),
    usual={"operators": 1},
    measure="usage_bytes / optimal_bytes",
    level="usage_ratio",
    quantity="network usage by the optimum's",
    columns={
        USAGE: "round(100 * (usage_bytes / optimal_bytes - 1), 9)",
        DELAY: "round(100 * (delay_s / route_s - 1), 9)",
        "usage_kb": "usage_bytes / 1000",
        "planning_ms": "1000 * planning_s",
    },
    world=("operators",),
    fixed=("dimensions", "rounds", "measured"),
    says={"operators": lambda count: f"{count} operator{'s' if count > 1 else ''}"},
    colours=("relaxation", "optimal", "producer", "consumer", "ip-multicast"),
    tints={"cost-space": "#882255"},
    conclusions={1: "an SBON improves network utilization and provides low stream latency"},
)
