"""Replicas of operators' states: a host's part, step by step."""

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
        """One more partition, and a replica if one is due; those that go to ``h3``."""
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
        return [each for each in self.book.sent("h3") if isinstance(each, m.Checkpoint)]


def test_replicas_of_which_no_word_comes_are_sent_again_instead_of_others(make_book: Any, make_install: Any) -> None:
    """What went to a host that was not there yet is lost; once it is, all goes on."""
    install = replace(make_install(others=("h3",)), failover=Failover(every=1, domains={"h1": "a", "h2": "a"}))
    origin = Origin(make_book, install)
    indices = [[each.index for each in origin.make(bytes([number]))] for number in range(MOST + 3)]
    assert indices == [[number + 1] for number in range(MOST)] + [[MOST]] * 3
    origin.book << got("client", m.CheckpointsObsolete(R, (Start("o", MOST),))) >> ANY
    assert [each.index for each in origin.make(b"z")] == [MOST + 4]


def test_who_has_a_replica_already_says_so_again(make_book: Any, make_install: Any) -> None:
    book = make_book("h3")
    book << got("client", replace(make_install(others=("h3",)), failover=Failover())) >> ANY
    for payload in (b"xy", None):  # the second time it is not let in, as it is there
        book << got("h2", m.Checkpoint(R, "o", 1, 4, 1, 2, ""), payload) >> ANY
        assert book.sent("client") == [m.CheckpointStored(R, "o", 4, ("h3", "h2"))]


@pytest.mark.parametrize(("last", "told"), [("some", [1]), ("other", [1, 4, 8])])
def test_of_operators_without_state_that_follow_each_other_one_says_what_can_be_let_go(
    make_book: Any, make_install: Any, last: str, told: list[int]
) -> None:
    """Each says once that it has none; from then on the last one of the same code says enough."""
    flow = chain(Code("some"), Code("some"), Code(last), client="client").validate()
    install = replace(make_install({"p": "h3"}, dataflow=flow), failover=Failover(every=4))
    book, said = make_book("h2"), list[int]()
    book << got("client", install) >> ANY
    for index in range(8):
        book << got("h3", m.Demand(R, "o", "p", index, version=1)) >> ANY
        book << got("h1", m.Partition(R, "s", "o", index), b"x", 1) >> ANY
        book << e.OperatorFinished(R, "o", index, b"y", 1) >> ANY
        said += [each.index for each in book.sent("client") if isinstance(each, m.CheckpointStored)]
        if book.only(e.TakeState):
            book << e.StateTaken(R, "o", 1, keeps=False) >> ANY
            said += [each.index for each in book.sent("client") if isinstance(each, m.CheckpointStored)]
    assert said == told


def test_an_operator_without_state_says_no_more_often_that_it_has_none_when_a_host_is_lost(
    make_book: Any, make_install: Any
) -> None:
    """Once, as others may have to begin anew, and then as often as before."""
    install = replace(make_install(others=("h3", "h4")), failover=Failover(every=4))
    origin, said = Origin(make_book, install), list[int]()
    for index in range(12):
        if index == 5:
            origin.book << got("client", m.Lost(R, "h4", ())) >> ANY
        origin.book << got("client", m.Demand(R, "o", "t", index, version=1)) >> ANY
        origin.book << got("h1", m.Partition(R, "s", "o", index), b"x", 1) >> ANY
        origin.book << e.OperatorFinished(R, "o", index, b"y", 1) >> ANY
        said += [each.index for each in origin.book.sent("client") if isinstance(each, m.CheckpointStored)]
        if origin.book.only(e.TakeState):
            origin.book << e.StateTaken(R, "o", 1, keeps=False) >> ANY
            said += [each.index for each in origin.book.sent("client") if isinstance(each, m.CheckpointStored)]
    assert said == [1, 4, 6, 8, 12]


def test_replicas_are_due_by_the_bytes_that_an_operator_has_taken_and_by_its_partitions(
    make_book: Any, make_install: Any
) -> None:
    install = replace(make_install(others=("h3",)), failover=Failover(every=8, every_bytes=5))
    origin = Origin(make_book, install)
    for number in range(14):
        origin.make(bytes([number]))
    assert sorted(origin.book.core.runs[R].parts.get(Checkpoints).replicas["o"]) == [1, 6, 8, 13]


def test_of_what_is_needed_no_more_those_hear_that_keep_something(make_book: Any, make_install: Any) -> None:
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
        host: [each for each in client.sent(host) if isinstance(each, m.CheckpointsObsolete)]
        for host in ("h1", "h2", "h3")
    }
    ops = Start("o", 18), Start("p", 18)
    assert words == {"h1": [], "h2": [m.CheckpointsObsolete(R, ops)], "h3": [m.CheckpointsObsolete(R, ops[1:])]}


# --- whose replicas count, and who gets them ----------------------------------------------------------------


def keeper(make_book: Any, make_install: Any, *settled: Start, history_gaps: tuple[m.HistoryGap, ...] = ()) -> Playbook:
    """``h3``, which keeps a replica of ``o`` at partition 4, in the generation in which ``o`` on ``h2`` starts so."""
    book: Playbook = make_book("h3")
    install = replace(make_install(others=("h3",)), failover=Failover())
    book << got("client", install) >> ANY
    book << got("h2", m.Checkpoint(R, "o", 1, 4, 1, 2, ""), b"xy") >> ANY
    if settled:
        book << got("client", m.CheckpointsObsolete(R, settled)) >> ANY
    starts = Start("s", 4), Start("o", 4, "h3"), Start("t", 4)
    book << got("client", replace(install, run=run_of("r~1"), starts=starts, history_gaps=history_gaps)) >> ANY
    return book


def test_the_host_of_an_operator_alone_is_given_its_replica(make_book: Any, make_install: Any) -> None:
    book, claim = keeper(make_book, make_install), m.StateRequest(run_of("r~1"), "o")
    book << got("h1", claim) >> []
    book << got("h2", claim) >> ANY
    assert [(each.node, each.index) for each in book.sent("h2")] == [("o", 4)]


def test_the_client_is_told_of_the_replica_that_is_waited_for_and_of_no_other(
    make_book: Any, make_install: Any
) -> None:
    """What comes late is of a generation before, or of another partition."""
    book, install = make_book("h2"), replace(make_install(others=("h3", "h4")), failover=Failover())
    starts = Start("s", 4), Start("o", 4, "h3"), Start("t", 4)
    book << got("client", replace(install, run=run_of("r~1"), starts=starts)) >> ANY
    book << got("h3", m.StateMissing(run_of("r~1"), "o", 3, "it says")) >> []
    book << got("h4", m.StateMissing(run_of("r~1"), "o", 4, "it says")) >> []
    book << got("h3", m.StateMissing(run_of("r~1"), "o", 4, "it is gone")) >> ANY
    assert book.sent("client") == [m.StateMissing(run_of("r~1"), "o", 4, "it is gone")]


@pytest.mark.parametrize(("cut", "right"), [(3, False), (4, True)])
def test_a_replica_of_another_history_is_not_given(make_book: Any, make_install: Any, cut: int, right: bool) -> None:
    """From partition ``cut`` on, sources give something else than they gave to the replica."""
    book = keeper(make_book, make_install, history_gaps=(m.HistoryGap("o", cut, 1, 0, cut),))
    book << got("h2", m.StateRequest(run_of("r~1"), "o")) >> ANY
    assert [type(each) for each in book.sent()] == [m.Checkpoint if right else m.StateMissing]


@pytest.mark.parametrize(("line", "there"), [(4, True), (5, False)])
def test_a_host_keeps_the_replica_at_the_line_at_which_a_restart_would_begin(
    make_book: Any, make_install: Any, line: int, there: bool
) -> None:
    book = keeper(make_book, make_install, Start("o", line))
    book << got("h2", m.StateRequest(run_of("r~1"), "o")) >> ANY
    assert [type(each) for each in book.sent()] == [m.Checkpoint if there else m.StateMissing]


def begun(make_book: Any, install: m.Install, taken: int) -> Playbook:
    """The client of a run whose hosts have it all, and whose application has taken so many partitions."""
    client: Playbook = make_book("client")
    client << e.RunRequested(install, None) >> ANY
    for peer in install.peers:
        client << got(peer.name, m.Installed(install.run, peer.name)) >> ANY
    client.core.runs[install.run].flow.nodes["t"].index = taken
    return client


def starts_of(client: Playbook, host: str) -> dict[str, Start]:
    """Where the nodes start in the generation that the last event has begun."""
    (install,) = [each for each in client.sent(host) if isinstance(each, m.Install)]
    return {start.node: start for start in install.starts}


def test_a_run_begins_anew_from_the_replica_at_the_line_whoever_keeps_it(make_book: Any, make_install: Any) -> None:
    client = begun(make_book, replace(make_install(others=("h3", "h4")), failover=Failover(every=4)), 18)
    client << got("h3", m.CheckpointStored(R, "o", 16, ("h3", "h2"))) >> ANY
    assert [each.lines for each in client.sent("h3")] == [(Start("o", 16),)]
    client << got("h4", m.CheckpointStored(R, "o", 16, ("h4", "h2"))) >> ANY  # its word comes later, and counts
    client << e.PeerLost(R, "h3", "is gone") >> ANY
    client << e.PeerLost(R, "h2", "is gone") >> ANY
    assert starts_of(client, "h4")["o"] == Start("o", 16, "h4")


def test_a_run_that_has_gone_on_without_a_source_starts_with_no_replica_from_before_that(make_book: Any) -> None:
    """Replicas that are later than the change belong to another history, also for a client that needs one later."""
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


def test_a_host_that_says_that_it_is_far_ahead_is_believed_within_a_bound(make_book: Any, make_install: Any) -> None:
    """Else a query that is attached would begin with a partition that never comes."""
    client = begun(make_book, replace(replace(make_install(), failover=Failover()), run=run_of("r~1")), 0)
    flow = client.core.runs[run_of("r~1")].flow
    for claimed, believed in ((5, 5), (10**12, FURTHER * len("sot"))):
        client << got("h2", m.Installed(run_of("r~1"), "h2", carried_over=(Start("o", claimed),))) >> ANY
        assert flow.ahead == believed
