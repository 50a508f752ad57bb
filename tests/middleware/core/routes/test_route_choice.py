"""Choice of the network for a source's partitions, and the partitions under way over a link that fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playbook import ANY, Playbook, got
from run_ids import R

from thalweg.middleware.network.view import Link
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

WAYS = (
    m.RoutePreference("h1", "h2", ("fast", "net")),
    m.RoutePreference("h2", "h1", ("slow",)),
    m.RoutePreference("h1", "client", ()),
)


@pytest.fixture
def book(make_book: Callable[..., Playbook], install: m.Install) -> Playbook:
    """Host h1, which has dispatched partition 0 and votes on new networks."""
    book = make_book("h1")
    book << got("client", install) >> ANY
    assert [send.via for send in sent(book, 0)] == ["net"]
    book << got("client", m.Propose(R, 1, (), None, WAYS)) >> ANY
    assert m.Vote(R, 1, "h1", 0) in book.sent("client")
    return book


def sent(book: Playbook, index: int, *, again: bool = False) -> list[e.Send]:
    """Demand the partition, make it if it is not there, and return the messages that the source sends."""
    book << got("h2", m.Demand(R, "s", "o", index, version=1, again=again)) >> ANY
    sends = [send for send in book.only(e.Send) if send.bulk]
    if not sends and book.only(e.RunOperator):
        book << e.OperatorFinished(R, "s", index, b"x", 10_000) >> ANY
        sends = [send for send in book.only(e.Send) if send.bulk]
    return sends


def test_networks_change_after_the_agreed_partition_and_no_node_moves(book: Playbook) -> None:
    book << got("client", m.Commit(R, 1, 1, (), ways=WAYS)) >> ANY
    assert book.sent("client") == [m.Done(R, 1, "h1")]
    book << e.OperatorFinished(R, "s", 1, b"x", 10_000) >> ANY
    assert [send.via for send in sent(book, 1)] == ["net"]
    book << e.OperatorFinished(R, "s", 2, b"x", 10_000) >> ANY
    (part,) = sent(book, 2)
    assert part.via == "fast" and part.message.commit == m.Commit(R, 1, 1, (), ways=WAYS)
    assert book.core.runs[R].directory.routes.via("client", 9) == "net"


def test_networks_that_were_not_voted_on_are_rejected(book: Playbook) -> None:
    book << got("client", m.Commit(R, 1, 1, (), ways=WAYS[:1])) >> ANY
    assert book.recorded() == ["unexpected"] and book.core.runs[R].directory.routes.table == ()


@pytest.fixture
def over_fast(book: Playbook) -> Playbook:
    """The same host, which has sent partition 1 over the fast network at 10 s."""
    book << got("client", m.Commit(R, 1, 0, (), ways=WAYS)) >> ANY
    book.at(10.0) << e.OperatorFinished(R, "s", 1, b"x", 10_000) >> ANY
    assert [send.via for send in sent(book, 1)] == ["fast"]
    return book


def test_a_stuck_partition_is_resent_over_the_next_network_with_news_of_the_slow_link(over_fast: Playbook) -> None:
    book, link = over_fast, Link("h1", "h2", "fast")
    assert sent(book.at(11.0), 1, again=True) == []  # it may come yet
    (again,) = sent(book.at(12.5), 1, again=True)
    assert again.via == "net" and "fault" in book.recorded()
    known = book.core.links.monitor.estimate(link, 12.5)
    assert known is not None and known.rate_bps == pytest.approx(80_000 / 25)
    (estimate,) = again.message.news.estimates
    assert estimate.link == link
    book.at(13.0) << e.TransferMeasured("h2", again.message, 10_000, 0.1) >> ANY
    book << e.OperatorFinished(R, "s", 2, b"x", 10_000) >> ANY
    assert [send.via for send in sent(book, 2)] == ["net"]
    book.at(14.0) << e.TransferMeasured("h2", again.message, 10_000, 4.0, "fast") >> ANY  # after all
    book << e.OperatorFinished(R, "s", 3, b"x", 10_000) >> ANY
    assert [send.via for send in sent(book, 3)] == ["fast"]


def test_a_network_with_a_failed_transfer_is_avoided_for_a_while(over_fast: Playbook) -> None:
    book, part = over_fast, m.Partition(R, "s", "o", 1)
    book.at(10.5) << e.TransferFailed("h2", part, "fast") >> ANY
    assert [send.via for send in sent(book, 1, again=True)] == ["net"]
    book << e.TransferFailed("h2", part) >> ANY  # over net: of both, that is tried which was left first
    assert [send.via for send in sent(book.at(11.0), 1, again=True)] == ["fast"]
    book << e.TransferMeasured("h2", part, 10_000, 0.1, "fast") >> ANY
    book.at(60.0) << e.OperatorFinished(R, "s", 2, b"x", 10_000) >> ANY
    assert [send.via for send in sent(book, 2)] == ["fast"]


def test_a_stuck_partition_is_not_resent_after_a_change_to_a_single_network(over_fast: Playbook) -> None:
    book, part = over_fast, m.Partition(R, "s", "o", 1)
    book << e.TransferMeasured("h2", part, 10_000, 0.1, "fast") >> ANY
    book << got("client", m.Propose(R, 2, (), None, WAYS[2:])) >> ANY
    book << got("client", m.Commit(R, 2, 1, (), ways=WAYS[2:])) >> ANY
    book << e.OperatorFinished(R, "s", 2, b"x", 10_000) >> ANY
    assert [send.via for send in sent(book, 2)] == ["net"]
    assert sent(book.at(20.0), 2, again=True) == []


@pytest.mark.parametrize("left", [True, False], ids=["another table names none", "the table names no other"])
def test_a_route_is_not_reported_dead_if_the_shared_network_has_replaced_the_route(book: Playbook, left: bool) -> None:
    route = (m.LinkEnd("h3", "fast"), m.LinkEnd("h2", "fast"))
    ways = book.core.runs[R].directory.routes
    ways.change((m.RoutePreference("h1", "h2", (route,)),), 0)
    if left:
        ways.change((m.RoutePreference("h1", "client", ("fast",)),), 1)
    for at_s in (20.0, 60.0):
        book.at(at_s) << e.TransferFailed("h2", m.Partition(R, "s", "o", 2), route) >> ANY
    assert [message.lost for message in book.sent("client") if isinstance(message, m.Failed)] == (
        [] if left else ["h2"]
    )
