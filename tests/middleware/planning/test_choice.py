"""Choice of a network for an edge: the cheapest that keeps the wanted rate, otherwise the fastest."""

from __future__ import annotations

import time

import msgspec
import pytest

from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.errors import PlannerError
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.tariffs import TARIFFS, Tariff
from thalweg.middleware.network.view import Link, LinkEstimate, LinksNeeded, NetworkView
from thalweg.middleware.planning import CostModel, Hints, Plan, Task, get_cost_model
from thalweg.middleware.planning.costs.model import evaluate
from thalweg.middleware.planning.planners.one_shot import OneShot
from thalweg.middleware.planning.planners.planner import Planner, ask_planner
from thalweg.middleware.planning.planners.thalweg import Thalweg
from thalweg.middleware.planning.problem.choice import choose, cost_of, routes_of, with_all_networks
from thalweg.middleware.planning.problem.problem import Problem

CODE = Code("c")
FLOW = Dataflow(
    (
        Node("s1", "source", (), CODE, "a"),
        Node("s2", "source", (), CODE, "b"),
        Node("o", "operator", ("s1", "s2"), CODE),
        Node("t", "sink", ("o",), None, "c"),
    )
)
HINTS = Hints({"s1": 125_000.0, "s2": 125_000.0, "o": 125_000.0})  # 1 s at 1 Mbit/s
AT = {"s1": "a", "s2": "b", "o": "c", "t": "c"}
PUBLIC = Network(Tariff(per_gb=0.09))
RENTED = Network(Tariff("dedicated", per_gb=0.2, per_port_hour=0.3), {("a", "c"): 10e6})
AC, BC = ("a", "c"), ("b", "c")


def task(public: dict[tuple[str, str], float], fast: Network = RENTED, **more: object) -> Task:
    view = NetworkView({Link(*pair): LinkEstimate(rate) for pair, rate in public.items()})
    return Task((FLOW,), ("a", "b", "c"), view, HINTS).but(networks={"net": PUBLIC, "fast": fast}, **more)


@pytest.mark.parametrize(
    ("a_bps", "b_bps", "wanted_hz", "chosen"),
    [
        (1e6, 1e6, None, "net"),  # the other source is as slow: nothing is gained by what is rented
        (0.2e6, 1e6, None, "fast"),
        (0.2e6, 1e6, 0.1, "net"),  # as slow is wanted
        (1e6, 20e6, 2.0, "fast"),
        (11e6, 20e6, 50.0, "net"),  # nothing keeps that: the fastest
    ],
)
def test_an_edge_uses_the_cheapest_network_that_keeps_the_rate_or_else_the_fastest(
    a_bps: float, b_bps: float, wanted_hz: float | None, chosen: str
) -> None:
    choice = choose(task({AC: a_bps, BC: b_bps}, wanted_hz=wanted_hz), FLOW, AT)
    assert choice == {AC: (chosen, "net" if chosen == "fast" else "fast"), BC: ("net",)}
    assert routes_of(choice) == ({Link(*AC): (Link(*AC, "fast"),)} if chosen == "fast" else {})


@pytest.mark.parametrize("wanted_hz", [0.1, 0.5])
def test_the_choice_ignores_the_hourly_price_of_rented_links(wanted_hz: float) -> None:
    """The rent is paid anyway, and the bytes of the rented network are cheaper."""
    fast = Network(TARIFFS["dedicated"], {("a", "c"): 1e6, ("b", "c"): 0.4e6})
    choice = choose(task({AC: 1e6, BC: 1e6}, fast, wanted_hz=wanted_hz), FLOW, AT)
    assert [choice[AC][0], choice[BC][0]] == ["fast", "fast" if wanted_hz == 0.1 else "net"]


def test_an_edge_changes_networks_only_if_the_change_saves_something() -> None:
    near = {"net": Network(Tariff(per_gb=0.09)), "fast": Network(Tariff(per_gb=0.0895))}
    view = NetworkView({Link(*pair, via): LinkEstimate(1e6) for pair in (AC, BC) for via in ("net", "fast")})
    told = Task((FLOW,), ("a", "b", "c"), view, HINTS).but(networks=near)
    assert choose(told, FLOW, AT)[AC][0] == "fast"
    assert choose(told.but(routes={Link(*BC): (Link(*BC, "fast"),)}, current=AT), FLOW, AT) == {
        AC: ("net", "fast"), BC: ("fast", "net")
    }  # fmt: skip
    faster = view.with_estimates({Link(*pair, "fast"): LinkEstimate(1.05e6) for pair in (AC, BC)})
    free = told.but(networks={"net": Network(), "fast": Network()}, view=faster)
    assert choose(free, FLOW, AT)[AC][0] == "fast"
    assert choose(free.but(current=AT), FLOW, AT)[AC] == ("net", "fast")


def test_measured_rates_of_rented_links_are_requested_and_count_while_data_flows() -> None:
    running = task({AC: 0.2e6, BC: 1e6}, current=AT)
    with pytest.raises(LinksNeeded) as raised:
        choose(running, FLOW, AT)
    assert raised.value.links == {Link(*AC, "fast")}
    dead = running.but(view=running.view.with_estimates({Link(*AC, "fast"): LinkEstimate(1e3)}))
    assert choose(dead, FLOW, AT)[AC] == ("net", "fast")


class Routed:
    def __init__(self, *route: Link) -> None:
        self.route = route

    def plan(self, task: Task, model: CostModel) -> Plan:
        return Plan(AT, FLOW, routes={Link(*AC): self.route})


def test_a_plan_gets_chosen_routes_and_invalid_routes_of_a_planner_are_refused() -> None:
    model = get_cost_model("critical-path")
    links = {(a, b): 1e6 for a in "abc" for b in "abc" if a != b} | {AC: 0.1e6, ("a", "b"): 0.1e6}
    fast = Network(TARIFFS["dedicated"], {AC: 10e6})
    assert ask_planner(OneShot(), task(links, fast), model).routes == {Link(*AC): (Link(*AC, "fast"),)}
    own = ask_planner(Routed(Link(*AC, "fast")), task(links, fast), model)
    assert own.routes == {Link(*AC): (Link(*AC, "fast"),)}
    for route, why in (
        ((Link("a", "b"), Link("b", "c")), "over rented links between the run's hosts, not a → b"),
        ((Link(*AC, "other"),), "over one of"),
        ((), "leads from the first host to the second"),
        ((Link("a", "b", "fast"), Link("c", "b", "fast")), "leads from the first host to the second"),
        ((Link("a", "b", "fast"), Link("b", "a", "fast"), Link(*AC, "fast")), "meets no host twice"),
    ):
        with pytest.raises(PlannerError, match=why):
            ask_planner(Routed(*route), task(links, fast), model)
    with pytest.raises(PlannerError, match="where there is one network"):
        ask_planner(Routed(Link(*AC, "fast")), task(links).but(networks={}), model)


OVER_B = Link("a", "b", "fast"), Link("b", "c", "fast")


def test_a_plan_may_route_an_edge_over_a_relay() -> None:
    model = get_cost_model("critical-path")
    over = Network(TARIFFS["dedicated"], {("a", "b"): 10e6, ("b", "c"): 5e6})
    known = task({(a, b): 0.5e6 for a in "abc" for b in "abc" if a != b}, over)
    assert choose(known, FLOW, AT) == {AC: (OVER_B, "net"), BC: ("fast", "net")}
    own = ask_planner(Routed(*OVER_B), known, model)
    assert own.routes == {Link(*AC): OVER_B}
    assert ask_planner(Routed(*OVER_B), known.but(hops=1), model).routes == {Link(*AC): OVER_B}  # its own word
    assert choose(known.but(hops=1), FLOW, AT)[AC] == ("net",)
    assert choose(known.but(shunned=frozenset({OVER_B})), FLOW, AT) == {AC: ("net",), BC: ("fast", "net")}
    assert (
        with_all_networks(known).view.rate_bps(*AC) == 0.5e6
    )  # planners would take b -> c for the other source as well


def test_a_link_of_a_relayed_route_keeps_the_rate_for_all_edges_over_the_link() -> None:
    over = Network(TARIFFS["dedicated"], {("a", "b"): 2e6, ("b", "c"): 2e6})  # a second for what both sources send
    known = task({AC: 1e3, BC: 1.5e6}, over)
    assert choose(known.but(wanted_hz=0.9), FLOW, AT) == {AC: (OVER_B, "net"), BC: ("fast", "net")}
    assert choose(known.but(wanted_hz=1.2), FLOW, AT) == {AC: (OVER_B, "net"), BC: ("net", "fast")}


def test_a_dead_relayed_route_is_left_and_unmeasured_links_of_a_route_are_requested() -> None:
    over = Network(TARIFFS["dedicated"], {("a", "b"): 10e6, ("b", "c"): 5e6})
    running = task({AC: 0.5e6, BC: 0.5e6}, over, current=AT)
    with pytest.raises(LinksNeeded) as raised:
        choose(running, FLOW, AT)
    assert raised.value.links == {*OVER_B}
    for bps, first in ((4e6, OVER_B), (1e3, "net")):
        told = {OVER_B[0]: LinkEstimate(9e6), OVER_B[1]: LinkEstimate(bps)}
        assert choose(running.but(view=running.view.with_estimates(told)), FLOW, AT)[AC][0] == first


@pytest.mark.parametrize("planner", [OneShot(), Thalweg()])
@pytest.mark.parametrize(
    ("wanted_hz", "where", "over"),
    [
        (None, "c", {AC: "net", BC: "net"}),  # the fastest
        (2.0, "c", {AC: "net", BC: "net"}),  # what is rented is too slow for that
        (0.2, "b", {("a", "b"): "fast", BC: "fast"}),  # its bytes cost a ninth
    ],
)
def test_operators_with_a_wanted_rate_are_placed_where_the_bytes_cost_least(
    planner: Planner, wanted_hz: float | None, where: str, over: dict[tuple[str, str], str]
) -> None:
    public = {(a, b): 10e6 if b == "c" else 3e6 for a in "abc" for b in "abc" if a != b}
    fast = Network(Tariff("dedicated", 0.01), dict.fromkeys([("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")], 1e6))
    pinned = msgspec.structs.replace(FLOW.nodes[-1], pinned="c")
    wanted = task(public, fast, wanted_hz=wanted_hz).but(dataflows=(Dataflow((*FLOW.nodes[:-1], pinned)),))
    plan = ask_planner(planner, wanted, get_cost_model("period"))
    assert plan.placement["o"] == where
    chosen = choose(wanted, plan.dataflow, plan.placement)
    assert {pair: vias[0] for pair, vias in chosen.items()} == over
    assert plan.routes == routes_of(chosen)
    period_s, dollars = cost_of(wanted, plan.dataflow, plan.placement, chosen)
    assert period_s <= 1 / (wanted_hz or 1)
    assert dollars == pytest.approx(sum(125_000 / 1e9 * (0.09 if via == "net" else 0.01) for via in over.values()))
    assert plan.cost_s == pytest.approx(
        evaluate(get_cost_model("period"), Problem(with_all_networks(wanted)), plan.placement)
    )


def test_the_choice_for_a_hundred_edges_takes_less_than_a_second() -> None:
    names = [f"h{number}" for number in range(101)]
    nodes = [Node(f"s{number}", "source", (), CODE, names[number]) for number in range(100)]
    flow = Dataflow((*nodes, Node("t", "sink", tuple(node.name for node in nodes), None, names[100])))
    at = {node.name: names[number] for number, node in enumerate(flow.nodes)}
    pairs = {(name, names[100]): 1e6 for name in names[:100]}
    view = NetworkView({Link(*pair): LinkEstimate(2e6) for pair in pairs})
    networks = {"net": PUBLIC, "fast": Network(TARIFFS["dedicated"], pairs)}
    told = Task((flow,), tuple(names), view, Hints({node.name: 1e5 for node in nodes})).but(networks=networks)
    begun_s = time.perf_counter()
    assert len(choose(told, flow, at)) == 100
    assert time.perf_counter() - begun_s < 1.0  # a tenth of what 100 edges may take, many times over on a busy machine


def test_an_estimate_of_a_link_that_is_not_rented_does_not_count() -> None:
    told = {Link("b", "c", "fast"): LinkEstimate(1e12), Link("a", "c", "fast"): LinkEstimate(9e6)}
    there = task({AC: 1e6, BC: 1e6})
    view = with_all_networks(there.but(view=there.view.with_estimates(told))).view
    assert [view.rate_bps(*AC), view.rate_bps(*BC)] == [9e6, 1e6]
