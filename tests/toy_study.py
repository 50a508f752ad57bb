"""Study of an invented paper: heuristics that rent machines for more and more operators, at a price.

Stands for ``papers/toy/study.py`` and ``papers/toy/plots.py``. Executors can import it, as tests are on their path.
"""

from __future__ import annotations

from typing import Any, ClassVar

from matplotlib.figure import Figure as Picture

from thalweg.experiments.papers.claims import faster_at_all, rises
from thalweg.experiments.papers.plots import Palette, distribution, lines
from thalweg.experiments.papers.study import Claim, Column, Figure, Grid, Over, Study
from thalweg.experiments.sweeps.trial import Arm, Outcome, Trial

PRICES = {"random": 9.0, "greedy": 3.0, "subtree": 2.0}


class Rented(Outcome, frozen=True, kw_only=True):
    dollars: float | None = None
    machines: int = 0


class Renting(Trial, frozen=True, kw_only=True):
    outcome: ClassVar[type[Outcome]] = Rented
    function: ClassVar[str] = "toy_study:rent"

    heuristic: str = "greedy"
    operators: int = 20


def rent(trial: Renting) -> Rented:
    if trial.heuristic == "random" and trial.operators > 40:
        raise ValueError("no mapping")
    machines = trial.operators // 10 + trial.configuration % 3
    over = trial.operators / 20 if trial.heuristic == "greedy" else 1.0
    dollars = PRICES[trial.heuristic] * machines * over * (1 + trial.pool_seed % 7 / 100)
    return Rented(dollars=dollars, machines=machines)


class Renter(Arm, frozen=True, order=True):
    heuristic: str
    operators: int


OPERATORS = Over("operators", (20, 40, 60), "operators")
STUDY = Study(
    name="toy",
    trial=Renting,
    arm=Renter,
    figures={
        "2": Figure(
            number="2",
            title="What more operators cost",
            question="Which heuristic is cheap?",
            sweep=Grid(Renter, (PRICES, OPERATORS.values)),
            varied=("operators",),
            singles=True,
            claims=(
                Claim("cheap", "subtree is cheaper", "at each size", faster_at_all("subtree", "greedy", OPERATORS), 1),
                Claim("more", "and more so with size", "60 against 20", rises("subtree", "greedy", OPERATORS)),
            ),
            columns=(
                Column("heuristic", lambda row, result: row.label),
                Column("$", "price"),
            ),
        ),
    },
    series=tuple(PRICES),
    usual={"operators": 20},
    measure="dollars",
    level="price",
    columns={"machines": "machines"},
    world=("operators",),
    says={"operators": "{} operators".format},
    conclusions={1: "subtree is best"},
)


def _two(result: Any, palette: Palette) -> Picture:
    picture = Picture()
    left, right = picture.subplots(1, 2)
    lines(left, result, "price", OPERATORS, palette)
    distribution(right, {name: result.singles[f"{name}, 20 operators"] for name in PRICES}, palette)
    return picture


DRAWN = {"2": _two}
