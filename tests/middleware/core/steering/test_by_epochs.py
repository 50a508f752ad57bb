"""Decisions about moves at every host, made for each operator at the ends of epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from adversary import CLIENT
from playbook import ANY, Playbook, got, measured
from run_ids import R, alarm, fired, timer_of

from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import LocalMoves
from thalweg.middleware.protocol.limits import CoreConfig

Make = Callable[..., m.Install]
Book = Callable[..., Playbook]
CONFIG = CoreConfig(retry_s=0.5, probe_s=4.0)


def decisions(book: Playbook) -> list[dict[str, Any]]:
    return [record.fields["detail"] for record in book.only(e.Record) if record.kind == "epoch"]


def test_an_operator_decides_at_the_end_of_an_epoch_and_requests_unknown_links(
    make_book: Book, install: m.Install
) -> None:
    book = make_book("h2", CONFIG)
    book << got(CLIENT, msgspec.structs.replace(install, moves=LocalMoves(period_s=10.0))) >> ANY
    assert alarm("epoch r o", 10.0) in book.commands
    book.at(1.0) << got(CLIENT, m.Demand(R, "o", "t", 0, 0, 1, True, True)) >> ANY
    book << got("h1", m.Partition(R, "s", "o", 0), bytes(100_000), 100_000) >> ANY
    book << e.OperatorFinished(R, "o", 0, bytes(50_000), 50_000, duration_s=0.1) >> ANY
    book.at(10.0) << fired("epoch r o") >> ANY
    assert alarm("epoch r o", 20.0) in book.commands
    assert alarm("decide r o", 12.5) in book.commands  # a quarter of the period
    (request,) = book.sent("h1")  # what h2 measures itself goes to no one
    assert isinstance(request, m.ProbeRequest)
    for now, source, target in ((10.25, "h1", "h2"), (10.5, "h2", "h1"), (10.75, "h1", CLIENT)):
        book.at(now) << got(source, measured(source, target, 8_000_000)) >> ANY
        waits = [alarm("decide r o", now + 2.5)] if source == "h1" else []  # h2 -> h1 is none that it waits for
        assert [timer for timer in book.only(e.SetTimer) if timer.key == timer_of("decide r o")] == waits
    book << got(CLIENT, measured("h2", CLIENT, 8_000)) >> ANY
    assert m.Offer(R, "o", 1) in book.sent()  # all is known; from here its output goes over the slow link
    (epoch,) = decisions(book)
    assert (epoch["decision"], epoch["sends"], epoch["critical"]) == ("move", 0, True)
    assert epoch["candidates"][epoch["best"]] < epoch["candidates"]["h2"]
    assert set(epoch["links"]) >= {"h1>h2", "h1>client", "h2>client"}
    book.at(14.0) << fired("decide r o") >> []
    book.at(20.0) << fired("epoch r o") >> [alarm("epoch r o", 30.0)]
    assert [decision["why"] for decision in decisions(book)] == ["a move is under way"]


@pytest.fixture
def deciding(make_book: Book, install: m.Install) -> Playbook:
    """The host of ``o`` at the end of an epoch. 100 kB have come from h1 at 1.6 Mbit/s, 50 kB gone to the client."""
    book = make_book("h2", CONFIG)
    book << got(CLIENT, msgspec.structs.replace(install, moves=LocalMoves(period_s=100.0))) >> ANY
    book.at(1.0) << got(CLIENT, m.Demand(R, "o", "t", 0, 0, 1, True, True)) >> ANY
    into = m.Piggyback(estimates=(m.Estimate("h1", "h2", 1_600_000, 0, 1, 0),))
    book << got("h1", m.Partition(R, "s", "o", 0, news=into), bytes(100_000), 100_000) >> ANY
    book << e.OperatorFinished(R, "o", 0, bytes(50_000), 50_000) >> ANY
    book.at(100.0) << fired("epoch r o") >> ANY
    assert alarm("decide r o", 104.0) in book.commands
    return book


def test_unmeasured_links_are_requested_again_and_then_count_as_slow(deciding: Playbook) -> None:
    book = deciding
    asked = [(send.to, send.message) for send in book.only(e.Send) if isinstance(send.message, m.ProbeRequest)]
    book.at(104.0) << fired("decide r o") >> ANY  # the request may have been lost
    again = [(send.to, send.message) for send in book.only(e.Send) if isinstance(send.message, m.ProbeRequest)]
    assert [to for to, _ in again] == ["h1"]
    assert again == asked
    assert alarm("decide r o", 108.0) in book.commands
    book.at(108.0) << fired("decide r o") >> ANY
    (epoch,) = decisions(book)
    assert (epoch["decision"], epoch["best"]) == ("move", "h1")  # one slow link is better than one and another
    slow_s = 50_000 / (m.PROBE_BYTES / 8.0)  # to the client, since 100 s
    assert epoch["candidates"] == pytest.approx({"h2": 0.5 + slow_s, "h1": slow_s, CLIENT: 2 * slow_s})
    assert "h1>h2" not in epoch["links"]  # too old to be told to anybody


def test_the_last_estimate_of_a_link_in_use_counts_at_every_age(deciding: Playbook) -> None:
    book = deciding
    book.at(101.0) << got("h1", measured("h1", CLIENT, 400_000)) >> ANY  # 2 s; 1 s from h1 directly
    book << got(CLIENT, measured("h2", CLIENT, 800_000)) >> ANY
    for now in (105.0, 109.0):
        assert decisions(book) == []
        book.at(now) << fired("decide r o") >> ANY
    (epoch,) = decisions(book)
    assert (epoch["decision"], epoch["best"]) == ("stay", "h2")  # 0.5 s from h1, as 100 s ago, and not 49 s
    assert epoch["candidates"] == pytest.approx({"h2": 1.0, "h1": 1.0, CLIENT: 2.0})


def test_an_old_estimate_of_an_unused_link_does_not_count(make_book: Book, install: m.Install) -> None:
    book = make_book("h2", CONFIG)
    book << got(CLIENT, msgspec.structs.replace(install, moves=LocalMoves(period_s=100.0))) >> ANY
    book.at(1.0) << got(CLIENT, m.Demand(R, "o", "t", 0, 0, 1, True, True)) >> ANY
    news = m.Piggyback(
        estimates=(m.Estimate("h1", CLIENT, 10**9, 0, 1, 0), m.Estimate("h2", CLIENT, 1_600_000, 0, 1, 0))
    )
    book << got("h1", m.Partition(R, "s", "o", 0, news=news), bytes(100_000), 100_000) >> ANY
    book << e.OperatorFinished(R, "o", 0, bytes(50_000), 50_000) >> ANY
    book.at(100.0) << fired("epoch r o") >> ANY
    for now in (104.0, 108.0):
        book.at(now) << fired("decide r o") >> ANY
    (epoch,) = decisions(book)
    slow_s = 50_000 / (m.PROBE_BYTES / 8.0)
    assert epoch["candidates"] == pytest.approx({"h2": 2 * slow_s + 0.25, "h1": slow_s, CLIENT: 2 * slow_s})


def test_an_operator_counts_the_start_up_time_of_messages(make_book: Book, install: m.Install) -> None:
    book = make_book("h2", CONFIG)
    book << got(CLIENT, msgspec.structs.replace(install, moves=LocalMoves(period_s=10.0, startup_s=0.25))) >> ANY
    book.at(1.0) << got(CLIENT, m.Demand(R, "o", "t", 0, 0, 1, True, True)) >> ANY
    book << got("h1", m.Partition(R, "s", "o", 0), bytes(100_000), 100_000) >> ANY
    book << e.OperatorFinished(R, "o", 0, bytes(50_000), 50_000, duration_s=0.5) >> ANY
    book.at(10.0) << fired("epoch r o") >> ANY
    for source, target in (("h1", "h2"), ("h2", CLIENT), ("h1", CLIENT)):
        book << got(source, measured(source, target, 800_000)) >> ANY
    (epoch,) = decisions(book)
    assert epoch["candidates"] == pytest.approx({"h2": 2.5, "h1": 1.25, CLIENT: 1.75})


def test_an_operator_does_not_move_to_a_host_lost_meanwhile(make_book: Book, install: m.Install) -> None:
    book = make_book("h2", CONFIG)
    book << got(CLIENT, msgspec.structs.replace(install, moves=LocalMoves(period_s=10.0, k=1))) >> ANY
    book.at(1.0) << got(CLIENT, m.Demand(R, "o", "t", 0, 0, 1, True, True)) >> ANY
    book << got("h1", m.Partition(R, "s", "o", 0), bytes(100_000), 100_000) >> ANY
    book << e.OperatorFinished(R, "o", 0, bytes(50_000), 50_000) >> ANY
    book.at(10.0) << fired("epoch r o") >> ANY
    (request,) = book.sent("h1")
    assert "h3" in {target.name for target in request.targets}
    book << got(CLIENT, m.Lost(R, "h3", ())) >> ANY
    for source, target in (("h1", "h3"), ("h3", CLIENT)):
        book << got(source, measured(source, target, 8_000_000)) >> ANY  # by which h3 would be the best
    for source, target, rate_bps in (("h1", "h2", 80_000), ("h2", CLIENT, 80_000), ("h1", CLIENT, 8_000)):
        book << got(source, measured(source, target, rate_bps)) >> ANY
    (epoch,) = decisions(book)
    assert "h3" not in epoch["candidates"]
    assert epoch["decision"] == "stay"
    book.at(20.0) << fired("epoch r o") >> ANY
    probed = [message.targets for message in book.sent() if isinstance(message, m.ProbeRequest)]
    assert "h3" not in {target.name for targets in probed for target in targets}


def test_an_operator_decides_only_after_the_first_partition_and_only_with_local_moves(
    make_book: Book, make_install: Make
) -> None:
    book = make_book("h2", CONFIG)
    book << got(CLIENT, make_install()) >> ANY
    assert book.core.runs[R].books.of == {}  # operators that others decide for
    book = make_book("h2", CONFIG)
    moves = LocalMoves(period_s=10.0)
    book << got(CLIENT, msgspec.structs.replace(make_install(), moves=moves)) >> ANY
    book.at(10.0) << fired("epoch r o") >> [alarm("epoch r o", 20.0)]
    assert [decision["why"] for decision in decisions(book)] == ["nothing has come through yet"]
    book << got(CLIENT, m.Remove(R)) >> ANY
    book << fired("epoch r o") >> []
    book << fired("decide r o") >> []
