"""One simulated run: the inputs on which its result depends, and its equality in every process."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import patience
from run_ids import run_of

from tests.made_traces import steps
from thalweg.emulation.traces.pool import Pool, Window
from thalweg.experiments.simulation import run as virtual_run
from thalweg.experiments.simulation.run import exactly, foreseen, last_measured
from thalweg.experiments.sweeps import simulation
from thalweg.experiments.sweeps.pools import open_pool
from thalweg.experiments.sweeps.simulation import PLANS_KEPT, Simulated, Simulation, simulate
from thalweg.experiments.sweeps.variants import AGED, STRIPES, VARIANTS
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.history import Sample
from thalweg.middleware.network.outlook import Outlook, PlanningHistory
from thalweg.middleware.network.view import links_between
from thalweg.middleware.planning import Task, Thalweg
from thalweg.middleware.protocol import events as e

SMALL: dict[str, Any] = {"servers": 4, "images": 12, "configuration": 3}
CHANGING: dict[str, Any] = {"pool": "regions", "pool_seed": 1001, "configuration": 2, "images": 100}  # its tree, too


def result(**options: Any) -> Simulated:
    """Return the result of the simulation without the seconds that the simulation took."""
    return msgspec.structs.replace(simulate(Simulation(**{**SMALL, **options})), wall_s=0.0, planning_s=0.0)


@pytest.mark.parametrize("placement", ["download-all", "one-shot", "global", "local"])
@pytest.mark.parametrize("interface", ["single", "independent"])
def test_all_images_are_delivered_once_and_in_order(placement: str, interface: str) -> None:
    moves: dict[str, Any] = {"period_s": 60.0} if placement in ("global", "local") else {}
    came = result(placement=placement, interface=interface, images=40, **moves)
    assert came.failed is None
    assert (came.delivered, came.lost, came.duplicate, came.out_of_order) == (40, 0, 0, 0)
    assert came.mean_interarrival_s is not None
    assert came.first_image_s is not None
    assert came.elapsed_s == pytest.approx(came.first_image_s + 39 * came.mean_interarrival_s)
    assert came.bytes_sent > 40 * 100_000
    assert came.events > 0
    assert (came.plans > 0) == (placement == "global")


@pytest.mark.long
def test_links_of_rate_0_for_minutes_do_not_make_a_run_fail(tmp_path: Path) -> None:
    for number in range(3):
        steps = (0, 2e6), (100, 900), (160 + number, 0), (400, 2e6), (700, 2e6)
        rows = "".join(f"{at_s},{rate}\n" for at_s, rate in steps)
        (tmp_path / f"t{number}.csv").write_text("time_s,bandwidth_bps\n" + rows)
    for number in range(4):
        came = result(pool=str(tmp_path), interface="independent", configuration=number, images=30)
        assert (came.failed, came.delivered) == (None, 30)


def test_the_result_does_not_depend_on_earlier_simulations() -> None:
    simulation._plans.clear()
    alone = result(placement="local", period_s=60.0)
    for placement in ("one-shot", "global", "download-all"):
        result(placement=placement)
    result(configuration=4)
    assert result(placement="local", period_s=60.0) == alone


@pytest.mark.long
def test_the_result_is_the_same_in_every_process() -> None:
    script = (
        "import msgspec; from thalweg.experiments.sweeps.simulation import *\n"
        "for placement, k in (('global', None), ('local', 2)):\n"
        f"    made = simulate(Simulation(placement=placement, period_s=60.0, k=k, **{SMALL!r}))\n"
        "    print(msgspec.json.encode(msgspec.structs.replace(made, wall_s=0.0, planning_s=0.0)).decode())"
    )
    printed = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience(60),
            check=True,
        )
        printed.add(done.stdout)
    (lines,) = printed
    expected = [result(placement="global", period_s=60.0), result(placement="local", period_s=60.0, k=2)]
    assert [msgspec.json.decode(line, type=Simulated) for line in lines.splitlines()] == expected


def test_the_key_of_a_simulation_depends_on_every_field() -> None:
    plain = Simulation()
    assert len(plain.key) == 32
    assert plain.key == Simulation(pool="paper", images=180).key
    changed = {
        "pool": "regions", "pool_seed": 1, "configuration": 1, "placement": "local", "servers": 9, "images": 181,
        "tree": "star", "interface": "independent", "period_s": 1.0, "k": 1, "gate": False, "hysteresis": 1.0,
        "cost": "period", "view": "truth", "forecaster": "last", "max_age_s": 1.0, "startup_s": 1.0,
        "disk_bytes_per_s": 1.0, "pixel_s": 1.0, "image_bytes": 2048, "image_deviation": 0.0, "allow": ("a",),
        "variant": "exact", "latency": "here", "ahead": 2,
    }  # fmt: skip
    assert set(changed) == set(Simulation.__struct_fields__)
    keys = {Simulation(**{name: value}).key for name, value in changed.items()}  # type: ignore[arg-type]
    assert len({*keys, plain.key}) == len(changed) + 1


def test_a_run_begins_where_probing_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The links become slow when the probing ends, so they are slow from the first second of the run."""

    def ran(fast_s: float, placement: str) -> Simulated:
        trace = steps((fast_s, 1e6), (1e6, 2e4))
        monkeypatch.setattr(Pool, "network", lambda _, hosts, at: dict.fromkeys(links_between(hosts), Window(trace, 0)))
        simulation._plans.clear()
        return result(placement=placement, image_deviation=0.0, images=3)

    for placement in ("one-shot", "thalweg"):
        probing_s = ran(1e6, placement).probing_s
        assert 1.0 < probing_s < 60.0
        came = ran(probing_s, placement)
        assert came.probing_s == pytest.approx(probing_s)
        assert came.first_image_s is not None
        assert came.first_image_s > 131_072 * 8 / 2e4
    assert result(placement="download-all").probing_s == 0.0
    simulation._plans.clear()


def test_network_and_cost_parameters_change_the_result() -> None:
    plain = result()
    for other in (
        {"configuration": 4},
        {"pool_seed": 1},
        {"interface": "independent"},
        {"startup_s": 1.0},
        {"disk_bytes_per_s": 1e5},
        {"pixel_s": 1e-4},
        {"image_bytes": 20_000},
    ):
        assert result(**other).elapsed_s != plain.elapsed_s, other


def test_placements_on_the_same_network_share_the_first_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []
    plan_ahead = virtual_run.plan_ahead

    def counted(work: Any, planner: Any, *rest: Any, **more: Any) -> Any:
        planned.append(repr(planner))
        return plan_ahead(work, planner, *rest, **more)

    monkeypatch.setattr(simulation, "plan_ahead", counted)
    simulation._plans.clear()
    for placement in ("one-shot", "global", "local", "download-all", "one-shot"):
        result(placement=placement)
    assert len(planned) == 2
    result(placement="one-shot", view="truth")
    for configuration in range(PLANS_KEPT + 2):
        result(configuration=configuration, images=1)
    assert len(simulation._plans) <= PLANS_KEPT


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"placement": "globl"}, "did you mean 'global'"),
        ({"pool": "nowhere"}, "no pool 'nowhere'"),
        ({"tree": "oak"}, "unknown tree 'oak'"),
        ({"cost": "least"}, "least"),
        ({"k": 2}, "--k goes with --placement local"),
        ({"forecaster": "medan"}, "median"),
        ({"variant": "exakt"}, "unknown variant 'exakt'; did you mean 'exact'"),
    ],
)
def test_an_invalid_simulation_is_refused_in_a_single_line(
    options: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THALWEG_TRACES", raising=False)
    with pytest.raises(UsageError, match=says) as refused:
        result(**options)
    assert "\n" not in str(refused.value)


def test_a_run_with_a_single_image_has_no_interarrival_time() -> None:
    came = result(images=1)
    assert (came.delivered, came.mean_interarrival_s, came.median_interarrival_s) == (1, None, None)
    assert came.first_image_s == came.elapsed_s


def test_exact_knowledge_lasts_while_data_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the truth as view, each replanning gets the rates at that time as an outlook without doubt.

    No link is probed. Without the truth, links are probed and the view has doubts.
    """
    views: list[tuple[bool, dict[Any, float]]] = []
    plan = Thalweg.plan

    def seen(self: Thalweg, task: Task, model: Any) -> Any:
        view = task.view
        rates = {link: estimate.rate_bps for link, estimate in view.estimates.items()}
        views.append((isinstance(view, Outlook) and not any(view.doubt.values()), rates))
        return plan(self, task, model)

    monkeypatch.setattr(Thalweg, "plan", seen)
    simulation._plans.clear()
    exact = result(view="truth", placement="thalweg", **CHANGING)
    assert (exact.probe_bytes, exact.lost) == (0, 0)
    links = open_pool("regions", 1001).network(("h1", "h2", "h3", "h4", "client"), CHANGING["configuration"])
    first, *later = views
    assert first[1] == {link: rates.rate_at(0.0) for link, rates in links.items()}
    assert len(later) == exact.plans > 10
    assert all(sure for sure, _ in later)
    assert len({tuple(rates.values()) for _, rates in later}) > 10
    view = exactly(links)(e.RequestPlan(run_of("run"), {}, {}), 90.0)
    assert {link: estimate.rate_bps for link, estimate in view.estimates.items()} == {
        link: rates.rate_at(90.0) for link, rates in links.items()
    }
    views.clear()
    assert result(placement="thalweg", **CHANGING).probe_bytes > 0
    assert not any(sure for sure, _ in views)


def test_global_knows_the_truth_while_data_flows() -> None:
    options: dict[str, Any] = {"placement": "global", "images": 60, "period_s": 60.0}
    exact, probed = result(view="truth", **options), result(**options)
    assert exact.plans > 3
    assert (exact.probe_bytes, probed.probe_bytes > 0) == (0, True)


@pytest.mark.long
def test_every_variant_runs_and_changes_the_result() -> None:
    plain = {name: result(placement=name, **CHANGING) for name in ("thalweg", "thalweg-once", "global")}
    stays = ("global-period", "fixed", "fixed-path", "fixed-searched", "once-exact", "steady")  # its tree
    changed = []
    tried = {name: variant for name, variant in VARIANTS.items() if name not in (*AGED, *STRIPES)}
    for name, variant in tried.items():
        came = result(placement=variant.placement, variant=name, **CHANGING)
        assert (came.failed, came.delivered, came.out_of_order) == (None, 100, 0), name
        assert came != plain[variant.placement] or name.startswith("forecaster-"), name  # the best may be any of them
        changed += [name] if came.reshapings else []
    assert not set(changed) & set(stays)
    assert len(changed) >= len(tried) - len(stays) - 3, changed  # a few may find nothing that is worth it


def test_four_trees_deliver_faster_than_a_single_tree_on_independent_links() -> None:
    """Images come in order and once. The variant with one tree equals a run without the variant."""
    options: dict[str, Any] = {"pool": "paper", "pool_seed": 2, "configuration": 1, "images": 60, "servers": 5}
    single, four = (result(**options, placement="thalweg", variant=f"independent-{number}") for number in ("1", "4"))
    for came in (single, four):
        assert (came.failed, came.delivered, came.duplicate, came.out_of_order) == (None, 60, 0, 0)
    assert four.mean_interarrival_s is not None
    assert single.mean_interarrival_s is not None
    assert four.mean_interarrival_s < 0.6 * single.mean_interarrival_s
    pipelined = result(**options, placement="thalweg", variant="independent-1-pipelined")
    assert (pipelined.failed, pipelined.delivered, pipelined.duplicate, pipelined.out_of_order) == (None, 60, 0, 0)
    assert pipelined.mean_interarrival_s is not None
    assert pipelined.mean_interarrival_s != single.mean_interarrival_s
    assert four.plans > single.plans * four.elapsed_s / single.elapsed_s  # type: ignore[operator]
    plain = result(**options, placement="thalweg", interface="independent")
    assert msgspec.structs.replace(plain, probing_s=0.0) == msgspec.structs.replace(single, probing_s=0.0)
    exact = result(**options, placement="thalweg", variant="independent-auto-steady")
    assert exact.bound_period_s is not None
    assert exact.predicted_s is not None
    assert exact.mean_interarrival_s is not None
    assert exact.bound_period_s <= exact.predicted_s <= exact.mean_interarrival_s


def test_a_run_on_constant_links_has_a_bound_and_keeps_the_tree() -> None:
    came = result(placement="thalweg", variant="steady", images=40)
    assert came.bound_period_s is not None
    assert came.predicted_s is not None
    assert came.mean_interarrival_s is not None
    assert came.bound_period_s < came.predicted_s < came.mean_interarrival_s
    assert came.reshapings == 0


def test_foreseen_views_hold_future_means_and_measured_views_hold_the_last_samples() -> None:
    links = open_pool("paper", 1001).network(("h1", "h2"), 0)
    window = links["h1", "h2"]
    plan = e.RequestPlan(run_of("run"), {}, {})
    assert foreseen(links, 300.0)(plan, 60.0).rate_bps("h1", "h2") == pytest.approx(
        window.bits_between(60.0, 360.0) / 300.0
    )
    samples = {("h1", "h2"): (Sample(0.0, 3.0, 1), Sample(9.0, 5.0, 1)), ("h2", "h1"): (Sample(1.0, 4.0, 2),)}
    view = last_measured(("h1", "h2", "h3"))(
        e.RequestPlan(run_of("run"), {}, {}, past=PlanningHistory(samples, 500.0)), 500.0
    )
    assert isinstance(view, Outlook)
    assert view.rate_bps("h1", "h2") == pytest.approx(math.exp(5.0))
    assert view.rate_bps("h1", "h3") == pytest.approx(math.exp(4.0))  # as the slowest of those that were measured
    assert set(view.doubt.values()) == {0.0}
