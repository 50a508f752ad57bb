"""Inputs of planning besides the network, and the search for a better placement while data flows."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import pytest
from run_ids import R

from thalweg.middleware.client.steering.replanning import MEASURED, TYPICAL_BYTES, Replanner, hints_of_code
from thalweg.middleware.dataflow import Code, Dataflow, Node, complete_binary_tree
from thalweg.middleware.errors import PlacementError
from thalweg.middleware.network.history import History, PlanningHistory
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.tariffs import Tariff
from thalweg.middleware.network.view import Link, LinkEstimate, NetworkView
from thalweg.middleware.planning import CriticalPath, Hints, PlanResult, Stripe, Task
from thalweg.middleware.planning.registry import AGAIN
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves

HOSTS = ("h1", "h2", "client")
HERE = {"source@h1": "h1", "source@h2": "h2", "op0": "client", "sink": "client"}
SLOW, FAST = LinkEstimate(8e4), LinkEstimate(8e6)


def tree(source: Code, operator: Code) -> Dataflow:
    return complete_binary_tree({"h1": source, "h2": source}, operator)


DATAFLOW = tree(Code("runtime_codes:Blocks"), Code("composite"))


def search(hysteresis: float = 0.0, period_s: float = 600.0) -> Replanner:
    """Return a replanner for an operator that combines two partitions of 1 MB into one."""
    hints = Hints({"source@h1": 1e6, "source@h2": 1e6, "op0": 1e6})
    task = Task((DATAFLOW,), HOSTS, NetworkView({}), hints, MEASURED)
    return Replanner(task, CriticalPath(), GlobalMoves(period_s, hysteresis), AGAIN)


def view(**slow: bool) -> dict[Link, LinkEstimate]:
    """Return estimates of all links. They are fast, except for the named links, such as ``h1_client``."""
    links = [(a, b) for a in HOSTS for b in HOSTS if a != b]
    return {link: SLOW if slow.get("_".join(link)) else FAST for link in links}


def plan(known: Mapping[Link, LinkEstimate], state_bytes: int = 0) -> e.RequestPlan:
    return e.RequestPlan(R, HERE, dict(known), {"op0": state_bytes})


def test_a_better_plan_is_returned_with_the_predicted_and_the_current_cost() -> None:
    found = search().answer(plan(view(h1_client=True)))  # 100 s to the client, but 1 s to h2 and 1 s from there
    assert found.placement == {**HERE, "op0": "h2"}
    assert found.worth
    assert (found.detail["planner"], found.detail["why"]) == ("global", "a better plan")
    assert (found.detail["predicted_s"], found.detail["current_s"]) == pytest.approx((2.0, 100.0))


def test_a_query_without_hints_is_planned_with_typical_sizes() -> None:
    own = [Node("s~1", "source", (), Code("x"), "h2"), Node("o~1", "operator", ("op0", "s~1"), Code("x"))]
    grown = Dataflow((*DATAFLOW.nodes, *own, Node("t~1", "sink", ("o~1",), None, "client"))).validate()
    hints = search().of(grown).task.hints
    assert (hints.output_bytes["s~1"], hints.output_bytes["o~1"]) == (TYPICAL_BYTES, 1e6)
    where = {**HERE, "s~1": "h2", "o~1": "h1", "t~1": "client"}
    assert search().answer(e.RequestPlan(R, where, view(), {}, dataflow=grown)).failed == ""


def test_a_plan_requests_all_links_that_may_decide_at_once() -> None:
    found = search().answer(plan({}))
    assert found.placement is None
    assert found.needs == {("h1", "client"), ("h2", "client")}  # those in use
    known = {("h1", "client"): SLOW, ("h2", "client"): FAST}
    assert search().answer(plan(known)).needs == {("h1", "h2")}  # h1 is no place to be


def test_a_better_plan_is_worthwhile_only_if_the_gain_repays_the_move() -> None:
    assert not search().answer(plan(view())).worth
    assert search().answer(plan(view())).detail["why"] == "no better plan"
    slow = view(h1_client=True, client_h2=True)
    dear = search(hysteresis=1.0).answer(
        plan(slow, state_bytes=10**9)
    )  # 1e5 s at 80 kbit/s; 6 partitions gain 98 s each
    assert (dear.worth, dear.detail["why"]) == (False, "it does not repay 1e+05 s of moving")
    assert search(hysteresis=1.0).answer(plan(slow, state_bytes=1000)).worth
    assert search(hysteresis=0.0).answer(plan(slow, state_bytes=10**9)).worth


def test_an_infinite_cost_is_left_out_of_the_detail_of_a_plan() -> None:
    found = search().answer(plan(view() | {("h1", "client"): LinkEstimate(0.0)}))
    assert found.worth
    assert "current_s" not in found.detail
    assert math.isfinite(found.detail["predicted_s"])


class Errs(msgspec.Struct, frozen=True):
    gives: object

    def plan(self, task: Task, model: object) -> object:
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives


class Tells(msgspec.Struct, frozen=True):
    """Planner that keeps its tasks, and places the operator on h2."""

    asked: list[Task]

    def plan(self, task: Task, model: object) -> PlanResult:
        self.asked.append(task)
        return PlanResult({**HERE, "op0": "h2"}, DATAFLOW, cost_s=1.0, initial_cost_s=2.0)


def test_a_tree_of_a_stream_is_planned_with_the_current_placements_of_the_other_trees() -> None:
    asked: list[Task] = []
    stripes = {name: Stripe(DATAFLOW, HERE, share) for name, share in (("0", 0.25), ("1", 0.75))}
    both = [
        msgspec.structs.replace(search(), planner=Tells(asked), stripes=stripes, stripe=name) for name in ("0", "1")
    ]
    moved = {**HERE, "op0": "h1"}
    assert both[0].answer(msgspec.structs.replace(plan(view()), placement=moved)).worth
    assert both[1].answer(plan(view())).worth
    first, second = asked
    assert (first.share, first.beside) == (0.25, (Stripe(DATAFLOW, HERE, 0.75),))
    assert (second.share, second.beside) == (0.75, (Stripe(DATAFLOW, {**HERE, "op0": "h2"}, 0.25),))
    assert stripes["1"].placement["op0"] == "h2"


@pytest.mark.parametrize(
    ("gives", "why"),
    [
        (PlacementError("no room"), "no room"),
        (KeyError("zzz"), f"planner {__name__}:Errs failed: KeyError: 'zzz'"),
        (None, f"planner {__name__}:Errs returned NoneType; return a PlanResult"),
        ({"op0": "h7"}, "operator 'op0' is placed on unknown host 'h7'; the hosts are client, h1, h2"),
        ({"op1": "h1"}, "the placement names node 'op1', which the dataflow does not have"),
        ({"op0": "h1", "source@h1": "h2"}, "source 'source@h1' is pinned to 'h1', not 'h2'"),
        ({}, "the placement leaves out operator 'op0'; name its host"),
    ],
)
def test_a_failing_planner_is_reported_and_moves_nothing(gives: object, why: str) -> None:
    if isinstance(gives, dict):
        gives = PlanResult(gives, DATAFLOW)
    answer = msgspec.structs.replace(search(), planner=Errs(gives)).answer(plan(view()))
    assert answer == e.PlanReady(R, detail={"planner": "global", "why": why}, failed=why)


def test_code_that_can_be_loaded_provides_hints_of_sizes() -> None:
    params = {"site": 1, "sizes": [1000, 3000]}
    hints = hints_of_code(tree(Code("runtime_codes:Blocks", params), Code("runtime_codes:Mix")), ("runtime_codes",))
    assert hints.output_bytes == {"source@h1": 2000.0, "source@h2": 2000.0, "op0": 2000.0}
    assert hints.compute_s.get("op0", 0.0) == 0.0


def test_a_source_with_unknown_sizes_gets_the_typical_size() -> None:
    hints = hints_of_code(tree(Code("image_folder", {"folder": "is elsewhere"}), Code("composite")))
    assert hints.output_bytes == dict.fromkeys(("source@h1", "source@h2", "op0"), TYPICAL_BYTES)


@pytest.mark.parametrize("recording", [True, False])
def test_the_forecasts_behind_a_decision_are_reported_if_records_are_kept(recording: bool) -> None:
    """The links are those of the present tree, of the new tree and of the request. The link from h2 to h1 is none."""
    history = History({link: msgspec.structs.replace(each, measured_at_s=100.0) for link, each in view().items()})
    history.add(("h1", "client"), LinkEstimate(8e4, 1, 0.0, 130.0))
    past = PlanningHistory(history.samples(), 140.0, frozenset({("client", "h1")}))
    ahead = msgspec.structs.replace(search(), options=GlobalMoves(30.0, horizon_s=300.0))
    found = ahead.answer(e.RequestPlan(R, HERE, {}, past=past, recording=recording))
    assert found.placement == {**HERE, "op0": "h2"}
    assert "weather" in found.detail
    if not recording:
        assert "links" not in found.detail
        return
    links = found.detail["links"]
    assert set(links) == {"h1>client", "h2>client", "h1>h2", "client>h1"}
    rate_bps, count, spread_bps, age_s, doubt = links["h1>client"]
    assert 8e4 < rate_bps < 8e6 and count == 2 and spread_bps > 0 and age_s == 10.0 and doubt > 0
    assert links["h1>h2"][3] == 40.0


def test_a_plan_with_a_horizon_chooses_networks_by_the_current_rates() -> None:
    """The forecast of the shared network remembers a very slow sample. The tree changes because of another link."""
    rented = Link("h1", "h2", "fast")
    history = History({link: msgspec.structs.replace(each, measured_at_s=100.0) for link, each in view().items()})
    for link, rates in ((Link("h1", "h2"), (8e4, 8e6)), (Link("h1", "client"), (8e4,))):
        for number, rate_bps in enumerate(rates, 1):
            history.add(link, LinkEstimate(rate_bps, number, 0.0, 130.0 + 4 * number))  # one sample
    networks = {"net": Network(Tariff(per_gb=0.02)), "fast": Network(Tariff("dedicated", 0.2), {("h1", "h2"): 4e6})}
    ahead = msgspec.structs.replace(search(), options=GlobalMoves(30.0, horizon_s=300.0))
    ahead = msgspec.structs.replace(ahead, task=ahead.task.but(networks=networks))
    past = PlanningHistory(history.samples(), 140.0, latest=history.latest())
    found = ahead.answer(e.RequestPlan(R, HERE, {rented: LinkEstimate(4e6, 1, 0.0, 135.0)}, past=past))
    assert found.worth and found.placement == {**HERE, "op0": "h2"}
    assert found.ways == (m.RoutePreference("h1", "h2", ("net", "fast"), (8_000_000, 4_000_000)),)
