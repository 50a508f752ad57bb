"""Figures of a paper from a sweep's results. Spark SQL selects values of trials, and numpy makes figures of arms from
them.

A trial that failed or is missing is left out of every ratio and counted. A ratio is over configurations that both sides
finished. Figures are first of pools, over their configurations in a fixed order, so that results repeat exactly. Then
come means between pools. The study defines the figures and the paper's claims.
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
REASONS = 10  # distinct reasons of failures to keep
Values = npt.NDArray[np.float64]


def _query(study: Study, columns: Iterable[str]) -> tuple[list[str], str]:
    """Return the needed columns of ``trials``, and Spark's query, which gives a row for every trial that counts."""
    fields, place = study.arm.__struct_fields__, ", ".join(PLACE)
    series, arm = fields[0], ", ".join(fields)
    asked = " ".join([study.measure, *study.measures.values(), *study.resolved.values()])
    needed = [*PLACE, "key", "failed", *fields]
    needed += [column for column in columns if column not in needed and re.search(rf"\b{column}\b", asked)]
    stored = ", ".join(name for name in needed if name not in study.resolved)
    resolved = "".join(f", {sql} AS {factor}" for factor, sql in study.resolved.items())
    measured, shared = f"({study.measure})", ", ".join((*PLACE, *study.world, *study.beside))
    plain = " AND ".join([f"{series} = '{study.base}'", *(f"{factor} = ''" for factor in study.words)])
    averages = "".join(f", {sql} AS `told {name}`" for name, sql in study.measures.items())
    # a configuration that was run again after it failed counts once
    query = f"""
WITH known AS (
  SELECT {stored}{resolved},
         CASE WHEN failed IS NULL AND {measured} > 0 AND {measured} < double('infinity') THEN {measured} END AS level
  FROM trials),
copies AS (
  SELECT *, row_number() OVER (PARTITION BY {place}, {arm} ORDER BY level IS NULL, key) AS copy FROM known),
runs AS (SELECT * FROM copies WHERE copy = 1)
SELECT {place}, {arm}, failed, runs.level, base.level / runs.level AS speedup{averages}
FROM runs LEFT JOIN (SELECT {shared}, level FROM runs WHERE {plain}) AS base USING ({shared})
"""
    return needed, query


def aggregate(spark: SparkSession, folder: Path) -> FigureData[Any]:
    """Return the figures of a sweep folder, and write them to the folder's ``figures.json``.

    The result is the figure that the sweep was made for. If there is none, the result has every figure that the results
    can show. Raises UsageError if there are no results, or if the results vary a field that no figure varies.
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
    """Return the figures in a table of trials (all fields of the study's trial and outcome, and ``key``).

    ``study``: None is the first study. ``figure``: the only figure to make. None: all that the results can show.
    ``configurations``: the planned number for every name of pools, for the note that the sweep is unfinished. Raises
    UsageError for a table that is empty or varies a field that no figure varies, RunError if Spark cannot read the
    table.
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
        table = results.select(
            [name for name in needed if name in results.column_names]
        )  # Spark makes the missing columns from these
        spark.createDataFrame(table).createOrReplaceTempView("trials")
        rows = spark.sql(query).toArrow().to_pylist()
    except PySparkException as error:
        raise RunError(f"Spark cannot aggregate {where}: {str(error).strip().splitlines()[0][:200]}") from error
    figures: list[FigureResult[Any, Any]] = []
    if figure and study.figures[figure].across:
        for row in rows:
            row["pool"] = row["pool"].partition(":")[0]
    for name in sorted({row["pool"] for row in rows}, key=lambda name: (name != study.pool, name)):
        runs = Runs(study, [row for row in rows if row["pool"] == name])
        for number in [figure] if figure else _shown(study, runs):
            figures.append(_result(study.figures[number], name, runs, unusual, configurations))
    failed = [row for row in rows if _fails(study, row)]
    return FigureData(
        results=figures,
        runs=len(rows),
        failed=len(failed),
        failures=_reasons(study, failed),
        conclusions=conclude(study, figures),
    )


def _fails(study: Study, row: Mapping[str, Any]) -> bool:
    """Return whether a trial gave no answer. With ``always`` columns, no level is an answer unless the trial failed."""
    return row["level"] is None and not (study.always and row["failed"] is None)


def _reasons(study: Study, failed: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the commonest reasons of failures, by series and in one line, with the numbers of trials."""
    series = study.arm.__struct_fields__[0]
    counts = Counter((row[series], row["failed"] or study.nothing) for row in failed)
    reasons: Counter[str] = Counter()
    for (name, why), runs in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:REASONS]:
        reasons[f"{name}: {one_line(why)[:200]}"] += runs
    return dict(reasons.most_common())


def _check_one_value(study: Study, results: pa.Table, where: str) -> list[str]:
    """Return the unusual values of fields of the trials, and of options of the paper's series.

    Raises UsageError for a field with several values.
    """
    paper, series = study.trial(), study.arm.__struct_fields__[0]
    unusual = []
    for field in (*study.fixed, *study.options):
        by_series: dict[str | None, set[Any]] = {}
        for row in results.group_by([series, field]).aggregate([]).to_pylist():
            by_series.setdefault(None if field in study.fixed else row[series], set()).add(row[field])
        for name, values in by_series.items():
            if len(values) > 1:
                of = "" if name is None else f" of {name}"
                listed = ", ".join(map(str, sorted(values, key=str)[:4]))
                raise UsageError(
                    f"{where} varies {field}{of} ({listed}), which no figure does;"
                    f" sweep each value into a folder of its own"
                )
        usual = getattr(paper, field)
        compared = (
            None,
            *(name for name in study.series if name != study.base),
        )  # None: a field of all series. Options do not matter to the base
        used = {name: by_series[name].pop() for name in compared if name in by_series}
        unlike = [name for name, value in used.items() if value != usual]
        alike = len(unlike) == len(used) and len(set(used.values())) == 1
        for name in unlike[:1] if alike else unlike:
            whose = "" if alike else f" of {name}"
            unusual.append(f"{field}{whose} {used[name]} instead of {'the default' if usual is None else usual}")
    return unusual


# --- one figure -------------------------------------------------------------------------------------


class Runs:
    """Trials on the pools of one name, with the values of every arm over all configurations in order.

    ``columns``: by arm and name, values. A value is nan if the trial failed, is missing or lacks the value.
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
            for name, column in names.items():  # a column that is null in the row stays nan
                if row["level"] is not None or (name in study.always and row["failed"] is None):
                    self.columns[arm][name][number[row["pool_seed"], row["configuration"]]] = row[column]
        self.setting = Setting.of(list(self.columns), study.usual)
        self.shown: list[Any] = []  # arms of the figure in progress

    def pooled(self, reduce: Callable[..., Any], *values: Values) -> Pooled | None:
        """Return the result of ``reduce`` for every pool, over the configurations where all values are known."""
        known = np.logical_and.reduce([np.isfinite(column) for column in values])
        pools = {int(seed): known & (self.seeds == seed) for seed in np.unique(self.seeds[known])}
        return pooled({seed: float(reduce(*(column[at] for column in values))) for seed, at in pools.items()})

    def column(self, figure: Figure, arm: Any, name: str) -> Pooled | None:
        """Return a column of an arm's row in a figure."""
        own, kind = self.columns[arm], self.study.columns.get(name)
        if isinstance(kind, Relative):
            return self._relative(arm, kind)
        if isinstance(kind, Shared):
            if not figure.shared or not self.study.of_paper(arm):
                return None
            papers = filter(self.study.of_paper, self.shown)
            levels = (self.columns[peer]["level"] for peer in papers if _alike(peer, arm, self.study.world))
            return self.pooled(lambda value, *_: value.mean(), own[kind.value], *levels)
        if name == "median_speedup":
            return self.pooled(np.median, own["speedup"])
        if name == "faster":
            return self.pooled(lambda speedup: np.mean(speedup > 1 + TIE), own["speedup"])
        return self.pooled(np.mean, own["level" if name == self.study.level else name])

    def _relative(self, arm: Any, to: Relative) -> Pooled | None:
        """Return an arm's mean level over the mean level of the series ``to`` in the same world, on configurations that
        both finished.
        """
        shared = (*self.study.world, *self.study.beside)
        setting = Setting({**self.setting, **to.given})
        alike = (
            candidate for candidate in self.shown if candidate.series == to.series and _alike(candidate, arm, shared)
        )
        other = next((candidate for candidate in alike if setting.keeps(candidate, shared)), None)
        if other is None or (other != arm and not self._comparable(arm, other)):
            return None
        levels = (self.columns[side]["level"] for side in (arm, other))
        return self.pooled(lambda own, other: own.mean() / other.mean(), *levels)

    def _comparable(self, own: Arm, other: Arm) -> bool:
        """Return whether two arms in the same world have different series, or differ in one factor."""
        study, fields = self.study, own.__struct_fields__
        differ = {name for name in fields if getattr(own, name) != getattr(other, name)}
        if not differ or differ & {*study.world} or study.base in (own.series, other.series):
            return False
        return not differ & {*study.beside} if differ & {fields[0], *study.words} else len(differ) == 1

    def ratio(self, own: Arm, other: Arm) -> Ratio[Any] | None:
        """Return the comparison of two arms. None: the arms are not comparable, or no pool has both."""
        if not self._comparable(own, other):
            return None
        own_columns, other_columns = self.columns[own], self.columns[other]
        levels, speedups = (
            (own_columns["level"], other_columns["level"]),
            (own_columns["speedup"], other_columns["speedup"]),
        )
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
    """Return the numbers of the figures that these arms can show: figures with a factor that the sweep varies.

    The first figure that varies nothing is added if several series ran, or if there is no other. Factors in
    ``Study.words`` do not count as varied.
    """
    numbers, plain = [], None
    for number, figure in study.figures.items():
        arms = [arm for arm in runs.columns if runs.setting.keeps(arm, figure.varied) and arm.series != study.base]
        varied = {*figure.varied} - {*study.words}
        if any(len({getattr(arm, name) for arm in arms} - {None}) > 1 for name in varied):
            numbers.append(number)
        elif plain is None and not varied:
            plain = number
    standard = {arm.series for arm in runs.columns if runs.setting.keeps(arm)} - {study.base}
    return ([plain] if plain and (len(standard) > 1 or not numbers) else []) + numbers


def _ratios(figure: Figure, arms: Sequence[Any], runs: Runs) -> list[Ratio[Any]]:
    """Return the ratios between the ``arms`` that the figure compares, in the order of the figure's world."""
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
    rows = [_row(figure, arm, runs) for arm in arms]
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
        rows=rows,
        ratios=_ratios(figure, arms, runs),
        singles={
            row.label: [
                float(f"{value:.5g}") if math.isfinite(value) else None for value in runs.columns[row.arm][shown]
            ]
            for row in rows
            if figure.singles and row.arm.series != study.base
        },
        notes=_notes(figure, pool, rows, runs, differences, configurations),
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
    present = {study.as_run(row.arm, runs.setting, figure.varied) for row in made}
    wanted = [study.as_run(arm, runs.setting, figure.varied) for arm in figure.sweep.arms()]
    if absent := [study.label(figure, arm) for arm in wanted if arm not in present]:
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
    """Write ``folder/figures.json`` atomically. Raise RunError if the file cannot be written."""
    target = folder / FIGURES_JSON
    with whole(target, f"make {folder} writable") as part:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")
    return target


def load_figures(folder: Path) -> FigureData[Any]:
    """Read ``folder/figures.json``. Raise UsageError if it is absent, damaged, or of a different format or version."""
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
        figures: FigureData[Any] = msgspec.json.decode(data, type=of_kinds(FigureData, study.result))
        return figures
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; {again}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({error}); {again}") from None


class _MadeBy(msgspec.Struct, frozen=True):
    """Format and version of a figures.json, which decide whether the rest can be read."""

    format: int
    version: str = ""
