"""What goes on as it is when a run begins anew without a host that it has lost, and what begins anew."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from flows import chain
from msgspec.structs import replace
from playbook import ANY, Playbook, got
from run_ids import R, run_of

from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.faults import Crash, Fault, FaultPlan
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.experiments.faults.expected_losses import LIMITS
from thalweg.experiments.faults.generated_plans import code_of, draw_trial
from thalweg.middleware.dataflow import Code
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.messages import Failover, Start
from thalweg.middleware.protocol.run_id import RunId

CODE = Code("some")
FLOW = chain(CODE, CODE, CODE, client="client").validate()
GRAPHS = (1, 5, 13, 20)  # seeds of graphs with several sinks
WHERE = {"s": "h1", "o": "h2", "p": "h3", "t": "client"}
PEERS = tuple([m.Peer(host, f"tcp://{host}:1", f"tcp://{host}:2") for host in ("client", "h1", "h2", "h3", "h4")])


def generation(number: int, *starts: Start, where: dict[str, str] | None = None, **more: Any) -> m.Install:
    """``s`` on h1 -> ``o`` on h2 -> ``p`` on h3 -> ``t`` on the client, as its ``number``-th generation."""
    locations = tuple([m.Location(name, host, 1) for name, host in (WHERE | (where or {})).items()])
    install = m.Install(run_of("r" + (f"~{number}" if number else "")), FLOW, locations, PEERS, "client")
    return replace(replace(install, failover=Failover(every=4)), starts=starts, **more)


def follows(number: int = 1, at: int = 2, **more: Any) -> m.Install:
    """h3 is lost: ``p`` begins anew on h4, from partition ``at``."""
    starts = Start("s", at, free=True), Start("o", at), Start("p", at), Start("t", at)
    return generation(number, *starts, **{"where": {"p": "h4"}, "kept_from": 0} | more)


def makes(book: Playbook, run: RunId, index: int, value: str) -> None:
    """The code of ``o`` has been called for a partition, and returns."""
    assert book.only(e.RunOperator) == [e.RunOperator(run, "o", index, (f"s{index}",))]
    book << e.OperatorFinished(run, "o", index, value, 1) >> ANY


@pytest.fixture
def book(make_book: Any) -> Playbook:
    """Host h2 of generation 0: ``o`` has sent partitions 0 to 4, and gathers the sixth."""
    book: Playbook = make_book("h2")
    book << got("client", generation(0)) >> ANY
    for index in range(5):
        book << got("h3", m.Demand(R, "o", "p", index, version=1)) >> ANY
        book << got("h1", m.Partition(R, "s", "o", index), f"s{index}", 1) >> ANY
        makes(book, R, index, f"o{index}")
        replica = book.only(e.TakeState)
        if replica:
            book << e.StateTaken(R, "o", replica[0].version, b"x", "", 1) >> ANY
    return book


def test_an_operator_goes_on_with_its_state_and_gives_again_what_its_consumer_lacks(book: Playbook) -> None:
    book << got("client", m.CheckpointsObsolete(R, (Start("p", 2), Start("o", 2)))) >> ANY
    book << got("client", follows()) >> ANY
    assert book.only(e.CloseRun) == [e.CloseRun(R, run_of("r~1"), ("o",))]
    assert [(each.install.run, each.nodes) for each in book.only(e.OpenRun)] == [(run_of("r~1"), ())]
    assert book.sent("client") == [m.Installed(run_of("r~1"), "h2", carried_over=(Start("o", 5),))]
    assert [(each.producer, each.index) for each in book.sent("h1")] == [("s", 5)]
    book << got("h3", m.Demand(R, "o", "p", 5, version=1)) >> []  # a host of the generation before
    for index in (2, 3, 4):
        book << got("h4", m.Demand(run_of("r~1"), "o", "p", index, version=1)) >> ANY
        (sent,) = book.only(e.Send)
        assert (sent.to, sent.message.index, sent.payload) == ("h4", index, f"o{index}")
    book << got("h1", m.Partition(run_of("r~1"), "s", "o", 5), "s5", 1) >> ANY
    makes(book, run_of("r~1"), 5, "o5")
    book << e.StateTaken(run_of("r~1"), "o", 1, b"x", "", 1) >> ANY
    book << got("h4", m.Demand(run_of("r~1"), "o", "p", 5, version=1)) >> ANY
    assert [each.payload for each in book.only(e.Send) if each.bulk and each.to == "h4"] == ["o5"]


def test_what_code_returns_of_the_generation_before_counts_once(book: Playbook) -> None:
    book << got("h1", m.Partition(R, "s", "o", 5), "s5", 1) >> [e.RunOperator(R, "o", 5, ("s5",))]
    book << got("client", follows()) >> ANY
    assert not book.only(e.RunOperator)
    book << got("client", follows(2)) >> ANY  # and once more
    finished = e.OperatorFinished(R, "o", 5, "o5", 1)
    book << finished >> ANY
    book << finished >> []
    book << got("h4", m.Demand(run_of("r~2"), "o", "p", 5, version=1)) >> ANY
    assert [each.payload for each in book.only(e.Send) if each.bulk and each.to == "h4"] == ["o5"]


def test_code_that_raises_over_a_call_of_the_generation_before_ends_the_run(book: Playbook) -> None:
    book << got("h1", m.Partition(R, "s", "o", 5), "s5", 1) >> ANY
    book << got("client", follows()) >> ANY
    book << e.OperatorFailed(R, "o", "it is broken") >> ANY
    assert [each for each in book.sent("client") if isinstance(each, m.Failed)] == [
        m.Failed(run_of("r~1"), "o", "it is broken")
    ]


@pytest.mark.parametrize(
    "install",
    [
        follows(kept_from=None),
        follows(2, kept_from=1),  # this host was away when all began anew
        follows(at=6),  # it is behind of what it would start with
        replace(follows(), dataflow=chain(CODE, Code("other"), CODE, client="client").validate()),
        follows(where={"p": "h4", "o": "h4"}),
    ],
)
def test_an_operator_that_is_not_the_same_or_may_not_be_sound_begins_anew(book: Playbook, install: m.Install) -> None:
    book << got("client", install) >> ANY
    assert book.only(e.CloseRun) == [e.CloseRun(R, install.run, ())]
    assert [type(each) for each in book.sent("client")][-1] is m.Installed
    here = any(each == m.Location("o", "h2", 1) for each in install.locations)
    assert [each.nodes for each in book.only(e.OpenRun)] == [("o",) if here else ()]


def test_where_an_output_is_gone_the_run_begins_wholly_anew(book: Playbook, make_book: Any) -> None:
    book << got("client", m.CheckpointsObsolete(R, (Start("p", 4),))) >> ANY
    book << got("client", follows()) >> ANY
    book << got("h4", m.Demand(run_of("r~1"), "o", "p", 3, version=1)) >> ANY
    (refuse,) = book.sent("client")
    assert (type(refuse), refuse.node, refuse.index) == (m.StateMissing, "o", 0)
    client = make_book("client")
    client << e.RunRequested(follows(), None) >> ANY
    client << got("h2", refuse) >> ANY
    (begun,) = [each for each in client.sent("h2") if isinstance(each, m.Install)]
    assert (begun.run, begun.kept_from) == (run_of("r~2"), None)


def test_all_begin_anew_where_a_state_is_lost_with_what_is_needed_to_make_it_again(make_book: Any) -> None:
    client = make_book("client")
    client << e.RunRequested(generation(0), None) >> ANY
    for host in ("h1", "h2", "h3", "h4"):
        client << got(host, m.Installed(R, host)) >> ANY
    run = client.core.runs[R]
    run.flow.nodes["t"].index = 8  # as the application has got so many
    client << got("h4", m.CheckpointStored(R, "p", 5, ("h4", "h3"))) >> ANY
    assert client.sent("h2") == [m.CheckpointsObsolete(R, (Start("p", 5),))]  # which keeps what p may want again
    client << got("h4", m.CheckpointStored(R, "o", 5, ("h4", "h2"))) >> ANY
    assert client.sent("h2") == [m.CheckpointsObsolete(R, (Start("o", 5),))]
    client << e.PeerLost(R, "h3", "is gone") >> ANY
    (once,) = [each for each in client.sent("h2") if isinstance(each, m.Install)]
    assert (once.kept_from, {each.node: each.index for each in once.starts}["p"]) == (0, 5)
    assert {each.node for each in once.starts if each.free} == {"s"}
    client << e.PeerLost(run_of("r~1"), "h4", "is gone") >> ANY  # the last that had it
    (again,) = [each for each in client.sent("h2") if isinstance(each, m.Install)]
    assert (again.kept_from, {each.node: each.index for each in again.starts}["p"]) == (None, 0)


@pytest.mark.parametrize(
    ("seed", "graph"), [*((seed, False) for seed in (8, 19, 37, 43)), *((seed, True) for seed in GRAPHS)]
)
def test_only_what_was_lost_is_made_again(seed: int, graph: bool) -> None:
    """Also where nodes have several consumers, and there are several sinks."""
    trial = draw_trial(seed, graph=graph)
    found: dict[bool, list[dict[str, Any]]] = {}
    given: dict[bool, dict[tuple[str, int], str]] = {}
    sources = {node.pinned for node in trial.dataflow.nodes if node.pinned}
    lost = min(host for host in trial.placement.values() if host not in sources)
    for keeps in (True, False):
        records: list[dict[str, Any]] = []
        came: dict[tuple[str, int], str] = {}

        def record(_: str, __: float, command: e.Record, into: list[dict[str, Any]] = records) -> None:
            if command.kind == "recovered":
                into.append(command.fields["detail"])

        def took(partition: e.Deliver, _: float, into: dict[tuple[str, int], str] = came) -> None:
            assert (partition.sink, partition.index) not in into
            into[partition.sink, partition.index] = repr(partition.value)

        faults: tuple[Fault, ...] = (Crash(lost, 3.0),) if keeps else ()
        world = FaultyWorld(
            trial.hosts, trial.links, partial(code_of, trial), FaultPlan(seed, faults),
            WorldConfig(interface=trial.interface, core=LIMITS, validate=True), on_record=record,
        )  # fmt: skip
        world.failover, world.on_delivered = Failover(every=4), took
        world.run(trial.dataflow, trial.placement, trial.partitions)
        assert world.failed is None
        found[keeps], given[keeps] = records, came
    assert given[True] == given[False]
    (recovered,) = found[True]
    assert not found[False]
    kept = set(recovered["went_on"])
    assert kept
    assert all(recovered["again"][name] == 0 for name in kept)


@pytest.mark.parametrize("of_o", [0, 3])
def test_another_tree_waits_while_nodes_that_began_anew_are_behind_others(make_book: Any, of_o: int) -> None:
    """``o`` begins with partition 0, as its replica is lost, or with the same one as ``p`` and ``t``."""
    client = make_book("client")
    starts = Start("s", 0, free=True), Start("o", of_o), Start("p", 3), Start("t", 3)
    client << e.RunRequested(generation(1, *starts), None) >> ANY
    for host in ("h1", "h2", "h3", "h4"):
        client << got(host, m.Installed(run_of("r~1"), host)) >> ANY
    shorter = chain(CODE, CODE, client="client").validate()
    wish = e.PlacementProposed(R, {"s": "h1", "o": "h2", "t": "client"}, "asked for", shorter, (CODE,))
    client << wish >> ANY
    asked = [each for each in client.commands if isinstance(each, e.Send) and isinstance(each.message, m.Propose)]
    assert bool(asked) is (of_o == 3)
    client << e.NextRequested(R) >> ANY
    (
        client << got("h3", m.Partition(run_of("r~1"), "p", "t", 3), "p3", 1) >> ANY
    )  # by then all have made what ``o`` was behind
    asked += [each for each in client.commands if isinstance(each, e.Send) and isinstance(each.message, m.Propose)]
    assert asked
