"""What Figures 6 to 10 of Ranganathan, Acharya and Saltz (1998) show, and the form our own take; and our ablation.

The paper's numbers are those of its text (section 5); values that stand only in its plots are not given here. Its
claims are quoted; how each is decided from simulations is said beside it, so that a reader can judge the judgement.

A *pool* is one draw of traces; a *configuration* a network drawn from it. Every figure is a mean over the pools of
what each says, with the standard deviation between them. The *speed-up* of a run is the mean inter-arrival time of
download-all over its own, on the same configuration with as many servers and the same tree: the paper reran
download-all with the left-deep tree, too.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from thalweg import __version__
from thalweg.experiments.records.analysis import BASELINE
from thalweg.experiments.runs import strategies
from thalweg.experiments.sweeps.variants import VARIANTS

PAPER_POOL = "paper"  # the pool that is calibrated to the paper: only there do its values bind
PAPER_SERVERS = 8
PAPER_TREE = "binary"
PLACEMENTS = (BASELINE, "one-shot", "local", "global")  # in the order of the paper's means
OURS = strategies.OURS  # beside them
ABLATION = "ablation"  # what stands for a figure's number where variants of our own planner are compared
PERIODICAL = ("local", "global")  # of the paper's
WITH_PERIOD = (*PERIODICAL, "thalweg")  # a researcher's own placement keeps what it was given
WITH_K = ("local",)
PERIODS_S = (120.0, 300.0, 600.0, 1800.0, 3600.0)  # "five relocation periods between two minutes and an hour"
SHORT_PERIODS_S = (30.0, 60.0)  # of thalweg besides: its own, and one shorter
SERVERS = (4, 8, 16, 32)  # "from four to thirty-two"
KS = tuple(range(7))  # "between one to six additional locations", and none
TIE = 0.01  # relative difference up to which two are as fast as each other: a plot would not show it

FORMAT = 3  # of figures.json

# not shown: it was tested, and what differs is too little, or too uncertain, to tell
Decision = Literal["holds", "does not hold", "not shown", "not tested"]


class Arm(msgspec.Struct, frozen=True, order=True):
    """One way to run a configuration. ``period_s`` and ``k`` are None where they do not apply or were not given.

    ``variant``: a name of ``variants.VARIANTS``, of that placement with one thing changed.
    """

    placement: str
    servers: int = PAPER_SERVERS
    tree: str = PAPER_TREE
    period_s: float | None = None
    k: int | None = None
    variant: str = ""


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep runs on every configuration; None among periods or ks: the placement's own default.

    ``own_periods_s``: of ``thalweg`` alone, besides the others. ``variants``: of placements, besides those.
    """

    placements: tuple[str, ...]
    servers: tuple[int, ...] = (PAPER_SERVERS,)
    trees: tuple[str, ...] = (PAPER_TREE,)
    periods_s: tuple[float | None, ...] = (None,)
    ks: tuple[int | None, ...] = (None,)
    own_periods_s: tuple[float, ...] = ()
    variants: tuple[str, ...] = ()

    def arms(self) -> list[Arm]:
        """Each combination once; periods and ks only for placements that take them (others: their defaults)."""
        found: dict[Arm, None] = {}
        for servers, tree in itertools.product(self.servers, self.trees):
            for placement in self.placements:
                periods_s = self.periods_s if placement in WITH_PERIOD else (None,)
                if placement == "thalweg":
                    periods_s = (*self.own_periods_s, *periods_s)
                for period_s, k in itertools.product(periods_s, self.ks if placement in WITH_K else (None,)):
                    found[Arm(placement, servers, tree, period_s, k)] = None
            for name in self.variants:
                found[Arm(VARIANTS[name].placement, servers, tree, variant=name)] = None
        return list(found)


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A number of the paper's text: the mean inter-arrival time of ``own`` in seconds, or, with ``other``, the median
    over configurations of ``other``'s time over ``own``'s. ``accept``: what counts as reproduced, None: no such range.
    """

    own: str
    value: float
    other: str | None = None
    accept: tuple[float, float] | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A statement of the paper and how we decide whether it holds; ``conclusion``: its number in section 7."""

    name: str
    text: str
    how: str
    conclusion: int | None = None


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the paper, or the ablation: what is swept for it, and what the paper says about it."""

    number: str
    title: str
    question: str
    sweep: Grid
    claims: tuple[Claim, ...]
    published: tuple[Published, ...] = ()

    def grid(self, *more: str) -> Grid:
        """What to sweep for it, with ``more`` placements beside the paper's."""
        names = (*self.sweep.placements, *(name for name in more if name not in self.sweep.placements))
        return msgspec.structs.replace(self.sweep, placements=tuple(dict.fromkeys(names)))


class Pooled(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of every pool by its seed, their mean and standard deviation; of one pool there is no deviation."""

    mean: float
    deviation: float | None
    by_pool: dict[int, float]

    @property
    def error(self) -> float | None:
        """The mean's standard error, None with one pool."""
        return None if self.deviation is None else self.deviation / math.sqrt(len(self.by_pool))


def pooled(by_pool: Mapping[int, float | None]) -> Pooled | None:
    """Over the pools that have a value; None when none has."""
    known = {seed: value for seed, value in sorted(by_pool.items()) if value is not None and math.isfinite(value)}
    if not known:
        return None
    deviation = statistics.stdev(known.values()) if len(known) > 1 else None
    return Pooled(mean=statistics.fmean(known.values()), deviation=deviation, by_pool=known)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One arm of a figure. ``runs`` are all there are, ``failed`` those of them that say nothing, ``missing`` the
    configurations it has not been run on. Means are over the configurations of a pool, then over the pools.
    ``faster``: the share of configurations on which it beats download-all by more than ``TIE``. ``shared_s`` and
    ``shared_speedup``: ``interarrival_s`` and ``speedup`` over the configurations that all of the paper's placements
    which ran with as many servers finished; only where placements are compared, and only of the paper's.

    ``of_global``, ``of_thalweg``: its time between images by theirs with as many servers and the same tree, on the
    configurations that both finished. ``bound_s``: what no mixture of trees beats on the links as they were while it
    ran (``virtual_run.bound_s``); ``predicted_s``: what its first plan was to come to. ``plans``, ``reshapings``,
    ``relocations`` and ``probe_bytes`` are of a run, ``planning_s`` of a plan.
    """

    label: str
    arm: Arm
    runs: int = 0
    failed: int = 0
    missing: int = 0
    interarrival_s: Pooled | None = None
    speedup: Pooled | None = None
    median_speedup: Pooled | None = None
    faster: Pooled | None = None
    relocations: Pooled | None = None
    of_global: Pooled | None = None
    of_thalweg: Pooled | None = None
    bound_s: Pooled | None = None
    predicted_s: Pooled | None = None
    reshapings: Pooled | None = None
    plans: Pooled | None = None
    planning_s: Pooled | None = None
    probe_bytes: Pooled | None = None
    shared_s: Pooled | None = None
    shared_speedup: Pooled | None = None


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as fast ``own`` is as ``other`` on the configurations where neither failed.

    ``median``: of other's mean inter-arrival time over own's. ``mean``: own's mean speed-up over other's (None where
    download-all is missing). ``interarrival``: other's mean inter-arrival time over own's. ``faster``, ``slower``: the
    shares of configurations on which own is, by more than ``TIE``."""

    own: Arm
    other: Arm
    configurations: int
    median: Pooled
    mean: Pooled | None
    interarrival: Pooled
    faster: Pooled
    slower: Pooled

    @property
    def tied(self) -> float:
        """The share of configurations on which both are as fast."""
        return max(0.0, 1.0 - self.faster.mean - self.slower.mean)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A published value and ours; ``ratio`` is ours over the paper's, ``within`` whether it is in ``accept``."""

    name: str
    paper: float
    unit: str
    ours: Pooled | None
    ratio: float | None
    accept: tuple[float, float] | None
    within: bool | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a claim holds, on which numbers, and in how many of the pools by itself."""

    figure: str
    pool: str
    claim: str
    text: str
    how: str
    verdict: Decision
    detail: str
    numbers: dict[str, float] = {}
    pools_holding: int | None = None
    pools: int = 0
    conclusion: int | None = None


class FigureResult(msgspec.Struct, frozen=True, kw_only=True):
    """One figure on the pools of one name.

    ``servers``, ``tree``, ``period_s``, ``k``: what holds where the figure does not vary it. ``comparable``: the
    network, the workload and the options of its placements are the paper's, so its values bind. ``expected``: how many
    configurations the sweep has begun. ``speedups``: by label, one value a configuration in the same order for all
    (None: failed or missing), for the figures that show single configurations.
    """

    figure: str
    pool: str
    title: str
    question: str
    pools: int
    expected: int
    servers: int
    tree: str
    period_s: float
    k: int
    comparable: bool
    rows: list[Row]
    ratios: list[Ratio]
    speedups: dict[str, list[float | None]] = {}
    comparisons: list[Comparison] = []
    verdicts: list[Verdict] = []
    notes: list[str] = []

    def arm(
        self, placement: str, *, servers: int | None = None, tree: str | None = None, period_s: float | None = None,
        k: int | None = None, variant: str = "",
    ) -> Arm | None:  # fmt: skip
        """The arm of a placement with what is given and otherwise with what holds for the figure; None: not there."""
        wanted = (servers or self.servers, tree or self.tree)
        period_s, k = self.period_s if period_s is None else period_s, self.k if k is None else k
        for row in self.rows:
            arm = row.arm
            if (arm.placement, arm.variant, arm.servers, arm.tree) != (placement, variant, *wanted):
                continue
            if arm.period_s in (None, period_s) and arm.k in (None, k):
                return arm
        return None

    def row(self, arm: Arm) -> Row:
        return next(row for row in self.rows if row.arm == arm)

    def ratio(self, own: Arm | None, other: Arm | None) -> Ratio | None:
        return next((ratio for ratio in self.ratios if ratio.own == own and ratio.other == other), None)

    def placements(self) -> list[str]:
        """In the paper's order, then ours, then a researcher's own."""
        return list(dict.fromkeys(row.arm.placement for row in self.rows))

    def of(self, placement: str) -> Iterator[Row]:
        return (row for row in self.rows if row.arm.placement == placement)


class FigureData(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep says about the paper's figures: one result for each of its figures and names of pools.

    ``runs`` are all simulations, ``failed`` those without a figure, ``failures`` the commonest reasons, each
    after its placement. ``version``: of Thalweg, which made them.
    """

    results: list[FigureResult]
    runs: int
    failed: int
    failures: dict[str, int] = {}
    conclusions: list[Verdict] = []
    format: int = FORMAT
    version: str = __version__

    def figure(self, number: str, pool: str | None = None) -> FigureResult | None:
        """One result; None when the sweep is not of this figure."""
        found = (one for one in self.results if one.figure == number and pool in (None, one.pool))
        return next(found, None)


def label(number: str, arm: Arm) -> str:
    """An arm's name in a figure: its placement and what the figure varies."""
    if arm.variant:
        return VARIANTS[arm.variant].says
    parts = [arm.placement]
    if number == "7" and arm.k is not None:
        parts.append(f"k = {arm.k}")
    elif number == "8":
        parts.append(f"{arm.servers} servers")
    elif number == "9" and arm.period_s is not None:
        parts.append(minutes(arm.period_s))
    elif number == "10":
        parts.append(arm.tree)
    return ", ".join(parts)


def minutes(period_s: float) -> str:
    """10 min, or 45 s below a minute."""
    return f"{period_s / 60:.3g} min" if period_s >= 60 else f"{period_s:.3g} s"


def _claim(name: str, text: str, how: str, conclusion: int | None = None) -> Claim:
    return Claim(name=name, text=text, how=how, conclusion=conclusion)


_BINARY = (
    "an order based on a complete binary tree allowed either relocation algorithm to achieve a better performance than"
    " an order based on a left-deep tree"
)
_CLEARLY = f"by more than {TIE:.0%} and two standard errors"
_NOT_SHOWN = f"not shown: some difference is within {TIE:.0%} or two standard errors"
_TREE_HOW = (
    "mean speed-up with the binary tree over that with the left-deep tree, each over download-all with its own tree,"
    f" on the same configurations: above 1 {_CLEARLY}"
)


def _paper_figures(figures: Sequence[Figure]) -> Mapping[str, Figure]:
    return {figure.number: figure for figure in figures}


FIGURES: Mapping[str, Figure] = _paper_figures(
    [
        Figure(
            number="6",
            title="Operator relocation on many network configurations",
            question="Does relocation help, is on-line relocation needed, and does global knowledge matter?",
            sweep=Grid(placements=(*PLACEMENTS, *OURS)),
            published=(
                Published(own=BASELINE, value=101.2, accept=(101.2 * 0.85, 101.2 * 1.15)),
                Published(own="one-shot", value=24.6),
                Published(own="local", value=22.0),
                Published(own="global", value=17.1),
                Published(own="global", other="one-shot", value=1.40, accept=(1.15, 1.6)),
                Published(own="global", other="local", value=1.25, accept=(1.1, 1.5)),
            ),
            claims=(
                _claim(
                    "relocation-helps",
                    "all relocation algorithms significantly outperform the download-all strategy",
                    f"for one-shot, local and global: mean speed-up above 1 {_CLEARLY}, and more than {TIE:.0%} faster"
                    " than download-all on at least 90% of the configurations",
                    1,
                ),
                _claim(
                    "one-shot-gains",
                    "one-shot placement achieves large gains",
                    "one-shot's median speed-up is at least 2",
                    2,
                ),
                _claim(
                    "global-adds",
                    "on-line relocation provides a consistent and substantial additional improvement (global)",
                    "consistent: the median of one-shot's time over global's is above 1 in every pool; substantial:"
                    " it is at least 1.1 in the mean over the pools",
                    2,
                ),
                _claim(
                    "local-adds",
                    "on-line relocation provides a consistent and substantial additional improvement (local)",
                    "the same with local: the median of one-shot's time over local's",
                    2,
                ),
                _claim(
                    "order",
                    "the average interarrival time falls from download-all to one-shot, local and global",
                    "each of the four means, over configurations that all four finished, is below the one before"
                    f" {_CLEARLY} of their ratio; {_NOT_SHOWN}",
                ),
                _claim(
                    "global-beats-local",
                    "except in a few cases, the global algorithm performs better than the local one",
                    f"global is more than {TIE:.0%} faster than local on at least 90% of the configurations; where they"
                    " are as fast it does not perform better, which makes an exception, as where it is slower",
                ),
                _claim(
                    "level-download-all",
                    "101.2 s between images for download-all",
                    "the mean over the pools is within 15% of it",
                ),
                _claim(
                    "median-one-shot",
                    "the global algorithm achieves a median improvement of 40% over one-shot",
                    "the median of one-shot's time over global's is between 1.15 and 1.6",
                ),
                _claim(
                    "median-local",
                    "the median ratio of global over local is about 1.25",
                    "the median of local's time over global's is between 1.1 and 1.5",
                ),
            ),
        ),
        Figure(
            number="7",
            title="Local relocation with k more hosts to choose from",
            question="Does local relocation gain from random additional candidates?",
            sweep=Grid(placements=(BASELINE, "local", "thalweg"), ks=KS),
            claims=(
                _claim(
                    "k-does-not-matter",
                    "there was no significant difference in performance (one to six additional locations)",
                    "for every k: the mean speed-up differs from that with k = 0 on the same configurations by less"
                    " than 5%; not shown: a difference is within two standard errors of none, but these are above"
                    " 5%",
                ),
            ),
        ),
        Figure(
            number="8",
            title="From four to thirty-two servers",
            question="How do the results change with the number of data sources?",
            sweep=Grid(placements=(*PLACEMENTS, "thalweg"), servers=SERVERS),
            claims=(
                _claim(
                    "scales-over-one-shot",
                    "the global algorithm scaled better than the one-shot algorithm",
                    "global's mean speed-up over one-shot's at 32 servers, divided by the same at 4: above 1"
                    f" {_CLEARLY}",
                ),
                _claim(
                    "scales-over-local",
                    "the global algorithm scaled better than the local algorithm",
                    f"global's mean speed-up over local's at 32 servers, divided by the same at 4: above 1 {_CLEARLY}",
                ),
                _claim(
                    "global-best-to-32",
                    "the global algorithm performs better than the local one – at least up to 32 data sources",
                    "at 4, 8, 16 and 32 servers global's mean speed-up over local's, on the same configurations, is"
                    f" above 1 {_CLEARLY}; {_NOT_SHOWN}",
                    3,
                ),
                _claim(
                    "global-best-of-all",
                    "global is the best of the four from 4 to 32 servers",
                    "at 4, 8, 16 and 32 servers global's mean speed-up, over configurations that all four finished, is"
                    f" above the next best {_CLEARLY} of their ratio; {_NOT_SHOWN}",
                ),
            ),
        ),
        Figure(
            number="9",
            title="Global relocation every two minutes to every hour",
            question="How frequently should operators be relocated?",
            sweep=Grid(placements=(BASELINE, "global", *OURS), periods_s=PERIODS_S, own_periods_s=SHORT_PERIODS_S),
            claims=(
                _claim(
                    "five-to-ten-minutes",
                    "a 5-10 minute relocation period provides the best performance",
                    "mean speed-ups over that of 10 minutes, on the same configurations: the better of 5 and 10 minutes"
                    f" is above the best of the other periods {_CLEARLY} of their ratio; {_NOT_SHOWN}",
                    4,
                ),
            ),
        ),
        Figure(
            number="10",
            title="A complete binary tree against a left-deep one",
            question="Are some orders of combination more amenable to adaptation than others?",
            sweep=Grid(placements=(BASELINE, "local", "global", "thalweg"), trees=("binary", "left-deep")),
            claims=(
                _claim("binary-global", f"{_BINARY} (global)", _TREE_HOW, 5),
                _claim("binary-local", f"{_BINARY} (local)", _TREE_HOW, 5),
            ),
        ),
        Figure(
            number=ABLATION,
            title="What each part of thalweg brings",
            question="What do the shape, the cost, the period and knowing the links bring, and what is left to gain?",
            sweep=Grid(placements=("global", *OURS), variants=tuple(VARIANTS)),
            claims=(),
        ),
    ]
)

CONCLUSIONS: Mapping[int, str] = {  # section 7, shortened
    1: "all relocation algorithms significantly outperform downloading all data to the client",
    2: "one-shot placement achieves large gains, on-line relocation a consistent and substantial improvement",
    3: "the global algorithm performs better than the local one – at least up to 32 data sources",
    4: "a 5-10 minute relocation period provides the best performance",
    5: "a complete binary tree allows either relocation algorithm a better performance than a left-deep tree",
}
