"""Moves that hosts request for their operators by coordinates: the local placement optimiser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from flows import chain
from playbook import ANY, Playbook, got
from run_ids import R, fired
from virtual_runs import plane, shaped

from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.world import World
from thalweg.experiments.simulation.run import Work, run_ahead
from thalweg.middleware.core.barrier.proposer import Proposer
from thalweg.middleware.core.steering.by_coordinates import SETTLED
from thalweg.middleware.core.steering.gossip import Gossip
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.figures import HostFigures, NodeFigures
from thalweg.middleware.network.place import Place
from thalweg.middleware.network.view import NetworkView
from thalweg.middleware.planning import CostParameters, CriticalPath, Hints, Plan, ProbedPlan, get_strategy
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import SpaceMoves
from thalweg.middleware.protocol.limits import CoreConfig, MonitorConfig
from thalweg.middleware.shell.node_code import NodeCode, NodeResult

PARTITIONS = 300


class Sized(NodeCode):
    """Code that gives partitions of 10 KB."""

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        return NodeResult(index, 10_000, 0.0)


def test_an_operator_moves_nearer_to_the_neighbours_by_coordinates() -> None:
    """The operator's host becomes distant from all other hosts."""
    hosts, latency_s = plane(12)
    flow = chain(Code("composite"), Code("composite"), client="client")
    core = CoreConfig(monitor=MonitorConfig(sound_interval_s=1.0))
    records = list[e.Record]()
    world = World(
        hosts, shaped(hosts, latency_s, later={"h5": 0.5}), lambda _: Sized(),
        WorldConfig("independent", startup_s=0.0, core=core, validate=True),
        on_record=lambda _, __, each: records.append(each),
    )  # fmt: skip
    indices: list[int] = []
    world.on_delivered = lambda delivered, _: indices.append(delivered.index)
    strategy = get_strategy("cost-space-local", period_s=20.0)
    assert strategy.needs == ("work", "coordinates")
    start = {node.name: node.pinned or "h5" for node in flow.nodes}
    plan = ProbedPlan(Plan(start, flow), NetworkView({}), frozenset(), frozenset(), 0, True)
    work = Work(flow, hosts, Hints({"s": 1e4, "o": 1e4}), CostParameters(), CriticalPath())
    run_ahead(work, strategy, plan, PARTITIONS, world)
    assert world.failed is None and indices == list(range(PARTITIONS))
    assert world.placement["o"] != "h5" and 1 <= world.relocations <= 4 and world.plans == 0
    looks = [record.fields["detail"]["decision"] for record in records if record.kind == "look"]
    assert {"wish", "stay"} >= set(looks) and "wish" in looks
    moved = [record.fields["detail"] for record in records if record.kind == "proposal"]
    assert {proposal["reason"] for proposal in moved} == {"nearer to its neighbours"}


# --- one host ---------------------------------------------------------------------------------------


def there(at: float, **more: Any) -> Place:
    return Place((at, 0.0, 0.0), 0.001, 0.1, SETTLED, **more)


@pytest.fixture
def book(make_book: Callable[..., Playbook], make_install: Callable[..., m.Install]) -> Playbook:
    """h2 has ``o``, between ``s`` on h1 and the client."""
    book = make_book("h2")
    install = make_install(others=("h3",))
    moves = SpaceMoves(period_s=10.0, displacement_s=0.05, saving=0.2, load_s=1.0)
    book << got("client", msgspec.structs.replace(install, moves=moves, news=("work", "coordinates"))) >> ANY
    run = book.core.runs[R]
    run.parts.get(Gossip).nodes = lambda: {"o": NodeFigures(1.0, 100.0, {"s": 300.0})}  # type: ignore[method-assign]
    book.core.links.coordinate_table._own = there(0.5)
    book.core.links.coordinate_table.reported = {"h1": there(0.0), "h3": there(0.1), "client": there(0.4)}
    return book


def looked(book: Playbook) -> list[m.MoveRequest]:
    book << fired("look r") >> ANY
    return [message for message in book.sent("client") if isinstance(message, m.MoveRequest)]


def test_a_host_requests_a_move_to_the_suitable_host_with_the_least_usage(book: Playbook) -> None:
    places = book.core.links.coordinate_table.reported
    assert looked(book) == [m.MoveRequest(R, "o", 1, "h1")]
    (record,) = (record for record in book.only(e.Record) if record.kind == "look")
    assert record.fields["value"] == pytest.approx(300 * 0.502 + 100 * 0.102)
    places["h1"] = there(0.0, host=HostFigures(load=0.5))
    assert looked(book) == [m.MoveRequest(R, "o", 1, "h3")]  # it was not heard, and says so again
    places["h3"] = there(0.1, host=HostFigures(memory_bytes=400))  # it takes 500
    places["h1"] = there(0.0, host=HostFigures(memory_bytes=400))
    assert looked(book) == [m.MoveRequest(R, "o", 1, "client")]
    places["client"] = msgspec.structs.replace(there(0.4), count=SETTLED - 1)
    assert looked(book) == []  # it hardly knows where it is


def test_a_search_for_a_host_needs_a_sufficient_displacement(book: Playbook) -> None:
    places = book.core.links.coordinate_table
    places._own = there(0.0)
    assert looked(book) == [] and [record.kind for record in book.only(e.Record)] == ["look"]
    places.reported["h1"] = there(0.06)  # at rest it would be 0.045 away
    assert looked(book) == [] and not list(book.only(e.Record))
    places.reported["h1"] = there(0.2)
    looked(book)
    assert [record.kind for record in book.only(e.Record)] == ["look"]


def test_the_client_proposes_a_single_requested_move_at_a_time(
    make_book: Callable[..., Playbook], install: m.Install
) -> None:
    book = make_book("client")
    book << e.RunRequested(install) >> ANY
    for host in ("h1", "h2"):
        book << got(host, m.Installed(R, host)) >> ANY
    proposer = book.core.runs[R].parts.get(Proposer)
    for sender, wish in (
        ("h1", m.MoveRequest(R, "o", 1, "h1")),  # where it is not
        ("h2", m.MoveRequest(R, "o", 0, "h1")),  # older
        ("h2", m.MoveRequest(R, "o", 1, "h9")),
        ("h1", m.MoveRequest(R, "s", 1, "h2")),  # a source
        ("h2", m.MoveRequest(R, "no", 1, "h1")),
    ):
        book << got(sender, wish) >> ANY
        assert proposer.proposal is None
    book << got("h2", m.MoveRequest(R, "o", 1, "h1")) >> ANY
    assert proposer.proposal is not None and proposer.proposal.number == 1
    book << got("h2", m.MoveRequest(R, "o", 1, "client")) >> ANY
    assert proposer.proposal.number == 1 and proposer.next is None
    (dropped,) = [record.fields["detail"] for record in book.only(e.Record)]
    assert (dropped["why"], dropped["moves"]) == ("another change is under way", [["o", "h2", "client"]])


@pytest.mark.parametrize("field", ["period_s", "displacement_s", "saving", "load_s"])
def test_the_error_for_a_figure_out_of_range_names_the_figure(field: str) -> None:
    with pytest.raises(UsageError, match=f"{field} is -1"):
        SpaceMoves(**{field: -1.0})
