"""Figure 12 of Pietzuch et al. (2006): pairs of queries, one of which may move its operator, while latencies change.

The paper ran 24 pairs on PlanetLab for five hours. Here a series of measured round trips is played, and a pool is a
draw of pairs. Both queries of a pair begin on the same host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from thalweg.experiments.papers.claims import Check, Result, Value, between, known, missing, of
from thalweg.experiments.papers.pietzuch2006.migration.migrating import OPTIMISERS, Migrating
from thalweg.experiments.papers.study import Claim, Column, Figure, Grid, Over, Pooled, Published, Study
from thalweg.experiments.papers.tables import mean, text
from thalweg.experiments.sweeps.trial import Arm
from thalweg.experiments.views.tables import NONE

PAIRS, DRAWS = 24, 10
MOVES = Over("moves", (False, True), "operator")
PAPER: Mapping[str, float] = {"usage": -16.9, "lower": 75.0, "moves": 3.5, "delay": -10.5}  # percent; moves: a number


class Mover(Arm, frozen=True, order=True):
    """Placement, and whether its operator may move."""

    placement: str
    moves: bool = True


def change(placement: str, name: str) -> Value:
    """Return the effect of moves as a function of the result, in percent of the queries that stay.

    ``usage``: the total. ``lower``: the share of queries that use less. ``delay``: the mean. ``moves`` is a number per
    query.
    """

    def found(result: Result) -> Pooled:
        own, other = (result.arm(placement, moves=moves) for moves in (True, False))
        ratio = result.ratio(own, other)
        if ratio is None:
            raise missing(f"{placement}, moving and not")
        if name == "usage":
            return ratio.level.map(lambda times: 100 * (1 / times - 1))
        if name == "lower":
            return ratio.faster.map(lambda share: 100 * share)
        if name == "moves":
            return of(placement, "relocations", moves=True)(result)
        delay, stays = (of(placement, "delay_ms", moves=moves)(result) for moves in (True, False))
        later = delay.over(stays)
        if later is None:
            raise missing(f"{placement}, moving and not")
        return later.map(lambda share: 100 * (share - 1))

    return found


def _published(name: str, unit: str) -> Published:
    """Return the paper's effect of moves beside the effect here under the paper's optimiser. It is no target."""

    ours = change("relaxation", name)
    return Published(own=f"relaxation, {name}", value=PAPER[name], ours=ours, unit=unit, points=None)


def _cell(name: str, digits: int = 1) -> Column:
    def cell(row: Any, result: Any) -> str:
        return text(known(change(row.arm.placement, name), result), digits) if row.arm.moves else NONE

    heads = {"usage": "usage +%", "lower": "less on %", "delay": "delay +%"}
    return Column(heads[name], cell)


def _claims(placement: str, whose: str) -> tuple[Claim, ...]:
    def changed(name: str, low: float, high: float) -> Check:
        return between(change(placement, name), low, high, name, f"{{}} (paper {PAPER[name]:g})", digits=1)

    return (
        Claim(
            f"{placement}-usage",
            f"the queries that are permitted to migrate use 16.9% less of the total network capacity ({whose})",
            "the total usage of those that may move is at most as much as published of those that stay",
            changed("usage", -math.inf, PAPER["usage"]),
        ),
        Claim(
            f"{placement}-lower",
            f"migrations were effective in decreasing network usage for 75% of the query pairs ({whose})",
            "usage is lower by more than 1 % on at least as many",
            changed("lower", PAPER["lower"], math.inf),
        ),
        Claim(
            f"{placement}-delay",
            f"Allowing queries to migrate also reduced aggregate query delay by 10.5% ({whose})",
            "the mean delay is as much lower at least",
            changed("delay", -math.inf, PAPER["delay"]),
        ),
        Claim(
            f"{placement}-oscillations",
            f"two local optimizers do not lead to oscillations of operator placements ({whose})",
            "no operator goes back at a look to the host that it left at the look before",
            between(of(placement, "oscillations", moves=True), 0, 0, "oscillations", "{} a query"),
        ),
    )


_FIGURE = Figure(
    number="sbon-12",
    head="Fig. 12",
    title="What moving operators brings while latencies change",
    question="How much less of the network do queries use whose operators may move?",
    sweep=Grid(Mover, (OPTIMISERS, MOVES.values)),
    varied=("moves",),
    pairs=lambda own, other, usual: own.moves and not other.moves and own.placement == other.placement,
    told=lambda ratio: False,
    configurations=PAIRS * DRAWS,
    published=tuple(_published(name, "moves" if name == "moves" else "%") for name in PAPER),
    columns=(
        Column("placement", lambda row, result: row.label),
        Column("bytes", lambda row, result: mean(row.usage, 0)),
        _cell("usage"),
        _cell("lower", 0),
        Column("moves", lambda row, result: mean(row.relocations, 1)),
        _cell("delay"),
        Column("back", lambda row, result: mean(row.oscillations, 2)),
    ),
    claims=(*_claims("relaxation", "the paper's optimiser"), *_claims("cost-space", "ours")),
)


STUDY = Study(
    name="pietzuch2006.migration",
    trial=Migrating,
    arm=Mover,
    figures={_FIGURE.number: _FIGURE},
    series=("relaxation",),
    ours=("cost-space",),
    pool=Migrating().pool,
    usual={"moves": True},
    measure="usage_bytes",
    level="usage",
    quantity="network usage",
    columns={"relocations": "relocations", "oscillations": "oscillations", "delay_ms": "1000 * delay_s"},
    fixed=("every", "displacement_s", "saving", "tried"),
    says={"moves": lambda moves: "may move" if moves else "stays"},
    colours=("relaxation",),
    tints={"cost-space": "#882255"},
)
