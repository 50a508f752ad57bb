"""Chunks that a host relays, and relayed chunks that it accepts: only over the routes of the client."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playbook import ANY, Playbook, got
from run_ids import R, fired, run_of

from thalweg.middleware.network.view import Link
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves

HOPS = m.LinkEnd("h2", "fast"), m.LinkEnd("client", "slow")
WAYS = (m.RoutePreference("h1", "client", (HOPS, "net"), (2_000_000, 0)),)
PART = m.Partition(R, "s", "t", 1)


def chunk(**changes: object) -> m.RelayedChunk:
    fields: dict[str, object] = {"source": "h1", "hops": HOPS, "at": 0, "message": PART, **changes}
    return m.RelayedChunk(1, 10, 0, **fields)  # type: ignore[arg-type]


@pytest.fixture
def relay(make_book: Callable[..., Playbook], install: m.Install) -> Playbook:
    """Host h2, a relay on a route that the client has committed."""
    book = make_book("h2")
    book << got("client", install) >> ANY
    book << got("client", m.Commit(R, 1, 0, (), ways=WAYS)) >> ANY
    return book


def test_a_relay_forwards_only_over_routes_that_the_client_has_committed(relay: Playbook) -> None:
    passes = relay.core.passes
    assert passes("h1", chunk(), "fast")
    for sender, via, changes in (
        ("client", "fast", {}),  # by another's hand
        ("h1", "slow", {}),  # over another network
        ("h1", "fast", {"source": "client", "hops": (HOPS[0], m.LinkEnd("h1", "slow"))}),  # the way back
        ("h1", "fast", {"hops": (HOPS[0], m.LinkEnd("client", "fast"))}),  # on over another network
        ("h1", "fast", {"hops": (HOPS[0], m.LinkEnd("h3", "slow"), m.LinkEnd("client", "slow"))}),
        ("h2", "slow", {"at": 1}),  # what this host itself passed on
        ("stranger", "fast", {"source": "stranger"}),
        ("h1", "fast", {"message": m.Partition(run_of("another"), "s", "t", 1)}),
    ):
        assert not passes(sender, chunk(**changes), via), (sender, via, changes)


def test_a_receiver_accepts_a_relayed_chunk_only_over_the_committed_route(
    make_book: Callable[..., Playbook], install: m.Install
) -> None:
    book, hops = make_book("h2"), (m.LinkEnd("client", "fast"), m.LinkEnd("h2", "slow"))
    book << got("client", install) >> ANY
    book << got("client", m.Commit(R, 1, 0, (), ways=(m.RoutePreference("h1", "h2", (hops,)),))) >> ANY
    relayed = chunk(hops=hops, at=1)
    assert book.core.passes("client", relayed, "slow")
    assert not book.core.passes("h1", relayed, "slow") and not book.core.passes("client", relayed, "fast")


def test_routes_before_the_last_change_remain_valid_and_older_routes_do_not(relay: Playbook) -> None:
    relay << got("client", m.Commit(R, 2, 3, (), ways=())) >> ANY
    assert relay.core.passes("h1", chunk(), "fast")  # it has been on its way since
    relay << got("client", m.Commit(R, 3, 4, (), ways=())) >> ANY
    assert not relay.core.passes("h1", chunk(), "fast")


def test_a_piggybacked_commit_of_routes_counts_only_with_the_next_number(relay: Playbook) -> None:
    hops = (m.LinkEnd("h2", "slow"), m.LinkEnd("client", "slow"))
    ways = (m.RoutePreference("h1", "client", (hops,)),)

    def riding(number: int) -> m.RelayedChunk:
        commit = m.Commit(R, number, 4, (), ways=ways)
        return chunk(hops=hops, message=m.Partition(R, "s", "t", 5, commit=commit))

    assert relay.core.passes("h1", riding(2), "slow")  # the next that the client says
    for number in (0, 1, 3):  # of long ago, of what this host heard itself, and of what nobody can know yet
        assert not relay.core.passes("h1", riding(number), "slow"), number


def test_a_relayed_transfer_measures_the_link_and_changes_no_node_of_the_relay(relay: Playbook) -> None:
    relay.core.context.recording = True
    before = repr(relay.core.runs[R].flow.nodes)
    relay.at(9.0) << e.Relayed("h1", PART, HOPS[1:], 100_000, 0.5, ("h2",)) >> ANY
    known = relay.core.links.monitor.estimate(Link("h2", "client", "slow"), 9.0)
    assert known is not None and known.rate_bps == pytest.approx(1.6e6)
    (row,) = [record for record in relay.only(e.Record) if record.kind == "relayed"]
    assert (row.fields["peer"], row.fields["node"], row.fields["index"]) == ("client", "s", 1)
    assert row.fields["detail"] == {"via": "slow", "source": "h1", "target": "client", "relays": ("h2",)}
    assert repr(relay.core.runs[R].flow.nodes) == before


def test_the_patience_with_a_route_follows_from_the_rate_that_the_client_reports(
    make_book: Callable[..., Playbook], install: m.Install
) -> None:
    book = make_book("h1")
    ways = (
        m.RoutePreference("h1", "h2", ((m.LinkEnd("client", "fast"), m.LinkEnd("h2", "fast")), "net"), (100_000, 0)),
    )
    book << got("client", install) >> ANY
    book << got("client", m.Propose(R, 1, (), None, ways)) >> ANY
    book << got("client", m.Commit(R, 1, -1, (), ways=ways)) >> ANY

    def sent(*, again: bool) -> list[m.Via]:
        book << got("h2", m.Demand(R, "s", "o", 0, version=1, again=again)) >> ANY
        if book.only(e.RunOperator):
            book << e.OperatorFinished(R, "s", 0, b"x", 100_000) >> ANY
        return [send.via for send in book.only(e.Send) if send.bulk]

    assert sent(again=False) == [ways[0].over[0]]
    book.at(31.0)
    assert sent(again=True) == []  # 8 s at 100 kbit/s, four times as long
    book.at(33.0)
    assert sent(again=True) == ["net"]
    assert "fault" in book.recorded()
    assert book.sent("client") == [m.Impassable(R, "h2", ways[0].over[0])]
    book.at(34.0) << e.TransferMeasured("h2", m.Partition(R, "s", "o", 0), 100_000, 8.0, ways[0].over[0]) >> ANY
    assert book.core.runs[R].directory.routes.via("h2", 1) == ways[0].over[0]  # it came through after all


def test_a_lost_relay_is_not_used_until_the_relay_joins_again(
    make_book: Callable[..., Playbook], install: m.Install
) -> None:
    book, over = make_book("h1"), (m.LinkEnd("h2", "fast"), m.LinkEnd("client", "fast"))
    book << got("client", install) >> ANY
    book << got("client", m.Propose(R, 1, (), None, (m.RoutePreference("h1", "client", (over, "net")),))) >> ANY
    book << got("client", m.Commit(R, 1, -1, (), ways=(m.RoutePreference("h1", "client", (over, "net")),))) >> ANY
    directory = book.core.runs[R].directory
    assert directory.routes.via("client", 1) == over
    peer = directory.peers["h2"]
    directory.lose("h2")
    assert directory.routes.via("client", 1) == "net"
    part = m.Partition(R, "s", "t", 1)
    assert directory.routes.send("client", part, 10) == "net"
    directory.routes.failed("client", "net", part)
    assert directory.routes.via("client", 1) == "net"  # of both, that which is not lost
    directory.join(peer, 1)
    assert directory.routes.via("client", 1) == over


BY_CLIENT = m.LinkEnd("client", "fast"), m.LinkEnd("h2", "fast")


@pytest.fixture
def source(make_book: Callable[..., Playbook], install: m.Install) -> Playbook:
    """Host h1, which sends to h2 over the client while that route works."""
    book, ways = make_book("h1"), (m.RoutePreference("h1", "h2", (BY_CLIENT, "net"), (100_000, 0)),)
    book << got("client", install) >> ANY
    book << got("client", m.Propose(R, 1, (), None, ways)) >> ANY
    book << got("client", m.Commit(R, 1, -1, (), ways=ways)) >> ANY
    return book


def sent(book: Playbook, index: int = 0, *, again: bool = False) -> list[m.Via]:
    """Demand the partition and return the routes over which it is sent. Partitions after the first are made before."""
    finished = e.OperatorFinished(R, "s", index, b"x", 10_000)
    if index and not again:
        book << finished >> ANY
    book << got("h2", m.Demand(R, "s", "o", index, version=1, again=again)) >> ANY
    if not (index or again):
        book << finished >> ANY
    return [send.via for send in book.only(e.Send) if send.bulk]


def landed(book: Playbook, index: int = 0, via: m.Via = BY_CLIENT) -> None:
    book << e.TransferMeasured("h2", m.Partition(R, "s", "o", index), 10_000, 1.0, via) >> ANY


def dropped(book: Playbook, index: int, from_s: float) -> None:
    """Let the relay report the partition as arrived and drop it, until h1 sends it over the other network."""
    assert sent(book.at(from_s), index) == [BY_CLIENT]
    landed(book, index)
    assert sent(book.at(from_s + 1.0), index, again=True) == []  # which it may have crossed
    assert sent(book.at(from_s + 2.0), index, again=True) == [BY_CLIENT]
    landed(book, index)
    assert sent(book.at(from_s + 3.0), index, again=True) == [] == book.sent("client")
    assert sent(book.at(from_s + 4.0), index, again=True) == ["net"]
    assert "fault" in book.recorded() and book.sent("client") == [m.Impassable(R, "h2", BY_CLIENT)]


def test_a_relay_that_falsely_confirms_transfers_is_avoided_for_increasing_times(source: Playbook) -> None:
    again_s = source.core.config.monitor.max_age_s
    dropped(source, 0, 10.0)
    landed(source, 0, "net")
    landed(source)  # a lie told late
    assert sent(source.at(10.0 + again_s), 1) == ["net"]
    landed(source, 1, "net")
    dropped(source, 2, 20.0 + again_s)
    landed(source, 2, "net")
    assert sent(source.at(20.0 + 2.5 * again_s), 3) == ["net"]
    landed(source, 3, "net")
    assert sent(source.at(30.0 + 3 * again_s), 4) == [BY_CLIENT]


def test_a_failed_network_is_tried_before_a_false_relay_if_all_routes_are_avoided(source: Playbook) -> None:
    """A route with two false reports is avoided for longer than a network with one failure."""
    again_s = source.core.config.monitor.max_age_s
    dropped(source, 0, 10.0)
    landed(source, 0, "net")
    dropped(source, 1, 20.0 + again_s)
    source.at(25.0 + again_s) << e.TransferFailed("h2", m.Partition(R, "s", "o", 1), "net") >> ANY
    routes = source.core.runs[R].directory.routes
    assert routes.is_down("h2", BY_CLIENT) and routes.is_down("h2", "net")
    assert sent(source.at(26.0 + again_s), 1, again=True) == ["net"]


def test_demands_repeated_during_a_transfer_do_not_discredit_a_relay(source: Playbook) -> None:
    for index in range(10):
        assert sent(source.at(10.0 + index), index) == [BY_CLIENT]
        assert sent(source, index, again=True) == []
        landed(source, index)
        assert sent(source, index, again=True) == []
        assert sent(source, index, again=True) == [BY_CLIENT]  # two demands that were long on their way
        landed(source, index)
    assert "fault" not in source.recorded()


def test_the_knowledge_about_unused_routes_is_forgotten(source: Playbook) -> None:
    dropped(source, 0, 10.0)
    ways = source.core.runs[R].directory.routes
    for number in range(2, 30):
        over = (m.LinkEnd("client", f"v{number}"), m.LinkEnd("h2", "fast"))
        ways.leave("h2", over)
        ways.came_through("h2", over, m.Partition(R, "s", "o", number))
        ways.leave("h2", over)
        source.core.context.now = 1000.0 * number
        ways.change((m.RoutePreference("h1", "h2", (over, "net")),), number)
    assert max(map(len, (ways._down, ways._false, ways._landed, ways._rates_bps))) <= 4


def test_the_client_plans_without_a_route_that_the_sender_reports_impassable(
    make_book: Callable[..., Playbook], install: m.Install
) -> None:
    book, over = make_book("client"), (m.LinkEnd("h2", "fast"), m.LinkEnd("client", "fast"))
    ways = (m.RoutePreference("h1", "client", (over, "net")),)
    route = m.links_over("h1", "client", over)
    book << e.RunRequested(install, GlobalMoves(period_s=50.0)) >> ANY
    for host in ("h1", "h2"):
        book << got(host, m.Installed(R, host)) >> ANY
    book.core.runs[R].directory.routes.change(ways, -1)

    def shunned(at_s: float) -> frozenset[tuple[Link, ...]]:
        book.at(at_s) << fired("plan r") >> ANY
        (plan,) = book.only(e.RequestPlan)
        book << e.PlanReady(R, plan.placement, worth=False) >> ANY
        return plan.shunned

    def said(sender: str, hops: m.Hops, at_s: float) -> None:
        book.at(at_s) << got(sender, m.Impassable(R, "client", hops)) >> ANY

    said("h2", over, 10.0)  # of another's route
    said("h1", (m.LinkEnd("h2", "slow"), over[1]), 10.0)  # that nobody was told to take
    assert shunned(50.0) == frozenset()
    said("h1", over, 60.0)
    said("h1", over, 60.5)  # once more, as messages may come twice
    assert shunned(100.0) == {route} and shunned(150.0) == frozenset()
    said("h1", over, 151.0)
    assert shunned(200.0) == {route} == shunned(250.0) and shunned(300.0) == frozenset()
    said("h1", over, 1000.0)  # long after
    assert shunned(1049.0) == {route} and shunned(1100.0) == frozenset()
