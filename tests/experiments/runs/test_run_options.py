"""Options of ``thalweg run`` that go together, and the strategies and dataflows that result."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg.experiments.run_config import CLIENT, RunConfig, host_names
from thalweg.experiments.runs.strategies import make_strategies, moving, same_start, strategy_options
from thalweg.experiments.runs.workload import build_dataflow, reference_digests
from thalweg.middleware.client.steering.replanning import MEASURED, hints_of_code
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import NetworkView
from thalweg.middleware.planning import Task, get_cost_model
from thalweg.middleware.planning.registry import RandomMoves, RandomReshapes
from thalweg.middleware.protocol.adaptation import GlobalMoves, LocalMoves


def config(*placements: str, **options: Any) -> RunConfig:
    return RunConfig(**{"servers": 4, "images": 4, "image_bytes": 4000, **options}, placements=placements).check()


def test_every_option_reaches_the_matching_strategies() -> None:
    options = config(
        *("one-shot", "global", "local", "random-moves", "random-reshapes", "thalweg"),
        period_s=60.0,
        k=2,
        gate=False,
        hysteresis=0.5,
        moves=7,
        reshapes=5,
        seed=9,
        cost="period",
    )
    moving_of = {label: strategy.moving for label, strategy in make_strategies(options).items()}
    assert moving_of == {
        "one-shot": None,
        "global": GlobalMoves(period_s=60.0, hysteresis=0.5),
        "local": LocalMoves(period_s=60.0, k=2, gate=False, hysteresis=0.5, seed=9, cost="period"),
        "random-moves": RandomMoves(moves=7, seed=9),
        "random-reshapes": RandomReshapes(reshapes=5, moves=7, seed=9),
        "thalweg": GlobalMoves(period_s=60.0, hysteresis=1.0, gain=0.05, horizon_s=300.0),
    }


def test_absent_options_have_the_defaults_of_the_adaptation_and_are_recorded() -> None:
    strategies = make_strategies(config("download-all", "one-shot", "global", "local", cost="critical-path"))
    assert strategies["global"].adaptation == GlobalMoves()
    assert strategies["local"].adaptation == LocalMoves(seed=1)
    assert same_start(strategies) == ["one-shot", "global", "local"]
    assert same_start(make_strategies(config("download-all", "global"))) == []
    assert moving(strategies)["global"]["period_s"] == 600.0
    assert set(moving(strategies)) == {"global", "local"}


@pytest.mark.parametrize(
    ("placement", "option", "says"),
    [
        ("global", {"gate": True}, "--gate goes with --placement local"),
        ("random-moves", {"hysteresis": 0.1}, "--hysteresis goes with"),
        ("local", {"moves": 3}, "--moves goes with --placement random-moves"),
        ("thalweg", {"reshapes": 3}, "--reshapes goes with --placement random-reshapes"),
        ("local", {"k": -1}, "k is -1"),
    ],
)
def test_unfit_options_of_a_placement_are_refused(placement: str, option: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_strategies(config(placement, **option))


@pytest.mark.parametrize("placement", ["one-shot", "thalweg"])
@pytest.mark.parametrize("cost", ["objective", "response", "availability", "traffic", "usage", "energy"])
def test_metrics_of_placement_files_are_refused(placement: str, cost: str) -> None:
    says = rf"--cost {cost} needs the latencies of a placement file \(thalweg place\); runs take critical-path, "
    with pytest.raises(UsageError, match=says):
        make_strategies(config(placement, cost=cost))


def test_a_source_and_an_unknown_rule_are_no_operator() -> None:
    with pytest.raises(UsageError, match="scenes"):
        build_dataflow(config("one-shot", operator="scenes"))
    with pytest.raises(UsageError, match="unknown rule 'mx'"):
        build_dataflow(config("one-shot", rule="mx"))


@pytest.mark.parametrize("option", [{"operator": "mixed"}, {"operator": "running"}, {"rule": "latest"}])
def test_random_reshapes_need_a_reorderable_operator(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="random-reshapes changes the order of combination, and --operator"):
        build_dataflow(config("random-reshapes", **option))
    dataflow = build_dataflow(config("random-reshapes"))
    assert {dataflow.by_name[name].code.params["fit"] for name in dataflow.operators} == {"nested"}


def test_the_default_placements_include_thalweg() -> None:
    assert RunConfig().placements == ("download-all", "one-shot", "thalweg")


def test_random_moves_start_spread_over_the_hosts_without_measurements() -> None:
    options = config("random-moves", servers=8)
    dataflow = build_dataflow(options)
    task = Task((dataflow,), (*host_names(8), CLIENT), NetworkView({}), hints_of_code(dataflow), MEASURED)
    result = make_strategies(options)["random-moves"].initial.plan(task, get_cost_model("critical-path"))
    assert tuple(result.placement[name] for name in dataflow.operators) == task.hosts[:7]
    assert strategy_options(options)["random-moves"] == {"seed": 1}


@pytest.mark.parametrize("tree", ["binary", "left-deep", "star"])
def test_mixed_operators_take_turns_and_run(tree: str) -> None:
    options = config("random-moves", operator="mixed", tree=tree, servers=5)
    dataflow = build_dataflow(options)
    codes = [dataflow.by_name[name].code for name in dataflow.operators]
    turn = ["running", "thalweg.operators.array_join:ArrayJoin", "best-of-last", "running"]
    assert [code.use for code in codes if code is not None] == turn[: len(codes)]
    assert len(list(reference_digests(dataflow, 3))) == 3


def test_an_operator_is_found_by_an_import_path() -> None:
    dataflow = build_dataflow(config("one-shot", operator="thalweg.operators.composition:Composite"))
    plain = build_dataflow(config("one-shot"))
    assert list(reference_digests(dataflow, 3)) == list(reference_digests(plain, 3))
