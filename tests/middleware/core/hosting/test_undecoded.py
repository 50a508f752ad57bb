"""Hosts whose messages do not decode, as the core is notified: sixteen in a row are a failure of the host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playbook import ANY, Playbook, got
from run_ids import R, run_of

from thalweg.middleware.core.hosting.undecoded import MOST_IN_A_ROW, REMEMBERED
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import NO_RUN, RunId

HOW = "has sent 16 messages of one type in a row that do not decode; does it run another version?"


@pytest.fixture
def client(make_book: Callable[..., Playbook], install: m.Install) -> Playbook:
    """The client of a run: h1 holds the source, h2 an operator, and h3 nothing."""
    book = make_book("client")
    book << e.RunRequested(install) >> ANY
    for name in ("h1", "h2", "h3"):
        book << got(name, m.Installed(R, name)) >> ANY
    return book


def garble(book: Playbook, sender: str, count: int, run: RunId = R, kind: str = "Pong") -> None:
    """Let ``count`` messages of ``sender`` fail to decode. All but the last have no effect."""
    for _ in range(count - 1):
        book << e.DecodingFailed(sender, run, kind) >> []
    book << e.DecodingFailed(sender, run, kind)


@pytest.mark.parametrize("run", [R, NO_RUN], ids=str)
def test_sixteen_undecodable_messages_in_a_row_end_a_run_that_needs_the_sender(client: Playbook, run: RunId) -> None:
    garble(client, "h2", MOST_IN_A_ROW, run_of("another"))
    assert client.commands == []
    garble(client, "h2", MOST_IN_A_ROW, run)
    (failed,) = client.only(e.Fail)
    assert (failed.host, failed.reason) == ("h2", f"host 'h2', which holds o, {HOW}")


def test_a_run_goes_on_without_a_host_that_holds_nothing(client: Playbook) -> None:
    garble(client, "h3", MOST_IN_A_ROW)
    assert client.only(e.Fail) == []
    assert "h3" not in client.core.runs[R].directory.hosts
    assert client.only(e.Record)[0].fields["detail"]["what"] == f"{HOW}; the run goes on without it"


def test_a_decodable_message_ends_the_row_and_messages_of_other_hosts_do_not_count(client: Playbook) -> None:
    for _ in range(4):
        garble(client, "h2", MOST_IN_A_ROW - 1)
        garble(client, "h1", 1)
        garble(client, "stranger", 3 * MOST_IN_A_ROW)
        client << got("h2", m.Pong(R)) >> []
        client << got("h1", m.Pong(R)) >> []
    assert client.core.runs[R].directory.hosts == {"client", "h1", "h2", "h3"}


def test_decodable_messages_of_a_different_type_do_not_end_the_row(client: Playbook) -> None:
    for _ in range(MOST_IN_A_ROW):
        assert client.core.runs
        garble(client, "h2", 1, kind="Demand")
        failed = client.only(e.Fail)
        client << got("h2", m.Pong(R)) >> []
    assert [failure.host for failure in failed] == ["h2"]


def test_a_host_reports_undecodable_messages_only_while_waiting_for_the_sender(
    make_book: Callable[..., Playbook], install: m.Install
) -> None:
    book = make_book("h2")
    book << got("client", install) >> ANY
    garble(book, "h1", MOST_IN_A_ROW)
    assert book.sent() == []
    book << got("client", m.Demand(R, "o", "t", 0)) >> ANY  # which it makes of what h1 has
    garble(book, "h1", MOST_IN_A_ROW)
    assert book.sent("client") == [m.Failed(R, "o", f"host 'h1', which holds 's', {HOW}", lost="h1")]
    garble(book, "h3", MOST_IN_A_ROW)
    assert book.sent() == []


def test_endless_sender_names_take_bounded_memory(client: Playbook) -> None:
    for number in range(2 * REMEMBERED):
        client << e.DecodingFailed(f"x{number}", R) >> []
    assert len(client.core._undecoded.rows) == REMEMBERED


def test_a_host_with_an_expired_certificate_fails_at_once(client: Playbook) -> None:
    client << e.CertificateExpired("h3", "has expired")
    assert client.only(e.Record)[0].fields["detail"]["what"] == "has expired; the run goes on without it"
    client << e.CertificateExpired("h2", "has expired")
    (failed,) = client.only(e.Fail)
    assert (failed.host, failed.reason) == ("h2", "host 'h2', which holds o, has expired")


def test_an_expired_certificate_of_the_client_ends_the_runs_that_the_client_leads(
    client: Playbook, make_book: Callable[..., Playbook], install: m.Install
) -> None:
    client << e.CertificateExpired("client", "has expired")
    (failed,) = client.only(e.Fail)
    assert (failed.host, failed.reason) == ("client", "this client, 'client', has expired")
    host = make_book("h2")
    host << got("client", install) >> ANY
    host << e.CertificateExpired("h2", "has expired") >> []
