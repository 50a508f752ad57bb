"""Figures that hosts report of themselves and their nodes, and the figures that planners get."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any, ClassVar

import msgspec
import pytest
from flows import chain
from playbook import ANY, Playbook, got
from run_ids import R, run_of

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.world import World
from thalweg.experiments.simulation.run import Work, plan_ahead, run_ahead
from thalweg.middleware.core.measuring.meters import Meters
from thalweg.middleware.core.steering.gossip import Gossip
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import ProtocolError, UsageError
from thalweg.middleware.network.figures import HostFigures, NodeFigures, read_capacity
from thalweg.middleware.network.view import Link, NetworkView
from thalweg.middleware.planning import CostModel, CostParameters, CriticalPath, Hints, Plan, Problem, Task
from thalweg.middleware.planning.registry import Strategy
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.shell.node_code import NodeCode, NodeResult

HOSTS = ("h1", "h2", "h3", "client")
FLOW = chain(Code("composite"), Code("composite"), client="client")
FAST = {Link(*pair): BandwidthTrace.constant("fast", 1e8) for pair in permutations(HOSTS, 2)}


class Quarters(NodeCode):
    """A source of 60,000 bytes, or an operator that takes 0.5 s and gives a quarter."""

    def __init__(self, source: bool) -> None:
        self.source = source

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        size = 60_000 if self.source else 15_000
        return NodeResult(index, size, 0.1 if self.source else 0.5)


class Listens(msgspec.Struct, frozen=True):
    """A planner that moves the operator once, and keeps the hints that it gets."""

    needs: ClassVar[tuple[str, ...]] = ("work", "hosts")
    told: ClassVar[list[Hints]] = []

    def plan(self, task: Task, model: CostModel) -> Plan:
        Listens.told.append(task.hints)
        host = "h2" if len(Listens.told) < 4 else "h3"
        where = {node.name: node.pinned or host for node in task.dataflow.nodes}
        return Plan(where, task.dataflow, cost_s=1.0, initial_cost_s=2.0)


def test_planners_get_the_measured_figures_of_hosts_and_nodes() -> None:
    """The hints are a thousandth of the truth. The operator runs on h2, twice as fast, then on h3, half as fast."""
    Listens.told.clear()
    capacities = {"h2": HostFigures(2.0, 1), "h3": HostFigures(0.5, 4)}
    records: list[tuple[str, e.Record]] = []
    config = WorldConfig("independent", startup_s=0.0, capacities=capacities, validate=True)
    world = World(
        HOSTS, FAST, lambda node: Quarters(node.kind == "source"), config,
        on_record=lambda host, _, record: records.append((host, record)),
    )  # fmt: skip
    declared = Hints({"s": 60.0, "o": 60.0}, {"o": 0.001})
    work = Work(FLOW, HOSTS, declared, CostParameters(startup_s=0.0), CriticalPath())
    strategy = Strategy(Listens(), GlobalMoves(period_s=30.0), Listens())
    run_ahead(work, strategy, plan_ahead(work, Listens(), FAST, config), 520, world)
    assert world.failed is None and world.planner_failed is None and world.relocations == 1
    assert Listens.told[0] == declared
    for hints, host, call_s in ((Listens.told[3], "h2", 0.25), (Listens.told[-1], "h3", 1.0)):
        assert hints.output_bytes == pytest.approx({"s": 60_000, "o": 15_000})
        assert hints.input_bytes["o"] == pytest.approx({"s": 60_000})
        assert (hints.selectivity("o"), hints.selectivity("s")) == (
            pytest.approx(0.25),
            pytest.approx(math.nan, nan_ok=True),
        )
        assert hints.compute_s == pytest.approx({"o": 0.5}, rel=0.01)  # on a host of speed 1
        assert hints.rates_hz["o"] == pytest.approx(1 / call_s, rel=0.05)
        busy = {name: figures.load for name, figures in hints.hosts.items()}
        assert hints.hosts.keys() == set(HOSTS) and (hints.hosts[host].speed, busy["h1"]) == (
            capacities[host].speed,
            0.0,
        )
        assert busy[host] == pytest.approx(1.0 / capacities[host].cores, abs=0.1)
        problem = Problem(Task((FLOW,), HOSTS, NetworkView({}), hints))
        assert problem.compute_ns[problem.index["o"]] == pytest.approx([5e8, 2.5e8, 1e9, 5e8], rel=0.01)
        assert problem.loads("single").capacity[4:8].tolist() == [1, 1, 4, 1]
    kinds = {(host, record.kind) for host, record in records}
    assert {("h2", "load"), ("h2", "work"), ("h1", "work"), ("h3", "work"), ("client", "load")} <= kinds


def test_a_repeated_partition_counts_once_and_the_load_is_a_share_of_all_cores() -> None:
    meters = Meters(HostFigures(2.0, 4))
    meters.keep(R, {"o"})
    assert meters.host(0.0) == HostFigures(2.0, 4)
    for index, size in enumerate((100, 300)):
        for again in (0, 1):
            meters.took(R, "o", "s", index, size + again)
            meters.made(R, "o", index, 50 + again, 2.0, 5.0 * index)
    meters.took(run_of("another"), "o", "s", 0, 1)
    assert meters.of(R, "o") == NodeFigures(0.2, 50.0, {"s": 200.0}, 4.0, 2)
    assert meters.host(10.0).load == pytest.approx(0.5 * 4 / (10 * 4))  # half of the first look
    assert meters.host(10.5) == meters.host(10.0)
    meters.keep(R, set())
    assert meters.of(R, "o") is None


@pytest.fixture
def book(make_book: Callable[..., Playbook], install: m.Install) -> Playbook:
    book = make_book("client")
    install = msgspec.structs.replace(install, news=("hosts", "work"))
    book << e.RunRequested(install, GlobalMoves(period_s=60.0)) >> ANY
    return book


def test_a_report_about_a_node_counts_only_from_the_host_of_the_node(book: Playbook) -> None:
    own = m.NodeReport("o", 2_000_000, 100, 5000, 7, (400,))
    foreign = m.NodeReport("s", 1, 1, 1, 1)
    book << got("h2", m.Echo(R, 1, host=m.HostReport(2000, 4, 500), nodes=(own, foreign))) >> ANY
    book << got("h1", m.Echo(R, 1, nodes=(own, m.NodeReport("nobody", 1, 1, 1, 1)))) >> ANY
    gossip = book.core.runs[R].parts.get(Gossip)
    assert gossip.nodes() == {"o": NodeFigures(2.0, 100.0, {"s": 400.0}, 0.005, 7)}
    assert gossip.hosts()["h2"] == HostFigures(2.0, 4, 0.5)
    book << got("stranger", m.Echo(R, 1, host=m.HostReport(9, 9, 9))) >> []
    assert "stranger" not in book.core.links.latency_prober.hosts


def test_the_figures_of_detached_nodes_are_dropped(book: Playbook) -> None:
    run = book.core.runs[R]
    book << got("h2", m.Echo(R, 1, nodes=(m.NodeReport("o", 2_000_000, 100, 5000, 7, (400,)),))) >> ANY
    book << got("client", m.Detach(R, 1, ("o", *run.install.dataflow.sinks))) >> ANY
    run.parts.get(Gossip).on_timer()
    assert run.parts.get(Gossip)._told == {}


@pytest.mark.parametrize(
    "figures",
    [
        *[
            (m.HostReport(*each), ())
            for each in ((0, 1, 0), (2**60, 1, 0), (1000, 0, 0), (1000, 1, -1), (1000, 1, 1001))
        ],
        (None, (m.NodeReport("o", -1, 0, 0, 0),)),
        (None, (m.NodeReport("o", 0, 2**50, 0, 0),)),
        (None, (m.NodeReport("o", 0, 0, 2**50, 0),)),
        (None, (m.NodeReport("o", 0, 0, 0, 0, (-1,)),)),
        (None, (m.NodeReport("o", 0, 0, 0, 0),) * 65),
        (m.HostReport(math.nan, 1, 0), ()),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_message_with_impossible_figures_is_not_decoded(figures: Any) -> None:
    host, nodes = figures
    with pytest.raises(ProtocolError):
        frames.decode_control(frames.encode(m.Echo(R, 1, host=host, nodes=nodes)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("speed=0", "a host's speed is 0.0; give 0.001 to 1000, 2 for twice"),
        ("speed=nan", "a host's speed is nan"),
        ("cores=0", "a host's cores are 0; give 1 to 65536"),
        ("cores=two", "the capacity 'cores=two' is not cores=NUMBER"),
        ("sped=2", "a host's capacity has no 'sped'; did you mean 'speed'"),
    ],
)
def test_the_error_for_an_invalid_capacity_names_the_problem(text: str, says: str) -> None:
    assert read_capacity(["speed=2,cores=4"]) == read_capacity(["speed=2", "cores=4"]) == HostFigures(2.0, 4)
    with pytest.raises(UsageError, match=says):
        read_capacity([text])


def test_the_stripes_of_a_stream_sound_peers_as_often_as_a_single_run(make_book: Callable[..., Playbook]) -> None:
    peers = tuple(m.Peer(name, f"tcp://{name}:1", f"tcp://{name}:2") for name in ("h1", "h2", "client"))
    where = tuple(m.Location(node, host, 1) for node, host in (("s", "h1"), ("o", "h2"), ("t", "client")))
    sounded = []
    for stripes in (1, 4):
        book = make_book("h1")
        due = {}
        for number in range(stripes):
            install = m.Install(run_of(f"r/{number}"), FLOW, where, peers, "client", news=("work", "hosts"))
            book << got("client", install) >> ANY
            due |= {timer.key: timer.at_s for timer in book.only(e.SetTimer) if timer.key.timer == "sound"}
        count = 0
        while (at_s := min(due.values())) < 200.0:
            key = min(due, key=lambda each: due[each])
            book.at(at_s) << e.TimerFired(key) >> ANY
            due |= {timer.key: timer.at_s for timer in book.only(e.SetTimer) if timer.key.timer == "sound"}
            echoes = [send for send in book.only(e.Send) if isinstance(send.message, m.Echo)]
            count += len(echoes)
            for echo in echoes:
                book << got(echo.to, m.Echo(echo.message.run, echo.message.number, True)) >> ANY
        sounded.append(count)
        for number in range(stripes):
            book << got("client", m.Remove(run_of(f"r/{number}"))) >> ANY
        assert not book.core.links.latency_prober.turns
    assert sounded[1] <= sounded[0] < 1.2 * sounded[1]
