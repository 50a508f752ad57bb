"""Figures 4 to 7 of Cardellini et al. (2016): Tag-and-Count on eight hosts, by the metric that its placement optimises.

A configuration is a draw of delays. The paper had one, on Storm. The paper's numbers are from the text (sections 7.1
and 7.2), none is read off a curve. Both ends are pinned on one host that is always up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from thalweg.experiments.papers.cardellini2016.scheduling import BY_CHANCE, PLACED, SCHEDULERS, Scheduling
from thalweg.experiments.papers.claims import Check, Result, Value, between, check, known, lacking, of
from thalweg.experiments.papers.study import Claim, Column, Figure, Finding, Grid, Pooled, Published, Study, spread
from thalweg.experiments.papers.tables import mean, text
from thalweg.experiments.sweeps.trial import Arm

DRAWS = 300
SHOWN = {"odp-5": ("odp-energy", "relaxation"), "odp-6": ("odp-usage", "rizou"), "odp-7": ("odp-traffic", "t-storm")}
NAMES = {
    **{
        f"odp-{metric}": f"S-ODP_{symbol}"
        for metric, symbol in zip(
            ("response", "availability", "energy", "usage", "traffic"), ("R", "A", "EE", "N", "T"), strict=True
        )
    },
    BY_CHANCE: "any of A",
}
METRIC = {"odp-5": "energy", "odp-6": "usage", "odp-7": "traffic"}


class Scheduler(Arm, frozen=True, order=True):
    """Scheduler, and for ``odp`` the optimised metric."""

    scheduler: str

    @property
    def name(self) -> str:
        """Name in the paper."""
        return NAMES.get(self.scheduler, self.scheduler)


def over(own: str, other: str, column: str) -> Value:
    """Return the ratio of a column of two schedulers, pool by pool, as a function of the result."""

    def found(result: Result) -> Pooled:
        own_mean, other_mean = (result.value(name, column) for name in (own, other))
        if own_mean is None or other_mean is None or (ratio := own_mean.over(other_mean)) is None:
            raise lacking(result, own, other)
        return ratio

    return found


def _between(own: str, other: str, column: str, low: float, high: float) -> Check:
    return between(over(own, other, column), low, high, "ratio", "{} times")


def _level(name: str, column: str, low: float, high: float, unit: str = "") -> Check:
    return between(of(name, column), low, high, column, f"{{}}{unit}")


def _times(column: str, digits: int = 2) -> Callable[[Any, Any], str]:
    """Return a function for a cell: a column over the figure's optimum."""

    def cell(row: Any, result: Any) -> str:
        first = result.definition.sweep.arms()[0].scheduler
        return text(known(over(row.arm.scheduler, first, column), result), digits)

    return cell


_COMMON = (Column("", lambda row, result: row.label),)


def _running(
    number: str, title: str, question: str, claims: tuple[Claim, ...], published: tuple[Published, ...]
) -> Figure:
    """Return a figure in virtual time."""
    optimum, heuristic = SHOWN[number]
    return Figure(
        number=number,
        head=f"Fig. {number[-1]}",
        title=title,
        question=question,
        sweep=Grid(Scheduler, ((optimum, heuristic, "cost-space"),)),
        configurations=DRAWS,
        told=lambda ratio: False,
        columns=(
            *_COMMON,
            Column(f"{METRIC[number]} ×", _times(METRIC[number])),
            Column("traffic ×", _times("traffic")),
            Column("latency ×", _times("latency")),
            Column("optimal %", lambda row, result: mean(row.optimal, 0)),
            Column("changes", "reassignments"),
            Column("last s", lambda row, result: mean(row.settled, 0)),
        ),
        claims=(
            *claims,
            Claim(
                "cost-space",
                "cost-space has at most 1.05 times the optimum's (our goal, not the paper's)",
                f"the mean {METRIC[number]} from 800 s on",
                _between("cost-space", optimum, METRIC[number], 0.0, 1.05),
            ),
            Claim(
                "odp",
                "S-ODP is optimal from 100 s on, after one reassignment",
                "within 1 % in at least 99 % of the draws, and at most one reassignment in the mean",
                _solved(optimum),
                2,
            ),
        ),
        published=published,
    )


@check
def _solved(result: Result, name: str) -> Finding:
    optimal, changes = result.value(name, "optimal"), result.value(name, "reassignments")
    if optimal is None or changes is None:
        raise lacking(result, name)
    numbers = {"optimal": optimal.mean, "reassignments": changes.mean}
    detail = f"optimal in {spread(optimal, 1)} %, {spread(changes, 1)} reassignments"
    return Finding(optimal.mean >= 99 and changes.mean <= 1, detail, numbers)


_FIGURES = (
    Figure(
        number="odp-4",
        head="Fig. 4",
        title="Response time and availability, by which of them is optimised",
        question="What does the best availability cost in response time, and the best response time in availability?",
        sweep=Grid(Scheduler, ((*PLACED, BY_CHANCE),)),
        configurations=DRAWS,
        told=lambda ratio: False,
        columns=(
            *_COMMON,
            Column("network ms", "network_ms"),
            Column("×", _times("network_ms")),
            Column("A %", "availability", digits=2),
            Column("lost %", "lost", digits=2),
            Column("on 99 %", lambda row, result: mean(row.unreliable, 1)),
        ),
        published=(
            Published(
                own="availability of S-ODP_R",
                value=92.27,
                ours=of("odp-response", "availability"),
                unit="%",
                points=5,
            ),
            Published(
                own="tuples lost of S-ODP_R",
                value=3.37,
                ours=of("odp-response", "lost"),
                unit="%",
                points=None,
            ),
            Published(
                own="executors on 99 %",
                value=8,
                ours=of("odp-response", "unreliable"),
                unit="executors",
                points=None,
            ),
            Published(
                own="R of S-ODP_A over S-ODP_R",
                value=1.8,
                ours=over("odp-availability", "odp-response", "network_ms"),
                unit="×",
                points=None,
            ),
        ),
        claims=(
            Claim(
                "available",
                "S-ODP_A places all the executors on the most available nodes: availability 100 %",
                "in all draws",
                _level("odp-availability", "availability", 99.999, 100.001, " %"),
            ),
            Claim(
                "slower",
                "since it does not consider the network latencies, the response time of S-ODP_A is higher",
                "its network delay is, by more than 1 %",
                _between("odp-availability", "odp-response", "network_ms", 1.01, math.inf),
                1,
            ),
            Claim(
                "goal",
                "with ties broken by the least R it is less than 1.8 times as high (our goal; the paper has 1.8)",
                "network delay in the mean",
                _between("odp-availability", "odp-response", "network_ms", 0.0, 1.8),
            ),
            Claim(
                "ties",
                "the factor hangs on which of the placements with the best availability is taken (ours)",
                "one of them at random has more than 1.8 times the network delay of S-ODP_R",
                _between(BY_CHANCE, "odp-response", "network_ms", 1.8, math.inf),
            ),
            Claim(
                "unavailable",
                "S-ODP_R places 8 of 12 executors on worker nodes with 99% of availability: 92.27%",
                "within 15 % of 8 in the mean",
                _level("odp-response", "unreliable", 6.8, 9.2, " executors"),
            ),
        ),
    ),
    _running(
        "odp-5",
        "Relaxation and the least elastic energy",
        "How far from the optimum is relaxation, and how often does it change something?",
        (
            Claim(
                "suboptimal",
                "The Pietzuch's algorithm finds a sub-optimal solution",
                "its mean elastic energy from 800 s on is more than the optimum's",
                _between("relaxation", "odp-energy", "energy", 1.01, math.inf),
            ),
            Claim(
                "traffic",
                "the inter-node traffic is on average 1.84 times higher than that achieved with the optimal placement",
                "its mean traffic from 800 s on is within 15 % of that",
                _between("relaxation", "odp-energy", "traffic", 1.84 * 0.85, 1.84 * 1.15),
            ),
            Claim(
                "latency",
                "the application latency is 1.15 times higher",
                "its mean latency from 800 s on is above the optimum's, and within 15 % of that",
                _between("relaxation", "odp-energy", "latency", 1.01, 1.15 * 1.15),
            ),
            Claim(
                "reassignments",
                "the large number of reassignments required to reach a stable configuration (16 in this experiment)",
                "at least as many in the mean",
                _level("relaxation", "reassignments", 16, math.inf),
            ),
        ),
        (
            Published(own="traffic", value=1.84, ours=over("relaxation", "odp-energy", "traffic"), unit="×"),
            Published(own="latency", value=1.15, ours=over("relaxation", "odp-energy", "latency"), unit="×"),
            Published(
                own="reassignments",
                value=16,
                ours=of("relaxation", "reassignments"),
                unit="changes",
                points=None,
            ),
        ),
    ),
    _running(
        "odp-6",
        "Rizou and the least network usage",
        "How far from the optimum is Rizou's placement, and how soon does it settle?",
        (
            Claim(
                "optimal",
                "the Rizou's algorithm finds the optimal placement",
                "its usage at the end is within 1 % of the optimum's in at least 90 % of the draws",
                _level("rizou", "optimal", 90, 100, " % of the draws"),
            ),
            Claim(
                "soon",
                "a stable assignment is found in less than 300 s",
                "the mean time of its last reassignment",
                _level("rizou", "settled", 0, 300, " s"),
            ),
            Claim(
                "few",
                "after only 5 reassignments",
                "within 15 % in the mean; here each executor that moves is one",
                _level("rizou", "reassignments", 4.25, 5.75),
            ),
            Claim(
                "better",
                "good convergence, better than the Pietzuch's solution",
                "compare its reassignments with those of Figure 5: fewer than 16",
                _level("rizou", "reassignments", 0, 16),
            ),
        ),
        (
            Published(own="usage", value=1.0, ours=over("rizou", "odp-usage", "usage"), unit="×"),
            Published(
                own="reassignments",
                value=5,
                ours=of("rizou", "reassignments"),
                unit="changes",
                points=None,
            ),
        ),
    ),
    _running(
        "odp-7",
        "T-Storm and the least inter-node traffic",
        "How far from the optimum is T-Storm's placement?",
        (
            Claim(
                "first",
                "a first reassignment at 100 s, which produces a sub-optimal configuration",
                "it changes something after 100 s in at least half of the draws",
                _level("t-storm", "reassignments", 1.5, math.inf),
            ),
            Claim(
                "optimal",
                "fixes the application placement at 750 s, achieving the optimal solution",
                "its traffic at the end is within 1 % of the optimum's in at least 90 % of the draws",
                _level("t-storm", "optimal", 90, 100, " % of the draws"),
            ),
        ),
        (Published(own="traffic", value=1.0, ours=over("t-storm", "odp-traffic", "traffic"), unit="×"),),
    ),
)


STUDY = Study(
    name="cardellini2016",
    trial=Scheduling,
    arm=Scheduler,
    figures={figure.number: figure for figure in _FIGURES},
    series=tuple(name for name in SCHEDULERS if name not in (BY_CHANCE, "cost-space")),
    ours=(BY_CHANCE, "cost-space"),
    measure="1000 * latency_s",
    level="latency",
    quantity="mean latency",
    columns={
        "network_ms": "1000 * network_s",
        "availability": "100 * availability",
        "lost": "100 * lost",
        "unreliable": "unreliable",
        "traffic": "traffic",
        "usage": "usage",
        "energy": "energy",
        "optimal": "CASE WHEN above < 1.01 THEN 100.0 WHEN above IS NOT NULL THEN 0.0 END",
        "above": "above",
        "reassignments": "reassignments",
        "settled": "settled_s",
    },
    fixed=("until_s",),
    colours=("odp-response", "odp-availability", "relaxation", "rizou", "t-storm"),
    tints={
        "cost-space": "#882255",
        **dict.fromkeys(("odp-energy", "odp-usage", "odp-traffic"), "#332288"),
        BY_CHANCE: "#777777",
    },
    conclusions={
        1: "ODP can optimize different user-oriented QoS metrics",
        2: "the optimum is a benchmark for other placement algorithms",
    },
)
