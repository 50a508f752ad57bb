"""Nodes that continue, and nodes that restart, when a run recovers from the loss of a host."""

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
    """h3 is lost. ``p`` restarts on h4, from partition ``at``."""
    starts = Start("s", at, free=True), Start("o", at), Start("p", at), Start("t", at)
    return generation(number, *starts, **{"where": {"p": "h4"}, "kept_from": 0} | more)


def makes(book: Playbook, run: RunId, index: int, value: str) -> None:
    """Check that the code of ``o`` was called for a partition, and let it return ``value``."""
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


def test_a_surviving_operator_keeps_the_state_and_resends_outputs_that_consumers_lack(book: Playbook) -> None:
    book << got("client", m.CheckpointsObsolete(R, (Start("p", 2), Start("o", 2)))) >> ANY
    book << got("client", follows()) >> ANY
    assert book.only(e.CloseRun) == [e.CloseRun(R, run_of("r~1"), ("o",))]
    assert [(opened.install.run, opened.nodes) for opened in book.only(e.OpenRun)] == [(run_of("r~1"), ())]
    assert book.sent("client") == [m.Installed(run_of("r~1"), "h2", carried_over=(Start("o", 5),))]
    assert [(message.producer, message.index) for message in book.sent("h1")] == [("s", 5)]
    book << got("h3", m.Demand(R, "o", "p", 5, version=1)) >> []  # a host of the generation before
    for index in (2, 3, 4):
        book << got("h4", m.Demand(run_of("r~1"), "o", "p", index, version=1)) >> ANY
        (sent,) = book.only(e.Send)
        assert (sent.to, sent.message.index, sent.payload) == ("h4", index, f"o{index}")
    book << got("h1", m.Partition(run_of("r~1"), "s", "o", 5), "s5", 1) >> ANY
    makes(book, run_of("r~1"), 5, "o5")
    book << e.StateTaken(run_of("r~1"), "o", 1, b"x", "", 1) >> ANY
    book << got("h4", m.Demand(run_of("r~1"), "o", "p", 5, version=1)) >> ANY
    assert [send.payload for send in book.only(e.Send) if send.bulk and send.to == "h4"] == ["o5"]


def test_the_result_of_a_call_from_the_generation_before_counts_once(book: Playbook) -> None:
    book << got("h1", m.Partition(R, "s", "o", 5), "s5", 1) >> [e.RunOperator(R, "o", 5, ("s5",))]
    book << got("client", follows()) >> ANY
    assert not book.only(e.RunOperator)
    book << got("client", follows(2)) >> ANY  # and once more
    finished = e.OperatorFinished(R, "o", 5, "o5", 1)
    book << finished >> ANY
    book << finished >> []
    book << got("h4", m.Demand(run_of("r~2"), "o", "p", 5, version=1)) >> ANY
    assert [send.payload for send in book.only(e.Send) if send.bulk and send.to == "h4"] == ["o5"]


def test_an_error_in_a_call_from_the_generation_before_ends_the_run(book: Playbook) -> None:
    book << got("h1", m.Partition(R, "s", "o", 5), "s5", 1) >> ANY
    book << got("client", follows()) >> ANY
    book << e.OperatorFailed(R, "o", "it is broken") >> ANY
    assert [message for message in book.sent("client") if isinstance(message, m.Failed)] == [
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
def test_an_operator_that_changed_or_may_be_stale_restarts(book: Playbook, install: m.Install) -> None:
    book << got("client", install) >> ANY
    assert book.only(e.CloseRun) == [e.CloseRun(R, install.run, ())]
    assert [type(message) for message in book.sent("client")][-1] is m.Installed
    here = any(location == m.Location("o", "h2", 1) for location in install.locations)
    assert [opened.nodes for opened in book.only(e.OpenRun)] == [("o",) if here else ()]


def test_a_lost_output_restarts_every_node_of_the_run(book: Playbook, make_book: Any) -> None:
    book << got("client", m.CheckpointsObsolete(R, (Start("p", 4),))) >> ANY
    book << got("client", follows()) >> ANY
    book << got("h4", m.Demand(run_of("r~1"), "o", "p", 3, version=1)) >> ANY
    (refuse,) = book.sent("client")
    assert (type(refuse), refuse.node, refuse.index) == (m.StateMissing, "o", 0)
    client = make_book("client")
    client << e.RunRequested(follows(), None) >> ANY
    client << got("h2", refuse) >> ANY
    (begun,) = [message for message in client.sent("h2") if isinstance(message, m.Install)]
    assert (begun.run, begun.kept_from) == (run_of("r~2"), None)


def test_every_node_restarts_if_a_state_is_lost_and_cannot_be_recomputed(make_book: Any) -> None:
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
    (once,) = [message for message in client.sent("h2") if isinstance(message, m.Install)]
    assert (once.kept_from, {start.node: start.index for start in once.starts}["p"]) == (0, 5)
    assert {start.node for start in once.starts if start.free} == {"s"}
    client << e.PeerLost(run_of("r~1"), "h4", "is gone") >> ANY  # the last that had it
    (again,) = [message for message in client.sent("h2") if isinstance(message, m.Install)]
    assert (again.kept_from, {start.node: start.index for start in again.starts}["p"]) == (None, 0)


@pytest.mark.parametrize(
    ("seed", "graph"), [*((seed, False) for seed in (8, 19, 37, 43)), *((seed, True) for seed in GRAPHS)]
)
def test_surviving_nodes_recompute_nothing_after_a_loss(seed: int, graph: bool) -> None:
    """Graphs have nodes with several consumers, and several sinks."""
    trial = draw_trial(seed, graph=graph)
    recoveries: dict[bool, list[dict[str, Any]]] = {}
    outputs: dict[bool, dict[tuple[str, int], str]] = {}
    sources = {node.pinned for node in trial.dataflow.nodes if node.pinned}
    lost = min(host for host in trial.placement.values() if host not in sources)
    for keeps in (True, False):
        records: list[dict[str, Any]] = []
        delivered: dict[tuple[str, int], str] = {}

        def record(_: str, __: float, command: e.Record, into: list[dict[str, Any]] = records) -> None:
            if command.kind == "recovered":
                into.append(command.fields["detail"])

        def took(partition: e.Deliver, _: float, into: dict[tuple[str, int], str] = delivered) -> None:
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
        recoveries[keeps], outputs[keeps] = records, delivered
    assert outputs[True] == outputs[False]
    (recovered,) = recoveries[True]
    assert not recoveries[False]
    survivors = set(recovered["went_on"])
    assert survivors
    assert all(recovered["again"][name] == 0 for name in survivors)


@pytest.mark.parametrize("of_o", [0, 3])
def test_a_reshaping_waits_while_restarted_nodes_are_behind(make_book: Any, of_o: int) -> None:
    """``o`` restarts at partition 0, as its replica is lost, or at the same partition as ``p`` and ``t``."""
    client = make_book("client")
    starts = Start("s", 0, free=True), Start("o", of_o), Start("p", 3), Start("t", 3)
    client << e.RunRequested(generation(1, *starts), None) >> ANY
    for host in ("h1", "h2", "h3", "h4"):
        client << got(host, m.Installed(run_of("r~1"), host)) >> ANY
    shorter = chain(CODE, CODE, client="client").validate()
    wish = e.PlacementProposed(R, {"s": "h1", "o": "h2", "t": "client"}, "asked for", shorter, (CODE,))
    client << wish >> ANY
    asked = [
        command for command in client.commands if isinstance(command, e.Send) and isinstance(command.message, m.Propose)
    ]
    assert bool(asked) is (of_o == 3)
    client << e.NextRequested(R) >> ANY
    (
        client << got("h3", m.Partition(run_of("r~1"), "p", "t", 3), "p3", 1) >> ANY
    )  # by then all have made what ``o`` was behind
    asked += [
        command for command in client.commands if isinstance(command, e.Send) and isinstance(command.message, m.Propose)
    ]
    assert asked
