"""Replicas of operators' states on a host, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from flows import chain
from msgspec.structs import replace
from playbook import ANY, Playbook, got
from run_ids import R, run_of

from thalweg.middleware.core.failover.checkpoints import MOST, Checkpoints
from thalweg.middleware.core.failover.recovery import FURTHER
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.messages import Failover, Start


class Origin:
    """``h2``, which has operator ``o``, whose replicas go to ``h3``."""

    def __init__(self, make_book: Any, install: m.Install) -> None:
        self.book, self.made = make_book("h2"), 0
        self.book << got("client", install) >> ANY

    def make(self, state: bytes) -> list[m.Checkpoint]:
        """Make one more partition, and a replica if one is due. Return the replicas that go to ``h3``."""
        book, index = self.book, self.made
        self.made += 1
        book << got("client", m.Demand(R, "o", "t", index, version=1)) >> ANY
        book << got("h1", m.Partition(R, "s", "o", index), b"x", 1) >> ANY
        book << e.OperatorFinished(R, "o", index, b"y", 1) >> ANY
        sent = self._sent()
        if book.only(e.TakeState):
            book << e.StateTaken(R, "o", 1, state, "", 1) >> ANY
            sent += self._sent()
        return sent

    def _sent(self) -> list[m.Checkpoint]:
        return [message for message in self.book.sent("h3") if isinstance(message, m.Checkpoint)]


def test_unacknowledged_replicas_are_sent_again_instead_of_newer_replicas(make_book: Any, make_install: Any) -> None:
    """Replicas sent to a host that was absent are lost. Once the host is there, new replicas follow."""
    install = replace(make_install(others=("h3",)), failover=Failover(every=1, domains={"h1": "a", "h2": "a"}))
    origin = Origin(make_book, install)
    indices = [[replica.index for replica in origin.make(bytes([number]))] for number in range(MOST + 3)]
    assert indices == [[number + 1] for number in range(MOST)] + [[MOST]] * 3
    origin.book << got("client", m.CheckpointsObsolete(R, (Start("o", MOST),))) >> ANY
    assert [replica.index for replica in origin.make(b"z")] == [MOST + 4]


def test_a_replica_that_is_already_stored_is_acknowledged_again(make_book: Any, make_install: Any) -> None:
    book = make_book("h3")
    book << got("client", replace(make_install(others=("h3",)), failover=Failover())) >> ANY
    for payload in (b"xy", None):  # the second time it is not let in, as it is there
        book << got("h2", m.Checkpoint(R, "o", 1, 4, 1, 2, ""), payload) >> ANY
        assert book.sent("client") == [m.CheckpointStored(R, "o", 4, ("h3", "h2"))]


@pytest.mark.parametrize(("last", "told"), [("some", [1]), ("other", [1, 4, 8])])
def test_a_stateless_operator_before_an_operator_of_the_same_code_reports_once(
    make_book: Any, make_install: Any, last: str, told: list[int]
) -> None:
    """Each operator reports once that it has no state. Later reports of the last operator of the same code suffice."""
    flow = chain(Code("some"), Code("some"), Code(last), client="client").validate()
    install = replace(make_install({"p": "h3"}, dataflow=flow), failover=Failover(every=4))
    book, reported = make_book("h2"), list[int]()
    book << got("client", install) >> ANY
    for index in range(8):
        book << got("h3", m.Demand(R, "o", "p", index, version=1)) >> ANY
        book << got("h1", m.Partition(R, "s", "o", index), b"x", 1) >> ANY
        book << e.OperatorFinished(R, "o", index, b"y", 1) >> ANY
        reported += [message.index for message in book.sent("client") if isinstance(message, m.CheckpointStored)]
        if book.only(e.TakeState):
            book << e.StateTaken(R, "o", 1, keeps=False) >> ANY
            reported += [message.index for message in book.sent("client") if isinstance(message, m.CheckpointStored)]
    assert reported == told


def test_a_stateless_operator_reports_once_more_when_a_host_is_lost(make_book: Any, make_install: Any) -> None:
    """Other operators may have to restart, so the operator reports at once, and then as often as before."""
    install = replace(make_install(others=("h3", "h4")), failover=Failover(every=4))
    origin, reported = Origin(make_book, install), list[int]()
    for index in range(12):
        if index == 5:
            origin.book << got("client", m.Lost(R, "h4", ())) >> ANY
        origin.book << got("client", m.Demand(R, "o", "t", index, version=1)) >> ANY
        origin.book << got("h1", m.Partition(R, "s", "o", index), b"x", 1) >> ANY
        origin.book << e.OperatorFinished(R, "o", index, b"y", 1) >> ANY
        reported += [message.index for message in origin.book.sent("client") if isinstance(message, m.CheckpointStored)]
        if origin.book.only(e.TakeState):
            origin.book << e.StateTaken(R, "o", 1, keeps=False) >> ANY
            reported += [
                message.index for message in origin.book.sent("client") if isinstance(message, m.CheckpointStored)
            ]
    assert reported == [1, 4, 6, 8, 12]


def test_replicas_are_due_by_the_input_bytes_and_by_the_partitions_of_an_operator(
    make_book: Any, make_install: Any
) -> None:
    install = replace(make_install(others=("h3",)), failover=Failover(every=8, every_bytes=5))
    origin = Origin(make_book, install)
    for number in range(14):
        origin.make(bytes([number]))
    assert sorted(origin.book.core.runs[R].parts.get(Checkpoints).replicas["o"]) == [1, 6, 8, 13]


def test_only_hosts_that_keep_outputs_or_replicas_are_notified_of_obsolete_checkpoints(
    make_book: Any, make_install: Any
) -> None:
    """A source keeps no outputs, and no replicas."""
    flow = chain(Code("some"), Code("some"), Code("some"), client="client").validate()
    client = make_book("client")
    (
        client
        << e.RunRequested(replace(make_install({"p": "h3"}, dataflow=flow), failover=Failover(every=4)), None)
        >> ANY
    )
    for host in ("h1", "h2", "h3"):
        client << got(host, m.Installed(R, host)) >> ANY
    client.core.runs[R].flow.nodes["t"].index = 18  # as if 17 had been given to it
    client << got("h3", m.CheckpointStored(R, "p", 16)) >> ANY
    words = {
        host: [message for message in client.sent(host) if isinstance(message, m.CheckpointsObsolete)]
        for host in ("h1", "h2", "h3")
    }
    ops = Start("o", 18), Start("p", 18)
    assert words == {"h1": [], "h2": [m.CheckpointsObsolete(R, ops)], "h3": [m.CheckpointsObsolete(R, ops[1:])]}


# --- whose replicas count, and who gets them ----------------------------------------------------------------


def keeper(make_book: Any, make_install: Any, *settled: Start, history_gaps: tuple[m.HistoryGap, ...] = ()) -> Playbook:
    """``h3``, which keeps a replica of ``o`` at partition 4. ``o`` on ``h2`` starts from that replica."""
    book: Playbook = make_book("h3")
    install = replace(make_install(others=("h3",)), failover=Failover())
    book << got("client", install) >> ANY
    book << got("h2", m.Checkpoint(R, "o", 1, 4, 1, 2, ""), b"xy") >> ANY
    if settled:
        book << got("client", m.CheckpointsObsolete(R, settled)) >> ANY
    starts = Start("s", 4), Start("o", 4, "h3"), Start("t", 4)
    book << got("client", replace(install, run=run_of("r~1"), starts=starts, history_gaps=history_gaps)) >> ANY
    return book


def test_only_the_host_of_an_operator_is_sent_the_replica(make_book: Any, make_install: Any) -> None:
    book, claim = keeper(make_book, make_install), m.StateRequest(run_of("r~1"), "o")
    book << got("h1", claim) >> []
    book << got("h2", claim) >> ANY
    assert [(message.node, message.index) for message in book.sent("h2")] == [("o", 4)]


def test_the_client_is_notified_only_of_the_loss_of_an_awaited_replica(make_book: Any, make_install: Any) -> None:
    """A late report is about an earlier generation or another partition."""
    book, install = make_book("h2"), replace(make_install(others=("h3", "h4")), failover=Failover())
    starts = Start("s", 4), Start("o", 4, "h3"), Start("t", 4)
    book << got("client", replace(install, run=run_of("r~1"), starts=starts)) >> ANY
    book << got("h3", m.StateMissing(run_of("r~1"), "o", 3, "it says")) >> []
    book << got("h4", m.StateMissing(run_of("r~1"), "o", 4, "it says")) >> []
    book << got("h3", m.StateMissing(run_of("r~1"), "o", 4, "it is gone")) >> ANY
    assert book.sent("client") == [m.StateMissing(run_of("r~1"), "o", 4, "it is gone")]


@pytest.mark.parametrize(("cut", "right"), [(3, False), (4, True)])
def test_a_replica_of_a_different_history_is_not_sent(make_book: Any, make_install: Any, cut: int, right: bool) -> None:
    """From partition ``cut`` on, the sources' values differ from the values behind the replica."""
    book = keeper(make_book, make_install, history_gaps=(m.HistoryGap("o", cut, 1, 0, cut),))
    book << got("h2", m.StateRequest(run_of("r~1"), "o")) >> ANY
    assert [type(message) for message in book.sent()] == [m.Checkpoint if right else m.StateMissing]


@pytest.mark.parametrize(("line", "there"), [(4, True), (5, False)])
def test_a_host_keeps_the_replica_at_the_restart_line(
    make_book: Any, make_install: Any, line: int, there: bool
) -> None:
    book = keeper(make_book, make_install, Start("o", line))
    book << got("h2", m.StateRequest(run_of("r~1"), "o")) >> ANY
    assert [type(message) for message in book.sent()] == [m.Checkpoint if there else m.StateMissing]


def begun(make_book: Any, install: m.Install, taken: int) -> Playbook:
    """The client of a run that all hosts have installed, after the application has consumed ``taken`` partitions."""
    client: Playbook = make_book("client")
    client << e.RunRequested(install, None) >> ANY
    for peer in install.peers:
        client << got(peer.name, m.Installed(install.run, peer.name)) >> ANY
    client.core.runs[install.run].flow.nodes["t"].index = taken
    return client


def starts_of(client: Playbook, host: str) -> dict[str, Start]:
    """Return where the nodes start in the generation that the last event has begun."""
    (install,) = [message for message in client.sent(host) if isinstance(message, m.Install)]
    return {start.node: start for start in install.starts}


def test_a_run_restarts_from_a_remaining_replica_at_the_restart_line(make_book: Any, make_install: Any) -> None:
    client = begun(make_book, replace(make_install(others=("h3", "h4")), failover=Failover(every=4)), 18)
    client << got("h3", m.CheckpointStored(R, "o", 16, ("h3", "h2"))) >> ANY
    assert [message.lines for message in client.sent("h3")] == [(Start("o", 16),)]
    client << got("h4", m.CheckpointStored(R, "o", 16, ("h4", "h2"))) >> ANY  # its word comes later, and counts
    client << e.PeerLost(R, "h3", "is gone") >> ANY
    client << e.PeerLost(R, "h2", "is gone") >> ANY
    assert starts_of(client, "h4")["o"] == Start("o", 16, "h4")


def test_a_replica_of_partitions_after_the_loss_of_a_source_is_not_used(make_book: Any) -> None:
    """Replicas later than the loss belong to another history, also for a client that needs a replica later."""
    flow = Dataflow()
    near, far = (flow.source(Code("scenes"), at=host, name=name) for host, name in (("h1", "near"), ("h2", "far")))
    flow.sink("t", flow.operator(Code("some"), near, far, name="o", missing="nothing"), at="client")
    where = {"near": "h1", "far": "h2", "o": "h3", "t": "client"}
    peers = tuple([m.Peer(host, f"tcp://{host}:1", f"tcp://{host}:2") for host in ("client", "h1", "h2", "h3", "h4")])
    locations = tuple([m.Location(name, host, 1) for name, host in where.items()])
    client = begun(make_book, replace(m.Install(R, flow, locations, peers, "client"), failover=Failover(every=4)), 6)
    for index in (4, 8):
        client << got("h4", m.CheckpointStored(R, "o", index, ("h4", "h3"))) >> ANY
    client << e.PeerLost(R, "h2", "is gone") >> ANY
    assert starts_of(client, "h4")["o"] == Start("o", 4, "h3")
    client.core.runs[run_of("r~1")].flow.nodes["t"].index = 10
    client << e.PeerLost(run_of("r~1"), "h3", "is gone") >> ANY
    assert starts_of(client, "h4")["o"] == Start("o", 4, "h4")


def test_the_claim_of_a_host_to_be_far_ahead_is_believed_within_a_bound(make_book: Any, make_install: Any) -> None:
    """Without the bound, a query that joins would begin with a partition that never comes."""
    client = begun(make_book, replace(replace(make_install(), failover=Failover()), run=run_of("r~1")), 0)
    flow = client.core.runs[run_of("r~1")].flow
    for claimed, believed in ((5, 5), (10**12, FURTHER * len("sot"))):
        client << got("h2", m.Installed(run_of("r~1"), "h2", carried_over=(Start("o", claimed),))) >> ANY
        assert flow.ahead == believed
