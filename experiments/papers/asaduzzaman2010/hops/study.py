"""Time of tasks over public hops, by the data that hops may hold: the model's share of Figure 9(i).

Not a figure of the paper. The paper's numbers stand beside it.
"""

from __future__ import annotations

from thalweg.experiments.papers.asaduzzaman2010.checks import between
from thalweg.experiments.papers.asaduzzaman2010.hops.elongation import Chain
from thalweg.experiments.papers.study import Claim, Column, Figure, Listed, Study
from thalweg.experiments.papers.tables import finished
from thalweg.experiments.sweeps.trial import Arm

DRAWN, MEASURED = "drawn", "puffer_max60"
RATES, HELD_S = (DRAWN, MEASURED), (0.1, 1.0)
DRAWS = 20


class Hops(Arm, frozen=True, order=True):
    """Treatment of data that cannot go on, and source of the hops' rates."""

    model: str
    rates: str = DRAWN
    held_s: float | None = None


_FIGURE = Figure(
    number="bimodal-hops",
    head="Hops",
    title="Eleven public hops, in lock step and with data held",
    question="How much of the elongation is the network's, how much the model's?",
    sweep=Listed(
        (
            *(Hops("lock-step", rates) for rates in RATES),  # holds no data
            *(Hops("held", rates, held_s) for rates in RATES for held_s in HELD_S),
        )
    ),
    varied=("rates", "held_s"),
    pairs=lambda own, other, usual: False,
    configurations=DRAWS,
    columns=(
        Column("", lambda row, result: row.label),
        Column("chains x 20", finished),
        Column("time +%", "elongation"),
    ),
    claims=(
        Claim(
            "lock-step",
            "execution time would be 200-300% more in case of a public network only system",
            "eleven hops in lock step, rates drawn",
            between("elongation", ("lock-step", {}), 200, 300),
        ),
        Claim(
            "held",
            "with 1 s of data held at each hop it is not a fifth more (ours)",
            "eleven hops, rates drawn",
            between("elongation", ("held", {}), 0, 20),
        ),
        Claim(
            "measured",
            "over measured links, whose rates change in tens of seconds, holding 1 s helps little (ours)",
            "eleven hops, rates of puffer_max60, each scaled to the task's: still at least 20 % more",
            between("elongation", ("held", {"rates": MEASURED}), 20, 300),
        ),
    ),
)

STUDY = Study(
    name="asaduzzaman2010.hops",
    trial=Chain,
    arm=Hops,
    figures={_FIGURE.number: _FIGURE},
    series=("lock-step", "held"),
    usual={"rates": DRAWN, "held_s": 1.0},
    measure="times",
    level="times",
    quantity="time by that at the own rate",
    columns={"elongation": "100 * (times - 1)"},
    world=("rates",),
    fixed=("hops", "chains"),
    says={
        "rates": lambda rates: "rates drawn" if rates == DRAWN else f"rates of {rates}",
        "held_s": lambda held_s: f"{held_s:g} s",
    },
    colours=("lock-step", "held"),
)
