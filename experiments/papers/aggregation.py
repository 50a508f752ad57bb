"""A paper's figures from a sweep's results: Spark SQL to figures per pool, then means between pools.

A trial that failed or is missing is left out of every ratio and counted; a ratio is only taken on configurations that
both sides finished. What the figures are and what the paper says of them is the study's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec
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
    Study,
    find_study,
    pooled,
)
from thalweg.experiments.sweeps.sweep import load_results, load_sweep, study_of
from thalweg.experiments.sweeps.trial import Arm
from thalweg.middleware.errors import RunError, UsageError, one_line
from thalweg.middleware.files import whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIGURES_JSON = "figures.json"
REASONS = 10  # different ones of failed trials that are kept
PLACE = ("pool", "pool_seed", "configuration")
Place = tuple[int, int]  # a pool's seed and a configuration


class _Queries:
    """What Spark is asked, for the trials of a study: ``runs`` first, which the others are of."""

    def __init__(self, study: Study, columns: Iterable[str]) -> None:
        fields, place = study.arm.__struct_fields__, ", ".join(PLACE)
        series, arm = fields[0], ", ".join(fields)
        asked = " ".join([study.measure, *study.measures.values(), *study.resolved.values()])
        self.needed = [*PLACE, "key", "failed", *fields]
        self.needed += [one for one in columns if one not in self.needed and re.search(rf"\b{one}\b", asked)]
        kept = ", ".join(name for name in self.needed if name not in study.resolved)
        resolved = "".join(f", {sql} AS {factor}" for factor, sql in study.resolved.items())
        measured, shared = f"({study.measure})", (*study.world, *study.beside)
        plain = " AND ".join(
            [f"{series} = '{study.base}'", *(f"{factor} = ''" for factor, usual in study.usual.items() if usual == "")]
        )
        # a configuration that was run again after it failed counts once
        self.runs = f"""
WITH known AS (
  SELECT {kept}{resolved},
         CASE WHEN failed IS NULL AND {measured} > 0 AND {measured} < double('infinity') THEN {measured} END AS level
  FROM trials),
copies AS (
  SELECT *, row_number() OVER (PARTITION BY {place}, {arm} ORDER BY level IS NULL, key) AS copy FROM known)
SELECT runs.*, base.level / runs.level AS speedup
FROM (SELECT * FROM copies WHERE copy = 1) AS runs
LEFT JOIN (SELECT {", ".join((*PLACE, *shared))}, level FROM copies WHERE copy = 1 AND {plain}) AS base
USING ({", ".join((*PLACE, *shared))})
"""
        averages = "".join(
            f", avg({sql}) FILTER (WHERE level IS NOT NULL) AS {name}" for name, sql in study.measures.items()
        )
        self.by_arm = f"""
SELECT pool, pool_seed, {arm}, count(*) AS runs, count_if(level IS NULL) AS failed, avg(level) AS {study.level},
       avg(speedup) AS speedup, percentile(speedup, 0.5) AS median_speedup,
       avg(CAST(speedup > {1 + TIE} AS double)) AS faster{averages}
FROM runs GROUP BY pool, pool_seed, {arm}
"""
        # two arms on the same configurations: of different series, or of one with one factor changed
        words = [factor for factor, usual in study.usual.items() if usual == ""]  # are part of what is compared
        others = [factor for factor in study.factors if factor not in (*study.world, *words)]
        differ = " OR ".join(f"own.{name} <> other.{name}" for name in (series, *words))
        beside = " AND ".join(["TRUE", *(f"own.{factor} = other.{factor}" for factor in study.beside)])
        changed = " + ".join(["0", *(f"CAST(NOT own.{name} <=> other.{name} AS int)" for name in others)])
        same = "".join(f" AND own.{name} = other.{name}" for name in (*PLACE, *study.world))
        based = "".join(f" AND {side}.{series} <> '{study.base}'" for side in ("own", "other") if study.base)
        self.pairs = f"""
SELECT own.pool, own.pool_seed, {_struct("own", fields)} AS own, {_struct("other", fields)} AS other,
       count(*) AS configurations, percentile(other.level / own.level, 0.5) AS median,
       avg(own.speedup) FILTER (WHERE other.speedup IS NOT NULL)
         / avg(other.speedup) FILTER (WHERE own.speedup IS NOT NULL) AS mean,
       avg(other.level) / avg(own.level) AS level,
       avg(CAST(own.level * {1 + TIE} < other.level AS double)) AS faster,
       avg(CAST(other.level * {1 + TIE} < own.level AS double)) AS slower
FROM runs AS own JOIN runs AS other
  ON TRUE{same} AND CASE WHEN {differ} THEN {beside} ELSE {changed} = 1 END
WHERE own.level IS NOT NULL AND other.level IS NOT NULL{based}
GROUP BY ALL
"""
        self.single = f"SELECT {place}, {arm}, level, speedup FROM runs"
        self.reasons = f"""
SELECT {series} AS series, coalesce(failed, '{study.nothing}') AS failed, count(*) AS runs
FROM runs WHERE level IS NULL GROUP BY ALL ORDER BY runs DESC, series, failed LIMIT {REASONS}
"""


def _struct(side: str, fields: Sequence[str]) -> str:
    return f"struct({', '.join(f'{side}.{field}' for field in fields)})"


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
    ask = _Queries(study, results.column_names)
    try:
        spark.createDataFrame(results.select(ask.needed)).createOrReplaceTempView("trials")
        frame = spark.sql(ask.runs).cache()  # for the queries to come
        try:
            frame.createOrReplaceTempView("runs")
            queries = (ask.by_arm, ask.pairs, ask.single, ask.reasons)
            pool = ThreadPoolExecutor(len(queries))  # small results: planning takes longer than running
            try:
                by_arm, pairs, single, reasons = pool.map(lambda query: spark.sql(query).collect(), queries)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # an interrupt does not wait for Spark
        finally:
            frame.unpersist()
    except PySparkException as error:
        raise RunError(f"Spark cannot aggregate {where}: {str(error).strip().splitlines()[0][:200]}") from error
    made: list[FigureResult[Any, Any]] = []
    for name in sorted({row.pool for row in by_arm}, key=lambda name: (name != study.pool, name)):
        runs = Runs(study, *([row for row in some if row.pool == name] for some in (by_arm, pairs, single)))
        for number in [figure] if figure else _shown(study, runs):
            made.append(_result(study.figures[number], name, runs, unusual, configurations))
    return FigureData(
        results=made,
        runs=sum(row.runs for row in by_arm),
        failed=sum(row.failed for row in by_arm),
        failures=_reasons(reasons),
        conclusions=conclude(study, made),
    )


def _reasons(rows: Iterable[Any]) -> dict[str, int]:
    """How many trials failed of a series for a reason, one line each; reasons that read the same count as one."""
    found: Counter[str] = Counter()
    for row in rows:
        found[f"{row.series}: {one_line(row.failed)[:200]}"] += row.runs
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
    """What the queries say about the pools of one name."""

    def __init__(self, study: Study, by_arm: Sequence[Any], pairs: Sequence[Any], single: Sequence[Any]) -> None:
        def arm(row: Any) -> Any:
            return study.arm(**{field: row[field] for field in study.arm.__struct_fields__})

        self.study = study
        self.by_arm: dict[Any, dict[int, Any]] = {}
        for row in by_arm:
            self.by_arm.setdefault(arm(row), {})[row.pool_seed] = row
        self.pairs: dict[tuple[Any, Any], dict[int, Any]] = {}
        for row in pairs:
            self.pairs.setdefault((arm(row.own), arm(row.other)), {})[row.pool_seed] = row
        self.single: dict[Any, dict[Place, float | None]] = {}
        self.levels: dict[Any, dict[Place, float]] = {}  # of those that finished
        for row in single:
            at = row.pool_seed, row.configuration
            self.single.setdefault(arm(row), {})[at] = row.speedup if study.base else row.level
            if row.level is not None:
                self.levels.setdefault(arm(row), {})[at] = row.level
        self.configurations = sorted({place for values in self.single.values() for place in values})
        self.setting = Setting.of(list(self.by_arm), study.usual)
        self.shown: list[Any] = []  # the arms of the figure that is being made

    def column(self, figure: Figure, arm: Any, name: str) -> Pooled | None:
        """A column of an arm's row in a figure."""
        kind = self.study.columns.get(name, "")
        if isinstance(kind, str):
            return pooled({seed: getattr(row, name) for seed, row in self.by_arm[arm].items()})
        if isinstance(kind, Relative):
            return self._by_usual(arm, kind.series)
        if not figure.shared or arm.series not in self.study.series:
            return None
        beside = [one for one in self.shown if one.series in self.study.series and _alike(one, arm, self.study.world)]
        places = set.intersection(*(set(self.levels.get(one, {})) for one in beside))
        return _mean_over(places, self.levels.get(arm, {}) if kind.value == "level" else self.single[arm])

    def _by_usual(self, arm: Any, series: str) -> Pooled | None:
        """An arm's mean level by that of a series as it usually is, in the same world; on what both finished."""
        shared = (*self.study.world, *self.study.beside)
        alike = [one for one in self.shown if one.series == series and _alike(one, arm, shared)]
        usual = next((one for one in alike if self.setting.keeps(one, shared)), None)
        if usual == arm:
            level = pooled({seed: row[self.study.level] for seed, row in self.by_arm[arm].items()})
            return None if level is None else level.map(lambda _: 1.0)
        return pooled({seed: 1 / row.level for seed, row in self.pairs.get((arm, usual), {}).items() if row.level})


def _alike(one: Arm, other: Arm, factors: Iterable[str]) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in factors)


def _mean_over(places: Iterable[Place], values: Mapping[Place, float | None]) -> Pooled | None:
    """The mean over these configurations, pool by pool."""
    by_pool: dict[int, list[float]] = {}
    for seed, configuration in sorted(places):
        value = values.get((seed, configuration))
        if value is not None:
            by_pool.setdefault(seed, []).append(value)
    return pooled({seed: fmean(known) for seed, known in by_pool.items()})


def _shown(study: Study, runs: Runs) -> list[str]:
    """The figures that these arms can show: each that varies something the sweep does, and the first that varies
    nothing where several series ran, or there is no other."""
    found, plain = [], None
    for number, figure in study.figures.items():
        kept = [arm for arm in runs.by_arm if runs.setting.keeps(arm, figure.varied) and arm.series != study.base]
        values = {getattr(arm, name) for arm in kept for name in figure.varied} - {None}
        if len(values) > 1:
            found.append(number)
        elif not figure.varied and plain is None:
            plain = number
    standard = {arm.series for arm in runs.by_arm if runs.setting.keeps(arm)} - {study.base}
    return ([plain] if plain and (len(standard) > 1 or not found) else []) + found


def _result(
    figure: Figure, pool: str, runs: Runs, unusual: Sequence[str], configurations: int | None
) -> FigureResult[Any, Any]:
    study, setting = runs.study, runs.setting
    arms = runs.shown = sorted((arm for arm in runs.by_arm if setting.keeps(arm, figure.varied)), key=study.order)
    made = [_row(figure, arm, runs) for arm in arms]
    ratios = [
        ratio
        for (own, other), pairs in runs.pairs.items()
        if own in arms and other in arms and figure.pairs(own, other, setting.keeps(other))
        if (ratio := _ratio(own, other, pairs))
    ]
    differences = [
        *unusual,
        *(f"{name} {at} instead of {study.usual[name]}" for name, at in setting.items() if at != study.usual[name]),
    ]
    result = study.result(
        figure=figure.number,
        pool=pool,
        title=figure.title,
        question=figure.question,
        pools=len({seed for seed, _ in runs.configurations}),
        expected=len(runs.configurations),
        comparable=not differences,
        rows=made,
        ratios=sorted(ratios, key=lambda one: _pair_order(study, one)),
        singles={
            row.label: [_rounded(runs.single[row.arm].get(place)) for place in runs.configurations]
            for row in made
            if figure.singles and row.arm.series != study.base
        },
        notes=_notes(figure, pool, made, runs, differences, configurations),
        **{name: at for name, at in setting.items() if name in study.result.__struct_fields__},
    )
    return msgspec.structs.replace(result, comparisons=compare(result), verdicts=judge(result))


def _pair_order(study: Study, ratio: Ratio[Any]) -> tuple[Any, ...]:
    return *(getattr(ratio.own, name) for name in study.world), study.order(ratio.own), study.order(ratio.other)


def _row(figure: Figure, arm: Arm, runs: Runs) -> Row[Any]:
    study, by_pool = runs.study, runs.by_arm[arm]
    count = sum(row.runs for row in by_pool.values())
    names = (study.level, "speedup", "median_speedup", "faster", *study.columns)
    row: Row[Any] = study.row(
        label=study.label(figure, arm),
        arm=arm,
        runs=count,
        failed=sum(row.failed for row in by_pool.values()),
        missing=len(runs.configurations) - count,
        **{name: runs.column(figure, arm, name) for name in names},
    )
    return row


def _ratio(own: Arm, other: Arm, pairs: Mapping[int, Any]) -> Ratio[Any] | None:
    names = ("median", "mean", "level", "faster", "slower")
    found: dict[str, Any] = {name: pooled({seed: row[name] for seed, row in pairs.items()}) for name in names}
    if any(value is None for name, value in found.items() if name != "mean"):
        return None
    return Ratio(own=own, other=other, configurations=sum(row.configurations for row in pairs.values()), **found)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


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
    begun = len(runs.configurations)
    if configurations is not None and begun < configurations:
        notes.append(f"unfinished: {begun} of {configurations} configurations begun")
    if missing := sum(row.missing for row in made):
        count = missing + sum(row.runs for row in made)
        notes.append(f"unfinished: {missing} of {count} runs {'is' if missing == 1 else 'are'} missing")
    if failed := sum(row.failed for row in made):
        notes.append("1 run failed and is left out" if failed == 1 else f"{failed} runs failed and are left out")
    if missing or failed:
        what = study.arm.__struct_fields__[0]
        notes.append(f"mean times are over what each {what} finished, ratios over what both did")
    swept = {arm.series for arm in figure.sweep.arms()}
    if study.base in swept and all(row.arm.series != study.base for row in made):
        notes.append(f"no {study.base}: no speed-ups")
    return [*notes, *study.notes(figure, made), *figure.notes]


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
        made_by = msgspec.json.decode(path.read_bytes(), type=_MadeBy)
        if (made_by.format, made_by.version) != (FORMAT, __version__):
            raise UsageError(
                f"{path} has format {made_by.format} of version {made_by.version or 'unknown'} instead of {FORMAT} of"
                f" {__version__}; {again}"
            )
        study = find_study(study_of(folder))
        found: FigureData[Any] = msgspec.json.decode(path.read_bytes(), type=FigureData[study.result])  # type: ignore[name-defined]
        return found
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; {again}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is damaged ({error}); {again}") from None


class _MadeBy(msgspec.Struct, frozen=True):
    """What tells whether the rest of a figures.json can be read."""

    format: int
    version: str = ""
