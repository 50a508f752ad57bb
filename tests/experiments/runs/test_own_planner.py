"""Planners of a user: the planner of the how-to page, and planners that fail."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from thalweg.experiments.sweeps.simulation import Simulation, simulate
from thalweg.middleware.errors import PlacementError, PlannerError, UsageError
from thalweg.middleware.network.view import LinkEstimate, LinksNeeded, NetworkView
from thalweg.middleware.planning import OneShot, get_strategy
from thalweg.middleware.protocol.adaptation import GlobalMoves

PAGE = Path(__file__).parents[3] / "docs/how-to/write-a-planner.md"
MODULE = "planners_of_a_user"
ERRING = """
from thalweg.middleware.protocol.adaptation import LocalMoves


class Raises:
    def plan(self, task, model):
        raise RuntimeError("no idea")


class Nowhere:
    def plan(self, task, model):
        return PlanResult({node.name: "h9" for node in task.dataflow.nodes}, task.dataflow)


class ErrsLater(BesideAnInput):
    def plan(self, task, model):
        if task.current is None:
            return BesideAnInput().plan(task, model)
        return PlanResult({**task.current, task.dataflow.operators[0]: "h9"}, task.dataflow)


class TakesMore:
    def plan(self, dataflow, hosts, view, current, **more):
        raise AssertionError


class Buys:
    def plan(self, task, model):
        return PlanResult({}, task.dataflow, bought={"h9": 1.0})


class MovesByItself(BesideAnInput):
    adaptation = LocalMoves()
"""


@pytest.fixture
def planners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    blocks = re.findall(r"```python[^\n]*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "class BesideAnInput" in block]
    (tmp_path / f"{MODULE}.py").write_text(code + ERRING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop(MODULE, None)


def simulation(placement: str, **more: object) -> Simulation:
    return Simulation(pool_seed=1, configuration=3, servers=4, images=60, placement=placement, **more)  # type: ignore[arg-type]


@pytest.mark.usefixtures("planners")
def test_the_planner_of_the_how_to_replans_and_moves_operators() -> None:
    strategy = get_strategy(f"{MODULE}:BesideAnInput")
    assert strategy.adaptation == GlobalMoves(period_s=300.0)
    assert strategy.again is strategy.initial
    result = simulate(simulation(f"{MODULE}:BesideAnInput"))
    assert (result.failed, result.delivered, result.out_of_order) == (None, 60, 0)
    assert result.plans > 0
    assert result.relocations > 0


def test_planners_without_adaptation_stay_and_global_replans_with_one_shot() -> None:
    assert get_strategy("one-shot").adaptation is None
    again = get_strategy("global").again
    assert isinstance(again, OneShot)
    assert again.start == "current"


@pytest.mark.usefixtures("planners")
def test_an_invalid_planner_is_reported_with_the_reason() -> None:
    with pytest.raises(PlannerError, match=f"planner {MODULE}:Raises failed: RuntimeError: no idea"):
        simulate(simulation(f"{MODULE}:Raises"))
    with pytest.raises(PlacementError, match="unknown host 'h9'"):
        simulate(simulation(f"{MODULE}:Nowhere"))
    with pytest.raises(PlannerError, match=f"planner {MODULE}:Buys returned a plan with things to rent"):
        simulate(simulation(f"{MODULE}:Buys"))
    with pytest.raises(UsageError, match=r"has plan\(dataflow, .*; make that plan\(task, model\)"):
        get_strategy(f"{MODULE}:TakesMore")
    with pytest.raises(UsageError, match="no GlobalMoves"):
        get_strategy(f"{MODULE}:MovesByItself")


@pytest.mark.usefixtures("planners")
def test_a_planner_that_errs_while_data_flows_fails_the_simulation_and_not_the_flow() -> None:
    result = simulate(simulation(f"{MODULE}:ErrsLater"))
    assert result.failed is not None
    assert "is placed on unknown host 'h9'" in result.failed
    assert (result.delivered, result.relocations) == (60, 0)


@pytest.mark.usefixtures("planners")
def test_planners_with_the_same_name_in_two_modules_are_distinct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = "from thalweg.middleware.planning import DownloadAll\nclass BesideAnInput(DownloadAll, frozen=True): pass\n"
    (tmp_path / f"{MODULE}_2.py").write_text(mine, encoding="utf-8")
    monkeypatch.delitem(sys.modules, f"{MODULE}_2", raising=False)
    first, second = (simulate(simulation(f"{module}:BesideAnInput")) for module in (MODULE, f"{MODULE}_2"))
    assert first.mean_interarrival_s != second.mean_interarrival_s
    at_client = simulate(simulation("download-all"))
    assert second.mean_interarrival_s == at_client.mean_interarrival_s


def test_a_view_requests_the_links_without_an_estimate() -> None:
    view = NetworkView({("a", "b"): LinkEstimate(1.0)})
    view.require([("a", "b"), ("a", "a")])
    with pytest.raises(LinksNeeded) as needed:
        view.require([("a", "b"), ("b", "a"), ("a", "c")])
    assert needed.value.links == {("b", "a"), ("a", "c")}
