"""New hosts for the operators of lost hosts: chosen by the run's planner, or by a rule if the planner fails."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from playbook import ANY, got
from run_ids import R, fired

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.faults import Crash, FaultPlan
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.experiments.faults.expected_losses import LIMITS
from thalweg.experiments.faults.graphs import Timed, numbers
from thalweg.middleware.client.steering.replanning import MEASURED, Replanner
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.network.view import Latency, Link, LinkEstimate, NetworkView
from thalweg.middleware.planning import Hints, Plan, Planner, Task, get_cost_model, get_strategy
from thalweg.middleware.planning.registry import PLANNERS
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.protocol.messages import Failover

HOSTS = ("h1", "h2", "h3", "h4", "h5", "client")


def flow() -> Dataflow:
    flow = Dataflow()
    seen = [flow.source(numbers(f"s{n}"), at=f"h{n}", name=f"s{n}") for n in (1, 2)]
    code = Code("thalweg.experiments.faults.graphs:Counting", {"name": "o", "state_bytes": 9})
    low = flow.operator(code, *seen, name="low")
    flow.sink("t", flow.operator(replace(code, params={"name": "p"}), low, name="high"), at="client")
    return flow


HINTS = Hints({"s1": 2e4, "s2": 2e4, "low": 2e4, "high": 2e4}, {"low": 0.01, "high": 0.01})


class Says(Planner):
    """Planner that puts all free nodes on one host, or misbehaves as ``what`` says."""

    def __init__(self, what: str) -> None:
        self.what, self.asked = what, list[Task]()

    def plan(self, task: Task, model: Any) -> Plan:
        self.asked.append(task)
        if self.what == "raises":
            raise ValueError("two lines\nof text")
        host = {"lost": "h3", "unknown": "h9"}.get(self.what, self.what)
        nodes = task.dataflow.nodes
        return Plan({node.name: node.pinned or host for node in nodes}, task.dataflow)


def search(planner: Any) -> Replanner:
    task = Task((flow(),), HOSTS, NetworkView({}), HINTS, MEASURED)
    return Replanner(task, get_cost_model("critical-path"), GlobalMoves(period_s=1e6), planner)


def world_of(planner: Any) -> FaultyWorld:
    """Run a world in which ``low`` was on h3, which is lost, and ``high`` stays on h4."""
    links = {
        Link(a, b): BandwidthTrace.constant("", 8e7 if {a, b} <= {"h5", "h1", "h2", "h4"} else 8e6)
        for a in HOSTS
        for b in HOSTS
        if a != b
    }
    limits = replace(LIMITS, ping_s=0.5, liveness_s=4.0, detect_s=2.0)
    config = WorldConfig("independent", 0.005, core=limits, validate=True)
    plan = FaultPlan(1, (Crash("h3", 3.0),))
    world = FaultyWorld(HOSTS, links, lambda node: Timed(node, 20_000, 0.01, 0.05), plan, config)
    world.failover, world.answer = Failover(every=4), search(planner).answer
    where = {"s1": "h1", "s2": "h2", "low": "h3", "high": "h4", "t": "client"}
    known = {link: LinkEstimate(rate.rate_at(0.0), measured_at_s=0.0) for link, rate in links.items()}
    world.run(flow(), where, 200, GlobalMoves(period_s=1e6), known=known)
    assert world.failed is None
    return world


def test_the_planner_places_lost_operators_and_moves_no_surviving_operator() -> None:
    planner = Says("h5")
    world = world_of(planner)
    assert (world.placement["low"], world.placement["high"]) == ("h5", "h4")
    (task,) = planner.asked
    assert task.hosts == ("h1", "h2", "h4", "h5", "client")
    assert {name: node.pinned for name, node in task.dataflow.by_name.items()}["high"] == "h4"
    assert task.current is not None
    assert task.current["low"] in task.hosts


@pytest.mark.parametrize("what", ["raises", "lost", "unknown"])
def test_a_failing_planner_leaves_the_placement_to_the_rule(what: str) -> None:
    world = world_of(Says(what))
    assert world.placement["low"] in ("h1", "h2", "h4")  # beside what it is connected with, or its replica


@pytest.mark.parametrize("name", sorted({*PLANNERS} - {"fixed"}))
def test_every_planner_can_place_a_lost_operator(name: str) -> None:
    where = {"s1": "h1", "s2": "h2", "low": "h1", "high": "h4", "t": "client"}
    pinned = [replace(n, pinned=where[n.name]) if n.name == "high" else n for n in flow().nodes]
    present = tuple(host for host in HOSTS if host != "h3")
    known = {Link(a, b): Latency(0.01, 3) for a in present for b in present if a != b}
    command = e.RequestRecoveryPlan(R, where, {}, dataflow=Dataflow(tuple(pinned)), latencies=known, there=present)
    answer = search(get_strategy(name).again if name != "cost-space" else get_strategy(name).initial).answer(command)
    assert isinstance(answer, e.RecoveryPlanReady)
    assert answer.failed == ""
    assert answer.placement is not None
    assert answer.placement["high"] == "h4"
    assert answer.placement["low"] in present


def test_a_silent_planner_is_awaited_until_the_time_limit_only(make_book: Any, make_install: Any) -> None:
    client = make_book("client")
    install = replace(make_install(others=("h3",)), failover=Failover())
    client << e.RunRequested(install, GlobalMoves()) >> ANY
    for host in ("h1", "h2", "h3"):
        client << got(host, m.Installed(R, host)) >> ANY
    client.at(1.0) << e.PeerLost(R, "h2", "is gone") >> ANY
    (asked,) = client.only(e.RequestRecoveryPlan)
    assert {*asked.there} == {"client", "h1", "h3"}
    client << e.PeerLost(R, "h3", "is gone, too") >> ANY
    assert list(client.core.runs) == [R]
    client.at(2.5) << fired("place r") >> ANY
    (began,) = [message for message in client.sent("h1") if isinstance(message, m.Install)]
    assert {entry.node: entry.host for entry in began.locations}["o"] not in ("h2", "h3")
    client << e.RecoveryPlanReady(R, {"o": "h1"}) >> []
