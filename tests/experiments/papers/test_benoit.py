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
    """A figure's results on so many trees of those of its arms, drawn as well."""
    trials = [
        Renting(pool_seed=tree, **msgspec.structs.asdict(arm))
        for tree in range(trees)
        for arm in STUDY.figures[number].sweep.arms()
        if isinstance(arm, Platform) and of(arm)
    ]
    made = pa.Table.from_pylist([row(trial, rent(trial)) for trial in trials], schema=schema(Renting))
    data = figure_data(spark, made, STUDY, figure=number)
    assert [path.name for path in plot_figures(data, folder)] == [f"figure-{number}.png"]
    return data


def verdicts(data: FigureData[Any]) -> dict[str, str]:
    return {one.claim: one.verdict for one in data.results[0].verdicts}


@pytest.mark.long
@pytest.mark.spark
def test_cost_rises_and_platforms_end_where_alpha_does_it(spark_session: SparkSession, tmp_path: Path) -> None:
    data = swept(spark_session, "benoit-3", tmp_path, of=lambda arm: arm.nodes == 20 or arm.alpha < 1)
    (result,) = data.results
    rises, second, ends = thresholds(result, 20).values()
    assert 1.4 < rises.mean < second.mean < ends.mean < 2.3
    last = ALPHAS[ALPHAS.index(ends.mean) - 1]
    found = {one: at(CHEAPEST, "found", {"nodes": 20, "alpha": one})(result).mean for one in (last, ends.mean)}
    assert found == {last: 100.0, ends.mean: 0.0}
    # a tree without a platform is no failure
    assert (data.failed, data.failures, sum(row.failed for row in result.rows)) == (0, {}, 0)
    assert verdicts(data)["flat-20"] == "holds" and verdicts(data)["flat-60"] == "not tested"
    ours = {one.name: one.ours for one in result.comparisons}
    assert ours["α with no platform, N = 20"].mean == ends.mean and ours["α with no platform, N = 60"] is None


@pytest.mark.spark
def test_the_second_half_of_table_2_is_the_low_rate(spark_session: SparkSession, tmp_path: Path) -> None:
    data = swept(spark_session, "benoit-table2", tmp_path, of=lambda arm: arm.nodes in (115, 119))
    assert {verdicts(data)[claim] for claim in ("heads", "needless")} == {"holds"}
    papers = {one.name: one.paper for one in data.results[0].comparisons}
    assert papers["Comm, N = 116, 1/2 s"] == 15_495 and papers["Subtree, N = 119, 1/50 s"] == 8_745
    heads, rows = cells(data.results[0])
    assert heads[:2] == ["N, objects, f", "cheapest $"] and rows[0][0] == "115, big, 1/2"
    print_figures(data)


@pytest.mark.long
@pytest.mark.spark
def test_what_heuristics_pay_is_beside_the_optimum(spark_session: SparkSession, tmp_path: Path) -> None:
    data = swept(spark_session, "benoit-9", tmp_path, 2, lambda arm: arm.sizes == "small" and arm.nodes in (20, 30))
    (result,) = data.results
    times = [one.value("over_optimum") for one in result.rows]
    assert all(value.mean >= 1 - 1e-9 for value in times if value)
    where = {"nodes": 30, "alpha": 0.9, "sizes": "small", "machines": "one"}
    assert at(CHEAPEST, "tied_subtree_bottom_up", where)(result).mean == 100
    for alpha in (0.9, 1.8):
        point = {"nodes": 30, "alpha": alpha, "sizes": "small", "machines": "one"}
        assert at(OPTIMUM, "proven", point)(result).mean == 100
        assert at(OPTIMUM, "cost", point)(result).mean <= at(CHEAPEST, "cost", point)(result).mean
    assert verdicts(data)["optimal"] == "holds" and verdicts(data)["fails"] == "not tested"


def test_pools_are_of_other_trees() -> None:
    made = {pool: drawn(Renting(nodes=21, pool=pool).drawing, np.random.default_rng(1)) for pool in STUDY.pools}
    assert [one.count for one in made.values()] == [10, 21, 10, 10]
    assert max(map(len, made["left-deep"].children)) == 1 and max(map(len, made["n-ary"].leaves)) > 2


def test_who_finds_none_says_what_was_short() -> None:
    assert rent(Renting(nodes=60, alpha=2.2)).short == "machines"
    assert rent(Renting(nodes=60, alpha=2.2, heuristic=CHEAPEST)).subtree == "machines"
    assert rent(Renting(nodes=25, sizes="big", copies=1, configuration=5)).short == "servers"
    assert rent(Renting(heuristic=SUBTREE)).dollars == rent(Renting(heuristic=OPTIMUM)).dollars
    with pytest.raises(UsageError, match="'greedy' is no heuristic of this study"):
        rent(Renting(heuristic="greedy"))
