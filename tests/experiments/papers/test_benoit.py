"""Figures and Table 2 of Benoit et al. on a few trees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from thalweg.experiments.papers.aggregation import figure_data
from thalweg.experiments.papers.benoit2008.instances import drawn
from thalweg.experiments.papers.benoit2008.points import ALPHAS, Platform, at, thresholds
from thalweg.experiments.papers.benoit2008.renting import CHEAPEST, OPTIMUM, SUBTREE, Renting, rent
from thalweg.experiments.papers.benoit2008.study import STUDY
from thalweg.experiments.papers.plots import plot_figures
from thalweg.experiments.papers.study import FigureData
from thalweg.experiments.papers.tables import cells, print_figures
from thalweg.experiments.sweeps.results import row, schema
from thalweg.middleware.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def swept(
    spark: SparkSession, number: str, folder: Path, trees: int = 1, of: Callable[[Platform], bool] = lambda arm: True
) -> FigureData[Any]:
    """Return a figure's results on this number of trees of the selected arms, and draw the figure."""
    trials = [
        Renting(pool_seed=tree, **msgspec.structs.asdict(arm))
        for tree in range(trees)
        for arm in STUDY.figures[number].sweep.arms()
        if isinstance(arm, Platform) and of(arm)
    ]
    results = pa.Table.from_pylist([row(trial, rent(trial)) for trial in trials], schema=schema(Renting))
    data = figure_data(spark, results, STUDY, figure=number)
    assert [path.name for path in plot_figures(data, folder)] == [f"figure-{number}.png"]
    return data


def verdicts(data: FigureData[Any]) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in data.results[0].verdicts}


@pytest.mark.long
@pytest.mark.spark
def test_cost_rises_and_platforms_end_at_thresholds_of_alpha(spark_session: SparkSession, tmp_path: Path) -> None:
    data = swept(spark_session, "benoit-3", tmp_path, of=lambda arm: arm.nodes == 20 or arm.alpha < 1)
    (result,) = data.results
    rises, second, ends = thresholds(result, 20).values()
    assert 1.4 < rises.mean < second.mean < ends.mean < 2.3
    last = ALPHAS[ALPHAS.index(ends.mean) - 1]
    shares = {item: at(CHEAPEST, "found", {"nodes": 20, "alpha": item})(result).mean for item in (last, ends.mean)}
    assert shares == {last: 100.0, ends.mean: 0.0}
    # a tree without a platform is no failure
    assert (data.failed, data.failures, sum(row.failed for row in result.rows)) == (0, {}, 0)
    assert verdicts(data)["flat-20"] == "holds" and verdicts(data)["flat-60"] == "not tested"
    ours = {item.name: item.ours for item in result.comparisons}
    assert ours["α with no platform, N = 20"].mean == ends.mean and ours["α with no platform, N = 60"] is None


@pytest.mark.spark
def test_the_second_half_of_table_2_is_the_low_rate(spark_session: SparkSession, tmp_path: Path) -> None:
    data = swept(spark_session, "benoit-table2", tmp_path, of=lambda arm: arm.nodes in (115, 119))
    assert {verdicts(data)[claim] for claim in ("heads", "needless")} == {"holds"}
    papers = {comparison.name: comparison.paper for comparison in data.results[0].comparisons}
    assert papers["Comm, N = 116, 1/2 s"] == 15_495 and papers["Subtree, N = 119, 1/50 s"] == 8_745
    heads, rows = cells(data.results[0])
    assert heads[:2] == ["N, objects, f", "cheapest $"] and rows[0][0] == "115, big, 1/2"
    print_figures(data)


@pytest.mark.long
@pytest.mark.spark
def test_costs_of_heuristics_stand_beside_the_optimum(spark_session: SparkSession, tmp_path: Path) -> None:
    data = swept(spark_session, "benoit-9", tmp_path, 2, lambda arm: arm.sizes == "small" and arm.nodes in (20, 30))
    (result,) = data.results
    times = [figure_row.value("over_optimum") for figure_row in result.rows]
    assert all(value.mean >= 1 - 1e-9 for value in times if value)
    where = {"nodes": 30, "alpha": 0.9, "sizes": "small", "machines": "one"}
    assert at(CHEAPEST, "tied_subtree_bottom_up", where)(result).mean == 100
    for alpha in (0.9, 1.8):
        point = {"nodes": 30, "alpha": alpha, "sizes": "small", "machines": "one"}
        assert at(OPTIMUM, "proven", point)(result).mean == 100
        assert at(OPTIMUM, "cost", point)(result).mean <= at(CHEAPEST, "cost", point)(result).mean
    assert verdicts(data)["optimal"] == "holds" and verdicts(data)["fails"] == "not tested"


def test_every_pool_has_trees_of_a_different_form() -> None:
    instances = {pool: drawn(Renting(nodes=21, pool=pool).drawing, np.random.default_rng(1)) for pool in STUDY.pools}
    assert [instance.count for instance in instances.values()] == [10, 21, 10, 10]
    assert max(map(len, instances["left-deep"].children)) == 1 and max(map(len, instances["n-ary"].leaves)) > 2


def test_a_heuristic_without_an_answer_names_the_scarce_resource() -> None:
    assert rent(Renting(nodes=60, alpha=2.2)).short == "machines"
    assert rent(Renting(nodes=60, alpha=2.2, heuristic=CHEAPEST)).subtree == "machines"
    assert rent(Renting(nodes=25, sizes="big", copies=1, configuration=5)).short == "servers"
    assert rent(Renting(heuristic=SUBTREE)).dollars == rent(Renting(heuristic=OPTIMUM)).dollars
    with pytest.raises(UsageError, match="'greedy' is no heuristic of this study"):
        rent(Renting(heuristic="greedy"))
