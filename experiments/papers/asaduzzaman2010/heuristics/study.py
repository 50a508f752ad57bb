"""Figure 7 of Asaduzzaman and Maheswaran: costs of heuristics against the best map, and the number of messages.

The paper has plots and no numbers. The best map's cost stands beside its bound.
"""

from __future__ import annotations

from collections.abc import Callable

from thalweg.experiments.papers.asaduzzaman2010.checks import value
from thalweg.experiments.papers.asaduzzaman2010.heuristics.mapping import HEURISTICS, OPTIMUM, Heuristic
from thalweg.experiments.papers.claims import Result, Shown, check, missing, together
from thalweg.experiments.papers.study import Claim, Column, Figure, Finding, Listed, Over, Pooled, Study
from thalweg.experiments.papers.tables import finished, mean
from thalweg.experiments.sweeps.trial import Arm

NODES = Over("nodes", (30, 60, 90, 120), "nodes")
DRAWS = 200
CLOSE, FEWER = 1.05, 0.6  # our goals: the cost over the cost of least-cost, and the messages over its messages


class Mapper(Arm, frozen=True, order=True):
    """Heuristic, and the number of nodes."""

    heuristic: str
    nodes: int = 30


def _both(result: Result, own: str, other: str, nodes: int, column: str) -> Pooled:
    """Return a column of ``own`` over that of ``other``, for costs on the tasks that both mapped."""
    ratio = result.ratio(result.arm(own, nodes=nodes), result.arm(other, nodes=nodes))
    own_mean, other_mean = (result.value(name, column, nodes=nodes) for name in (own, other))
    if ratio is None or own_mean is None or other_mean is None:
        raise missing(f"{own} and {other} with {nodes} nodes")
    quotient = ratio.level.map(lambda one: 1 / one) if column == "ratio" else own_mean.over(other_mean)
    if quotient is None:
        raise missing(f"{own} and {other} with {nodes} nodes")
    return quotient


@check
def _by(result: Result, own: str, other: str, column: str, good: Callable[[float], bool]) -> Finding:
    """Check that a column of ``own`` over that of ``other`` is good at every number of nodes."""
    parts: list[Shown] = []
    ratios = {nodes: _both(result, own, other, nodes, column) for nodes in NODES.values}
    parts = [good(figure.mean) for figure in ratios.values()]
    numbers = {f"{nodes}": figure.mean for nodes, figure in ratios.items()}
    return Finding(together(parts), f"{NODES.told(ratios)} nodes", numbers)


@check
def _below(result: Result, name: str, most: float) -> Finding:
    """Check that a heuristic's mean cost is below ``most`` times the bound at every number of nodes."""
    ratios = {nodes: value(result, "ratio", (name, {"nodes": nodes})) for nodes in NODES.values}
    numbers = {f"{nodes}": figure.mean for nodes, figure in ratios.items()}
    return Finding(all(figure.mean < most for figure in ratios.values()), f"{NODES.told(ratios)} nodes", numbers)


_FIGURE = Figure(
    number="bimodal-7",
    head="Fig. 7",
    title="Heuristics of mapping, by the bound",
    question="How near to the best map does a heuristic come, and how many messages does that take?",
    sweep=Listed(tuple(Mapper(name, nodes) for nodes in NODES.values for name in (OPTIMUM, *HEURISTICS))),
    varied=("nodes",),
    told=lambda ratio: False,
    configurations=DRAWS,
    columns=(
        Column("", lambda row, result: row.label),
        Column("mapped", finished),
        Column("by the bound", "ratio", digits=2),
        Column("maps sent", lambda row, result: mean(row.messages, 0)),
        Column("ms", "mapping_ms"),
    ),
    claims=(
        Claim(
            "close",
            "the heuristic derived solutions are fairly close to the lower bound",
            "least-cost is below twice the bound in the mean, at every number of nodes",
            _below("least-cost", 2.0),
        ),
        Claim(
            "equal",
            "both the LeastCostMap and the AnnealedLeastCostMap yield solutions that are equally very close",
            "their mean costs are within 1 % of each other",
            _by("annealed", "least-cost", "ratio", lambda one: abs(one - 1) < 0.01),
        ),
        Claim(
            "annealed-messages",
            "number of map messages is much higher in the AnnealedLeastCostMap heuristic",
            "by half or more",
            _by("annealed", "least-cost", "messages", lambda one: one >= 1.5),
        ),
        Claim(
            "random",
            "the RandomNeighbor heuristic does not produce good solutions",
            "its mean cost is more than 1.1 times least-cost's on what both map",
            _by("random-neighbor", "least-cost", "ratio", lambda one: one > 1.1),
        ),
        Claim(
            "random-messages",
            "although number of messages were reduced dramatically",
            "to a third or less",
            _by("random-neighbor", "least-cost", "messages", lambda one: one <= 1 / 3),
        ),
        Claim(
            "optimum",
            "the distance from the bound is that of the optimum: least-cost is within 3 % of it (ours)",
            "mean costs on what both map",
            _by("least-cost", OPTIMUM, "ratio", lambda one: one <= 1.03),
        ),
        Claim(
            "ordered-messages",
            "ordered by cost, at most 60 % of the messages (our goal)",
            "of least-cost's in the mean",
            _by("ordered", "least-cost", "messages", lambda one: one <= FEWER),
        ),
        Claim(
            "ordered-close",
            "and a cost within 5 % (our goal)",
            "of least-cost's in the mean",
            _by("ordered", "least-cost", "ratio", lambda one: one <= CLOSE),
        ),
    ),
)

STUDY = Study(
    name="asaduzzaman2010.heuristics",
    trial=Heuristic,
    arm=Mapper,
    figures={_FIGURE.number: _FIGURE},
    series=("least-cost", "annealed", "random-neighbor"),
    ours=(OPTIMUM, "ordered"),
    usual={"nodes": 30},
    measure="ratio",
    level="ratio",
    quantity="cost by the bound",
    nothing="no map was found",
    columns={"messages": "messages", "mapping_ms": "mapping_ms", "proven": "CASE WHEN proven THEN 100.0 ELSE 0.0 END"},
    world=("nodes",),
    fixed=("extend", "neighbours"),
    says={"nodes": lambda nodes: f"{nodes} nodes"},
    colours=("least-cost", "annealed", "random-neighbor"),
    tints={OPTIMUM: "#555555", "ordered": "#882255"},
)
