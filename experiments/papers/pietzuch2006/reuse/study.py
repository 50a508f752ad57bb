"""Figure 13 of Pietzuch et al. (2006): four queries that may share operators, while data flows on a testbed.

The paper ran one draw of ends on PlanetLab. Here a pool is a draw of ends among the hosts of a latency matrix.
"""

from __future__ import annotations

import math
from typing import Any

from thalweg.experiments.papers.claims import Result, Value, between, check, known, missing, of
from thalweg.experiments.papers.pietzuch2006.reuse.sharing import CONSUMERS, PLACEMENTS, Sharing
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
)
from thalweg.experiments.papers.tables import mean, text
from thalweg.experiments.sweeps.trial import Arm
from thalweg.experiments.views.tables import NONE

DRAWS = 10
REUSE = Over("reuse", (False, True), "queries")
APART_BYTES, TOGETHER_BYTES = 152.32, 119.55  # published
PAPER = 100 * (TOGETHER_BYTES / APART_BYTES - 1)  # percent; "a savings of 21%"
GOAL, SHARING = -21.0, 3  # at most; "shared across three of the four queries"
SHARED = f"{{}} of {CONSUMERS} (paper {SHARING})"


class Sharer(Arm, frozen=True, order=True):
    """Placement, and whether the queries may share operators."""

    placement: str
    reuse: bool = True


def change(placement: str, column: str = "usage") -> Value:
    """Return the relative change of a column by reuse, in percent, as a function of the result."""

    def found(result: Result) -> Pooled:
        own, other = (result.value(placement, column, reuse=reuse) for reuse in (True, False))
        ratio = None if own is None or other is None else own.over(other)
        if ratio is None:
            raise missing(f"{placement}, with reuse and without")
        return ratio.map(lambda share: 100 * (share - 1))

    return found


@check
def _equal(result: Result) -> Finding:
    """Check that every consumer of every run got the results of a single machine."""
    if absent := [row.label for row in result.rows if row.equal is None]:
        raise missing(*absent)
    worst = min(row.equal.mean for row in result.rows)
    runs = sum(row.runs for row in result.rows)
    return Finding(worst == 1, f"{worst:.0%} at least, of {runs} runs", {"equal": worst})


def _cell(column: str, head: str) -> Column:
    def cell(row: Any, result: Any) -> str:
        return text(known(change(row.arm.placement, column), result), 1) if row.arm.reuse else NONE

    return Column(head, cell)


def _claims(placement: str, whose: str) -> tuple[Claim, ...]:
    return (
        Claim(
            f"{placement}-usage",
            "the overall network usage with operator reuse enabled (119.55 bytes) was lower than when reuse was"
            f" disabled (152.32 bytes), a savings of 21% ({whose})",
            "the measured usage is lower by as much at least",
            between(change(placement), -math.inf, GOAL, "usage", f"{{}} % (paper {PAPER:.1f})", digits=1),
        ),
        Claim(
            f"{placement}-shared",
            f"aggregation was shared across three of the four queries ({whose})",
            "so many at least share one operator",
            between(of(placement, "sharing", reuse=True), SHARING, math.inf, "sharing", SHARED, digits=1),
        ),
    )


_FIGURE = Figure(
    number="sbon-13",
    head="Fig. 13",
    title="What four queries use that share operators",
    question="How much less of the network do queries use that reuse each other's operators?",
    sweep=Grid(Sharer, (PLACEMENTS, REUSE.values)),
    varied=("reuse",),
    pairs=lambda own, other, usual: own.reuse and not other.reuse and own.placement == other.placement,
    told=lambda ratio: False,
    configurations=DRAWS,
    published=(Published(own="relaxation, usage", value=PAPER, ours=change("relaxation"), unit="%", points=None),),
    columns=(
        Column("placement", lambda row, result: row.label),
        Column("bytes", lambda row, result: mean(row.usage, 0)),
        Column("as planned", lambda row, result: mean(row.planned, 0)),
        Column("carried", lambda row, result: mean(row.carried, 0)),
        _cell("usage", "usage +%"),
        Column("operators", lambda row, result: mean(row.operators, 1)),
        Column("moves", lambda row, result: mean(row.relocations, 1)),
        Column("delay ms", lambda row, result: mean(row.delay_ms, 0)),
    ),
    claims=(
        *_claims("relaxation", "the paper's optimiser"),
        *_claims("cost-space", "ours"),
        Claim(
            "equal",
            "the processing of operators can be reused across different queries",
            "every consumer gets, byte for byte, what a single machine makes of its query",
            _equal(),
        ),
    ),
)


STUDY = Study(
    name="pietzuch2006.reuse",
    trial=Sharing,
    arm=Sharer,
    figures={_FIGURE.number: _FIGURE},
    series=("relaxation",),
    ours=("cost-space",),
    pool=Sharing().pool,
    usual={"reuse": True},
    measure="usage_bytes",
    level="usage",
    quantity="network usage",
    columns={
        "planned": "planned_bytes",
        "carried": "carried_bytes",
        "operators": "operators",
        "sharing": "sharing",
        "relocations": "relocations",
        "delay_ms": "1000 * delay_s",
        "equal": "CASE WHEN equal THEN 1 ELSE 0 END",
    },
    fixed=("testbed", "reach_s"),
    asked=("testbed", "kernel"),
    says={"reuse": lambda reuse: "may share" if reuse else "apart"},
    colours=("relaxation",),
    tints={"cost-space": "#882255"},
)
