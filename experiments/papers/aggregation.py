"""A paper's figures from a sweep's results: Spark SQL to what every trial that counts says, then figures of arms.

A trial that failed or is missing is left out of every ratio and counted; a ratio is only taken on configurations that
both sides finished. Figures are of pools first, over their configurations in order, so that they are the same at every
time; then means between pools. What the figures are and what the paper says of them is the study's.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from thalweg import __version__
from thalweg.experiments.papers.claims import compare, conclude, judge
from thalweg.experiments.papers.study import (
    FORMAT,
    TIE,
    Figure,
    FigureData,
    FigureResult,
    Pooled,
    Ratio,
    Relative,
    Row,
    Setting,
    Shared,
    Study,
    find_study,
    of_kinds,
    pooled,
)
from thalweg.experiments.sweeps.grid import PLACE
from thalweg.experiments.sweeps.sweep import load_results, load_sweep, study_of
from thalweg.experiments.sweeps.trial import Arm
from thalweg.middleware.errors import RunError, UsageError, one_line
from thalweg.middleware.files.reading import MAX_JSON_BYTES, read_bounded
from thalweg.middleware.files.writing import whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIGURES_JSON = "figures.json"
REASONS = 10  # different ones of failed trials that are kept
Values = npt.NDArray[np.float64]


def _query(study: Study, columns: Iterable[str]) -> tuple[list[str], str]:
    """The columns of ``trials`` that are needed, and what Spark is asked of them: a row for every trial that counts."""
    fields, place = study.arm.__struct_fields__, ", ".join(PLACE)
    series, arm = fields[0], ", ".join(fields)
    asked = " ".join([study.measure, *study.measures.values(), *study.resolved.values()])
    needed = [*PLACE, "key", "failed", *fields]
    needed += [one for one in columns if one not in needed and re.search(rf"\b{one}\b", asked)]
    kept = ", ".join(name for name in needed if name not in study.resolved)
    resolved = "".join(f", {sql} AS {factor}" for factor, sql in study.resolved.items())
    measured, shared = f"({study.measure})", ", ".join((*PLACE, *study.world, *study.beside))
    plain = " AND ".join([f"{series} = '{study.base}'", *(f"{factor} = ''" for factor in study.words)])
    told = "".join(f", {sql} AS `told {name}`" for name, sql in study.measures.items())
    # a configuration that was run again after it failed counts once
    query = f"""
WITH known AS (
  SELECT {kept}{resolved},
         CASE WHEN failed IS NULL AND {measured} > 0 AND {measured} < double('infinity') THEN {measured} END AS level
  FROM trials),
copies AS (
  SELECT *, row_number() OVER (PARTITION BY {place}, {arm} ORDER BY level IS NULL, key) AS copy FROM known),
runs AS (SELECT * FROM copies WHERE copy = 1)
SELECT {place}, {arm}, failed, runs.level, base.level / runs.level AS speedup{told}
FROM runs LEFT JOIN (SELECT {shared}, level FROM runs WHERE {plain}) AS base USING ({shared})
"""
    return needed, query


def aggregate(spark: SparkSession, folder: Path) -> FigureData[Any]:
    """The figures of a sweep folder, also written to its ``figures.json``.

    The figure is the one the sweep was made for; of a sweep for none, all that its results can show.
    Raises UsageError when there are no results, or they vary what no figure varies.
    """
    study = find_study(study_of(folder))
    sweep = load_sweep(folder, study.sweep)
    data = figure_data(
        spark,
        load_results(folder, study.sweep),
        study,
        figure=sweep.figure if sweep.figure in study.figures else None,
        configurations=sweep.configurations,
        where=str(folder),
    )
    save_figures(folder, data)
    return data


def figure_data(
    spark: SparkSession,
    results: pa.Table,
    study: Study | None = None,
    *,
    figure: str | None = None,
    configurations: int | None = None,
    where: str = "the sweep",
) -> FigureData[Any]:
    """The figures in a table of trials (all fields of the study's trial and outcome, and ``key``).

    ``study``: None, the first. ``figure``: only this one; None: all that the results can show. ``configurations``: how
    many the sweep is to have of each pool's name, for the note that it is unfinished. Raises UsageError for a table
    that is empty or varies what no figure varies, RunError when Spark cannot read it.
    """
    from pyspark.errors import PySparkException

    study = study or find_study()
    if figure is not None and figure not in study.figures:
        raise UsageError(f"figure {figure!r} is unknown; known are {', '.join(study.figures)}")
    if not results.num_rows:
        raise UsageError(f"{where} has no results yet; run thalweg sweep on it first")
    unusual = _check_one_value(study, results, where)
    needed, query = _query(study, results.column_names)
    try:
        there = results.select([name for name in needed if name in results.column_names])  # others are made of them
        spark.createDataFrame(there).createOrReplaceTempView("trials")
        rows = spark.sql(query).toArrow().to_pylist()
    except PySparkException as error:
        raise RunError(f"Spark cannot aggregate {where}: {str(error).strip().splitlines()[0][:200]}") from error
    made: list[FigureResult[Any, Any]] = []
    if figure and study.figures[figure].across:
        for row in rows:
            row["pool"] = row["pool"].partition(":")[0]
    for name in sorted({row["pool"] for row in rows}, key=lambda name: (name != study.pool, name)):
        runs = Runs(study, [row for row in rows if row["pool"] == name])
        for number in [figure] if figure else _shown(study, runs):
            made.append(_result(study.figures[number], name, runs, unusual, configurations))
    failed = [row for row in rows if _fails(study, row)]
    return FigureData(
        results=made,
        runs=len(rows),
        failed=len(failed),
        failures=_reasons(study, failed),
        conclusions=conclude(study, made),
    )


def _fails(study: Study, row: Mapping[str, Any]) -> bool:
    """Whether a trial says nothing, also where coming to nothing is an answer."""
    return row["level"] is None and not (study.always and row["failed"] is None)


def _reasons(study: Study, failed: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many trials failed of a series for a reason, one line each; reasons that read the same count as one."""
    series = study.arm.__struct_fields__[0]
    counts = Counter((row[series], row["failed"] or study.nothing) for row in failed)
    found: Counter[str] = Counter()
    for (name, why), runs in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:REASONS]:
        found[f"{name}: {one_line(why)[:200]}"] += runs
    return dict(found.most_common())


def _check_one_value(study: Study, results: pa.Table, where: str) -> list[str]:
    """What of the trials' fields, and of the options of the paper's series, is not as the paper had it.

    Raises UsageError for a field with several values.
    """
    paper, series = study.trial(), study.arm.__struct_fields__[0]
    unusual = []
    for field in (*study.fixed, *study.options):
        found: dict[str | None, set[Any]] = {}
        for one in results.group_by([series, field]).aggregate([]).to_pylist():
            found.setdefault(None if field in study.fixed else one[series], set()).add(one[field])
        for name, values in found.items():
            if len(values) > 1:
                of = "" if name is None else f" of {name}"
                listed = ", ".join(map(str, sorted(values, key=str)[:4]))
                raise UsageError(
                    f"{where} varies {field}{of} ({listed}), which no figure does;"
                    f" sweep each value into a folder of its own"
                )
        usual = getattr(paper, field)
        compared = (None, *(name for name in study.series if name != study.base))  # options do not matter to the base
        told = {name: found[name].pop() for name in compared if name in found}
        others = [name for name, value in told.items() if value != usual]
        alike = len(others) == len(told) and len(set(told.values())) == 1
        for name in others[:1] if alike else others:
            whose = "" if alike else f" of {name}"
            unusual.append(f"{field}{whose} {told[name]} instead of {'the default' if usual is None else usual}")
    return unusual


# --- one figure -------------------------------------------------------------------------------------


class Runs:
    """The trials on the pools of one name: what each arm's say, over all configurations in their order.

    ``columns``: by arm and name, values with nan where a trial failed, is missing or says nothing.
    """

    def __init__(self, study: Study, rows: Sequence[Mapping[str, Any]]) -> None:
        self.study = study
        self.configurations = sorted({(row["pool_seed"], row["configuration"]) for row in rows})
        self.seeds = np.array([seed for seed, _ in self.configurations])
        number = {place: i for i, place in enumerate(self.configurations)}
        names = {"level": "level", "speedup": "speedup"} | {name: f"told {name}" for name in study.measures}
        self.columns: dict[Any, dict[str, Values]] = {}
        self.runs: Counter[Any] = Counter()
        self.failed: Counter[Any] = Counter()
        for row in rows:
            arm = study.arm(**{field: row[field] for field in study.arm.__struct_fields__})
            if arm not in self.columns:
                self.columns[arm] = {name: np.full(len(number), np.nan) for name in names}
            self.runs[arm] += 1
            self.failed[arm] += _fails(study, row)
            for name, column in names.items():  # what is null there stays nan
                if row["level"] is not None or (name in study.always and row["failed"] is None):
                    self.columns[arm][name][number[row["pool_seed"], row["configuration"]]] = row[column]
        self.setting = Setting.of(list(self.columns), study.usual)
        self.shown: list[Any] = []  # the arms of the figure that is being made

    def pooled(self, reduce: Callable[..., Any], *values: Values) -> Pooled | None:
        """What is made of these values pool by pool, over the configurations where all are known."""
        known = np.logical_and.reduce([np.isfinite(each) for each in values])
        pools = {int(seed): known & (self.seeds == seed) for seed in np.unique(self.seeds[known])}
        return pooled({seed: float(reduce(*(each[at] for each in values))) for seed, at in pools.items()})

    def column(self, figure: Figure, arm: Any, name: str) -> Pooled | None:
        """A column of an arm's row in a figure."""
        own, kind = self.columns[arm], self.study.columns.get(name)
        if isinstance(kind, Relative):
            return self._relative(arm, kind)
        if isinstance(kind, Shared):
            if not figure.shared or not self.study.of_paper(arm):
                return None
            papers = filter(self.study.of_paper, self.shown)
            levels = (self.columns[one]["level"] for one in papers if _alike(one, arm, self.study.world))
            return self.pooled(lambda value, *_: value.mean(), own[kind.value], *levels)
        if name == "median_speedup":
            return self.pooled(np.median, own["speedup"])
        if name == "faster":
            return self.pooled(lambda speedup: np.mean(speedup > 1 + TIE), own["speedup"])
        return self.pooled(np.mean, own["level" if name == self.study.level else name])

    def _relative(self, arm: Any, to: Relative) -> Pooled | None:
        """An arm's mean level by that of another in the same world; on what both finished."""
        shared = (*self.study.world, *self.study.beside)
        setting = Setting({**self.setting, **to.given})
        alike = (one for one in self.shown if one.series == to.series and _alike(one, arm, shared))
        other = next((one for one in alike if setting.keeps(one, shared)), None)
        if other is None or (other != arm and not self._comparable(arm, other)):
            return None
        levels = (self.columns[one]["level"] for one in (arm, other))
        return self.pooled(lambda own, other: own.mean() / other.mean(), *levels)

    def _comparable(self, own: Arm, other: Arm) -> bool:
        """Two arms of different series, or one with one factor changed, in the same world."""
        study, fields = self.study, own.__struct_fields__
        differ = {name for name in fields if getattr(own, name) != getattr(other, name)}
        if not differ or differ & {*study.world} or study.base in (own.series, other.series):
            return False
        return not differ & {*study.beside} if differ & {fields[0], *study.words} else len(differ) == 1

    def ratio(self, own: Arm, other: Arm) -> Ratio[Any] | None:
        """How two arms compare; None where that says nothing."""
        if not self._comparable(own, other):
            return None
        mine, others = self.columns[own], self.columns[other]
        levels, speedups = (mine["level"], others["level"]), (mine["speedup"], others["speedup"])
        median = self.pooled(lambda a, b: np.median(b / a), *levels)
        level = self.pooled(lambda a, b: b.mean() / a.mean(), *levels)
        faster = self.pooled(lambda a, b: np.mean(a * (1 + TIE) < b), *levels)
        slower = self.pooled(lambda a, b: np.mean(b * (1 + TIE) < a), *levels)
        if median is None or level is None or faster is None or slower is None:
            return None
        return Ratio(
            own=own, other=other, configurations=int(np.isfinite(levels[0] + levels[1]).sum()), median=median,
            mean=self.pooled(lambda a, b: a.mean() / b.mean(), *speedups), level=level, faster=faster, slower=slower,
        )  # fmt: skip


def _alike(one: Arm, other: Arm, factors: Iterable[str]) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in factors)


def _shown(study: Study, runs: Runs) -> list[str]:
    """The figures that these arms can show: each that varies something the sweep does, and the first that varies
    nothing where several series ran, or there is no other. What is part of what is compared is not varied."""
    found, plain = [], None
    for number, figure in study.figures.items():
        kept = [arm for arm in runs.columns if runs.setting.keeps(arm, figure.varied) and arm.series != study.base]
        varied = {*figure.varied} - {*study.words}
        if any(len({getattr(arm, name) for arm in kept} - {None}) > 1 for name in varied):
            found.append(number)
        elif plain is None and not varied:
            plain = number
    standard = {arm.series for arm in runs.columns if runs.setting.keeps(arm)} - {study.base}
    return ([plain] if plain and (len(standard) > 1 or not found) else []) + found


def _ratios(figure: Figure, arms: Sequence[Any], runs: Runs) -> list[Ratio[Any]]:
    """Return the ratios between those of ``arms`` that the figure compares, in the order of the figure's world."""
    study, keeps = runs.study, runs.setting.keeps
    pairs = [pair for pair in itertools.permutations(arms, 2) if figure.pairs(*pair, keeps(pair[1]))]
    ratios = [ratio for pair in pairs if (ratio := runs.ratio(*pair))]

    def order(ratio: Ratio[Any]) -> tuple[Any, ...]:
        return *(getattr(ratio.own, name) for name in study.world), study.order(ratio.own), study.order(ratio.other)

    return sorted(ratios, key=order)


def _result(
    figure: Figure, pool: str, runs: Runs, unusual: Sequence[str], configurations: int | None
) -> FigureResult[Any, Any]:
    study, setting = runs.study, runs.setting
    arms = runs.shown = sorted((arm for arm in runs.columns if setting.keeps(arm, figure.varied)), key=study.order)
    made = [_row(figure, arm, runs) for arm in arms]
    differences = [
        *unusual,
        *(f"{name} {at} instead of {study.usual[name]}" for name, at in setting.items() if at != study.usual[name]),
    ]
    shown = figure.singles if isinstance(figure.singles, str) else "speedup" if study.base else "level"
    result = study.result(
        figure=figure.number,
        pool=pool,
        title=figure.title,
        question=figure.question,
        pools=len({seed for seed, _ in runs.configurations}),
        expected=len(runs.configurations),
        comparable=not differences,
        rows=made,
        ratios=_ratios(figure, arms, runs),
        singles={
            row.label: [
                float(f"{value:.5g}") if math.isfinite(value) else None for value in runs.columns[row.arm][shown]
            ]
            for row in made
            if figure.singles and row.arm.series != study.base
        },
        notes=_notes(figure, pool, made, runs, differences, configurations),
        **{name: at for name, at in setting.items() if name in study.result.__struct_fields__},
    )
    return msgspec.structs.replace(
        result, comparisons=compare(result), verdicts=[judge(result, claim) for claim in figure.claims]
    )


def _row(figure: Figure, arm: Arm, runs: Runs) -> Row[Any]:
    study, count = runs.study, runs.runs[arm]
    names = (study.level, "speedup", "median_speedup", "faster", *study.columns)
    row: Row[Any] = study.row(
        label=study.label(figure, arm),
        arm=arm,
        runs=count,
        failed=runs.failed[arm],
        missing=len(runs.configurations) - count,
        **{name: runs.column(figure, arm, name) for name in names},
    )
    return row


def _notes(
    figure: Figure, pool: str, made: Sequence[Row[Any]], runs: Runs, differences: Sequence[str],
    configurations: int | None,
) -> list[str]:  # fmt: skip
    notes, study = [], runs.study
    if len({seed for seed, _ in runs.configurations}) == 1:
        notes.append("one pool: no spread")
    if pool != study.pool and figure.claims:
        notes.append(f"pool {pool}: the paper's values are no target")
    if differences and figure.claims:
        notes.append(f"not as the paper ran it ({', '.join(differences)}): its values are no target")
    there = {study.as_run(row.arm, runs.setting, figure.varied) for row in made}
    wanted = [study.as_run(arm, runs.setting, figure.varied) for arm in figure.sweep.arms()]
    if absent := [study.label(figure, arm) for arm in wanted if arm not in there]:
        notes.append(f"not in the results: {'; '.join(absent)}")
    notes += _notes_on_runs(made, study.arm.__struct_fields__[0], len(runs.configurations), configurations)
    swept = {arm.series for arm in figure.sweep.arms()}
    if study.base in swept and all(row.arm.series != study.base for row in made):
        notes.append(f"no {study.base}: no speed-ups")
    return [*notes, *study.notes(figure, made), *figure.notes]


def _notes_on_runs(made: Sequence[Row[Any]], what: str, begun: int, configurations: int | None) -> list[str]:
    """Return the notes on runs that are missing or failed. ``what``: the factor that parts the arms."""
    notes = []
    if configurations is not None and begun < configurations:
        notes.append(f"unfinished: {begun} of {configurations} configurations begun")
    if missing := sum(row.missing for row in made):
        count = missing + sum(row.runs for row in made)
        notes.append(f"unfinished: {missing} of {count} runs {'is' if missing == 1 else 'are'} missing")
    if failed := sum(row.failed for row in made):
        notes.append("1 run failed and is left out" if failed == 1 else f"{failed} runs failed and are left out")
    if missing or failed:
        notes.append(f"mean times are over what each {what} finished, ratios over what both did")
    return notes


# --- files ------------------------------------------------------------------------------------------


def save_figures(folder: Path, data: FigureData[Any]) -> Path:
    """Write ``folder/figures.json``, whole or not at all; RunError when it cannot be."""
    target = folder / FIGURES_JSON
    with whole(target, f"make {folder} writable") as part:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")
    return target


def load_figures(folder: Path) -> FigureData[Any]:
    """Read ``folder/figures.json``; UsageError when it is not there, damaged, or of another format or version."""
    path = folder / FIGURES_JSON
    again = "aggregate the sweep again"
    try:
        data = read_bounded(path, MAX_JSON_BYTES)
        made_by = msgspec.json.decode(data, type=_MadeBy)
        if (made_by.format, made_by.version) != (FORMAT, __version__):
            raise UsageError(
                f"{path} has format {made_by.format} of version {made_by.version or 'unknown'} instead of {FORMAT} of"
                f" {__version__}; {again}"
            )
        study = find_study(study_of(folder))
        found: FigureData[Any] = msgspec.json.decode(data, type=of_kinds(FigureData, study.result))
        return found
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; {again}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({error}); {again}") from None


class _MadeBy(msgspec.Struct, frozen=True):
    """What tells whether the rest of a figures.json can be read."""

    format: int
    version: str = ""
