"""Figure 5 of Pietzuch et al. (2006): how soon hosts find coordinates, how good these are, and the filter's effect.

A pool is a latency matrix with the neighbours of every host. The paper had 116 hosts of PlanetLab for hours. Here are
490 with the medians of some days. The paper gives no number for the filter.
"""

from __future__ import annotations

from thalweg.experiments.papers.claims import CLEARLY, Check, Result, between, check, clearly, more, of, over
from thalweg.experiments.papers.pietzuch2006.coordinates.embedding import SAMPLES, SPACES, Embedding
from thalweg.experiments.papers.study import Claim, Column, Figure, Finding, Grid, Over, Published, Study, spread
from thalweg.experiments.sweeps.trial import Arm

ROUNDS = Over("rounds", (50, 100, 200, 400, 800, 1600), "rounds")
USUAL = ROUNDS.values[-1]
PUBLISHED = 9.0  # "the median relative prediction error for latencies was 9%"
GOAL = 8.0  # of ours, with heights


class Space(Arm, frozen=True, order=True):
    """Space with or without heights, the kind of measurements, and the number of rounds."""

    space: str
    samples: str = "medians"
    rounds: int = USUAL


@check
def _settled(result: Result, rounds: int) -> Finding:
    """Check that the error after ``rounds`` rounds is within a fifth of the error at the end."""
    early, late = (of("plain", "error", samples="medians", rounds=at)(result) for at in (rounds, USUAL))
    ratio = over(early, late)
    detail = f"after {rounds} rounds {spread(early, 1)} %, after {USUAL} {spread(late, 1)} %"
    return Finding(
        ratio.mean <= 1.2, detail, {"ratio": ratio.mean}, [figure <= 1.2 for figure in ratio.by_pool.values()]
    )


@check
def _filtered(result: Result, column: str, unit: str) -> Finding:
    """Check that a column is clearly less with the filter than without."""
    without, filtered = (
        of("plain", column, samples=samples, rounds=USUAL)(result) for samples in ("scattered", "filtered")
    )
    ratio = over(without, filtered)
    detail = f"{spread(without, 1)} {unit} without, {spread(filtered, 1)} {unit} with it"
    return Finding(clearly(ratio), detail, {"ratio": ratio.mean}, [more(figure) for figure in ratio.by_pool.values()])


def _sampled(space: str, bound: float) -> Check:
    error = of(space, "error", samples="medians", rounds=USUAL)
    return between(error, 0, bound, "median error in %", "median error in % {}")


_FIGURE = Figure(
    number="sbon-5",
    head="Fig. 5",
    title="Coordinates that hosts find, beside measured latencies",
    question="How soon are distances about latencies, how near, and what does the filter bring?",
    sweep=Grid(Space, (SPACES, SAMPLES, ROUNDS.values)),
    varied=("samples", "rounds"),
    pairs=lambda own, other, usual: False,
    configurations=10,
    published=(Published(own="plain, error", value=PUBLISHED, ours=of("plain", "error"), unit="%"),),
    columns=(
        Column("space, samples", lambda row, result: row.label),
        Column("error %", "error"),
        Column("moved ms a round", "moved_ms"),
    ),
    ordered=lambda result: (row for row in result.rows if row.arm.rounds in (100, 400, USUAL)),
    claims=(
        Claim(
            "nine",
            "The median relative prediction error for latencies was 9% for these nodes",
            f"three dimensions without heights, on what was measured in the median: at most {PUBLISHED:g} %",
            _sampled("plain", PUBLISHED),
        ),
        Claim(
            "heights",
            f"with heights the median error is at most {GOAL:g} % (our goal, not the paper's)",
            "the same with heights",
            _sampled("heights", GOAL),
        ),
        Claim(
            "converges",
            "We also found empirically that the latency space converges quickly",
            "after 400 measurements of each host the error is within a fifth of what it is after 1,600",
            _settled(400),
        ),
        Claim(
            "stable",
            "We found the filter dampens measurement variance on the latency space",
            f"with the filter hosts move less far a round, {CLEARLY}",
            _filtered("moved_ms", "ms"),
        ),
        Claim(
            "nearer",
            "the filter captures the consistent baseline of each link",
            f"with the filter the error is less than without, {CLEARLY}",
            _filtered("error", "%"),
        ),
    ),
)


STUDY = Study(
    name="pietzuch2006.coordinates",
    trial=Embedding,
    arm=Space,
    figures={_FIGURE.number: _FIGURE},
    series=("plain",),
    ours=("heights",),
    pool=Embedding().pool,
    usual={"samples": "medians", "rounds": USUAL},
    measure="100 * error",
    level="error",
    quantity="median error",
    columns={"moved_ms": "1000 * moved_s"},
    world=("samples",),
    fixed=("dimensions",),
    says={"samples": str, "rounds": "{} rounds".format},
    colours=("plain",),
    tints={"heights": "#882255"},
)
