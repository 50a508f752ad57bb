"""Table 1 and Figures 8 and 9 of Pietzuch et al. on a few queries of two topologies of each kind; Figure 12."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from thalweg.experiments.papers.aggregation import figure_data
from thalweg.experiments.papers.pietzuch2006.choosing.choosing import OURS as OURS_CHOOSE
from thalweg.experiments.papers.pietzuch2006.choosing.choosing import PLACEMENTS as CHOSEN_BY
from thalweg.experiments.papers.pietzuch2006.choosing.choosing import Choosing, choose
from thalweg.experiments.papers.pietzuch2006.choosing.study import STUDY as CHOOSING
from thalweg.experiments.papers.pietzuch2006.coordinates.embedding import SERIES, Embedding, embed, matrix, scatter
from thalweg.experiments.papers.pietzuch2006.coordinates.study import STUDY as COORDINATES
from thalweg.experiments.papers.pietzuch2006.migration.migrating import Migrating, known, migrate
from thalweg.experiments.papers.pietzuch2006.migration.study import STUDY as MIGRATION
from thalweg.experiments.papers.pietzuch2006.migration.study import change
from thalweg.experiments.papers.pietzuch2006.placing import OURS, PLACEMENTS, Placing, place
from thalweg.experiments.papers.pietzuch2006.reuse.sharing import Shared, Sharing, draw_ends, grouped, share, shares_of
from thalweg.experiments.papers.pietzuch2006.reuse.study import STUDY as REUSE
from thalweg.experiments.papers.pietzuch2006.reuse.study import change as saved
from thalweg.experiments.papers.pietzuch2006.running.pool import name_of, network_of, run_shares, space
from thalweg.experiments.papers.pietzuch2006.study import DELAY, PUBLISHED, STUDY, USAGE
from thalweg.experiments.papers.plots import plot_figures
from thalweg.experiments.papers.study import FigureResult
from thalweg.experiments.sweeps.results import row, schema
from thalweg.middleware.errors import RunError, UsageError
from thalweg.middleware.network.view import Link

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = 25


@pytest.fixture(scope="module")
def results() -> pa.Table:
    made = []
    for pool, pool_seeds in {"paper": (1, 2), "gt-itm": (1,)}.items():
        for pool_seed in pool_seeds:
            for configuration in range(QUERIES):
                for placement in (*PLACEMENTS, *OURS):
                    one = Placing(pool=pool, pool_seed=pool_seed, configuration=configuration, placement=placement)
                    made.append(row(one, place(one)))
    return pa.Table.from_pylist(made, schema=schema(Placing))


def figure(spark: SparkSession, results: pa.Table, number: str) -> dict[str, FigureResult[Any, Any]]:
    """By pool."""
    return {one.pool: one for one in figure_data(spark, results, STUDY, figure=number).results}


@pytest.mark.long
@pytest.mark.spark
def test_penalties_are_about_those_of_table_1_and_ours_are_below_them(
    spark_session: SparkSession, results: pa.Table, tmp_path: Path
) -> None:
    found = figure(spark_session, results, "sbon-table1")
    for pool, result in found.items():
        usage = {name: result.value(name, USAGE).mean for name in (*PLACEMENTS, *OURS)}
        assert usage["optimal"] == 0 == result.value("consumer", DELAY).mean
        assert usage["cost-space"] < 5
        assert usage["cost-space"] <= usage["estimates-only"] < usage["relaxation"]
        assert usage["at-rest"] == pytest.approx(usage["relaxation"], abs=3)
        assert abs(result.value("ip-multicast", DELAY).mean) < 1
        for name, paper in PUBLISHED[USAGE].items():
            if (pool, name) != ("gt-itm", "relaxation"):
                assert usage[name] == pytest.approx(paper, abs=22)
    verdicts = {one.claim: one.verdict for one in found["paper"].verdicts}
    assert verdicts["cost-space-1"] == "holds"
    assert {one.claim: one.verdict for one in found["gt-itm"].verdicts}["usage"] == "not tested"  # no target there
    data = figure_data(spark_session, results, STUDY, figure="sbon-table1")
    assert [path.stat().st_size > 10_000 for path in plot_figures(data, tmp_path)] == [True, True]


@pytest.mark.long
@pytest.mark.spark
def test_distributions_are_of_single_queries(spark_session: SparkSession, results: pa.Table, tmp_path: Path) -> None:
    usage = figure(spark_session, results, "sbon-8")["paper"]
    assert {name: len(each) for name, each in usage.singles.items()} == dict.fromkeys((*PLACEMENTS, *OURS), 2 * QUERIES)
    (eightieth,) = usage.verdicts
    beside = {one.name: (one.paper, one.ours and one.ours.mean) for one in usage.comparisons}
    assert beside["producer, 80 %"] == (48, eightieth.numbers["producer"])
    assert 0 < eightieth.numbers["relaxation"] < eightieth.numbers["producer"]
    delay = figure(spark_session, results, "sbon-9")["paper"]
    assert set(delay.singles["consumer"]) == {0.0}
    (below,) = delay.verdicts
    assert [one.ours and one.ours.mean for one in delay.comparisons] == [
        pytest.approx(100 * below.numbers[name]) for name in ("optimal", "relaxation")
    ]
    assert 0 <= below.numbers["relaxation"] <= below.numbers["optimal"] < 0.5, below.numbers
    for number in ("sbon-8", "sbon-9"):
        data = figure_data(spark_session, results, STUDY, figure=number)
        assert [path.stat().st_size > 10_000 for path in plot_figures(data, tmp_path)] == [True, True]


def test_what_is_not_of_this_study_is_named() -> None:
    for given, says in (
        ({"placement": "relaxed"}, "'relaxed' is no placement of this study; did you mean 'relaxation'?"),
        ({"operators": 2}, "operators is 2; this study has queries with 1 or 3"),
        ({"pool": "waxman"}, "'waxman' is no topology"),
    ):
        with pytest.raises(UsageError, match=says.replace("?", r"\?")):
            place(msgspec.convert(given, Placing))


@pytest.fixture
def collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A series in which the way between any two hosts is long in half of every hundred slices, each at its own time."""
    random, hosts = np.random.default_rng(1), [f"n{number}" for number in range(8)]
    pairs = [f"{one}-{other}" for one, other in itertools.combinations(hosts, 2)]
    begins = random.integers(0, 100, len(pairs))
    base_ms, at = random.uniform(40, 60, len(pairs)), np.arange(300)[:, None]
    round_trips = base_ms * np.where((at + begins) % 100 < 50, 1.0, 6.0) * random.uniform(1.0, 1.3, (300, len(pairs)))
    folder = tmp_path / "traces" / "latency" / "series"
    folder.mkdir(parents=True)
    rows = [",".join([str(slice_), *(f"{each:.3f}" for each in row)]) for slice_, row in enumerate(round_trips)]
    (folder / "made.csv").write_text("\n".join([",".join(["slice", *pairs]), *rows]))
    spiky = base_ms * (1 + random.exponential(1.0, (300, len(pairs))) ** 2)
    rows = [",".join([str(slice_), *(f"{each:.3f}" for each in row)]) for slice_, row in enumerate(spiky)]
    (folder / f"{SERIES}.csv").write_text("\n".join([",".join(["slice", *pairs]), *rows]))
    places = random.random((90, 2))
    away_ms = 200 * np.sqrt(((places[:, None] - places[None]) ** 2).sum(2)) + 1
    lines = [",".join([f"m{one}", *(f"{each:.2f}" for each in row)]) for one, row in enumerate(away_ms)]
    square = [",".join(["node", *(f"m{one}" for one in range(90))]), *lines]
    (folder.parent / "square.csv").write_text("\n".join(square))
    monkeypatch.setenv("THALWEG_TRACES", str(tmp_path / "traces"))
    for cached in (known, matrix, scatter, space):
        cached.cache_clear()
    return "made"


@pytest.mark.long
@pytest.mark.spark
def test_queries_whose_operators_move_use_less_while_latencies_change(
    spark_session: SparkSession, collection: str, tmp_path: Path
) -> None:
    made = []
    for pool_seed, configuration, arm in itertools.product(
        (1, 2), range(12), MIGRATION.figures["sbon-12"].sweep.arms()
    ):
        one = Migrating(
            pool=collection, pool_seed=pool_seed, configuration=configuration, **msgspec.structs.asdict(arm)
        )
        made.append(row(one, migrate(one)))
    table = pa.Table.from_pylist(made, schema=schema(Migrating))
    data = figure_data(spark_session, table, MIGRATION, figure="sbon-12")
    (result,) = data.results
    for placement in ("relaxation", "cost-space"):
        assert change(placement, "usage")(result).mean < -5
        assert change(placement, "lower")(result).mean > 50
        assert change(placement, "moves")(result).mean > 1
        stays = result.arm(placement, moves=False)
        assert result.row(stays).value("relocations").mean == 0
    own = [change("relaxation", name)(result) for name in ("usage", "lower", "moves", "delay")]
    assert [(one.paper, one.ours, one.within) for one in result.comparisons] == [
        (paper, ours, None) for paper, ours in zip((-16.9, 75.0, 3.5, -10.5), own, strict=True)
    ]
    assert result.value("cost-space", "usage").mean < result.value("relaxation", "usage").mean
    assert all(verdict.verdict != "not tested" for verdict in result.verdicts)
    assert [path.name for path in plot_figures(data, tmp_path)] == ["figure-sbon-12.png"]


@pytest.mark.long
@pytest.mark.spark
def test_hosts_find_coordinates_and_the_filter_steadies_them(
    spark_session: SparkSession, collection: str, tmp_path: Path
) -> None:
    made, arms = [], [arm for arm in COORDINATES.figures["sbon-5"].sweep.arms() if arm.rounds in (50, 1600)]
    for pool_seed, arm in itertools.product((1, 2), arms):
        one = Embedding(pool="square", pool_seed=pool_seed, **msgspec.structs.asdict(arm))
        made.append(row(one, embed(one)))
    table = pa.Table.from_pylist(made, schema=schema(Embedding))
    data = figure_data(spark_session, table, COORDINATES, figure="sbon-5")
    (result,) = data.results
    assert {one.claim: one.verdict for one in result.verdicts}["nine"] == "holds"

    def at(samples: str, rounds: int, column: str) -> float:
        return result.value("plain", column, samples=samples, rounds=rounds).mean

    assert at("medians", 1600, "error") < 4 < at("medians", 50, "error")
    assert at("filtered", 1600, "moved_ms") < 0.7 * at("scattered", 1600, "moved_ms")
    assert at("filtered", 1600, "error") < 0.7 * at("scattered", 1600, "error")
    assert [path.name for path in plot_figures(data, tmp_path)] == ["figure-sbon-5.png"]
    with pytest.raises(UsageError, match="samples is 'raw'"):
        embed(Embedding(pool="square", samples="raw"))


def shared(pool: str, **given: Any) -> tuple[Sharing, Shared]:
    one = Sharing(pool=pool, **given)
    return one, share(one)


@pytest.mark.long
@pytest.mark.spark
def test_queries_that_share_operators_use_less_and_get_the_same(
    spark_session: SparkSession, collection: str, tmp_path: Path
) -> None:
    arms = [msgspec.structs.asdict(arm) for arm in REUSE.figures["sbon-13"].sweep.arms()]
    made = [shared("square", testbed="sim", pool_seed=seed, **arm) for seed, arm in itertools.product((1, 2, 3), arms)]
    for one, found in made:
        assert found.usage_bytes == pytest.approx(found.planned_bytes, rel=0.01), one
        assert found.equal
        assert (found.sharing > 1) <= one.reuse
    table = pa.Table.from_pylist([row(*each) for each in made], schema=schema(Sharing))
    data = figure_data(spark_session, table, REUSE, figure="sbon-13")
    (result,) = data.results
    verdicts = {one.claim: one.verdict for one in result.verdicts}
    assert verdicts["cost-space-usage"] == verdicts["cost-space-shared"] == verdicts["equal"] == "holds"
    assert result.comparisons[0].ours == saved("relaxation")(result)
    assert [path.name for path in plot_figures(data, tmp_path)] == ["figure-sbon-13.png"]
    some = [row(one, msgspec.structs.replace(found, equal=one.reuse)) for one, found in made]
    (result,) = figure_data(spark_session, pa.Table.from_pylist(some, schema=schema(Sharing)), REUSE).results
    assert {one.claim: one.verdict for one in result.verdicts}["equal"] == "does not hold"


@pytest.mark.long
@pytest.mark.netns
def test_data_of_shared_operators_flows_between_namespaces_as_planned(collection: str) -> None:
    _, found = shared("square", placement="cost-space", pool_seed=1)
    assert found.equal
    assert found.relocations
    assert found.usage_bytes == pytest.approx(found.planned_bytes, rel=0.05)
    assert found.carried_bytes is not None
    assert found.usage_bytes is not None
    assert found.usage_bytes < found.carried_bytes < 1.5 * found.usage_bytes


def test_what_was_seen_of_queries_tells_wrong_ones_and_restless_ones(collection: str) -> None:
    at, trial = space("square"), Sharing(pool="square", testbed="sim")
    producers, consumers = draw_ends(at.latency_s, np.random.default_rng(1))
    shares = shares_of(trial, at, producers, consumers, grouped(trial, at, producers, consumers))
    hosts = [
        *producers,
        *consumers,
        *{int(name[1:]) for one in shares for name in {**one.placement, **one.moved}.values()},
    ]
    latency_s = {Link(name_of(a), name_of(b)): float(at.latency_s[a, b]) for a in hosts for b in hosts if a != b}
    ran = run_shares(shares, network_of(latency_s, 1.0), 20, testbed="sim")
    assert ran.equal()
    label = shares[0].label
    one = ran.got[label][0]
    for digests in (one.digests[:-1], [*one.digests[:-1], "else"]):
        got = {**ran.got, label: [msgspec.structs.replace(one, digests=digests), *ran.got[label][1:]]}
        assert not msgspec.structs.replace(ran, got=got).equal()
    moved = {"placement": label, "kind": "relocated", "node": "join", "index": 15}
    with pytest.raises(RunError, match=f"operators of {label} have come to rest with partition 20 of 20"):
        msgspec.structs.replace(ran, rows=[*ran.rows, moved]).usage(latency_s)
    with pytest.raises(UsageError, match="testbed is 'none'; known are netns, sim"):
        run_shares(shares, network_of(latency_s, 1.0), 20, testbed="none")


@pytest.mark.spark
def test_an_operator_on_one_of_nineteen_hosts_is_near_the_best_by_what_is_measured(
    spark_session: SparkSession, collection: str, tmp_path: Path
) -> None:
    trials = [
        Choosing(pool="square", pool_seed=seed, configuration=number, placement=placement)
        for seed, number, placement in itertools.product((1, 2), range(15), (*CHOSEN_BY, *OURS_CHOOSE))
    ]
    table = pa.Table.from_pylist([row(one, choose(one)) for one in trials], schema=schema(Choosing))
    data = figure_data(spark_session, table, CHOOSING, figure="sbon-14")
    (result,) = data.results
    close = {name: result.value(name, "close").mean for name in (*CHOSEN_BY, *OURS_CHOOSE)}
    assert close["relaxation"] < close["cost-space"] >= 95
    assert result.value("cost-space", "rank").mean < result.value("relaxation", "rank").mean < 10
    assert {one.claim: one.verdict for one in result.verdicts}["cost-space-close"] == "holds"
    assert [path.name for path in plot_figures(data, tmp_path)] == ["figure-sbon-14.png"]
    for one in trials[:3]:
        planned, flowing = choose(one), choose(msgspec.structs.replace(one, testbed="sim"))
        assert (flowing.usage_bytes, flowing.rank) == (pytest.approx(planned.usage_bytes, rel=0.01), planned.rank)
        assert (planned.equal, flowing.equal) == (None, True)
    with pytest.raises(UsageError, match="'random' is no placement of this study"):
        choose(Choosing(pool="square", placement="random"))
