"""Figure 12 of Pietzuch et al. (2006): pairs of queries, one of which may move its operator, while latencies change.

The paper ran 24 pairs on PlanetLab for five hours. Here a series of measured round trips is played; a pool is a draw of
pairs. Both of a pair begin on the same host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.experiments.papers.claims import Result, check, missing
from thalweg.experiments.papers.pietzuch2006.migration.migrating import OPTIMISERS, Migrating
from thalweg.experiments.papers.study import Claim, Column, Figure, Finding, Grid, Over, Published, Study, spread
from thalweg.experiments.papers.tables import mean
from thalweg.experiments.sweeps.trial import Arm
from thalweg.experiments.views.tables import NONE

PAIRS, DRAWS = 24, 10
MOVES = Over("moves", (False, True), "operator")
PAPER: Mapping[str, float] = {"usage": -16.9, "lower": 75.0, "moves": 3.5, "delay": -10.5}  # percent, but moves


class Mover(Arm, frozen=True, order=True):
    """A placement, and whether its operator may move."""

    placement: str
    moves: bool = True


def changes(result: Result, placement: str) -> Mapping[str, Any] | None:
    """What moving changes, in percent of the queries that stay: the total usage, on how many queries it is lower, and
    delay; and moves a query. None where one of the two is not there."""
    own, other = (result.arm(placement, moves=moves) for moves in (True, False))
    ratio = result.ratio(own, other)
    if own is None or other is None or ratio is None:
        return None
    delay, stays = result.row(own).value("delay_ms"), result.row(other).value("delay_ms")
    assert delay is not None
    assert stays is not None
    later = delay.over(stays)
    assert later is not None
    return {
        "usage": ratio.level.map(lambda times: 100 * (1 / times - 1)),
        "lower": ratio.faster.map(lambda share: 100 * share),
        "moves": result.row(own).value("relocations"),
        "delay": later.map(lambda share: 100 * (share - 1)),
    }


@check
def _change(result: Result, placement: str, name: str, low: float, high: float) -> Finding:
    """What moving changes is between two numbers."""
    found = changes(result, placement)
    if found is None:
        raise missing(f"{placement}, moving and not")
    value = found[name]
    good = {at: low <= one <= high for at, one in value.by_pool.items()}
    detail = f"{spread(value, 1)} (paper {PAPER[name]:g})"
    return Finding(low <= value.mean <= high, detail, {name: value.mean}, list(good.values()))


@check
def _none(result: Result, placement: str, column: str) -> Finding:
    """A column is 0."""
    value = result.value(placement, column, moves=True)
    if value is None:
        raise missing(placement)
    return Finding(value.mean == 0, f"{spread(value, 2)} a query", {column: value.mean})


def _published(name: str, unit: str) -> Published:
    """What the paper says that moving changes, beside what it changes under its optimiser; claims bind it one way."""

    def ours(result: Result) -> Any:
        found = changes(result, "relaxation")
        return None if found is None else found[name]

    return Published(own=f"relaxation, {name}", value=PAPER[name], ours=ours, unit=unit, points=None)


def _cell(name: str, digits: int = 1) -> Column:
    def cell(row: Any, result: Any) -> str:
        found = changes(result, row.arm.placement) if row.arm.moves else None
        return NONE if found is None else spread(found[name], digits)

    heads = {"usage": "usage +%", "lower": "less on %", "delay": "delay +%"}
    return Column(heads[name], cell)


def _claims(placement: str, whose: str) -> tuple[Claim, ...]:
    least, most = float("-inf"), float("inf")
    return (
        Claim(
            f"{placement}-usage",
            f"the queries that are permitted to migrate use 16.9% less of the total network capacity ({whose})",
            "the total usage of those that may move is at most as much as published of those that stay",
            _change(placement, "usage", least, PAPER["usage"]),
        ),
        Claim(
            f"{placement}-lower",
            f"migrations were effective in decreasing network usage for 75% of the query pairs ({whose})",
            "usage is lower by more than 1 % on at least as many",
            _change(placement, "lower", PAPER["lower"], most),
        ),
        Claim(
            f"{placement}-delay",
            f"Allowing queries to migrate also reduced aggregate query delay by 10.5% ({whose})",
            "the mean delay is as much lower at least",
            _change(placement, "delay", least, PAPER["delay"]),
        ),
        Claim(
            f"{placement}-oscillations",
            f"two local optimizers do not lead to oscillations of operator placements ({whose})",
            "no operator goes back at a look to the host that it left at the look before",
            _none(placement, "oscillations"),
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
