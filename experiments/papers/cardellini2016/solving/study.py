"""Figures 9 and 10 of Cardellini et al. (2016): time to find the optimum, and cost of sampling candidates.

The paper's times are of CPLEX on four processors. No value is read off a curve. Here structure is used if there is
some: the sequential application is a walk over hosts, the fat one an assignment between two hubs.
"""

from __future__ import annotations

import itertools
from typing import Any

from thalweg.experiments.papers.cardellini2016.solving.solving import SHAPES, Solving
from thalweg.experiments.papers.claims import Check, Result, Value, between, check, each, missing, over
from thalweg.experiments.papers.study import (
    Claim,
    Column,
    Figure,
    Finding,
    Listed,
    Over,
    Pooled,
    Published,
    Study,
    spread,
)
from thalweg.experiments.papers.tables import finished, mean
from thalweg.experiments.sweeps.trial import Arm

USUAL = {"operators": 20, "hosts": 20, "capacity": 4}  # Table 2
VARIED = {
    "operators": Over("operators", (10, 20, 30, 40, 50), "operators"),
    "hosts": Over("hosts", (10, 20, 40, 50, 60, 80, 100), "hosts"),
    "capacity": Over("capacity", (2, 4, 6, 8, 10), "places a host"),
}
SHARES = Over("share", (0.2, 0.4, 0.6, 0.8, 1.0), "candidates, of the hosts")
GOAL_MS = 500.0  # of the fat application; the sequential one is allowed 2 s on 20 hosts at capacity 4
FEW, MANY = {"operators": 20, "hosts": 50}, {"operators": 50, "hosts": 20}  # Sc2 and Sc1


class Problem(Arm, frozen=True, order=True):
    """Shape of a problem, and its sizes and share of candidates."""

    shape: str
    operators: int = 20
    hosts: int = 20
    capacity: int = 4
    share: float = 1.0


def problems(*listed: dict[str, Any]) -> Listed:
    """Return the listed problems with both shapes."""
    return Listed(tuple(Problem(shape, **given) for shape, given in itertools.product(SHAPES, listed)))


def at(shape: str, column: str, **given: Any) -> Value:
    """Return a column of a shape's arm, as a function of the result."""

    def found(result: Result) -> Pooled:
        value: Pooled | None = next((r.value(column) for r in result.rows if r.arm == Problem(shape, **given)), None)
        if value is None:
            raise missing(f"{shape} with {given}")
        return value

    return found


@check
def _sooner(result: Result, shape: str) -> Finding:
    """Check that fifty hosts and twenty operators are solved sooner than twenty hosts and fifty operators."""
    ratio = over(at(shape, "solve_ms", **MANY)(result), at(shape, "solve_ms", **FEW)(result))
    good = each(ratio, lambda one: one > 1)
    return Finding(ratio.mean > 1, f"{spread(ratio)} times as fast", {"ratio": ratio.mean}, good)


@check
def _falls(result: Result, shape: str) -> Finding:
    """Check that the time is less at the largest capacity than at the least."""
    times = {of: at(shape, "solve_ms", capacity=of)(result) for of in VARIED["capacity"].values}
    first, last = times[min(times)], times[max(times)]
    detail = ", ".join(f"{spread(value)} ms with {of}" for of, value in times.items())
    return Finding(last.mean < first.mean, detail, {str(of): value.mean for of, value in times.items()})


@check
def _proven(result: Result, shape: str) -> Finding:
    """Check that every problem of a shape is proven, and in the goal's time."""
    rows = [row for row in result.rows if row.arm.shape == shape and row.arm.share == 1]
    if not rows or any(row.solve_ms is None for row in rows):  # no trial of a row finished
        raise missing(*(_problem(row, result) for row in rows if row.solve_ms is None), *([] if rows else [shape]))
    proven = min(row.proven.mean for row in rows)
    slowest = max(rows, key=lambda row: row.solve_ms.mean)
    took_ms = slowest.solve_ms.mean
    detail = f"{proven:.0f} % are proven; the slowest are {_problem(slowest, result)}: {took_ms:.1f} ms"
    limit_ms = GOAL_MS if shape == "fat" else 4 * GOAL_MS
    return Finding(proven == 100 and took_ms <= limit_ms, detail, {"proven": proven, "slowest ms": took_ms})


def _degraded(shape: str, column: str, low: float, high: float) -> Check:
    """Return the check of a ratio column with a fifth of the candidates: it is between two numbers."""
    return between(at(shape, column, **MANY, share=0.2), low, high, column, "{} times")


@check
def _faster(result: Result) -> Finding:
    """Check that both shapes are solved sooner with a fifth of the candidates."""
    ratios = {shape: at(shape, "times_faster", **MANY, share=0.2)(result) for shape in SHAPES}
    detail = ", ".join(f"{shape} {spread(value, 4)} times as fast" for shape, value in ratios.items())
    numbers = {shape: value.mean for shape, value in ratios.items()}
    return Finding(all(value.mean > 1 for value in ratios.values()), f"{detail} at 20 %", numbers)


def _problem(row: Any, result: Any) -> str:
    """Return a cell like ``fat 50 × 20``, operators and hosts, with unusual places per host or candidates."""
    arm = row.arm
    places = f", {arm.capacity} places" if arm.capacity != USUAL["capacity"] else ""
    return f"{arm.shape} {arm.operators} × {arm.hosts}{places}" + (f", {arm.share:.0%}" if arm.share < 1 else "")


_FIRST = (Column("problem", _problem), Column("draws", finished))
_NINE = Figure(
    number="odp-9",
    head="Fig. 9",
    title="How long the optimum takes",
    question="How does the time to prove a placement the best grow with operators, hosts and capacity?",
    sweep=problems(*({what: value} for what, of in VARIED.items() for value in of.values if value != USUAL[what]), {}),
    varied=tuple(VARIED),
    pairs=lambda own, other, usual: False,
    configurations=30,
    columns=(
        *_FIRST,
        Column("solved in ms", "solve_ms", digits=2),
        Column("proven %", lambda row, result: mean(row.proven, 0)),
        Column("network ms", "network_ms"),
    ),
    claims=(
        *(
            Claim(
                f"{shape}-proven",
                f"every problem of Figure 9 is proven within {'0.5' if shape == 'fat' else '2'} s, {shape} (our goal)",
                "all draws are, and the slowest in the mean",
                _proven(shape),
                1,
            )
            for shape in SHAPES
        ),
        *(
            Claim(
                f"{shape}-hosts",
                f"50 hosts and 20 operators take less time than the other way round, {shape} ({paper} times there)",
                "it is less in the mean",
                _sooner(shape),
            )
            for shape, paper in (("sequential", "2"), ("fat", "36"))
        ),
        *(
            Claim(
                f"{shape}-capacity",
                f"the resolution time decreases with the capacity of each host ({shape})",
                "it is less at 10 than at 2",
                _falls(shape),
            )
            for shape in SHAPES
        ),
    ),
)
_TEN = Figure(
    number="odp-10",
    head="Fig. 10",
    title="Candidates drawn, and what that costs",
    question="How much worse, and how much sooner found, is the best placement of a sample of the candidates?",
    sweep=problems(*({**MANY, "share": share} for share in SHARES.values), {"hosts": 100}),
    varied=(*VARIED, "share"),
    pairs=lambda own, other, usual: False,
    configurations=10,
    columns=(
        *_FIRST,
        Column("network ×", "degradation", digits=2),
        Column("R ×", lambda row, result: mean(row.degradation_r, 3)),
        Column("ms", lambda row, result: mean(row.solve_ms, 1)),
        Column("gap %", lambda row, result: mean(row.gap, 1)),
        Column("proven %", lambda row, result: mean(row.proven, 0)),
    ),
    published=(
        Published(
            own="network delay at 20 %, sequential",
            value=3.0,
            unit="×",
            ours=at("sequential", "degradation", **MANY, share=0.2),
        ),
        Published(
            own="network delay at 20 %, fat",
            value=1.02,
            unit="×",
            ours=at("fat", "degradation", **MANY, share=0.2),
            points=0.05,
        ),
    ),
    claims=(
        Claim(
            "fat",
            "with only 20% of computing nodes, the fat application experiences a performance degradation only of 1.02",
            "network delay alone, from 1 to 1.1",
            _degraded("fat", "degradation", 1.0, 1.1),
        ),
        Claim(
            "sequential",
            "that of the sequential application is about 3 times higher than the optimal one",
            "network delay alone, from 2.5 to 4",
            _degraded("sequential", "degradation", 2.5, 4.0),
        ),
        Claim(
            "execution",
            "the same with the execution of 1 s an operator, as R is defined (ours)",
            "sequential, at most 1.02",
            _degraded("sequential", "degradation_r", 1.0, 1.02),
        ),
        Claim(
            "sooner",
            "the resolution time contracts up to about 5 orders of magnitude with less than 40% of the candidates",
            "both shapes are solved sooner at 20 % than with all",
            _faster(),
        ),
        Claim(
            "gap",
            "for the sequential application on 100 hosts a gap lower than 10% is found in the first 500 s",
            "it is proven in 2 s",
            _proven("sequential"),
            1,
        ),
        Claim(
            "gap-fat",
            "the fat application is proven as well (our goal; its gap closes just before the end there)",
            "it is proven in 0.5 s",
            _proven("fat"),
            1,
        ),
    ),
)


STUDY = Study(
    name="cardellini2016.solving",
    trial=Solving,
    arm=Problem,
    figures={figure.number: figure for figure in (_NINE, _TEN)},
    series=tuple(SHAPES),
    measure="1000 * solve_s",
    level="solve_ms",
    quantity="time to solve",
    columns={
        "network_ms": "1000 * network_s",
        "proven": "CASE WHEN proven THEN 100.0 ELSE 0.0 END",
        "gap": "100 * gap",
        "degradation": "network_s / full_network_s",
        "degradation_r": "response_s / full_response_s",
        "times_faster": "full_s / solve_s",
    },
    fixed=("time_limit_s",),
    says={
        "operators": "{} operators".format,
        "hosts": "{} hosts".format,
        "capacity": "{} places".format,
        "share": "{:.0%}".format,
    },
    colours=tuple(SHAPES),
    conclusions={1: "solving ODP is feasible on these sizes"},
)
