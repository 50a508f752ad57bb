from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import toy_study
from made_up_sweeps import GAINS, fail, gain, rows, table
from rich.console import Console

from thalweg.experiments.cli.main import invoke
from thalweg.experiments.papers.aggregation import aggregate, figure_data, load_figures, save_figures
from thalweg.experiments.papers.claims import changes_less, clearly
from thalweg.experiments.papers.plots import plot_figures
from thalweg.experiments.papers.ranganathan1998.ablation import SAYS, gap_cells
from thalweg.experiments.papers.ranganathan1998.striped import bars_of
from thalweg.experiments.papers.ranganathan1998.study import FIGURES, MADE, OURS, PLACEMENTS, SAME, STUDY
from thalweg.experiments.papers.study import FigureData, FigureResult, Verdict, pooled
from thalweg.experiments.papers.tables import cells, comparison_cells, print_figures, ratio_cells, verdict_line
from thalweg.experiments.sweeps.results import Results
from thalweg.experiments.sweeps.simulation import Simulation
from thalweg.experiments.sweeps.simulations import AS_IS, Arm, Simulations
from thalweg.experiments.sweeps.sweep import _save as save_sweep
from thalweg.experiments.sweeps.variants import AGED, STRIPES, VARIANTS
from thalweg.middleware.errors import RunError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINE = "lab.planners:Mine"


def verdicts(result: FigureResult) -> dict[str, Verdict]:
    return {verdict.claim: verdict for verdict in result.verdicts}


def decided(result: FigureResult) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in result.verdicts}


def get(data: FigureData, number: str, pool: str = "paper") -> FigureResult:
    return next(result for result in data.results if (result.figure, result.pool) == (number, pool))


def scenarios(number: str, cases: Mapping[str, Callable[[Arm], float]], **options: Any) -> list[dict[str, Any]]:
    """Return the rows of a figure's whole grid for each gain, on a pool with the gain's name."""
    arms = FIGURES[number].sweep.arms()
    return [row for pool, how in cases.items() for row in rows(arms, pool=pool, gain=how, **options)]


# --- what is swept and claimed ----------------------------------------------------------------------


def test_grids_have_the_placements_and_parameters_of_the_paper() -> None:
    counts = {number: len(figure.sweep.arms()) for number, figure in FIGURES.items()}
    of_paper = {number: sum(arm.placement in PLACEMENTS for arm in FIGURES[number].sweep.arms()) for number in FIGURES}
    assert of_paper == {"6": 5, "7": 8, "8": 16, "9": 10, "10": 6, "sensitivity": 32, "ablation": 3, "stripes": 0}
    whole = 4 + len(VARIANTS) - len(AGED) - len(STRIPES)
    assert counts == {"6": 7, "7": 9, "8": 20, "9": 18, "10": 8, "sensitivity": 40, "ablation": whole, "stripes": 19}
    periods_s = {}
    for arm in FIGURES["9"].sweep.arms():
        if not arm.variant:
            periods_s.setdefault(arm.placement, []).append(arm.period_s)
    assert periods_s == {
        "download-all": [None], "global": [120, 300, 600, 1800, 3600], "thalweg-once": [None],
        "thalweg": [30, 60, 120, 300, 600, 1800, 3600],
    }  # fmt: skip
    assert {arm.k for arm in FIGURES["7"].sweep.arms() if arm.placement == "local"} == set(range(7))


def test_added_placements_run_once_for_every_network_and_tree() -> None:
    for number, figure in FIGURES.items():
        more = figure.sweep.with_more(MINE, "global", MINE).arms()
        mine = [arm for arm in more if arm.placement == MINE]
        assert len(mine) == {"8": 4, "10": 2, "sensitivity": 8}.get(number, 1)
        assert all(arm.period_s is None and arm.k is None for arm in mine)
        assert len(set(more)) == len(more)


def test_periods_reach_local_and_global_and_k_reaches_only_local() -> None:
    arms = Simulations(placements=("one-shot", "local", "global"), periods_s=(60.0, 600.0), ks=(0, 2)).arms()
    assert [(arm.placement, arm.period_s, arm.k) for arm in arms] == [
        ("one-shot", None, None), ("local", 60, 0), ("local", 60, 2), ("local", 600, 0), ("local", 600, 2),
        ("global", 60, None), ("global", 600, None),
    ]  # fmt: skip


def test_every_claim_has_a_rule_and_every_conclusion_rests_on_a_claim() -> None:
    claims = [claim for figure in FIGURES.values() for claim in figure.claims]
    assert len({claim.name for claim in claims}) == len(claims)
    assert {claim.conclusion for claim in claims} - {None} == set(STUDY.conclusions)
    assert all(claim.how and claim.quote for claim in claims)


def test_a_pooled_value_has_mean_and_deviation_over_pools() -> None:
    value = pooled({2: 3.0, 1: 1.0, 3: None, 4: math.nan})
    assert value is not None
    assert (value.mean, value.deviation, value.by_pool) == (2.0, pytest.approx(math.sqrt(2)), {1: 1.0, 2: 3.0})
    assert value.error == pytest.approx(1.0)
    single = pooled({1: 5.0})
    assert single is not None
    assert (single.mean, single.deviation, single.error) == (5.0, None, None)
    assert pooled({1: None}) is None


# --- the aggregation --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def six(spark_session: SparkSession) -> FigureData:
    """Return Fig. 6 as in the paper, on measured pools where local beats global, and on one pool by regions."""
    arms = FIGURES["6"].sweep.with_more(MINE).arms()
    made = rows(arms, pools=range(1, 6), configurations=12)
    made += rows(arms, pool="real", gain=lambda arm: {"local": 6.5, "one-shot": 1.5}.get(arm.placement, gain(arm)))
    made += rows(arms, pool="regions", pools=[7])
    return figure_data(spark_session, table(made))


@pytest.mark.long
@pytest.mark.spark
def test_figures_are_means_over_the_values_of_pools(spark_session: SparkSession) -> None:
    """Compare with numpy, with failed, missing and repeated runs.

    A failed run is left out on both sides of a ratio.
    """
    arms = [arm for arm in FIGURES["6"].sweep.arms() if not arm.variant]
    made = rows(arms, pools=(1, 2), configurations=5)
    lost = made.pop(3)  # pool 1, configuration 0, global
    assert (lost["placement"], lost["configuration"]) == ("global", 0)
    made.append({**fail(made[5], "RunError: no way\nout"), "key": "0"})  # its run again is there as well
    made[13] = fail(made[13], "RunError: the planner\nraised")
    assert (made[13]["placement"], made[13]["configuration"]) == ("local", 2)
    result = get(figure_data(spark_session, table(made), figure="6"), "6")
    times = {
        (row["pool_seed"], row["configuration"], row["placement"]): row["mean_interarrival_s"]
        for row in made
        if row["failed"] is None
    }

    def over_pools(placement: str, of: Callable[[int, int], float], reduce: Callable[[list[float]], Any]) -> Any:
        return pooled(
            {
                seed: float(reduce([of(seed, c) for c in range(5) if (seed, c, placement) in times]))
                for seed in (1, 2)
            }
        )  # fmt: skip

    for row in result.rows:
        name = row.arm.placement

        def speedup(seed: int, c: int, name: str = name) -> float:
            return float(times[seed, c, "download-all"] / times[seed, c, name])

        for ours, of, reduce in (
            (row.interarrival_s, lambda seed, c, name=name: times[seed, c, name], np.mean),
            (row.speedup, speedup, np.mean),
            (row.median_speedup, speedup, np.median),
        ):
            expected = over_pools(name, of, reduce)
            assert ours is not None
            assert (ours.mean, ours.deviation) == pytest.approx((expected.mean, expected.deviation))
    counts = {row.label: (row.runs, row.failed, row.missing) for row in result.rows}
    assert counts == {
        "download-all": (10, 0, 0), "one-shot": (10, 0, 0), "local": (10, 1, 0), "global": (9, 0, 1),
        "thalweg-once": (10, 0, 0), "thalweg": (10, 0, 0),
    }  # fmt: skip
    both = {
        seed: [times[seed, c, "local"] / times[seed, c, "global"] for c in range(5)
               if {(seed, c, "local"), (seed, c, "global")} <= times.keys()]
        for seed in (1, 2)
    }  # fmt: skip
    ratio = result.ratio(result.arm("global"), result.arm("local"))
    assert ratio is not None
    assert ratio.configurations == 8
    assert ratio.median.by_pool == pytest.approx({seed: np.median(some) for seed, some in both.items()})
    assert ratio.faster.by_pool == pytest.approx({seed: np.mean(np.array(some) > 1.01) for seed, some in both.items()})
    assert result.singles["global"].count(None) == 1
    assert [len(values) for values in result.singles.values()] == [10] * 5
    assert "unfinished: 1 of 60 runs is missing" in result.notes
    assert "1 run failed and is left out" in result.notes
    assert cells(result)[1][2][:2] == ["local", "9/10"]


@pytest.mark.long
@pytest.mark.spark
def test_explicit_and_implicit_defaults_are_the_same_arm(spark_session: SparkSession) -> None:
    """A requested period of ten minutes is the default period. Download-all has neither period nor k."""
    made = rows([Arm("download-all"), Arm("global"), Arm("local")], pools=[1], configurations=2)
    more = [Arm("global", period_s=600.0), Arm("global", period_s=60.0), Arm("download-all", k=2), Arm("local", k=0)]
    made += rows(more, pools=[1], configurations=2)
    result = get(figure_data(spark_session, table(made), figure="9"), "9")
    assert [row.arm for row in result.rows] == [
        Arm("download-all"), Arm("local", period_s=600.0, k=0), Arm("global", period_s=60.0),
        Arm("global", period_s=600.0),
    ]  # fmt: skip
    assert {row.runs for row in result.rows} == {2}


@pytest.mark.spark
def test_results_that_match_no_figure_are_refused(spark_session: SparkSession) -> None:
    made = rows(FIGURES["6"].sweep.arms(), configurations=1)
    with pytest.raises(UsageError, match="no results yet"):
        figure_data(spark_session, table([]))
    with pytest.raises(UsageError, match=r"varies images \(180, 20\)"):
        figure_data(spark_session, table([*made, {**made[0], "images": 20}]))
    with pytest.raises(UsageError, match=r"varies view of global \(probe, truth\)"):
        figure_data(spark_session, table([*made, {**made[3], "view": "truth"}]))
    with pytest.raises(UsageError, match="figure '5' is unknown"):
        figure_data(spark_session, table(made), figure="5")


# --- verdicts ---------------------------------------------------------------------------------------


@pytest.mark.spark
def test_the_claims_of_fig_6_hold_on_results_as_in_the_paper(six: FigureData) -> None:
    result = get(six, "6")
    assert set(decided(result).values()) == {"holds"}
    assert all(verdict.pools_holding and verdict.pools == 5 for verdict in result.verdicts)
    assert {item.name: item.within for item in result.comparisons} == {
        "download-all": True, "one-shot": True, "local": True, "global": True, "global over one-shot": True,
        "global over local": True,
    }  # fmt: skip
    (heads, body), ratios = comparison_cells(result), ratio_cells(result)[1]
    assert heads == ["figure", "paper", "ours", "ratio", "accepted", "within"]
    assert body[0][1] == "101.2 s"
    assert body[0][4:] == ["86.0 to 116.4 s", "yes"]
    assert [row[0] for row in ratios][:2] == ["global over one-shot", "global over local"]
    assert [item.verdict for item in six.conclusions if item.pool == "paper"] == [
        "holds", "holds", "not tested", "not tested", "not tested",
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.spark
def test_the_claims_of_fig_6_are_decided_on_measured_pools_without_targets(six: FigureData) -> None:
    """Claims are decided on measured pools too, but the paper's values are no target."""
    result = get(six, "6", "real")
    assert decided(result) == {
        "relocation-helps": "holds", "one-shot-gains": "does not hold", "global-adds": "holds", "local-adds": "holds",
        "order": "does not hold", "global-beats-local": "does not hold", "level-download-all": "not tested",
        "level-one-shot": "not tested", "level-local": "not tested", "level-global": "not tested",
        "median-one-shot": "not tested", "median-local": "not tested",
    }  # fmt: skip
    assert verdicts(result)["order"].detail.startswith("download-all ")
    assert verdicts(result)["order"].pools_holding == 0
    assert all(comparison.ratio is not None and comparison.accept is None for comparison in result.comparisons)
    assert "pool real: the paper's values are no target" in result.notes


@pytest.mark.long
@pytest.mark.spark
def test_a_single_pool_has_no_spread(six: FigureData) -> None:
    result = get(six, "6", "regions")
    assert result.pools == 1
    assert "one pool: no spread" in result.notes
    assert all(row.speedup is not None and row.speedup.deviation is None for row in result.rows)
    assert decided(result)["global-adds"] == "holds"
    assert "±" not in "".join(map(verdict_line, result.verdicts))


@pytest.mark.long
@pytest.mark.spark
def test_a_placement_of_a_researcher_stands_beside_the_papers_placements(six: FigureData) -> None:
    result = get(six, "6")
    assert result.series() == [*PLACEMENTS, *OURS, MINE]
    assert [row[0] for row in cells(result)[1]][-2:] == [MINE, "global, by periods"]
    paper = ("one-shot", "local", "global")
    assert [row[0] for row in ratio_cells(result)[1]] == [
        "global over one-shot", "global over local", *(f"thalweg-once over {name}" for name in paper),
        *(f"thalweg over {name}" for name in (*paper, "thalweg-once")),
        *(f"{MINE} over {name}" for name in (*paper, *OURS)),
    ]  # fmt: skip
    assert len(result.singles[MINE]) == result.expected == 60


@pytest.mark.long
@pytest.mark.spark
def test_the_claim_of_fig_7_holds_only_if_k_does_not_matter(spark_session: SparkSession) -> None:
    def helps(arm: Arm) -> float:
        return gain(arm) * (1 + 0.04 * (arm.k or 0))

    data = figure_data(spark_session, table(scenarios("7", {"paper": gain, "real": helps})), figure="7")
    assert decided(get(data, "7")) == {"k-does-not-matter": "holds"}
    verdict = verdicts(get(data, "7", "real"))["k-does-not-matter"]
    assert verdict.verdict == "does not hold"
    assert verdict.numbers["change k=6"] == pytest.approx(0.24, abs=0.08)
    assert "at k = 6" in verdict.detail
    part = [row for row in scenarios("7", {"paper": gain}, configurations=3) if row["k"] in (None, 0, 3)]
    result = get(figure_data(spark_session, table(part)), "7")
    assert decided(result) == {"k-does-not-matter": "not tested"}
    assert "not in the results: k = 1, k = 2, k = 4, k = 5, k = 6" in verdict_line(result.verdicts[0])


@pytest.mark.spark
def test_the_claims_of_fig_8_hold_only_if_global_scales_with_servers(spark_session: SparkSession) -> None:
    def levels(arm: Arm) -> float:
        return gain(arm) * ((arm.servers / 8) ** -0.6 if arm.placement == "global" else 1)

    made = scenarios("8", {"paper": gain, "real": levels}, configurations=6, noise=0.01)
    data = figure_data(spark_session, table(made), figure="8")
    assert set(decided(get(data, "8")).values()) == {"holds"}
    assert verdicts(get(data, "8"))["scales-over-local"].numbers["growth"] == pytest.approx(8**0.3, rel=0.1)
    assert set(decided(get(data, "8", "real")).values()) == {"does not hold"}
    assert [conclusion.verdict for conclusion in data.conclusions if conclusion.conclusion == 3] == [
        "holds",
        "does not hold",
    ]
    part = [row for row in made if row["pool"] == "paper" and row["servers"] < 32]
    data = figure_data(spark_session, table(part))
    assert [result.figure for result in data.results] == ["6", "8"]
    assert set(decided(get(data, "8")).values()) == {"not tested"}
    assert "the claim is of 4 and 32 servers" in verdicts(get(data, "8"))["scales-over-local"].detail


@pytest.mark.long
@pytest.mark.spark
def test_the_claim_of_fig_9_holds_only_if_five_to_ten_minutes_are_best(spark_session: SparkSession) -> None:
    def seldom(arm: Arm) -> float:
        return gain(arm) * (1 + math.log2((arm.period_s or 600.0) / 60) / 4)

    data = figure_data(spark_session, table(scenarios("9", {"paper": gain, "real": seldom}, configurations=30)))
    assert decided(get(data, "9")) == {"five-to-ten-minutes": "holds", "five-to-ten-minutes-aged": "not shown"}
    verdict = verdicts(get(data, "9", "real"))["five-to-ten-minutes"]
    assert verdict.verdict == "does not hold"
    assert verdict.detail.startswith("best 60 min")
    assert verdict.pools_holding == 0


@pytest.mark.long
@pytest.mark.spark
def test_the_claims_of_fig_10_hold_only_if_the_binary_tree_gains_more(spark_session: SparkSession) -> None:
    """Speed-ups are over download-all with the same tree, even if download-all is slow."""
    made = scenarios("10", {"paper": gain, "real": lambda arm: gain(msgspec.structs.replace(arm, tree="binary"))})
    slower = [
        {**row, "mean_interarrival_s": 2 * row["mean_interarrival_s"]} if row["tree"] == "left-deep" else row
        for row in made
    ]
    for results in (made, slower):
        data = figure_data(spark_session, table(results), figure="10")
        assert decided(get(data, "10")) == {"binary-global": "holds", "binary-local": "holds"}
        assert decided(get(data, "10", "real")) == {"binary-global": "does not hold", "binary-local": "does not hold"}
    assert [conclusion.verdict for conclusion in data.conclusions if conclusion.conclusion == 5] == [
        "holds",
        "does not hold",
    ]


@pytest.mark.long
@pytest.mark.spark
def test_several_trees_are_compared_with_a_single_tree_on_the_same_interfaces(spark_session: SparkSession) -> None:
    seconds = {
        "independent-1": 8.0,
        "independent-1-pipelined": 6.4,
        "independent-8": 2.0,
        "independent-stars": 2.4,
        "single-1": 10.0,
        "single-4": 9.0,
        "independent-auto": 2.1,
        "independent-auto-ahead": 1.5,
    }
    arms = [arm for arm in FIGURES["stripes"].sweep.arms() if arm.variant in seconds]
    made = rows(arms, pools=(1, 2), configurations=3, noise=0.0)
    for row in made:
        row["mean_interarrival_s"] = seconds[row["variant"]] * row["pool_seed"]
        row["bound_period_s"] = 1.0 * row["pool_seed"]
    result = get(figure_data(spark_session, table(made), figure="stripes"), "stripes")
    heads, body = cells(result)
    by_name = {row[0]: dict(zip(heads, row, strict=True)) for row in body}
    eight = by_name["independent, 8 trees"]
    assert (eight["mean s"], eight["of one tree"], eight["of the bound"]) == ("3.0", "0.25 ± 0.00", "2.0")
    assert by_name["single, 4 trees"]["of one tree"] == "0.90 ± 0.00"
    assert by_name["independent, 1 tree, 8 images under way over each edge"]["of one tree"] == "0.80 ± 0.00"
    assert by_name["independent, a star for each host"]["of one tree"] == "0.30 ± 0.00"
    drawn = [(name, value.mean) for name, value, _ in bars_of(result, "independent")]
    assert drawn == [
        ("1", 12.0), ("1, 8 ahead", pytest.approx(9.6)), ("8", 3.0), ("stars", pytest.approx(3.6)),
        ("as many as repay", pytest.approx(3.15)),
    ]  # fmt: skip
    (_, single), (_, independent) = result.definition.tables
    steps = {row[0]: row[1:] for row in independent(result)[1]}
    assert steps["as many trees as repay"][1] == "+0.9"
    assert steps["1 tree"][1] == "+8.8"
    assert [row[0] for row in single(result)[1]] == ["1 tree"]


@pytest.mark.long
@pytest.mark.spark
def test_the_ablation_compares_with_global_and_thalweg(spark_session: SparkSession) -> None:
    seconds = {"": 4.0, "fixed": 8.0, "steady": 3.0, "ahead": 3.5}

    def at(arm: Arm) -> float:
        if arm.placement in PLACEMENTS:
            return 10.0
        return 5.0 if arm.placement == "thalweg-once" else seconds[arm.variant]

    arms = [arm for arm in FIGURES["ablation"].sweep.arms() if arm.variant in seconds]
    made = rows(arms, pools=(1, 2), configurations=3, noise=0.0)
    for row in made:
        row["mean_interarrival_s"] = at(Arm(row["placement"], variant=row["variant"])) * row["pool_seed"]
    result = get(figure_data(spark_session, table(made), figure="ablation"), "ablation")
    heads, body = cells(result)
    assert heads == [
        "variant",
        "mean s",
        "of global",
        "of thalweg",
        "plans",
        "trees",
        "moves",
        "probes MB",
        "ms a plan",
    ]
    by_name = {row[0]: row[2:] for row in body}
    assert by_name["given tree, periods"] == ["0.80", "2.00 ± 0.00", "4.0", "2.0", "3.0", "2.0", "25"]
    assert by_name["thalweg: periods, every minute, 5 %, forecasts"][:2] == ["0.40", "1.00 ± 0.00"]
    assert [row[0] for row in body][:4] == ["one-shot", SAYS["global"], "given tree, periods", SAYS["thalweg"]]
    gap = gap_cells(result)[1]
    assert [(row[1].partition(" ")[0], row[2]) for row in gap] == [
        ("1.5", ""), ("2.5", "+1.0"), ("4.5", "+2.0"), ("5.2", "+0.8"), ("6.0", "+0.8"), ("7.5", "+1.5"),
    ]  # fmt: skip
    assert (result.verdicts, result.comparisons, ratio_cells(result)[1]) == ([], [], [])
    assert "not in the results: global, by periods; given tree, critical path" in "".join(result.notes)
    console = Console(width=110, file=io.StringIO())
    print_figures(FigureData(results=[result], runs=1, failed=0), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Ablation, 2 pools paper" in text
    assert "transfers of a host that do not interlock" in text


@pytest.mark.long
@pytest.mark.spark
def test_times_are_shown_as_shares_of_global_and_beside_the_bound(six: FigureData) -> None:
    result = get(six, "6")
    heads, body = cells(result)
    column = {row[0]: row[heads.index("of global")] for row in body}
    assert (column["download-all"], column["global"]) == ("–", "1.00")
    assert float(column["thalweg"]) == pytest.approx(GAINS["global"] / GAINS["thalweg"], rel=0.1)
    assert next(row for row in body if row[0] == "thalweg")[-1] == "2.0*"  # trees, not moves
    assert "no mixture of trees has less between images than 1.5 s at 8 servers (bound, mean)" in result.notes
    ((caption, of),) = result.definition.tables
    heads, body = of(result)
    by_name = {row[0]: dict(zip(heads, row, strict=True)) for row in body}
    assert caption == "beside the yardsticks"
    assert heads == ["mean time", "of global", "of global, by periods", "of one-shot", "faster than one-shot on"]
    for name, gained in (("thalweg", GAINS["thalweg"]), ("local", GAINS["local"])):
        for head, other in zip(heads[1:4], ("global", "global", "one-shot"), strict=True):
            assert float(by_name[name][head].partition(" ")[0]) == pytest.approx(GAINS[other] / gained, rel=0.1)
    ratio = result.ratio(result.arm("global"), result.arm("one-shot"))
    assert ratio is not None
    assert by_name["global"][heads[4]] == f"{ratio.faster.mean:.0%}"
    assert (by_name["one-shot"][heads[3]], by_name["one-shot"][heads[4]]) == ("1.00 ± 0.00", "–")
    assert by_name["global, by periods"]["of global, by periods"] == "1.00 ± 0.00"


@pytest.mark.long
@pytest.mark.spark
def test_pools_with_changed_parameters_are_compared_separately(spark_session: SparkSession) -> None:
    """Each pool is compared on its own networks and measured against the published values."""

    def at(arm: Arm) -> float:
        return gain(arm) * (2.0 if arm.placement == "one-shot" and arm.made == "stretch=1.8" else 1.0)

    made = scenarios("sensitivity", {"paper": at}, configurations=4, noise=0.01)
    (result,) = figure_data(spark_session, table(made), figure="sensitivity").results
    heads, body = cells(result)
    by_name = {row[0]: dict(zip(heads, row, strict=True)) for row in body}
    assert list(by_name) == [AS_IS, *sorted(MADE)]
    ratios = {name: float(row["global over one-shot"].partition(" ")[0]) for name, row in by_name.items()}
    assert ratios[AS_IS] == pytest.approx(GAINS["global"] / GAINS["one-shot"], rel=0.05)
    assert ratios["stretch=1.8"] == pytest.approx(GAINS["global"] / GAINS["one-shot"] / 2, rel=0.05)
    assert (by_name[AS_IS]["faster on"], by_name["stretch=1.8"]["faster on"]) == ("100%", "0%")
    assert float(by_name["stretch=1.8"]["off"]) > 2 * float(by_name[AS_IS]["off"]) > 0
    assert (result.pool, result.binding, ratio_cells(result)[1]) == ("paper", True, [])


@pytest.mark.long
@pytest.mark.spark
def test_results_without_the_base_or_without_a_success_leave_claims_untested(spark_session: SparkSession) -> None:
    arms = FIGURES["6"].sweep.arms()
    made = rows(arms[1:], configurations=3) + [fail(row, "RunError: no") for row in rows(arms, pool="real")]
    data = figure_data(spark_session, table(made))
    by_claim = verdicts(get(data, "6"))
    assert by_claim["relocation-helps"].detail == "not in the results: download-all"
    assert by_claim["median-local"].verdict == "holds"
    assert set(decided(get(data, "6", "real")).values()) == {"not tested"}
    names = sorted((*PLACEMENTS, *OURS))
    failures = {f"{name}: RunError: no": 30 for name in names} | {"global: RunError: no": 60}
    assert (data.failed, data.failures) == (210, failures)
    assert ratio_cells(get(data, "6", "real"))[1] == []


@pytest.mark.long
@pytest.mark.spark
def test_a_tiny_difference_is_a_tie_and_shows_nothing(spark_session: SparkSession) -> None:
    """Nothing moved: times differ in the fourth digit, always in the paper's favour."""

    def still(arm: Arm) -> float:
        if arm.placement == "download-all":
            return 1.0
        rank = PLACEMENTS.index(arm.placement) if arm.placement in PLACEMENTS else 2
        return 4.0 * (1 + 3e-4 * rank - 1e-6 * abs((arm.period_s or 600) - 600))

    made = [row for number in "689" for row in scenarios(number, {number: still}, configurations=4, noise=0.0)]
    data = figure_data(spark_session, table(made))
    six, eight, nine = (get(data, number, number) for number in "689")
    ratio = six.ratio(six.arm("global"), six.arm("local"))
    assert ratio is not None
    assert (ratio.faster.mean, ratio.slower.mean, ratio.tied) == (0.0, 0.0, 1.0)
    assert ratio_cells(six)[0][-2:] == ["faster on", "as fast on"]
    assert ratio_cells(six)[1][1][-2:] == ["0%", "100%"]
    by_claim = verdicts(six)
    assert by_claim["order"].verdict == "not shown"
    assert by_claim["order"].pools_holding == 0
    assert by_claim["global-beats-local"].verdict == "does not hold"
    assert "faster on 0% of 12 configurations, as fast on 100%, slower on 0%" in by_claim["global-beats-local"].detail
    assert "more than 1% faster" in by_claim["global-beats-local"].how
    assert by_claim["relocation-helps"].verdict == "holds"
    assert decided(eight)["global-best-to-32"] == decided(eight)["global-best-of-all"] == "not shown"
    assert decided(nine)["five-to-ten-minutes"] == "not shown"
    assert [
        conclusion.verdict for conclusion in data.conclusions if (conclusion.conclusion, conclusion.pool) == (4, "9")
    ] == ["not shown"]


@pytest.mark.spark
def test_failed_runs_decide_nothing(spark_session: SparkSession) -> None:
    """On the configuration of the failed runs, all times are far slower, or relocation gains far more."""

    def failing(number: str, who: Callable[[dict[str, Any]], bool], slow: Callable[[str], bool]) -> FigureResult:
        made = scenarios(number, {"paper": gain}, configurations=4, noise=0.002)
        for row in (row for row in made if row["configuration"] == 0):
            row["mean_interarrival_s"] *= 100 if slow(row["placement"]) else 1
            if who(row):
                row.update(fail(row, "RunError: no"))
        return get(figure_data(spark_session, table(made), figure=number), number)

    six = failing("6", lambda row: row["placement"] == "local", lambda placement: True)
    means = [row.interarrival_s.mean for row in six.rows if row.interarrival_s is not None]
    assert means.index(min(means)) == PLACEMENTS.index("local")  # of what each finished
    assert decided(six)["order"] == "holds"
    eight = failing(
        "8", lambda row: (row["placement"], row["servers"]) == ("global", 16), lambda name: name == "download-all"
    )
    assert decided(eight)["global-best-of-all"] == "holds"
    nine = failing("9", lambda row: row["period_s"] in (300, 600), lambda name: name == "download-all")
    assert decided(nine)["five-to-ten-minutes"] == "holds"
    assert "best 10 min" in verdict_line(nine.verdicts[0])


@pytest.mark.long
@pytest.mark.spark
def test_options_outside_the_paper_remove_the_papers_values_as_targets(spark_session: SparkSession) -> None:
    arms = FIGURES["6"].sweep.with_more(MINE).arms()
    made = rows(arms, configurations=2, cost="period", hysteresis=0.1)
    result = get(figure_data(spark_session, table(made)), "6")
    assert not result.comparable
    assert decided(result)["level-download-all"] == "not tested"
    difference = "hysteresis 0.1 instead of the default, cost period instead of critical-path"
    assert f"not as the paper ran it ({difference}): its values are no target" in result.notes
    changes = {"global": {"view": "truth"}, MINE: {"cost": "mine"}, "download-all": {"cost": "none"}}
    made = [row | changes.get(row["placement"], {}) for row in rows(arms, configurations=2)]
    result = get(figure_data(spark_session, table(made)), "6")
    difference = "view of global truth instead of probe"
    assert f"not as the paper ran it ({difference}): its values are no target" in result.notes


@pytest.mark.parametrize(
    ("ratios", "shown"),
    [
        ([1.005], "not shown"), ([1.02], True), ([0.98], False), ([1.03, 1.031], True), ([0.9, 1.2], "not shown"),
        ([1.001, 1.0011], "not shown"), ([0.8, 0.9], False),
    ],
)  # fmt: skip
def test_a_difference_counts_beyond_a_tie_and_two_standard_errors(ratios: list[float], shown: bool | str) -> None:
    value = pooled(dict(enumerate(ratios)))
    assert value is not None
    assert clearly(value) == shown


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ([0.04], True), ([-0.06], False), ([0.03, 0.031], True), ([0.06, 0.061], False), ([-0.1, 0.1], "not shown"),
        ([0.0, 0.13], "not shown"), ([-0.02, 0.02], True),
    ],
)  # fmt: skip
def test_an_absent_difference_is_a_known_change_below_5_percent(changes: list[float], shown: bool | str) -> None:
    value = pooled(dict(enumerate(changes)))
    assert value is not None
    assert changes_less(value, SAME) == shown


@pytest.mark.long
@pytest.mark.spark
def test_no_run_fails_without_a_reason(spark_session: SparkSession) -> None:
    """A run of one image has no time between images, although nothing went wrong."""
    made = [row | {"mean_interarrival_s": None} for row in rows(FIGURES["6"].sweep.arms(), pools=[1])]
    data = figure_data(spark_session, table(made))
    assert data.failed == sum(data.failures.values()) == 70
    assert "global: it delivered too little to tell a time between images" in data.failures


# --- files and text ---------------------------------------------------------------------------------


@pytest.mark.spark
def test_the_results_of_an_unfinished_sweep_folder_are_aggregated(spark_session: SparkSession, tmp_path: Path) -> None:
    """The results are read as the sweep writes them, and the figures come back from figures.json."""
    folder = tmp_path / "fig8"
    folder.mkdir()
    grid = FIGURES["8"].sweep
    made_for = Simulations(figure="8", placements=grid.placements, servers=grid.servers, pools=2, configurations=10)
    save_sweep(folder, made_for)
    results = Results(folder, Simulation)
    results.open()
    with pytest.raises(UsageError, match="has no results yet"):
        aggregate(spark_session, folder)
    made = rows(grid.arms(), pools=[1001], configurations=3)
    results.write(made[:20])
    results.write(made[20:])
    data = aggregate(spark_session, folder)
    assert [result.figure for result in data.results] == ["8"]
    assert "unfinished: 3 of 10 configurations begun" in get(data, "8").notes
    assert data.runs == len(made)
    assert load_figures(folder) == data == aggregate(spark_session, folder)  # to the last digit


@pytest.mark.spark
def test_figures_json_reads_back_and_invalid_files_are_refused(six: FigureData, tmp_path: Path) -> None:
    path = save_figures(tmp_path, six)
    assert load_figures(tmp_path) == six
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UsageError, match="is damaged"):
        load_figures(tmp_path)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(six, format=99)))
    with pytest.raises(UsageError, match="has format 99"):
        load_figures(tmp_path)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(six, version="0.0.0")))
    with pytest.raises(UsageError, match=r"of version 0\.0\.0 instead of"):
        load_figures(tmp_path)
    path.write_bytes(b'{"format": 1, "results": [3]}')
    with pytest.raises(UsageError, match="has format 1 of version unknown"):
        load_figures(tmp_path)
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        load_figures(tmp_path)
    with pytest.raises(RunError, match="cannot be written"):
        save_figures(tmp_path / "none", six)


@pytest.mark.spark
def test_the_terminal_shows_figures_in_80_columns(six: FigureData) -> None:
    console = Console(width=80, file=io.StringIO())
    print_figures(six, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Fig. 6, 5 pools paper, 60 configurations" in text
    tables = [line for line in text.splitlines() if not line.startswith(("holds", "does not", "not tested", "note"))]
    assert "101.2" in "".join(tables)
    assert "holds: “one-shot placement achieves large gains” – median speed-up" in text
    assert "conclusion 1 (paper): holds" in text
    assert "±: standard deviation between pools; how each claim is decided: thalweg report" in text
    assert "…" not in text


# --- another paper ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
def test_a_new_paper_needs_only_a_folder(
    spark_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trials of the paper are swept and resumed. Its figure has rows, verdicts, a table and a picture."""
    for name in ("study", "plots"):
        monkeypatch.setitem(sys.modules, f"thalweg.experiments.papers.toy.{name}", toy_study)
    command = ["sweep", "--figure", "toy:2", "--configurations", "6", "--pools", "2", "--out", str(tmp_path / "s")]
    assert invoke([*command, "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    assert (output["runs"], output["done"], output["failed"]) == (54, 48, 6)
    assert output["placements"]["random, 60"]["failed"] == 6
    assert invoke([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["skipped"] == 48
    data = aggregate(spark_session, tmp_path / "s")
    assert load_figures(tmp_path / "s") == data
    result = data.results[0]
    assert decided(result) == {"cheap": "holds", "more": "holds"}
    assert [conclusion.verdict for conclusion in data.conclusions] == ["holds"]
    assert cells(result)[1][-1][0] == "subtree, 60 operators"
    assert result.over_factor("subtree", "greedy", "operators")[40].mean == pytest.approx(3.0)
    assert [path.name for path in plot_figures(data, tmp_path / "s")] == ["figure-2.png"]
