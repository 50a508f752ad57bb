"""Figures 6 to 10 of the paper, and our ablation: Spark SQL to figures per pool, then means between pools.

A run that failed or is missing is left out of every ratio and counted; a ratio is only taken on configurations that
both sides finished. What the figures are and what the paper says is in ``definitions``, the verdicts are in
``claims``, text in ``tables``, the pictures in ``plots``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from thalweg import __version__
from thalweg.experiments.papers.ranganathan1998.claims import compare, conclude, judge
from thalweg.experiments.papers.ranganathan1998.definitions import (
    ABLATION,
    FIGURES,
    FORMAT,
    OURS,
    PAPER_POOL,
    PAPER_SERVERS,
    PAPER_TREE,
    PERIODICAL,
    PLACEMENTS,
    TIE,
    WITH_K,
    Arm,
    Figure,
    FigureData,
    FigureResult,
    Grid,
    Pooled,
    Ratio,
    Row,
    label,
    pooled,
)
from thalweg.experiments.papers.ranganathan1998.tables import (
    cells,
    comparison_cells,
    heading,
    lines,
    print_figures,
    ratio_cells,
    table,
)
from thalweg.experiments.records.analysis import BASELINE, natural
from thalweg.experiments.sweeps.simulation import Simulation
from thalweg.experiments.sweeps.variants import VARIANTS
from thalweg.middleware.errors import RunError, UsageError, one_line
from thalweg.middleware.protocol.adaptation import PAPER_PERIOD_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "FIGURES", "Arm", "Figure", "FigureData", "FigureResult", "Grid", "aggregate", "cells", "comparison_cells",
    "conclude", "figure_data", "heading", "lines", "load_figures", "print_figures", "ratio_cells", "save_figures",
    "table",
]  # fmt: skip

FIGURES_JSON = "figures.json"
REASONS = 10  # different ones of failed runs that are kept
# must have one value in all runs of a figure, and for the paper's values to bind the one that the paper had
WORKLOAD = (
    "images", "interface", "startup_s", "disk_bytes_per_s", "pixel_s", "image_bytes", "image_deviation",
)  # fmt: skip
# must have one value for each placement, and for the paper's values to bind its placements the one that the paper had
OPTIONS = ("gate", "hysteresis", "cost", "view", "forecaster", "max_age_s")
COLUMNS = (
    "key", "pool", "pool_seed", "configuration", "placement", "servers", "tree", "period_s", "k", "failed",
    "mean_interarrival_s", "relocations", "variant", "bound_period_s", "predicted_s", "reshapings", "plans",
    "planning_s", "probe_bytes",
)  # fmt: skip

ARM = "placement, servers, tree, period_s, k, variant"
# period_s and k of a run that was given none are the defaults of its placement, if it is the paper's; of one that
# takes none, or is a variant's, null;
# a configuration that was run again after it failed counts once
RUNS = f"""
WITH known AS (
  SELECT key, pool, pool_seed, configuration, placement, servers, tree, failed, relocations, variant, bound_period_s,
         predicted_s, reshapings, plans, planning_s, probe_bytes,
         CASE WHEN variant <> '' THEN NULL
              WHEN placement IN ({{with_period}}) THEN coalesce(period_s, {{default_period_s}})
              WHEN placement IN ({{ours}}) THEN NULL ELSE period_s END AS period_s,
         CASE WHEN variant <> '' THEN NULL
              WHEN placement IN ({{with_k}}) THEN coalesce(k, 0)
              WHEN placement IN ({{ours}}) THEN NULL ELSE k END AS k,
         CASE WHEN failed IS NULL AND mean_interarrival_s > 0 AND mean_interarrival_s < double('infinity')
              THEN mean_interarrival_s END AS mean_s
  FROM simulations),
copies AS (
  SELECT *, row_number() OVER (PARTITION BY pool, pool_seed, configuration, {ARM}
                               ORDER BY mean_s IS NULL, key) AS copy
  FROM known)
SELECT runs.*, base.mean_s / runs.mean_s AS speedup
FROM (SELECT * FROM copies WHERE copy = 1) AS runs
LEFT JOIN (SELECT pool, pool_seed, configuration, servers, tree, mean_s FROM copies
           WHERE copy = 1 AND placement = '{BASELINE}' AND variant = '') AS base
USING (pool, pool_seed, configuration, servers, tree)
"""

BY_ARM = f"""
SELECT pool, pool_seed, {ARM}, count(*) AS runs, count_if(mean_s IS NULL) AS failed,
       avg(mean_s) AS interarrival_s, avg(speedup) AS speedup, percentile(speedup, 0.5) AS median_speedup,
       avg(CAST(speedup > {1 + TIE} AS double)) AS faster,
       avg(relocations) FILTER (WHERE mean_s IS NOT NULL) AS relocations,
       avg(reshapings) FILTER (WHERE mean_s IS NOT NULL) AS reshapings,
       avg(plans) FILTER (WHERE mean_s IS NOT NULL) AS plans,
       avg(planning_s / plans) FILTER (WHERE mean_s IS NOT NULL AND plans > 0) AS planning_s,
       avg(probe_bytes) FILTER (WHERE mean_s IS NOT NULL) AS probe_bytes,
       avg(bound_period_s) FILTER (WHERE mean_s IS NOT NULL) AS bound_s,
       avg(predicted_s) FILTER (WHERE mean_s IS NOT NULL) AS predicted_s
FROM runs GROUP BY pool, pool_seed, {ARM}
"""

# two arms on the same configurations: different placements or variants, or one placement with one thing changed
PAIRS = f"""
SELECT own.pool, own.pool_seed,
       struct(own.placement, own.servers, own.tree, own.period_s, own.k, own.variant) AS own,
       struct(other.placement, other.servers, other.tree, other.period_s, other.k, other.variant) AS other,
       count(*) AS configurations, percentile(other.mean_s / own.mean_s, 0.5) AS median,
       avg(own.speedup) FILTER (WHERE other.speedup IS NOT NULL)
         / avg(other.speedup) FILTER (WHERE own.speedup IS NOT NULL) AS mean,
       avg(other.mean_s) / avg(own.mean_s) AS interarrival,
       avg(CAST(own.mean_s * {1 + TIE} < other.mean_s AS double)) AS faster,
       avg(CAST(other.mean_s * {1 + TIE} < own.mean_s AS double)) AS slower
FROM runs AS own JOIN runs AS other
  ON own.pool = other.pool AND own.pool_seed = other.pool_seed AND own.configuration = other.configuration
  AND own.servers = other.servers
  AND CASE WHEN own.placement <> other.placement OR own.variant <> other.variant THEN own.tree = other.tree
           ELSE CAST(own.tree <> other.tree AS int) + CAST(NOT own.period_s <=> other.period_s AS int)
                + CAST(NOT own.k <=> other.k AS int) = 1 END
WHERE own.mean_s IS NOT NULL AND other.mean_s IS NOT NULL AND own.placement <> '{BASELINE}'
  AND other.placement <> '{BASELINE}'
GROUP BY ALL
"""

SINGLE = f"SELECT pool, pool_seed, configuration, {ARM}, mean_s, speedup FROM runs"

REASON = f"""
SELECT placement, coalesce(failed, 'it delivered too little to tell a time between images') AS failed, count(*) AS runs
FROM runs WHERE mean_s IS NULL GROUP BY ALL ORDER BY runs DESC, placement, failed LIMIT {REASONS}
"""


def aggregate(spark: SparkSession, folder: Path) -> FigureData:
    """The figures of a sweep folder, also written to its ``figures.json``.

    The figure is the one the sweep was made for; of a sweep for none, all that its results can show.
    Raises UsageError when there are no results, or they vary what no figure varies.
    """
    from thalweg.experiments.sweeps.sweep import load_results, load_sweep

    sweep = load_sweep(folder)
    data = figure_data(
        spark,
        load_results(folder),
        figure=sweep.figure if sweep.figure in FIGURES else None,
        configurations=sweep.configurations,
        where=str(folder),
    )
    save_figures(folder, data)
    return data


def figure_data(
    spark: SparkSession,
    results: pa.Table,
    *,
    figure: str | None = None,
    configurations: int | None = None,
    where: str = "the sweep",
) -> FigureData:
    """The figures in a table of simulations (all fields of ``Simulation`` and ``Simulated``, and ``key``).

    ``figure``: only this one; None: all that the results can show. ``configurations``: how many the sweep is to have
    of each pool's name, for the note that it is unfinished. Raises UsageError for a table that is empty or
    varies what no figure varies, RunError when Spark cannot read it.
    """
    from pyspark.errors import PySparkException

    if figure is not None and figure not in FIGURES:
        raise UsageError(f"figure {figure!r} is unknown; known are {', '.join(FIGURES)}")
    if not results.num_rows:
        raise UsageError(f"{where} has no results yet; run thalweg sweep on it first")
    unusual = _check_one_value(results, where)
    try:
        frame = _measured(spark, results)
        try:
            frame.createOrReplaceTempView("runs")
            queries = (BY_ARM, PAIRS, SINGLE, REASON)
            pool = ThreadPoolExecutor(len(queries))  # small results: planning takes longer than running
            try:
                by_arm, pairs, single, reasons = pool.map(lambda query: spark.sql(query).collect(), queries)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # an interrupt does not wait for Spark
        finally:
            frame.unpersist()
    except PySparkException as error:
        raise RunError(f"Spark cannot aggregate {where}: {str(error).strip().splitlines()[0][:200]}") from error
    made: list[FigureResult] = []
    for name in sorted({row.pool for row in by_arm}, key=lambda name: (name != PAPER_POOL, name)):
        rows = _Rows(*([row for row in some if row.pool == name] for some in (by_arm, pairs, single)))
        for number in [figure] if figure else _shown(rows.arms):
            made.append(_result(FIGURES[number], name, rows, unusual, configurations))
    return FigureData(
        results=made,
        runs=sum(row.runs for row in by_arm),
        failed=sum(row.failed for row in by_arm),
        failures=_reasons(reasons),
        conclusions=conclude(made),
    )


def _reasons(rows: Iterable[Any]) -> dict[str, int]:
    """How many runs failed of a placement for a reason, one line each; reasons that read the same count as one."""
    found: Counter[str] = Counter()
    for row in rows:
        found[f"{row.placement}: {one_line(row.failed)[:200]}"] += row.runs
    return dict(found.most_common())


def _measured(spark: SparkSession, results: pa.Table) -> DataFrame:
    """One row a run with its speed-up, kept in memory for the queries to come."""
    spark.createDataFrame(results.select(list(COLUMNS))).createOrReplaceTempView("simulations")
    query = RUNS.format(
        with_period=_quoted(PERIODICAL),
        with_k=_quoted(WITH_K),
        ours=_quoted(PLACEMENTS),
        default_period_s=f"CAST({PAPER_PERIOD_S} AS double)",
    )
    return spark.sql(query).cache()


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _check_one_value(results: pa.Table, where: str) -> list[str]:
    """What of the workload and of the options of the paper's placements is not as the paper had it.

    Raises UsageError for a field with several values.
    """
    groups = {None: results} | {
        name: results.filter(pc.equal(results["placement"], name))
        for name in pc.unique(results["placement"]).to_pylist()
    }
    for placement, rows in groups.items():
        for field in WORKLOAD if placement is None else OPTIONS:
            values = pc.unique(rows[field]).to_pylist()
            if len(values) > 1:
                of = "" if placement is None else f" of {placement}"
                listed = ", ".join(map(str, sorted(values, key=str)[:4]))
                raise UsageError(
                    f"{where} varies {field}{of} ({listed}), which no figure does;"
                    f" sweep each value into a folder of its own"
                )
    paper = Simulation()
    here = [name for name in PLACEMENTS[1:] if name in groups]  # options do not matter to download-all
    unusual = []
    for field in (*WORKLOAD, *OPTIONS):
        usual = getattr(paper, field)
        names = [None] if field in WORKLOAD else here
        values = {name: groups[name][field][0].as_py() for name in names}
        others = [name for name, value in values.items() if value != usual]
        alike = len(others) == len(values) and len(set(values.values())) == 1
        for name in others[:1] if alike else others:
            whose = "" if alike else f" of {name}"
            unusual.append(f"{field}{whose} {values[name]} instead of {'the default' if usual is None else usual}")
    return unusual


# --- one figure -------------------------------------------------------------------------------------


class _Rows:
    """What the queries say about the pools of one name."""

    def __init__(self, by_arm: Sequence[Any], pairs: Sequence[Any], single: Sequence[Any]) -> None:
        self.by_arm: dict[Arm, dict[int, Any]] = {}
        for row in by_arm:
            self.by_arm.setdefault(_arm(row), {})[row.pool_seed] = row
        self.pairs: dict[tuple[Arm, Arm], dict[int, Any]] = {}
        for row in pairs:
            self.pairs.setdefault((_arm(row.own), _arm(row.other)), {})[row.pool_seed] = row
        self.single: dict[Arm, dict[tuple[int, int], float | None]] = {}
        self.times: dict[Arm, dict[tuple[int, int], float]] = {}  # of those that finished
        for row in single:
            self.single.setdefault(_arm(row), {})[row.pool_seed, row.configuration] = row.speedup
            if row.mean_s is not None:
                self.times.setdefault(_arm(row), {})[row.pool_seed, row.configuration] = row.mean_s
        self.arms = list(self.by_arm)
        self.configurations = sorted({place for values in self.single.values() for place in values})


def _arm(row: Any) -> Arm:
    return Arm(row.placement, row.servers, row.tree, row.period_s, row.k, row.variant)


class _Setting(msgspec.Struct, frozen=True):
    """What holds where a figure does not vary it: the paper's value where the sweep has it, else its smallest."""

    servers: int
    tree: str
    period_s: float
    k: int

    @classmethod
    def of(cls, arms: Sequence[Arm]) -> _Setting:
        trees = sorted({arm.tree for arm in arms})
        return cls(
            servers=int(_usual([arm.servers for arm in arms], PAPER_SERVERS)),
            tree=PAPER_TREE if PAPER_TREE in trees else trees[0],
            period_s=_usual([arm.period_s for arm in arms], PAPER_PERIOD_S),
            k=int(_usual([arm.k for arm in arms], 0)),
        )

    def keeps(self, arm: Arm, *varied: str) -> bool:
        """Whether an arm differs from it in nothing but what is varied; what does not apply is no difference."""
        return (not arm.variant or "variant" in varied) and all(
            field in varied or getattr(arm, field) in (None, getattr(self, field)) for field in self.__struct_fields__
        )

    def differences(self) -> list[str]:
        paper = _Setting(PAPER_SERVERS, PAPER_TREE, PAPER_PERIOD_S, 0)
        return [
            f"{field} {getattr(self, field)} instead of {getattr(paper, field)}"
            for field in self.__struct_fields__
            if getattr(self, field) != getattr(paper, field)
        ]


def _usual(values: Iterable[float | None], preferred: float) -> float:
    known = {value for value in values if value is not None}
    return preferred if preferred in known or not known else min(known)


VARIED: Mapping[str, tuple[str, ...]] = {
    "6": (), "7": ("k",), "8": ("servers",), "9": ("period_s",), "10": ("tree",), ABLATION: ("variant",),
}  # fmt: skip


def _shown(arms: Sequence[Arm]) -> list[str]:
    """The figures that these arms can show: each that varies something the sweep does, else the sixth."""
    setting = _Setting.of(arms)
    found = []
    for number, varied in VARIED.items():
        kept = [arm for arm in arms if setting.keeps(arm, *varied) and arm.placement != BASELINE]
        values = {getattr(arm, name) for arm in kept for name in varied} - {None}
        if len(values) > 1:
            found.append(number)
    standard = {arm.placement for arm in arms if setting.keeps(arm)} - {BASELINE}
    return (["6"] if len(standard) > 1 or not found else []) + found


def _result(figure: Figure, pool: str, rows: _Rows, unusual: Sequence[str], configurations: int | None) -> FigureResult:
    setting, varied = _Setting.of(rows.arms), VARIED[figure.number]
    arms = sorted((arm for arm in rows.arms if setting.keeps(arm, *varied)), key=_order)
    made = [_row(figure.number, arm, arms, rows, setting) for arm in arms]
    differences = [*unusual, *setting.differences()]
    result = FigureResult(
        figure=figure.number,
        pool=pool,
        title=figure.title,
        question=figure.question,
        pools=len({seed for seed, _ in rows.configurations}),
        expected=len(rows.configurations),
        servers=setting.servers,
        tree=setting.tree,
        period_s=setting.period_s,
        k=setting.k,
        comparable=not differences,
        rows=made,
        ratios=[
            ratio
            for (own, other), pairs in rows.pairs.items()
            if own in arms and other in arms and _wanted(figure.number, own, other, setting)
            if (ratio := _ratio(own, other, pairs))
        ],
        speedups={
            row.label: [_rounded(rows.single[row.arm].get(place)) for place in rows.configurations]
            for row in made
            if figure.number in ("6", "10") and row.arm.placement != BASELINE
        },
        notes=_notes(figure, pool, made, rows, setting, differences, configurations),
    )
    result = msgspec.structs.replace(result, ratios=sorted(result.ratios, key=lambda one: _pair_order(one)))
    return msgspec.structs.replace(result, comparisons=compare(result), verdicts=judge(result))


def _order(arm: Arm) -> tuple[Any, ...]:
    names = (*PLACEMENTS, *OURS)
    known = names.index(arm.placement) if arm.placement in names else len(names)
    of_ours = list(VARIANTS).index(arm.variant) if arm.variant in VARIANTS else -1
    return of_ours, known, natural(arm.placement), arm.servers, arm.tree, arm.period_s or 0.0, arm.k or 0


def _pair_order(ratio: Ratio) -> tuple[Any, ...]:
    return ratio.own.servers, _order(ratio.own), _order(ratio.other)


def _wanted(number: str, own: Arm, other: Arm, setting: _Setting) -> bool:
    """The pairs that a figure compares: placements, or one placement against its usual k, period or other tree."""
    if number == ABLATION:
        return own != other and other.placement in ("global", "thalweg") and not other.variant
    if number in ("6", "8"):
        return own.placement != other.placement
    if own.placement != other.placement:
        return False
    return own.tree == PAPER_TREE if number == "10" else setting.keeps(other)


def _row(number: str, arm: Arm, arms: Sequence[Arm], rows: _Rows, setting: _Setting) -> Row:
    pools = rows.by_arm[arm]
    shared = _shared(arm, arms, rows) if number in ("6", "8") else set()

    def over(field: str) -> Pooled | None:
        return pooled({seed: getattr(row, field) for seed, row in pools.items()})

    runs = sum(row.runs for row in pools.values())
    return Row(
        label=label(number, arm),
        arm=arm,
        runs=runs,
        failed=sum(row.failed for row in pools.values()),
        missing=len(rows.configurations) - runs,
        interarrival_s=over("interarrival_s"),
        speedup=over("speedup"),
        median_speedup=over("median_speedup"),
        faster=over("faster"),
        relocations=over("relocations"),
        of_global=_of("global", arm, arms, rows, setting),
        of_thalweg=_of("thalweg", arm, arms, rows, setting),
        bound_s=over("bound_s"),
        predicted_s=over("predicted_s"),
        reshapings=over("reshapings"),
        plans=over("plans"),
        planning_s=over("planning_s"),
        probe_bytes=over("probe_bytes"),
        shared_s=_mean_over(shared, rows.times.get(arm, {})),
        shared_speedup=_mean_over(shared, rows.single[arm]),
    )


def _of(placement: str, arm: Arm, arms: Sequence[Arm], rows: _Rows, setting: _Setting) -> Pooled | None:
    """An arm's time between images by that of a placement as it usually is, on as many servers and the same tree."""
    alike = (one for one in arms if (one.placement, one.servers, one.tree) == (placement, arm.servers, arm.tree))
    usual = next((one for one in alike if setting.keeps(one, "servers", "tree")), None)
    if usual is None:
        return None
    if usual == arm:
        return pooled({seed: 1.0 for seed, row in rows.by_arm[arm].items() if row.interarrival_s is not None})
    pairs = rows.pairs.get((arm, usual), {})
    return pooled({seed: 1 / row.interarrival for seed, row in pairs.items() if row.interarrival})


def _shared(arm: Arm, arms: Sequence[Arm], rows: _Rows) -> set[tuple[int, int]]:
    """Configurations that every one of the paper's placements with as many servers finished; none of others."""
    if arm.placement not in PLACEMENTS:
        return set()
    beside = [one for one in arms if one.placement in PLACEMENTS and one.servers == arm.servers]
    return set.intersection(*(set(rows.times.get(one, {})) for one in beside))


def _mean_over(places: Iterable[tuple[int, int]], values: Mapping[tuple[int, int], float | None]) -> Pooled | None:
    """The mean over these configurations, pool by pool."""
    by_pool: dict[int, list[float]] = {}
    for place in sorted(places):
        value = values.get(place)
        if value is not None:
            by_pool.setdefault(place[0], []).append(value)
    return pooled({seed: fmean(known) for seed, known in by_pool.items()})


def _ratio(own: Arm, other: Arm, pairs: Mapping[int, Any]) -> Ratio | None:
    parts = {
        field: pooled({seed: getattr(row, field) for seed, row in pairs.items()})
        for field in ("median", "mean", "interarrival", "faster", "slower")
    }
    median, interarrival, faster, slower = (parts[name] for name in ("median", "interarrival", "faster", "slower"))
    if median is None or interarrival is None or faster is None or slower is None:
        return None
    count = sum(row.configurations for row in pairs.values())
    return Ratio(
        own=own, other=other, configurations=count, median=median, mean=parts["mean"], interarrival=interarrival,
        faster=faster, slower=slower,
    )  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _notes(
    figure: Figure, pool: str, made: Sequence[Row], rows: _Rows, setting: _Setting, differences: Sequence[str],
    configurations: int | None,
) -> list[str]:  # fmt: skip
    notes = []
    if len({seed for seed, _ in rows.configurations}) == 1:
        notes.append("one pool: no spread")
    if pool != PAPER_POOL and figure.claims:
        notes.append(f"pool {pool}: the paper's values are no target")
    if differences and figure.claims:
        notes.append(f"not as the paper ran it ({', '.join(differences)}): its values are no target")
    there = {_at(row.arm, setting, VARIED[figure.number]) for row in made}
    wanted = [_at(arm, setting, VARIED[figure.number]) for arm in figure.sweep.arms()]
    absent = [label(figure.number, arm) for arm in wanted if arm not in there]
    if absent:
        notes.append(f"not in the results: {'; '.join(absent)}")
    begun = len(rows.configurations)
    if configurations is not None and begun < configurations:
        notes.append(f"unfinished: {begun} of {configurations} configurations begun")
    if missing := sum(row.missing for row in made):
        runs = missing + sum(row.runs for row in made)
        notes.append(f"unfinished: {missing} of {runs} runs {'is' if missing == 1 else 'are'} missing")
    if failed := sum(row.failed for row in made):
        notes.append("1 run failed and is left out" if failed == 1 else f"{failed} runs failed and are left out")
    if missing or failed:
        notes.append("mean times are over what each placement finished, ratios over what both did")
    if all(row.arm.placement != BASELINE for row in made) and BASELINE in figure.sweep.placements:
        notes.append(f"no {BASELINE}: no speed-ups")
    notes += _bounds(made)
    if figure.number == "10":
        notes.append(f"speed-ups are over {BASELINE} with the same tree")
    return notes


def _bounds(made: Sequence[Row]) -> list[str]:
    """What no mixture of trees beats, by the number of servers: the mean over the arms, which ran for longer or less
    long on the same links."""
    by_servers: dict[int, list[float]] = {}
    for row in made:
        if row.bound_s is not None and row.arm.variant not in VARIANTS:
            by_servers.setdefault(row.arm.servers, []).append(row.bound_s.mean)
    told = [f"{fmean(values):.1f} s at {servers} servers" for servers, values in sorted(by_servers.items())]
    return [f"no mixture of trees has less between images than {', '.join(told)} (bound, mean)"] if told else []


def _at(arm: Arm, setting: _Setting, varied: Sequence[str]) -> Arm:
    """An arm of a figure's grid as the results have it: what the figure does not vary is as in the setting."""
    placement = arm.placement
    periodical = placement in PERIODICAL and not arm.variant
    return Arm(
        placement=placement,
        variant=arm.variant,
        servers=arm.servers if "servers" in varied else setting.servers,
        tree=arm.tree if "tree" in varied else setting.tree,
        period_s=arm.period_s if "period_s" in varied else setting.period_s if periodical else None,
        k=(arm.k if "k" in varied else setting.k) if placement in WITH_K else None,
    )


# --- files ------------------------------------------------------------------------------------------


def save_figures(folder: Path, data: FigureData) -> Path:
    """Write ``folder/figures.json``, whole or not at all; RunError when it cannot be."""
    target, part = folder / FIGURES_JSON, folder / f".{FIGURES_JSON}.{os.getpid()}"
    try:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")
        part.replace(target)
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror or error}; make {folder} writable") from error
    return target


def load_figures(folder: Path) -> FigureData:
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
        return msgspec.json.decode(path.read_bytes(), type=FigureData)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; {again}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is damaged ({error}); {again}") from None


class _MadeBy(msgspec.Struct, frozen=True):
    """What tells whether the rest of a figures.json can be read."""

    format: int
    version: str = ""
