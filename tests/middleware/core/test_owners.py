"""Rights to send messages about a run: of its client, its hosts, a guest with a sink, and strangers."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from flows import chain
from playbook import ANY, Playbook, got
from run_ids import R, alarm, run_of

from thalweg.middleware.core.barrier.member import Member
from thalweg.middleware.core.hosting.runs import TABLE
from thalweg.middleware.core.runs.run import FROM_CLIENT
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId

Make = Callable[..., m.Install]
Book = Callable[..., Playbook]

MOVE = m.Move("o", "h2", "h3", 1)
NEWS = m.Piggyback((m.Location("o", "h3", 2),), (m.Estimate("h1", "h2", 1, 0, 1, 0),))
COMMIT = m.Commit(R, 1, 3, (MOVE,))
PLACE = m.PlaceReport((0.1, 0.0, 0.0), 0.0, 0.1, 9, m.HostReport(1000, 1, 0))
STATE = m.State(R, "o", 1, 0, 1, 1, "d", b"x")
GUEST = m.Peer("g", "tcp://g:1", "tcp://g:2", "1")
SUBSCRIBE = m.Subscribe(R, 7, "s", GUEST)
SAID: list[m.Message] = [
    m.Ping(R),
    m.Ping(R, (run_of("r/1"),), (m.Lost(R, "h2", ()),)),
    m.Pong(R),
    m.Pong(R, False),
    m.Installed(R, "h2", "no"),
    m.Installed(R, "h2", carried_over=(m.Start("o", 2**53 - 1), m.Start("nobody", 0))),
    m.Remove(R),
    m.Removed(R, "h2"),
    m.Demand(R, "s", "o", 0, version=9, news=NEWS, commit=COMMIT),
    m.Partition(R, "o", "t", 0, end=True, news=NEWS, commit=COMMIT),
    m.Partition(R, "o", "t", 0, forwards=1),
    m.Located(R, (m.Location("o", "h3", 2**53 - 1),)),
    m.Failed(R, "o", "because"),
    m.Lost(R, "h2", ()),
    m.CheckpointStored(R, "o", 1, ("h9",)),
    m.StateMissing(R, "o", 1, "no"),
    m.CheckpointsObsolete(R, ()),
    m.StripeIndices(R, 0, (7,)),
    m.Offer(R, "o", 1),
    m.Accept(R, "o", 1),
    m.Refuse(R, "o", 1, "no"),
    STATE,
    m.StateRequest(R, "o", "n"),
    m.Checkpoint(R, "o", 1, 2, 1, 1, "d", b"x"),
    m.StateRequest(R, "o"),
    m.InheritedState(R, "o", 1, 0, 1, 1, "d", b"x", heir="n"),
    m.SkipTo(R, "s", "o", 7, version=9),
    m.SkipTo(R, "s", "o", None),
    m.Skipped(R, "s", "o", None),
    m.ReplayNotNeeded(R, "s", "o", 1),
    m.Restored(R, "o", 1),
    m.Withdraw(R, "o", 1),
    m.Resumed(R, "o", 1),
    m.Relocated(R, "o", True, m.Location("o", "h3", 2)),
    m.MoveRequest(R, "o", 1, "h3"),
    m.Propose(R, 1, (MOVE,)),
    m.Propose(R, 1, (MOVE,), ways=()),
    m.Commit(R, 1, 0, (MOVE,), ways=()),
    m.ProbeRequest(R, (), m.Peer("h9", "tcp://h9:1", "tcp://h9:2"), via="net"),
    m.Impassable(R, "h2", (m.LinkEnd("h9", "net"), m.LinkEnd("h2", "net"))),
    m.Vote(R, 1, "h2", 0),
    COMMIT,
    m.Abort(R, 1),
    m.Retire(R, 1),
    m.Detach(R, 1, ("o",)),
    m.Detached(R, 1),
    SUBSCRIBE,
    m.AddMember(R, 9, m.Peer("h9", "tcp://h9:1", "tcp://h9:2")),
    m.InstallSubscriber(R, 1, "x", m.Install(R, Dataflow(), (), (), "h9")),
    m.Unsubscribe(R, 1),
    m.Leave(R, True),
    m.Stay(R, "no"),
    m.SubscriptionEnded(R, 1, "no"),
    m.SubscriptionEnded(R, 0, "no"),
    m.Done(R, 1, "h2"),
    m.ProbeRequest(R, (), m.Peer("h9", "tcp://h9:1", "tcp://h9:2")),
    m.Probe(R, 1, m.Peer("h9", "tcp://h9:1", "tcp://h9:2"), True),
    m.ProbeResult(R, m.Estimate("h9", "h1", 1, 0, 1, 0)),
    m.ProbeRequest(R, (), m.Peer("h9", "tcp://h9:1", "tcp://h9:2"), "latency"),
    m.ProbeResult(R, latency=m.LinkLatency("h9", "h1", 1, 0, 1, 0)),
    m.Echo(R, 1),
    m.ProbeRequest(R, (), m.Peer("h9", "tcp://h9:1", "tcp://h9:2"), "coordinates"),
    m.ProbeResult(R, place=PLACE),
    m.Echo(R, 1, places={"h9": PLACE, "h1": PLACE}),
]


def state_of(part: Any, seen: dict[int, int] | None = None) -> Any:
    """Return the state of a part of the core as comparable values, without the clock and the outbox."""
    seen = {} if seen is None else seen
    if part is None or isinstance(part, str | int | float | bytes):
        return part
    if id(part) in seen:
        return "seen", seen[id(part)]
    seen[id(part)] = len(seen)
    if isinstance(part, dict):
        return [(state_of(key, seen), state_of(value, seen)) for key, value in part.items()]
    if isinstance(part, list | tuple):
        return [state_of(each, seen) for each in part]
    if isinstance(part, set | frozenset):
        return sorted(map(repr, part))
    if isinstance(part, types.FunctionType | types.MethodType | type) or type(part).__name__ in (
        "HostContext",
        "Outbox",
    ):
        return None
    if isinstance(part, msgspec.Struct):
        return [state_of(getattr(part, name), seen) for name in part.__struct_fields__]
    names = [*getattr(part, "__dict__", {}), *getattr(type(part), "__slots__", ())]
    return [(name, state_of(getattr(part, name, None), seen)) for name in names if name != "_bound"]


def state_of_runs(book: Playbook) -> Any:
    """Return the state of all runs of a host, with every part created."""
    for run in book.core.runs.values():
        for kind in TABLE.kinds:
            run.parts.get(kind)
    return state_of(book.core.runs)


@pytest.fixture
def hosts(make_book: Book, make_install: Make) -> dict[str, Playbook]:
    """All hosts of a new run: ``s`` on h1, ``o`` on h2, ``t`` on the client, and no node on h3."""
    install = make_install(others=("h3",))
    books = {name: make_book(name) for name in ("h1", "h2", "h3")}
    for book in books.values():
        book << got("client", install) >> ANY
    books["client"] = make_book("client")
    books["client"] << e.RunRequested(install) >> ANY
    for name in books.keys() - {"client"}:
        books["client"] << got(name, m.Installed(R, name)) >> ANY
    books["client"] << e.NextRequested(R) >> ANY
    books["h2"] << got("client", m.Demand(R, "o", "t", 0, version=1)) >> ANY
    return books


def test_every_message_about_a_run_occurs_in_the_list() -> None:
    kinds = {kind for kind in get_args(m.Message) if "run" in kind.__struct_fields__}
    assert kinds - {type(each) for each in SAID} == {m.Install}


@pytest.mark.parametrize("host", ["h1", "h2", "h3", "client"])
@pytest.mark.parametrize("said", SAID, ids=lambda said: type(said).__name__)
def test_messages_of_strangers_and_guests_change_nothing_in_a_run(
    hosts: dict[str, Playbook], host: str, said: m.Message
) -> None:
    book = hosts[host]
    if host != "client":
        book << got("client", m.AddMember(R, 1, GUEST)) >> ANY
    before = state_of_runs(book)
    for sender in ("h9", "g"):
        if host == "client" and said is SUBSCRIBE:
            continue  # it is answered, below
        (
            book
            << got(sender, said, b"forged", 6)
            >> [e.Record(R, "unexpected", {"peer": sender, "detail": {"message": m.tag_of(type(said))}})]
        )
        assert state_of_runs(book) == before


def test_a_guest_may_demand_only_for_the_own_sink_and_piggybacked_news_is_ignored(hosts: dict[str, Playbook]) -> None:
    book, sink = hosts["h1"], Node("x", "sink", ("s",), None, "g")
    shape = m.Shape((m.Graft("x", ("s",), "g", sink),), ())
    book << got("client", m.Propose(R, 1, (), shape)) >> ANY
    vote = book.only(e.Send)[-1].message
    assert vote.error == "sink 'x' is on 'g', which has no part in the run, or is not a client"
    book << got("client", m.AddMember(R, 1, m.Peer("h2", "tcp://g:1", "tcp://g:2"))) >> ANY
    assert book.only(e.Send)[-1].message == m.Detached(R, 1, "a host of the run is called 'h2'")
    let_in = [e.Meet(R, (GUEST,)), alarm("guests r", 0.625), e.Send(R, "client", m.Detached(R, 2))]
    book << got("client", m.AddMember(R, 2, GUEST)) >> let_in
    book << got("client", m.Propose(R, 2, (), shape)) >> [e.Send(R, "client", m.Vote(R, 2, "h1", -1))]
    book << got("client", m.Commit(R, 2, -1, (), shape=shape)) >> ANY
    run = book.core.runs[R]
    before = dict(run.directory.locations)
    for demand in (m.Demand(R, "s", "o", 0), m.Demand(R, "s", "x", 0, forwards=1)):
        book << got("g", demand) >> []
        assert book.recorded() == ["unexpected"]
    book << got("h2", m.Demand(R, "s", "o", 0, version=1)) >> [e.RunOperator(R, "s", 0)]
    rider = m.Demand(R, "s", "x", 0, 0, 1, news=NEWS, commit=m.Commit(R, 3, 3, (MOVE,)))
    book << got("g", rider) >> []
    assert (run.directory.locations, run.parts.get(Member).number) == (before, 2)
    book << e.OperatorFinished(R, "s", 0, b"x", 1) >> ANY
    assert {send.to for send in book.only(e.Send) if send.bulk} == {"h2", "g"}
    book << got("client", m.Detach(R, 3, ("x",), ("g",))) >> ANY
    book << got("client", m.AddMember(R, 2, GUEST)) >> [e.Send(R, "client", m.Detached(R, 2))]
    assert not run.directory.subscribers, "that was late"


def test_a_refused_subscriber_gets_the_reason_and_leaves_no_state(hosts: dict[str, Playbook]) -> None:
    book = hosts["client"]
    before = state_of_runs(book)
    for allowed, message, why in (
        ((), SUBSCRIBE, "client 'client' does not let 'g' subscribe; it has to be among the run's subscribers"),
        ((), m.Subscribe(run_of("s"), 7, "s", GUEST), "the run is over, or was never one of client 'client'"),
        (("g",), m.Subscribe(R, 7, "q", GUEST), "the run has no node 'q'"),
        (("g",), m.Subscribe(R, 7, "s", m.Peer("g", "tcp://g:1", "tcp://g:2", "1", 100)), "max_partition_bytes"),
    ):
        if allowed:
            book << e.SubscribersAllowed(R, 0, frozenset(allowed)) >> []
            before = state_of_runs(book)
        book << got("g", message) >> ANY
        (sent,) = book.only(e.Send)
        assert sent.to == "g"
        assert why in sent.message.why
        assert state_of_runs(book) == before
    book << got("h2", SUBSCRIBE) >> []
    assert book.recorded() == ["unexpected"], "it is another's"


@pytest.mark.parametrize("said", [each for each in SAID if type(each) in FROM_CLIENT], ids=lambda s: type(s).__name__)
def test_only_the_client_of_a_run_may_send_the_messages_of_a_client(
    hosts: dict[str, Playbook], said: m.Message
) -> None:
    for book in hosts.values():
        before = state_of_runs(book)
        sender = "h3" if book.core.host != "h3" else "h2"
        book << got(sender, said) >> []
        assert book.recorded() == ["unexpected"]
        assert state_of_runs(book) == before


@pytest.mark.parametrize("run", [run_of("r~2"), R, run_of("r~1"), run_of("r~3")], ids=str)
def test_a_remove_message_of_a_stranger_is_rejected_for_every_generation(
    make_book: Book, make_install: Make, run: RunId
) -> None:
    book = make_book("h1")
    book << got("client", msgspec.structs.replace(make_install(run=run_of("r~2")), failover=m.Failover())) >> ANY
    for sender in ("h9", "h2"):  # a stranger, and a host of the run
        book << got(sender, m.Remove(run)) >> []
        assert book.recorded() == ["unexpected"]
    assert list(book.core.runs) == [run_of("r~2")]
    book << got("client", m.Remove(run_of("r~2"))) >> ANY
    assert book.sent("client") == [m.Removed(run_of("r~2"), "h1")]
    assert not book.core.runs


@pytest.mark.parametrize("run", [R, run_of("r~1")], ids=str)
def test_only_the_client_of_a_run_can_end_a_subscription(make_book: Book, run: RunId) -> None:
    book, owner = make_book("g"), m.Peer("client", "tcp://client:1", "tcp://client:2")
    book << e.SubscribeRequested(R, 7, "s", owner) >> ANY
    book << got("h9", m.SubscriptionEnded(run, 0, "it has ended")) >> []
    assert book.recorded() == ["unexpected"]
    book << got("client", m.SubscriptionEnded(run, 0, "it has ended")) >> ANY
    assert book.sent("client") == [m.Removed(run, "g")]
    assert [failure.reason for failure in book.only(e.Fail)] == ["subscription to 's' of run r: it has ended"]


def test_only_the_client_of_a_run_can_load_code_for_a_query(hosts: dict[str, Playbook]) -> None:
    book = hosts["h2"]
    node = Node("x", "operator", ("s",), Code("other"))
    grafts = (
        m.Graft("x", ("s",), "h2", node),
        m.Graft("y", ("x",), "client", Node("y", "sink", ("x",), None, "client")),
    )
    shape = m.Shape(grafts, ())
    before = state_of_runs(book)
    book << got("h1", m.Propose(R, 1, (), shape)) >> []
    commit = m.Commit(R, 1, 0, (), shape=shape)
    book << got("h1", m.Demand(R, "o", "t", 0, commit=commit)) >> []
    assert state_of_runs(book) == before
    book << got("client", m.Propose(R, 1, (), shape)) >> ANY
    assert book.only(e.OpenNode) == [e.OpenNode(R, node)]
    book << e.NodeOpened(R, "x") >> [e.Send(R, "client", m.Vote(R, 1, "h2", -1))]
    book << got("client", commit) >> ANY
    run = book.core.runs[R]
    assert run.flow.nodes["x"].index == 1
    book << got("h1", m.Detach(R, 1, ("x", "y"))) >> []
    book << got("client", m.Detach(R, 1, ("o",))) >> []
    assert book.recorded() == ["unexpected"], "others take their inputs from it"
    (book << got("client", m.Detach(R, 1, ("x", "y"))) >> [e.CloseNode(R, "x"), e.Send(R, "client", m.Detached(R, 1))])
    assert "x" not in run.flow.nodes
    book << got("client", m.Detach(R, 1, ("x", "y"))) >> [e.Send(R, "client", m.Detached(R, 1))]


def test_messages_for_the_client_change_nothing_on_a_host(hosts: dict[str, Playbook]) -> None:
    book = hosts["h1"]
    before = state_of_runs(book)
    for message in (m.Vote(R, 1, "h2", 0), m.Done(R, 1, "h2"), m.Failed(R, "o", "because")):
        book << got("h2", message) >> []
    assert state_of_runs(book) == before


# --- partitions -------------------------------------------------------------------------------------


@pytest.fixture
def source_at_h1(make_book: Book, make_install: Make) -> Playbook:
    """A client that waits for the first partition of ``s`` on h1, for its own operator ``o``."""
    book = make_book("client")
    book << e.RunRequested(make_install({"o": "client"}, others=("h2", "h3"))) >> ANY
    book << e.NextRequested(R) >> ANY
    return book


def test_a_partition_of_a_source_is_accepted_only_from_the_host_of_the_source(source_at_h1: Playbook) -> None:
    forged = m.Partition(R, "s", "o", 0)
    for sender in ("h2", "h9"):
        source_at_h1 << got(sender, forged, b"forged", 6) >> []
        assert source_at_h1.recorded() == ["unexpected"]
    source_at_h1 << got("h1", forged, b"right", 5) >> [e.RunOperator(R, "o", 0, (b"right",))]


def test_a_forwarded_partition_for_an_operator_is_accepted_only_from_a_host_of_the_run(source_at_h1: Playbook) -> None:
    passed_on = m.Partition(R, "s", "o", 0, forwards=1)
    source_at_h1 << got("h9", passed_on, b"forged", 6) >> []
    source_at_h1 << got("h2", passed_on, b"right", 5) >> [e.RunOperator(R, "o", 0, (b"right",))]


def test_a_partition_forwarded_from_a_source_to_a_sink_is_rejected(make_book: Book, make_install: Make) -> None:
    flow = Dataflow((Node("s", "source", (), Code("x"), "h1"), Node("t", "sink", ("s",), None, "client")))
    plain = make_install(others=("h3",), dataflow=flow)
    install = msgspec.structs.replace(
        plain, locations=tuple(location for location in plain.locations if location.node != "o")
    )
    book = make_book("client")
    book << e.RunRequested(install) >> ANY
    book << e.NextRequested(R) >> ANY
    book << got("h3", m.Partition(R, "s", "t", 0, forwards=1), b"forged", 6) >> []
    book << got("h1", m.Partition(R, "s", "t", 0), b"right", 5) >> [e.Deliver(R, 0, b"right", 5, sink="t")]


# --- the end of a run -------------------------------------------------------------------------------


def test_a_failure_counts_only_for_a_node_of_the_run_and_the_reason_is_cleaned(hosts: dict[str, Playbook]) -> None:
    book = hosts["client"]
    book << got("h2", m.Failed(R, "nobody", "because")) >> []
    cause = m.Cause(3, "Error\x1b[31m", "line one\nline \x1btwo")
    book << got("h2", m.Failed(R, "o", "\x1b]0;owned\x07 line\nanother \u202e\x00.", cause)) >> ANY
    (fail,) = book.only(e.Fail)
    assert fail.reason == "node 'o' on host 'h2': ]0;owned line another ."
    assert fail.cause == m.Cause(3, "Error [31m", "line one\nline  two")


def test_late_messages_after_the_end_of_a_run_are_ignored(hosts: dict[str, Playbook]) -> None:
    book = hosts["client"]
    book << e.RunAbandoned(R) >> ANY
    book << got("h9", m.Removed(R, "h1")) >> []
    book << got("h2", m.Failed(R, "o", "because")) >> []
    assert R in book.core.coordinator.led


# --- who begins a run -------------------------------------------------------------------------------


def test_a_forged_installation_under_the_name_of_a_run_changes_nothing(
    hosts: dict[str, Playbook], make_install: Make
) -> None:
    elsewhere = tuple(m.Peer(peer.name, "tcp://evil:1", "tcp://evil:2") for peer in make_install().peers)
    forged = msgspec.structs.replace(make_install(), peers=elsewhere)
    book = hosts["h2"]
    book << got("h9", forged) >> []
    assert book.recorded() == ["unexpected"]
    book << got("h9", msgspec.structs.replace(forged, client="h9")) >> []
    (meet,) = (book << got("client", forged)).only(e.Meet)
    assert meet.peers == make_install(others=("h3",)).peers


def changed(**fields: Any) -> Callable[[m.Install], m.Install]:
    return lambda install: msgspec.structs.replace(install, **fields)


def with_locations(*more: m.Location) -> Callable[[m.Install], m.Install]:
    return lambda install: msgspec.structs.replace(install, locations=(*install.locations, *more))


NOT_OPENED = {
    "of another": (changed(client="h2"), "the run's client is 'h2', and 'client' asks for it"),
    "of nobody here": (changed(peers=()), "host 'h1' is not among the run's peers"),
    "without a host": (
        lambda install: msgspec.structs.replace(install, peers=install.peers[1:]),
        "host 'client' has a part in the run, and is not among its peers",
    ),
    "host twice": (
        lambda install: msgspec.structs.replace(install, peers=(*install.peers, install.peers[0])),
        "a host is named twice",
    ),
    "node twice": (with_locations(m.Location("o", "h1", 1)), "a node has two locations"),
    "unknown host": (with_locations(m.Location("o", "h7", 1)), "host 'h7' has a part in the run, and is not among"),
    "unknown node": (with_locations(m.Location("x", "h1", 1)), "there is a location for 'x', which is no node"),
    "name": (
        changed(run=RunId("r\x1b[2J")),
        "the run's name 'r\\x1b[2J' has characters that are not printed, or one of space",
    ),
    **{
        text: (
            changed(run=RunId(text)),
            f"the run's name {text!r} has characters that are not printed, or one of space, / and ~",
        )
        for text in ("r o", "r/1", "r~2")
    },
}


@pytest.mark.parametrize("why", NOT_OPENED)
def test_an_invalid_run_is_not_opened(make_book: Book, make_install: Make, why: str) -> None:
    change, reason = NOT_OPENED[why]
    book = make_book("h1")
    book << got("client", change(make_install())) >> ANY
    (answer,) = book.sent("client")
    assert answer.error.startswith(reason)
    assert not book.core.runs


def test_a_host_cannot_install_a_run_of_the_client_on_the_client(make_book: Book, make_install: Make) -> None:
    book = make_book("client")
    book << got("h2", make_install()) >> ANY
    (answer,) = book.sent("h2")
    assert answer.error == "the run's client is 'client', and 'h2' asks for it; a client installs its own runs"
    assert not book.core.runs


def test_a_host_accepts_a_limited_number_of_runs_and_nodes(make_book: Book, make_install: Make) -> None:
    book = make_book("h1", CoreConfig(max_runs=2, max_nodes=3))
    large = chain(Code("x"), Code("x"), Code("x"), client="client").validate()
    book << got("client", make_install({"p": "h1"}, dataflow=large)) >> ANY
    (answer,) = book.sent("client")
    assert answer.error == "the run has 4 nodes, and the host takes 3; start it with --limit max_nodes=NUMBER"
    for run in map(run_of, "ab"):
        book << got("client", make_install(run=run)) >> ANY
    book << got("client", make_install(run=run_of("c"))) >> ANY
    (answer,) = book.sent("client")
    assert answer.error == "it has 2 runs, and takes 2; end one, or start the host with --limit max_runs=NUMBER"
    assert book.core.runs.keys() == set(map(run_of, "ab"))


# --- probes -----------------------------------------------------------------------------------------


def test_probes_of_a_run_are_accepted_only_between_hosts_and_under_true_names(hosts: dict[str, Playbook]) -> None:
    book, evil = hosts["h1"], {name: m.Peer(name, "tcp://evil:1", "tcp://evil:2") for name in ("h2", "h7", "client")}
    request = m.ProbeRequest(R, (evil["h7"], evil["h2"]), evil["client"])
    book << got("client", request) >> ANY
    assert book.only(e.Meet) == []  # they are where the run's client said
    assert {send.to for send in book.only(e.Send)} == {"h2"}
    book << got("h2", m.Probe(R, 1, evil["h2"], True)) >> []
    book << got("h3", m.Probe(R, 1, evil["h2"], True)) >> []  # in another's name
    book << got("h3", request) >> []
    book << got("h3", m.ProbeResult(R, m.Estimate("h1", "h2", 1, 0, 1, 0))) >> []  # of a link that is not its own


def test_a_late_commit_of_a_detached_query_adds_no_nodes(make_book: Callable[..., Playbook]) -> None:
    """This host joined while the query's nodes were there, so it has not received the commit before."""
    code = Code("some")
    query = Node("x", "operator", ("s",), code), Node("y", "sink", ("x",), None, "client")
    flow = chain(code, code, client="client")
    where = {"s": "h1", "o": "h2", "t": "client", "x": "h1", "y": "client"}
    peers = tuple([m.Peer(host, f"tcp://{host}:1", f"tcp://{host}:2") for host in ("client", "h1", "h2")])
    both = Dataflow((*flow.nodes, *query)).validate()
    locations = tuple([m.Location(name, host, 1) for name, host in where.items()])
    book = make_book("h2")
    book << got("client", m.Install(R, both, locations, peers, "client")) >> ANY
    book << got("client", m.Detach(R, 2, ("x", "y"))) >> [e.Send(R, "client", m.Detached(R, 2))]
    grafts = m.Graft("x", ("s",), "h1", query[0]), m.Graft("y", ("x",), "client", query[1])
    commit = m.Commit(R, 1, 5, (), "a query", m.Shape(grafts, ()))
    book << got("client", commit) >> [e.Send(R, "client", m.Done(R, 1, "h2"))]
    assert book.core.runs[R].tree.dataflow == flow
