"""Definition of a paper's study: the sweep of every figure, the evaluation of the results, and the paper's own values.

Every paper has a folder here. Its ``study.py`` fills in a ``Study`` with a *trial* (a struct of ``sweeps.trial``, and
the function that runs it) and the *arms* in which every configuration is run. A figure has *columns* of its rows, a
grid, published values and claims (``claims`` has checks to combine). The paper's ``plots.py`` draws the figures
(``plots`` has the forms). The studies share sweeps that are spread over Spark and resumed (``sweeps``), figures from
sweep results (``aggregation``), verdicts (``claims``), text (``tables``), and files. The structs of a study's rows,
results and sweeps are made from its columns, factors and trial (``Study.row`` and so on).

A *pool* is one draw of the inputs of trials, a *configuration* one member of a pool. Every number of a figure is a mean
over pools, with the standard deviation between pools. The *level* of an arm is the mean of the study's measure (less is
better). The *speed-up* is the mean of the base's measure over the arm's measure on the same configuration.
"""

from __future__ import annotations

import itertools
import math
import statistics
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import msgspec

from thalweg import __version__
from thalweg.experiments.papers.index import FIGURES, figure_names
from thalweg.experiments.records.analysis import natural
from thalweg.experiments.sweeps.grid import PaperSweep, Sweep
from thalweg.experiments.sweeps.trial import Arm, Trial
from thalweg.middleware.errors import UsageError

STUDIES = tuple(FIGURES)
FIRST_STUDY = STUDIES[0]  # study of sweep folders that name none
FORMAT = 4  # of the file figures.json
TIE = 0.01  # relative difference up to which two arms are equally fast: a plot would not show it
QUOTED = 0.15  # share by which our value may differ from a number of a paper's text and count as reproduced

# not shown: tested, but the difference is too small or too uncertain to decide
Decision = Literal["holds", "does not hold", "not shown", "not tested"]
A = TypeVar("A", bound=Arm)
R = TypeVar("R", bound="Row[Any]")
F = TypeVar("F", bound="FigureResult[Any, Any]")


# --- numbers over pools -----------------------------------------------------------------------------


class Pooled(msgspec.Struct, frozen=True, kw_only=True):
    """Figure of every pool by the pool's seed, with mean and standard deviation. One pool has no deviation."""

    mean: float
    deviation: float | None
    by_pool: dict[int, float]

    @property
    def error(self) -> float | None:
        """Standard error of the mean, None with one pool."""
        return None if self.deviation is None else self.deviation / math.sqrt(len(self.by_pool))

    def map(self, of: Callable[[float], float]) -> Pooled:
        """Return the figure with the function ``of`` applied to every pool's value."""
        changed = pooled({seed: of(value) for seed, value in self.by_pool.items()})
        assert changed is not None
        return changed

    def over(self, other: Pooled) -> Pooled | None:
        """Return the ratio of two figures, pool by pool. None: no pool has both."""
        both = self.by_pool.keys() & other.by_pool.keys()
        return pooled({seed: self.by_pool[seed] / other.by_pool[seed] for seed in both})


def pooled(by_pool: Mapping[int, float | None]) -> Pooled | None:
    """Return the figure over the pools with a finite value, None if no pool has one."""
    known = {seed: value for seed, value in sorted(by_pool.items()) if value is not None and math.isfinite(value)}
    if not known:
        return None
    deviation = statistics.stdev(known.values()) if len(known) > 1 else None
    return Pooled(mean=statistics.fmean(known.values()), deviation=deviation, by_pool=known)


def spread(value: Pooled, digits: int = 2, unit: str = "") -> str:
    """Return mean ± standard deviation between pools as text, or the mean alone of one pool."""
    mean = f"{value.mean:.{digits}f}"
    return mean + unit if value.deviation is None else f"{mean} ± {value.deviation:.{digits}f}{unit}"


class Over(msgspec.Struct, frozen=True):
    """Factor that claims and pictures go over: the values in the paper, and a noun for them (``servers``).

    In pictures the values are in ``unit``. The points of several lines at one value are drawn ``apart``, a share of the
    value, so that error bars do not meet.
    """

    factor: str
    values: tuple[Any, ...]
    noun: str = ""
    unit: float = 1.0
    apart: float = 0.0

    def told(self, found: Mapping[Any, Pooled]) -> str:
        return ", ".join(f"{spread(value)} at {at}" for at, value in found.items())

    def absent(self, found: Mapping[Any, Pooled]) -> list[Any]:
        return [value for value in self.values if value not in found]

    def points(self, found: Mapping[Any, Pooled], number: int = 0, of: int = 1) -> dict[float, Pooled]:
        """Return the points of line ``number`` of ``of`` lines, by position in a picture."""
        beside = 1 + self.apart * (number - (of - 1) / 2)
        return {at / self.unit * beside: value for at, value in sorted(found.items())}


# --- a figure's results -----------------------------------------------------------------------------


class Row(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """Arm of a figure with the arm's numbers. ``Study.row`` adds the study's columns, each a ``Pooled | None``.

    ``runs`` counts the runs of the arm, ``failed`` the runs without a result, and ``missing`` the configurations
    without a run of the arm. Means are over the configurations of a pool, then over the pools. ``faster``: the share of
    configurations on which the arm beats the base by more than ``TIE``.
    """

    label: str
    arm: A
    runs: int = 0
    failed: int = 0
    missing: int = 0
    speedup: Pooled | None = None
    median_speedup: Pooled | None = None
    faster: Pooled | None = None

    def value(self, column: str) -> Pooled | None:
        value: Pooled | None = getattr(self, column)
        return value


class Ratio(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """Comparison of arm ``own`` with arm ``other`` on the configurations where neither failed. Above 1: ``own`` is
    faster.

    ``median``: of other's measure over own's. ``mean``: own's mean speed-up over other's (None without the base).
    ``level``: other's mean measure over own's. ``faster``, ``slower``: the shares of configurations on which ``own`` is
    faster or slower by more than ``TIE``.
    """

    own: A
    other: A
    configurations: int
    median: Pooled
    mean: Pooled | None
    level: Pooled = msgspec.field(name="interarrival")
    faster: Pooled
    slower: Pooled

    @property
    def tied(self) -> float:
        """Share of configurations on which both arms are equally fast."""
        return max(0.0, 1.0 - self.faster.mean - self.slower.mean)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Published value beside ours. ``ratio``: ours over the paper's. ``within``: whether ours is in ``accept``."""

    name: str
    paper: float
    unit: str
    ours: Pooled | None
    ratio: float | None
    accept: tuple[float, float] | None
    within: bool | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Decision whether a claim holds, with its numbers, and in how many pools the claim holds alone."""

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


class FigureResult(msgspec.Struct, Generic[A, R], frozen=True, kw_only=True):
    """Results of one figure on the pools of one name. ``Study.result`` adds a field for every factor: the factor's
    value where the figure does not vary the factor.

    ``comparable``: factors and parameters that the figure does not vary are the paper's, so the paper's values bind.
    ``expected``: the number of configurations that the sweep has begun. ``singles``: by label, the values of single
    configurations that the figure shows, in the same order for every label (None: failed or missing).
    """

    study: ClassVar[Study]

    figure: str
    pool: str
    title: str
    question: str
    pools: int
    expected: int
    comparable: bool
    rows: list[R]
    ratios: list[Ratio[A]]
    singles: dict[str, list[float | None]] = msgspec.field(name="speedups", default_factory=dict)
    comparisons: list[Comparison] = []
    verdicts: list[Verdict] = []
    notes: list[str] = []

    @property
    def definition(self) -> Figure:
        return self.study.figures[self.figure]

    @property
    def binding(self) -> bool:
        """Return whether the paper's values are a target for these runs."""
        return self.comparable and self.pool == self.study.pool

    def usual(self, factor: str) -> Any:
        """Return a factor's value where the figure does not vary the factor."""
        return getattr(self, factor, self.study.usual[factor])

    def arm(self, series: str, **given: Any) -> A | None:
        """Return a series' arm with the ``given`` factors and the figure's usual values of the others. None: absent."""
        for row in self.rows:
            arm: A = row.arm
            if arm.series == series and all(
                getattr(arm, factor) in (None, given.get(factor, self.usual(factor))) for factor in self.study.usual
            ):
                return arm
        return None

    def row(self, arm: A) -> R:
        return next(row for row in self.rows if row.arm == arm)

    def value(self, series: str, column: str, **given: Any) -> Pooled | None:
        """Return a column of a series' arm with the ``given`` factors, None if the arm or the value is absent."""
        arm = self.arm(series, **given)
        return None if arm is None else self.row(arm).value(column)

    def ratio(self, own: A | None, other: A | None) -> Ratio[A] | None:
        return next((ratio for ratio in self.ratios if ratio.own == own and ratio.other == other), None)

    def series(self) -> list[str]:
        """Return the names of series: the paper's in its order, then ours, then a researcher's own."""
        return list(dict.fromkeys(row.arm.series for row in self.rows))

    def of(self, series: str) -> Iterator[R]:
        return (row for row in self.rows if row.arm.series == series)

    def gain(self, ratio: Ratio[A] | None) -> Pooled | None:
        """Return the mean gain of a comparison: of speed-ups, or without a base of levels."""
        return None if ratio is None else ratio.mean if self.study.base else ratio.level

    def over_factor(self, own: str, other: str | None, factor: str) -> dict[Any, Pooled]:
        """Return, by value of the factor, the mean speed-up of ``own`` over that of ``other`` with the same value.

        Ratios are on the same configurations. Without ``other``, the ratio is over ``own`` with the usual value.
        """
        means: dict[Any, Pooled] = {}
        for at in {getattr(row.arm, factor) for row in self.of(own)} - {None}:
            setting = {factor: at}
            arm, against = self.arm(own, **setting), self.arm(own) if other is None else self.arm(other, **setting)
            mean = self.gain(self.ratio(arm, against))
            if arm == against and (level := self.value(own, "speedup" if self.study.base else self.study.level)):
                mean = level.map(lambda _: 1.0)
            if mean is not None:
                means[at] = mean
        return dict(sorted(means.items()))


class FigureData(msgspec.Struct, Generic[F], frozen=True, kw_only=True):
    """Results of a sweep, one for every figure of the paper and name of pools.

    ``runs``: all trials. ``failed``: trials without a figure. ``failures``: the commonest reasons, each after the name
    of the series. ``version``: of Thalweg, at the time of the results.
    """

    results: list[F]
    runs: int
    failed: int
    failures: dict[str, int] = {}
    conclusions: list[Verdict] = []
    format: int = FORMAT
    version: str = __version__


# --- what a paper fills in --------------------------------------------------------------------------


class Finding(msgspec.Struct, frozen=True):
    """Result of a claim's check, for a ``Verdict``. None for ``holds`` means not tested.

    ``each``: the same decision for every single pool.
    """

    holds: bool | Literal["not shown"] | None
    detail: str
    numbers: dict[str, float] = {}
    each: Sequence[bool] = ()


class Claim(msgspec.Struct, frozen=True):
    """Statement of the paper (``quote``), the check that decides whether the claim holds, and the check in words
    (``how``).

    ``conclusion``: the number of the paper's conclusion that rests on the claim.
    """

    name: str
    quote: str
    how: str
    check: Callable[[FigureResult[Any, Any]], Finding]
    conclusion: int | None = None


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """Number of the paper, for a comparison with ours.

    It is the level of ``own``. With ``other``, it is the median over configurations of other's measure over own's. With
    ``ours``, our value is the function's result, and ``own`` is the number's name.

    ``unit``: of a number that is no ratio. ``points``: the least tolerance. None: the number is no target.
    """

    own: str
    value: float
    other: str | None = None
    ours: Callable[[FigureResult[Any, Any]], Pooled] | None = None
    unit: str = "s"
    points: float | None = 0.0

    @property
    def accept(self) -> tuple[float, float] | None:
        """Range that counts as reproduced, with one relative tolerance for all numbers. None: no target."""
        if self.points is None:
            return None
        off = max(self.points, abs(self.value) * QUOTED)
        return self.value - off, self.value + off

    @property
    def name(self) -> str:
        return self.own if self.other is None else f"{self.own} over {self.other}"


class Arms(Protocol):
    """Grid of a figure: the arms in which every configuration is run."""

    def arms(self) -> Sequence[Arm]: ...


class Grid(msgspec.Struct, frozen=True):
    """Grid with an arm for every combination of values of the arm's fields, in the order of the fields."""

    arm: type[Arm]
    values: tuple[Iterable[Any], ...]

    def arms(self) -> list[Arm]:
        return [self.arm(*combination) for combination in itertools.product(*self.values)]


class Listed(msgspec.Struct, frozen=True):
    """Grid of listed arms, without repetitions."""

    listed: tuple[Any, ...]

    def arms(self) -> list[Arm]:
        return [*dict.fromkeys(self.listed)]


class Column(msgspec.Struct, frozen=True):
    """Column of a figure's table: the head, the cell of a row, and the results that show the column.

    ``cell``: a function of a row and its result, or the name of a column, whose mean and spread have ``digits``
    decimals.
    """

    head: str
    cell: Callable[[Any, Any], str] | str
    digits: int = 1
    shown: Callable[[Any], bool] = lambda result: True


class Relative(msgspec.Struct, frozen=True):
    """Column: the mean level of an arm over that of a series in the same world, on configurations that both finished.

    The series has its usual factors, apart from the factors ``given``.
    """

    series: str
    given: Mapping[str, Any] = {}


class Shared(msgspec.Struct, frozen=True):
    """Column: the mean of ``value`` over the configurations that all of the paper's series in the same world finished.

    Only the paper's series have it, in figures that are ``shared``.
    """

    value: Literal["level", "speedup"]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Figure of a paper: the sweep that it needs, and the paper's statements about it.

    ``varied``: the factors that the figure varies. ``pairs``: whether two arms are compared, from (own, other, whether
    other is as usual). ``told``: whether the table shows a ratio. ``shared``: the rows have values in columns
    ``Shared``. ``singles``: the figure shows single configurations, by the column of that name, or by speed-up or
    level. ``configurations``: the number to sweep by default. ``measured``: data sets to sweep in addition by default.
    ``notes``: warnings for the reader. ``tables``: further tables, each a caption, and a function from a result to
    heads and rows. ``across``: pools of one name that differ in options, such as ``name:stretch=2``, share one result.
    ``head``: the name of the figure, unless it is named by its number. ``caption``, ``columns``, ``ordered``: of the
    first table.
    """

    number: str
    title: str
    question: str
    sweep: Arms
    claims: tuple[Claim, ...] = ()
    published: tuple[Published, ...] = ()
    varied: tuple[str, ...] = ()
    pairs: Callable[[Any, Any, bool], bool] = lambda own, other, usual: own.series != other.series
    told: Callable[[Any], bool] = lambda ratio: True
    shared: bool = False
    singles: bool | str = False
    configurations: int = 300
    measured: tuple[str, ...] = ()
    across: bool = False
    notes: tuple[str, ...] = ()
    tables: tuple[tuple[str, Callable[[Any], tuple[list[str], list[list[str]]]]], ...] = ()
    head: str = ""
    caption: str = "Ours beside the paper's"
    columns: tuple[Column, ...] = ()
    ordered: Callable[[Any], Iterable[Any]] = lambda result: result.rows

    @property
    def name(self) -> str:
        return self.head or f"Fig. {self.number}"


class Setting(dict[str, Any]):
    """Value of every factor where a figure does not vary it: the paper's value if the sweep has that, else the
    smallest.
    """

    @classmethod
    def of(cls, arms: Sequence[Arm], usual: Mapping[str, Any]) -> Setting:
        """Return the setting of a sweep's arms. ``usual``: the paper's value of every factor."""
        setting = cls()
        for factor, preferred in usual.items():
            known = {getattr(arm, factor) for arm in arms} - {None}
            setting[factor] = preferred if preferred in known or not known else min(known)
        return setting

    def keeps(self, arm: Arm, varied: Iterable[str] = ()) -> bool:
        """Return whether an arm differs only in ``varied`` factors. A factor that does not apply is no difference."""
        return all(factor in varied or getattr(arm, factor) in (None, usual) for factor, usual in self.items())


class Study(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Definition of a paper's figures and runs, which the paper fills in.

    - ``name``: the paper's folder. ``figures``: by number. ``conclusions``: the paper's, by number.
    - ``trial``, ``arm``: the structs of the trials and arms.
    - ``series``: the paper's own, in the paper's order. ``ours``: further series. ``base``: the series of the paper
      that is the base of speed-ups.
    - ``usual``: the paper's value of every factor. ``pool``: the name of the pools on which the paper's values bind.
      ``pools``: the names of all pools, where the names are known.
    - ``measure``: SQL over trial and outcome, above 0. Less is better. ``level``: the column of the mean measure.
      ``quantity``: the measure in words. ``nothing``: text for a trial without a measure.
    - ``columns``: further columns, each SQL that is averaged over the trials that did not fail, or ``Relative``, or
      ``Shared``. ``resolved``: by factor, SQL for the value with which a trial ran that left the factor open.
    - ``always``: columns over all trials that did not fail, also over trials that came to ``nothing``. With such
      columns, ``nothing`` is an answer and no failure.
    - ``world``: factors that make another network of a configuration. Nothing is compared across these factors.
      ``beside``: further factors that an arm and its base share.
    - ``fixed``: fields of the trial with one value in all trials of a figure. ``options``: fields with one value per
      series. The paper's values bind if these fields have the trial's defaults.
    - ``asked``: fields of the trial that options of ``thalweg sweep`` with the same names set.
    - ``says``: functions from a factor's value to words. ``as_run``: function from an arm of a grid to the arm in the
      results, by the usual values and the varied factors.
    - ``notes``: warnings for readers of any figure. ``marks``: the meaning of a mark at the end of a table's cell.
    - ``sweeps``: the struct of the sweeps, unless the sweeps are simply of the figures' arms. ``colours``: the series
      with the first colours of the palette. ``tints``: series with a colour of their own.
    """

    name: str
    trial: type[Trial]
    arm: type[Arm]
    figures: Mapping[str, Figure]
    series: tuple[str, ...]
    measure: str
    level: str
    quantity: str = "level"
    nothing: str = "it came to nothing that can be measured"
    ours: tuple[str, ...] = ()
    base: str = ""
    pool: str = "paper"
    pools: tuple[str, ...] = ()
    usual: Mapping[str, Any] = {}
    columns: Mapping[str, str | Relative | Shared] = {}
    resolved: Mapping[str, str] = {}
    always: tuple[str, ...] = ()
    world: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    says: Mapping[str, Callable[[Any], str]] = {}
    as_run: Callable[[Any, Setting, Sequence[str]], Arm] = lambda arm, usual, varied: arm
    notes: Callable[[Figure, Sequence[Any]], list[str]] = lambda figure, rows: []
    conclusions: Mapping[int, str] = {}
    marks: Mapping[str, str] = {}
    sweeps: type[Sweep] | None = None
    colours: tuple[str, ...] = ()
    tints: Mapping[str, str] = {}

    @cached_property
    def row(self) -> type[Any]:
        """Struct of the rows of the study's figures."""
        columns = dict.fromkeys((self.level, *self.columns))
        return _extended(of_kinds(Row, self.arm), dict.fromkeys(columns, Pooled | None), **columns)

    @cached_property
    def result(self) -> type[Any]:
        """Struct of the results of the study's figures."""
        fields = {factor: type(usual) for factor, usual in self.usual.items() if factor not in self.words}
        return _extended(of_kinds(FigureResult, self.arm, self.row), fields, study=self)

    @cached_property
    def sweep(self) -> type[Sweep]:
        """Struct of the study's sweeps."""
        swept = tuple(name for name in self.trial.__struct_fields__ if name not in self.asked)
        own: type[Sweep] = _extended(PaperSweep, {}, trial=self.trial, arm=self.arm, swept=swept)
        return self.sweeps or own

    @property
    def measures(self) -> dict[str, str]:
        """Columns that are averages over trials, with their SQL."""
        return {name: sql for name, sql in self.columns.items() if isinstance(sql, str)}

    @property
    def words(self) -> tuple[str, ...]:
        """Factors that are part of what is compared, as the series is. Their usual value is empty."""
        return tuple(factor for factor, usual in self.usual.items() if usual == "")

    @property
    def factors(self) -> tuple[str, ...]:
        return self.arm.__struct_fields__[1:]

    def of_paper(self, arm: Arm) -> bool:
        """Return whether an arm is of the paper's series in the paper's form."""
        return arm.series in self.series and all(getattr(arm, word) == "" for word in self.words)

    def label(self, figure: Figure, arm: Arm) -> str:
        """Return an arm's name in a figure: the series and the values of the varied factors."""
        values = {factor: getattr(arm, factor) for factor in figure.varied if factor in self.says}
        return ", ".join([arm.name, *(self.says[factor](at) for factor, at in values.items() if at is not None)])

    def order(self, arm: Arm) -> tuple[Any, ...]:
        """Return an arm's sort key: the paper's series in its order, then ours, then a researcher's own."""
        names = (*self.series, *self.ours)
        known = names.index(arm.series) if arm.series in names else len(names)
        factors = ((value is not None, value) for value in (getattr(arm, factor) for factor in self.factors))
        return arm.rank, known, natural(arm.series), *factors


def of_kinds(generic: Any, *kinds: type) -> Any:
    """Return a generic struct with type arguments that are known only at run time."""
    return generic[kinds]


def _extended(base: Any, fields: Mapping[str, Any], **values: Any) -> type[Any]:
    """Return a struct with more fields. ``values``: their defaults, and class attributes."""
    body = {"__annotations__": dict(fields), **values}
    return types.new_class(base.__name__, (base,), {"frozen": True, "kw_only": True}, lambda space: space.update(body))


def find_study(name: str | None = None) -> Study:
    """Return the study of a paper's folder. Raise UsageError if there is none."""
    try:
        study: Study = import_module(f"thalweg.experiments.papers.{name or FIRST_STUDY}.study").STUDY
    except (ModuleNotFoundError, ValueError):  # ValueError: the name is no module's name
        raise UsageError(f"there is no study {name!r}: thalweg/experiments/papers has no such folder") from None
    return study


def find_figure(number: str) -> tuple[Study, Figure]:
    """Return a figure by its number, or by ``PAPER:NUMBER``, with its study. Raise UsageError for an unknown one."""
    paper, _, name = number.rpartition(":")
    for study in (paper,) if paper else STUDIES:
        if paper or name in FIGURES[study]:
            candidate = find_study(study)
            if name in candidate.figures:
                return candidate, candidate.figures[name]
    known = find_study(paper).figures if paper else figure_names()
    raise UsageError(f"--figure is {number}; there are {', '.join(known)}")
