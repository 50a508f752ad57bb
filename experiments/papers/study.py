"""A paper's study: what is swept for each of its figures, what is told of the results, and what the paper says.

A paper has a folder here. Its ``study.py`` fills in a ``Study``: the *trial* (a struct of ``sweeps.trial``, and
the function that runs it), the *arms* in which every configuration is run, the *columns* of a figure's rows, and of
every figure the grid, the published values and the claims (``claims`` has checks to put together). Its ``plots.py``
draws them (``plots`` has the forms). Everything else is here: sweeps that are spread over Spark and resumed
(``sweeps``), figures from their results (``aggregation``), verdicts (``claims``), text (``tables``), files. The structs
of a study's rows, results and sweeps are made from its columns, factors and trial (``Study.row`` and so on).

A *pool* is one draw of whatever trials are drawn from, a *configuration* one of a draw. Every number of a figure is a
mean over the pools of what each says, with the standard deviation between them. The *level* of an arm is the mean of
what a study measures (less is better), its *speed-up* the mean of the base's over its own on the same configuration.
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
FIRST_STUDY = STUDIES[0]  # of sweep folders that name none
FORMAT = 4  # of figures.json
TIE = 0.01  # relative difference up to which two are as fast as each other: a plot would not show it
QUOTED = 0.15  # how far ours may be from a number of a paper's text, of it, to have reproduced it

# not shown: it was tested, and what differs is too little, or too uncertain, to tell
Decision = Literal["holds", "does not hold", "not shown", "not tested"]
A = TypeVar("A", bound=Arm)
R = TypeVar("R", bound="Row[Any]")
F = TypeVar("F", bound="FigureResult[Any, Any]")


# --- numbers over pools -----------------------------------------------------------------------------


class Pooled(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of every pool by its seed, their mean and standard deviation; of one pool there is no deviation."""

    mean: float
    deviation: float | None
    by_pool: dict[int, float]

    @property
    def error(self) -> float | None:
        """The mean's standard error, None with one pool."""
        return None if self.deviation is None else self.deviation / math.sqrt(len(self.by_pool))

    def map(self, of: Callable[[float], float]) -> Pooled:
        """The same of every pool's figure changed."""
        made = pooled({seed: of(value) for seed, value in self.by_pool.items()})
        assert made is not None
        return made

    def over(self, other: Pooled) -> Pooled | None:
        """The ratio of two figures, pool by pool."""
        both = self.by_pool.keys() & other.by_pool.keys()
        return pooled({seed: self.by_pool[seed] / other.by_pool[seed] for seed in both})


def pooled(by_pool: Mapping[int, float | None]) -> Pooled | None:
    """Over the pools that have a value; None when none has."""
    known = {seed: value for seed, value in sorted(by_pool.items()) if value is not None and math.isfinite(value)}
    if not known:
        return None
    deviation = statistics.stdev(known.values()) if len(known) > 1 else None
    return Pooled(mean=statistics.fmean(known.values()), deviation=deviation, by_pool=known)


def spread(value: Pooled, digits: int = 2, unit: str = "") -> str:
    """Mean ± standard deviation between pools, or the mean alone of one pool."""
    mean = f"{value.mean:.{digits}f}"
    return mean + unit if value.deviation is None else f"{mean} ± {value.deviation:.{digits}f}{unit}"


class Over(msgspec.Struct, frozen=True):
    """A factor that claims and pictures go over: the values that the paper has, and what they are of (``servers``).

    In pictures values are in ``unit``, and the points of several lines stand beside each other, ``apart`` by so large
    a share, so that their bars do not meet.
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
        """Where in a picture the values of the line of that number are."""
        beside = 1 + self.apart * (number - (of - 1) / 2)
        return {at / self.unit * beside: value for at, value in sorted(found.items())}


# --- a figure's results -----------------------------------------------------------------------------


class Row(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """One arm of a figure; ``Study.row`` adds the study's columns, each a ``Pooled | None``.

    ``runs`` are all there are, ``failed`` those of them that say nothing, ``missing`` the configurations it has not
    been run on. Means are over the configurations of a pool, then over the pools. ``faster``: the share of
    configurations on which it beats the base by more than ``TIE``.
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
        found: Pooled | None = getattr(self, column)
        return found


class Ratio(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """How many times as fast ``own`` is as ``other`` on the configurations where neither failed.

    ``median``: of other's measure over own's. ``mean``: own's mean speed-up over other's (None where the base is
    missing). ``level``: other's mean measure over own's. ``faster``, ``slower``: the shares of configurations on which
    own is, by more than ``TIE``.
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


class FigureResult(msgspec.Struct, Generic[A, R], frozen=True, kw_only=True):
    """One figure on the pools of one name; ``Study.result`` adds a field for each factor: what holds where it is not
    varied.

    ``comparable``: what the trials have besides is the paper's, so its values bind. ``expected``: how many
    configurations the sweep has begun. ``singles``: by label, what the figure shows of single configurations, in the
    same order for all (None: failed or missing).
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
        """Whether the paper's values are a target for these runs."""
        return self.comparable and self.pool == self.study.pool

    def usual(self, factor: str) -> Any:
        """What holds for a factor where the figure does not vary it."""
        return getattr(self, factor, self.study.usual[factor])

    def arm(self, series: str, **given: Any) -> A | None:
        """The arm of a series with what is given and otherwise with what holds for the figure; None: not there."""
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
        """A column of that arm; None where there is none."""
        arm = self.arm(series, **given)
        return None if arm is None else self.row(arm).value(column)

    def ratio(self, own: A | None, other: A | None) -> Ratio[A] | None:
        return next((ratio for ratio in self.ratios if ratio.own == own and ratio.other == other), None)

    def series(self) -> list[str]:
        """In the paper's order, then ours, then a researcher's own."""
        return list(dict.fromkeys(row.arm.series for row in self.rows))

    def of(self, series: str) -> Iterator[R]:
        return (row for row in self.rows if row.arm.series == series)

    def gain(self, ratio: Ratio[A] | None) -> Pooled | None:
        """How much faster one is in the mean: by speed-ups, or, without a base, by what is measured."""
        return None if ratio is None else ratio.mean if self.study.base else ratio.level

    def over_factor(self, own: str, other: str | None, factor: str) -> dict[Any, Pooled]:
        """By a factor's value, ``own``'s mean speed-up over ``other``'s with the same value, or, without one, over its
        own with the usual value, on the same configurations."""
        found: dict[Any, Pooled] = {}
        for at in {getattr(row.arm, factor) for row in self.of(own)} - {None}:
            given = {factor: at}
            arm, against = self.arm(own, **given), self.arm(own) if other is None else self.arm(other, **given)
            mean = self.gain(self.ratio(arm, against))
            if arm == against and (level := self.value(own, "speedup" if self.study.base else self.study.level)):
                mean = level.map(lambda _: 1.0)
            if mean is not None:
                found[at] = mean
        return dict(sorted(found.items()))


class FigureData(msgspec.Struct, Generic[F], frozen=True, kw_only=True):
    """What a sweep says about the paper's figures: one result for each of its figures and names of pools.

    ``runs`` are all trials, ``failed`` those without a figure, ``failures`` the commonest reasons, each after what it
    is of. ``version``: of Thalweg, which made them.
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
    """What a claim's check comes to, before it is put into words: None for ``holds`` means not tested.

    ``each``: the same of single pools.
    """

    holds: bool | Literal["not shown"] | None
    detail: str
    numbers: dict[str, float] = {}
    each: Sequence[bool] = ()


class Claim(msgspec.Struct, frozen=True):
    """A statement of the paper (``quote``), what decides whether it holds, and the same in words (``how``).

    ``conclusion``: the number of the paper's conclusion that rests on it.
    """

    name: str
    quote: str
    how: str
    check: Callable[[FigureResult[Any, Any]], Finding]
    conclusion: int | None = None


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A number of the paper: the level of ``own``, or, with ``other``, the median over configurations of ``other``'s
    measure over ``own``'s; or, with ``ours``, what that finds in a result, and ``own`` is what it is called.

    ``unit``: of the number, where it is no ratio. ``points``: how far ours may be from it in any case; None: it is no
    target.
    """

    own: str
    value: float
    other: str | None = None
    ours: Callable[[FigureResult[Any, Any]], Pooled] | None = None
    unit: str = "s"
    points: float | None = 0.0

    @property
    def accept(self) -> tuple[float, float] | None:
        """What counts as reproduced; one tolerance for all numbers."""
        if self.points is None:
            return None
        off = max(self.points, abs(self.value) * QUOTED)
        return self.value - off, self.value + off

    @property
    def name(self) -> str:
        return self.own if self.other is None else f"{self.own} over {self.other}"


class Arms(Protocol):
    """A grid: the arms in which every configuration is run."""

    def arms(self) -> Sequence[Arm]: ...


class Grid(msgspec.Struct, frozen=True):
    """The simplest one: arms with each combination of these values of their fields, in the fields' order."""

    arm: type[Arm]
    values: tuple[Iterable[Any], ...]

    def arms(self) -> list[Arm]:
        return [self.arm(*each) for each in itertools.product(*self.values)]


class Listed(msgspec.Struct, frozen=True):
    """Arms one by one, each once."""

    listed: tuple[Any, ...]

    def arms(self) -> list[Arm]:
        return [*dict.fromkeys(self.listed)]


class Column(msgspec.Struct, frozen=True):
    """A column of a figure's table: its head, a row's cell, and of which results it is.

    ``cell``: of a row and its result, or the name of a column, whose mean and spread it is with so many ``digits``.
    """

    head: str
    cell: Callable[[Any, Any], str] | str
    digits: int = 1
    shown: Callable[[Any], bool] = lambda result: True


class Relative(msgspec.Struct, frozen=True):
    """A column: an arm's mean level by that of a series in the same world, on what both finished; the series is as it
    usually is, but for the factors ``given``."""

    series: str
    given: Mapping[str, Any] = {}


class Shared(msgspec.Struct, frozen=True):
    """A column: the mean of ``value`` over the configurations that all of the paper's series in the same world
    finished; of the paper's series, in the figures that are ``shared``."""

    value: Literal["level", "speedup"]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the paper: what is swept for it, and what the paper says about it.

    ``varied``: the factors that it varies. ``pairs``: which arms it compares, (own, other, whether other is as usual).
    ``told``: which of these its table has. ``shared``: its rows have columns ``Shared``. ``singles``: it shows single
    configurations, by the column of that name, or by speed-up or level. ``configurations``: how many are swept where
    nothing else is said. ``notes``: what its readers must know. ``tables``: more of them, each a caption, and heads
    and rows of a result. ``across``: pools of one name that are made otherwise, ``name:stretch=2``, are of one result,
    not each of its own. ``head``: what it is called, where not by its number; ``caption``, ``columns``, ``ordered``: of
    its first table. ``measured``: data sets that it is swept on as well, where nothing else is said.
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
    """Of every factor what holds where a figure does not vary it: the paper's value where the sweep has it, else its
    smallest."""

    @classmethod
    def of(cls, arms: Sequence[Arm], usual: Mapping[str, Any]) -> Setting:
        made = cls()
        for factor, preferred in usual.items():
            known = {getattr(arm, factor) for arm in arms} - {None}
            made[factor] = preferred if preferred in known or not known else min(known)
        return made

    def keeps(self, arm: Arm, varied: Iterable[str] = ()) -> bool:
        """Whether an arm differs from it in nothing but what is varied; what does not apply is no difference."""
        return all(factor in varied or getattr(arm, factor) in (None, usual) for factor, usual in self.items())


class Study(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What a paper fills in, besides its figures' plots.

    - ``name``: its folder; ``figures``: by number; ``conclusions``: the paper's, by number
    - ``trial``, ``arm``: the structs of its trials and arms
    - ``series``: the paper's own, in its order; ``ours``: those beside them; ``base``: of the paper's, what speed-ups
      are over
    - ``usual``: of every factor the paper's value; ``pool``: the name of the pools on which the paper's values bind,
      ``pools``: all there are, where that is known
    - ``measure``: SQL over trial and outcome, above 0; less is better. ``level``: the column that has its mean,
      ``quantity`` what that is in words, ``nothing`` what is said of a trial without one
    - ``columns``: other columns, each SQL that is averaged over the trials that did not fail, or ``Relative``, or
      ``Shared``; ``resolved``: of factors, SQL for what a trial ran with that was given none
    - ``always``: columns that are over all trials that did not fail, also over those that came to ``nothing``; where
      there are any, coming to nothing is an answer, and no failure
    - ``world``: factors that make another network of a configuration: nothing is compared across them; ``beside``:
      those besides that the base shares
    - ``fixed``: fields of the trial with one value in all trials of a figure, ``options``: with one for each series;
      the paper's values bind where these are the trial's defaults
    - ``asked``: fields of the trial that a sweep is given by options of ``thalweg sweep`` of the same names
    - ``says``: a factor's value in words; ``as_run``: an arm of a grid as the results have it, by what is usual and
      what the figure varies
    - ``notes``: what readers of any figure must know; ``marks``: what a mark at the end of a table's cell means
    - ``sweeps``: the struct of its sweeps, where they are not simply of its figures' arms; ``colours``: the series
      that have the palette's first ones, and ``tints`` those with a colour of their own
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
        """The struct of its figures' rows."""
        columns = dict.fromkeys((self.level, *self.columns))
        return _extended(of_kinds(Row, self.arm), dict.fromkeys(columns, Pooled | None), **columns)

    @cached_property
    def result(self) -> type[Any]:
        """The struct of its figures' results."""
        fields = {factor: type(usual) for factor, usual in self.usual.items() if factor not in self.words}
        return _extended(of_kinds(FigureResult, self.arm, self.row), fields, study=self)

    @cached_property
    def sweep(self) -> type[Sweep]:
        """The struct of its sweeps."""
        swept = tuple(name for name in self.trial.__struct_fields__ if name not in self.asked)
        own: type[Sweep] = _extended(PaperSweep, {}, trial=self.trial, arm=self.arm, swept=swept)
        return self.sweeps or own

    @property
    def measures(self) -> dict[str, str]:
        """The columns that are averages over trials."""
        return {name: sql for name, sql in self.columns.items() if isinstance(sql, str)}

    @property
    def words(self) -> tuple[str, ...]:
        """The factors that are part of what is compared, as the series is: those that are usually none."""
        return tuple(factor for factor, usual in self.usual.items() if usual == "")

    @property
    def factors(self) -> tuple[str, ...]:
        return self.arm.__struct_fields__[1:]

    def of_paper(self, arm: Arm) -> bool:
        """Whether it is of the paper's series, as the paper has them."""
        return arm.series in self.series and all(getattr(arm, word) == "" for word in self.words)

    def label(self, figure: Figure, arm: Arm) -> str:
        """An arm's name in a figure: its series and what the figure varies."""
        values = {factor: getattr(arm, factor) for factor in figure.varied if factor in self.says}
        return ", ".join([arm.name, *(self.says[factor](at) for factor, at in values.items() if at is not None)])

    def order(self, arm: Arm) -> tuple[Any, ...]:
        """The paper's series first, in its order, then ours, then a researcher's own."""
        names = (*self.series, *self.ours)
        known = names.index(arm.series) if arm.series in names else len(names)
        factors = ((value is not None, value) for value in (getattr(arm, factor) for factor in self.factors))
        return arm.rank, known, natural(arm.series), *factors


def of_kinds(generic: Any, *kinds: type) -> Any:
    """A generic struct of kinds that are known while it runs alone."""
    return generic[kinds]


def _extended(base: Any, fields: Mapping[str, Any], **values: Any) -> type[Any]:
    """A struct with more fields; ``values``: their defaults, and what all of its kind have."""
    body = {"__annotations__": dict(fields), **values}
    return types.new_class(base.__name__, (base,), {"frozen": True, "kw_only": True}, lambda space: space.update(body))


def find_study(name: str | None = None) -> Study:
    """The study of that paper's folder; UsageError when there is none."""
    try:
        found: Study = import_module(f"thalweg.experiments.papers.{name or FIRST_STUDY}.study").STUDY
    except (ModuleNotFoundError, ValueError):  # ValueError: of a name that is no module's
        raise UsageError(f"there is no study {name!r}: thalweg/experiments/papers has no such folder") from None
    return found


def find_figure(number: str) -> tuple[Study, Figure]:
    """Return a figure by its number, or by ``PAPER:NUMBER``, with its study. Raise UsageError for an unknown one."""
    paper, _, name = number.rpartition(":")
    for study in (paper,) if paper else STUDIES:
        if paper or name in FIGURES[study]:
            found = find_study(study)
            if name in found.figures:
                return found, found.figures[name]
    known = find_study(paper).figures if paper else figure_names()
    raise UsageError(f"--figure is {number}; there are {', '.join(known)}")
