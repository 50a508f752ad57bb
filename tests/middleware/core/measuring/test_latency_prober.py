"""Latencies of empty messages: measured by round trips, reported to other hosts, and requested by planners."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any, ClassVar

import msgspec
import pytest
from flows import chain
from playbook import ANY, Playbook, got
from run_ids import R, fired, run_of

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.links import ShapedLink
from thalweg.emulation.virtual.world import World
from thalweg.experiments.simulation.run import Work, plan_ahead, run_ahead
from thalweg.middleware.core.measuring.latency_prober import AT_ONCE, MOST_TOLD, TIMES
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import ProtocolError, UsageError
from thalweg.middleware.network.view import Latency, Link, NetworkView
from thalweg.middleware.planning import CostModel, CostParameters, CriticalPath, Hints, Plan, Task, get_strategy
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.shell.node_code import NodeCode, NodeResult

HOSTS = ("h1", "h2", "client")
DELAYS_S = {("h1", "h2"): 0.02, ("h1", "client"): 0.1, ("h2", "client"): 0.3}  # of both directions together, halves
RATE = BandwidthTrace.constant("fast", 1e8)
FLOW = chain(Code("composite"), Code("composite"), client="client")


def shaped(later_s: float = 0.0) -> dict[Link, ShapedLink]:
    """Return links with delays of their own: a quarter one way, three quarters back. ``later_s`` is added at 300 s."""
    links = {}
    for a, b in permutations(HOSTS, 2):
        whole_s = 2 * DELAYS_S.get((a, b), DELAYS_S.get((b, a), 0.0))
        share = 0.25 if a < b else 0.75
        shapes = [(0.0, LinkShape(1e8, whole_s * share)), (300.0, LinkShape(1e8, whole_s * share + later_s))]
        links[Link(a, b)] = ShapedLink(RATE, shapes, f"{a} {b}")
    return links


class Busy(NodeCode):
    """Code that gives partitions of 4 MB, a third of a second on the line."""

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        return NodeResult(index, 4_000_000, 0.2)


class Asks(msgspec.Struct, frozen=True):
    """A planner that puts the operator on the host with the least latency to the client, and keeps its views."""

    needs: ClassVar[frozenset[str]] = frozenset({"latency"})
    adaptation: ClassVar[GlobalMoves] = GlobalMoves(period_s=60.0)
    told: ClassVar[list[NetworkView]] = []

    def plan(self, task: Task, model: CostModel) -> Plan:
        hosts = [host for host in task.hosts if host != "client"]
        task.view.require_latency([(host, "client") for host in hosts])
        Asks.told.append(task.view)
        nearest = min(hosts, key=lambda host: task.view.latency_s(host, "client") or 0.0)
        where = {node.name: node.pinned or nearest for node in task.dataflow.nodes}
        return Plan(where, task.dataflow, cost_s=1.0, initial_cost_s=2.0)


def is_latency(a: str, b: str, found: Latency | None, *, most_s: float = 1e-3, later_s: float = 0.0) -> None:
    truth_s = DELAYS_S.get((a, b), DELAYS_S.get((b, a), 0.0)) + later_s
    assert found is not None
    assert truth_s <= found.latency_s <= truth_s + most_s


@pytest.mark.parametrize("interface", ["independent", "single"])
def test_latencies_measured_before_a_run_match_the_links(interface: str) -> None:
    world = World(HOSTS, shaped(), lambda _: Busy(), WorldConfig(interface, startup_s=0.0, validate=True))
    latencies = world.probe({Link("h1", "h2"), Link("h2", "h1"), Link("h2", "client")}, 60.0, "latency")
    assert set(latencies) == {("h1", "h2"), ("h2", "client")}  # one stands for both directions
    for link, latency in latencies.items():
        is_latency(*link, latency)
        assert (latency.count, latency.measured_at_s <= world.now) == (TIMES, True)


def test_a_planner_that_needs_latencies_gets_current_latencies_of_all_links_during_the_run() -> None:
    """Partitions occupy a host's only interface for a third of a second, so most round trips are delayed."""
    Asks.told.clear()
    links, records = shaped(later_s=0.5), list[e.Record]()
    config = WorldConfig("single", startup_s=0.0, validate=True)
    strategy = get_strategy(f"{__name__}:Asks")
    work = Work(FLOW, HOSTS, Hints({"s": 4e6, "o": 4e6}), CostParameters(), CriticalPath())
    plan = plan_ahead(work, strategy.initial, shaped(), config)
    assert plan.result.placement["o"] == "h1"
    assert plan.asked == {("h1", "client"), ("h2", "client")}
    world = World(HOSTS, links, lambda _: Busy(), config, on_record=lambda _, __, each: records.append(each))
    run_ahead(work, strategy, plan, 700, world)
    looks = Asks.told[1:]
    assert world.failed is None and world.planner_failed is None and len(looks) > 5
    waited = 0
    for view, later_s in ((looks[1], 0.0), (looks[-1], 0.5)):
        for a, b in permutations(HOSTS, 2):
            latency = view.latency(a, b)
            is_latency(a, b, latency, most_s=0.02, later_s=later_s)
            assert latency is not None and latency.count >= TIMES and latency.measured_at_s > 60.0
            waited += latency.spread_s > 0.02
    assert waited > 3
    assert {"latency"} <= {record.kind for record in records}


def test_links_that_do_not_answer_have_infinite_latency() -> None:
    Asks.told.clear()
    dead = BandwidthTrace.constant("hardly", 1e-6)
    links = {link: dead if "h1" in link else RATE for link in shaped()}
    work = Work(FLOW, HOSTS, Hints({"s": 1.0, "o": 1.0}), CostParameters(), CriticalPath())
    plan = plan_ahead(work, Asks(), links, WorldConfig("independent", startup_s=0.0))
    assert (plan.result.placement["o"], plan.unanswered) == ("h2", {("h1", "client")})
    assert Asks.told[0].latency_s("h1", "client") == math.inf


def test_measurements_that_no_host_takes_are_refused_as_needs_of_a_planner() -> None:
    class Odd(Asks, frozen=True):
        needs: ClassVar[Any] = {"latencies"}

    globals()["Odd"] = Odd
    with pytest.raises(UsageError, match=r"Odd needs 'latencies', which no host measures; did you mean 'latency'\?"):
        get_strategy(f"{__name__}:Odd")


# --- what others say ----------------------------------------------------------------------------------


def far(source: str, target: str, latency_us: int = 5000) -> m.LinkLatency:
    return m.LinkLatency(source, target, latency_us, 0, 3, 0)


@pytest.fixture
def book(make_book: Callable[..., Playbook], install: m.Install) -> Playbook:
    book = make_book("h1")
    book << got("client", msgspec.structs.replace(install, news=("latency",))) >> ANY
    return book


def test_a_latency_report_counts_only_from_the_host_at_the_start_of_the_link(book: Playbook) -> None:
    soundings = book.core.links.latency_prober
    book << got("h2", m.Echo(R, 1, latencies=(far("h2", "h3"), far("h3", "client"), far("h2", "h2")))) >> ANY
    assert soundings.view() == {("h2", "h3"): Latency(0.005, 3, 0.0, 0.0)}
    book << got("stranger", m.Echo(R, 1, latencies=(far("stranger", "h3"),))) >> []  # recorded
    assert book.recorded() == ["unexpected"]
    book << got("h2", m.Echo(run_of("probe"), 1, latencies=(far("h2", "client"),))) >> ANY
    book << got("h2", m.ProbeResult(R, latency=far("h3", "h2"))) >> []
    assert len(soundings.view()) == 1


def test_an_echo_counts_once_and_only_from_the_asked_host(book: Playbook) -> None:
    book << fired("sound r") >> ANY
    (asked,) = (message for message in book.sent("client") if isinstance(message, m.Echo))
    answer = m.Echo(R, asked.number, back=True)
    for sender, odd in (
        ("h2", answer),
        ("client", m.Echo(R, 99, back=True)),
        ("client", m.Echo(run_of("x"), 1, back=True)),
    ):
        book << got(sender, odd) >> []
    book.at(0.5) << got("client", answer) >> ANY
    assert book.core.links.latency_prober.own["client"].latency == Latency(0.25, 1, 0.0, 0.5)
    book << got("client", answer) >> []


@pytest.mark.parametrize("latency", [-1, 2**40, 0.5, "soon", None])
def test_a_message_with_an_invalid_latency_is_not_decoded(latency: Any) -> None:
    with pytest.raises(ProtocolError, match="Expected `int`"):
        frames.decode_control(frames.encode(m.ProbeResult(R, latency=far("h2", "h3", latency))))


def test_the_number_of_concurrent_soundings_is_bounded(make_book: Callable[..., Playbook]) -> None:
    book = make_book("h1")
    peers = tuple(m.Peer(f"x{number}", "tcp://x:1", "tcp://x:2") for number in range(3 * AT_ONCE))
    request = m.ProbeRequest(run_of("probe"), peers, m.Peer("client", "tcp://c:1", "tcp://c:2"), "latency")
    book << got("client", request) >> ANY
    first = {send.to: send.message for send in book.only(e.Send)}
    assert len(first) == AT_ONCE
    echo = first["x0"]
    for _ in range(TIMES):
        book << got("x0", m.Echo(run_of("probe"), echo.number, back=True)) >> ANY
        echo = next(iter(book.sent("x0")), None)
    assert [type(message) for message in book.sent("client")] == [m.ProbeResult]
    assert len({send.to for send in book.only(e.Send)} - {"client"}) == 1  # the next one
    book.at(60.0) << got("client", request) >> ANY  # the others did not answer
    assert len(book.only(e.Send)) == AT_ONCE


def test_memory_is_bounded_for_an_endless_list_of_reported_latencies(book: Playbook) -> None:
    most = book.core.config.monitor.max_links
    for first in range(0, most + 200, 50):
        news = tuple(far("h2", f"x{number}") for number in range(first, first + 50))
        book << got("h2", m.Echo(R, first, latencies=news)) >> ANY
    assert len(book.core.links.latency_prober.reported) == most
    assert len(book.core.links.latency_prober.latest()) <= MOST_TOLD
