"""A late message does not reopen an ended run, and the record of ended runs takes bounded memory."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from playbook import ANY, Playbook, got
from run_ids import R, fired, run_of

from thalweg.middleware.core.hosting.ended_runs import EndedRuns
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId

Make = Callable[..., m.Install]
Book = Callable[..., Playbook]

LIMITS = CoreConfig(lease_s=10.0, late_s=20.0, max_past_runs=100)


def install(make_install: Make, run: RunId, client: str = "client") -> m.Install:
    return msgspec.structs.replace(make_install(others=(client,)), run=run, client=client)


def answer(book: Playbook, message: m.Install) -> str | None:
    """Return the error in the host's answer to an installation, or None if the host does not answer."""
    book << got(message.client, message) >> ANY
    answers = [send.message for send in book.only(e.Send) if isinstance(send.message, m.Installed)]
    return answers[0].error if answers else None


@pytest.mark.parametrize("between", [0, 1000])
def test_a_removed_run_stays_removed_until_late_messages_have_arrived(
    between: int, make_book: Book, make_install: Make
) -> None:
    book = make_book("h1", msgspec.structs.replace(LIMITS, max_past_runs=5000))
    assert answer(book, install(make_install, R)) == ""
    book << got("client", m.Remove(R)) >> ANY
    for number in range(between):
        assert answer(book, install(make_install, run_of(f"r{number}"))) == ""
        book << got("client", m.Remove(run_of(f"r{number}"))) >> ANY
    for at_s in (0.0, 5.0, 29.9):
        assert answer(book.at(at_s), install(make_install, R)) is None
    assert answer(book.at(30.1), install(make_install, R)) == ""
    assert not book.core.ended_runs.until_s


def test_a_run_with_an_expired_lease_stays_closed_for_late_messages(make_book: Book, make_install: Make) -> None:
    book = make_book("h1", LIMITS)
    assert answer(book, install(make_install, R)) == ""
    for at_s in (5.0, 10.0, 15.0):
        book.at(at_s) << fired("lease") >> ANY
    assert not book.core.runs
    assert answer(book.at(44.0), install(make_install, R)) is None
    assert answer(book.at(46.0), install(make_install, R)) == ""


def test_a_run_with_an_expired_lease_opens_for_a_later_join(make_book: Book, make_install: Make) -> None:
    book = make_book("h1", LIMITS)
    first, later, last = (
        msgspec.structs.replace(install(make_install, run_of("r~2")), number=number) for number in (3, 4, 5)
    )
    assert answer(book, first) == ""
    for at_s in (5.0, 10.0, 15.0):
        book.at(at_s) << fired("lease") >> ANY
    assert not book.core.runs
    assert answer(book, first) is None
    assert answer(book, msgspec.structs.replace(last, run=run_of("r~1"))) is None
    assert answer(book.at(16.0), later) == ""
    assert list(book.core.runs) == [run_of("r~2")]
    book << got("client", m.Remove(run_of("r~2"))) >> ANY
    assert answer(book, last) is None


@pytest.mark.parametrize("number", [0, 3])
def test_a_run_removed_after_an_expired_lease_stays_removed(number: int, make_book: Book, make_install: Make) -> None:
    book = make_book("h1", LIMITS)
    assert answer(book, msgspec.structs.replace(install(make_install, R), number=number)) == ""
    for at_s in (5.0, 10.0, 15.0):
        book.at(at_s) << fired("lease") >> ANY
    book << got("client", m.Remove(R)) >> [e.Send(R, "client", m.Removed(R, "h1"))]
    assert answer(book.at(44.0), msgspec.structs.replace(install(make_install, R), number=9)) is None
    assert answer(book.at(46.0), msgspec.structs.replace(install(make_install, R), number=9)) == ""


def test_a_run_removed_before_the_installation_is_not_installed(make_book: Book, make_install: Make) -> None:
    book = make_book("h1", LIMITS)
    book << got("stranger", m.Remove(R)) >> [e.Send(R, "stranger", m.Removed(R, "h1"))]
    assert answer(book, install(make_install, R)) == ""  # it is another's
    book << got("client", m.Remove(run_of("q"))) >> [e.Send(run_of("q"), "client", m.Removed(run_of("q"), "h1"))]
    assert answer(book.at(19.0), install(make_install, run_of("q"))) is None


def test_an_abandoned_run_is_over_for_the_client_too(make_book: Book, make_install: Make) -> None:
    book = make_book("client", LIMITS)
    book << e.RunRequested(make_install()) >> ANY
    book << e.RunAbandoned(R) >> ANY
    assert book.core.ended_runs.knows("client", R, 29.0)


def test_only_a_client_with_too_many_past_runs_is_refused(make_book: Book, make_install: Make) -> None:
    book = make_book("h1", LIMITS)
    assert answer(book, install(make_install, run_of("mine"))) == ""
    assert answer(book, install(make_install, run_of("over"))) == ""
    book << got("client", m.Remove(run_of("over"))) >> ANY
    for number in range(1000):
        book.at(number * 0.001) << got("stranger", m.Remove(run_of(f"r{number}"))) >> ANY
        assert len(book.core.ended_runs.until_s) <= LIMITS.max_past_runs
    assert answer(book, install(make_install, run_of("over"))) is None
    assert answer(book, install(make_install, run_of("next"))) == ""
    error = answer(book, install(make_install, run_of("any"), "stranger"))
    assert error is not None
    assert "than the 100 that the host remembers; begin another run after 30 s, or raise the limit max_past_" in error
    assert answer(book.at(30.5), install(make_install, run_of("any"), "stranger")) == ""


def test_the_removal_of_refused_runs_does_not_prolong_the_refusal() -> None:
    past = EndedRuns(LIMITS)
    for number in range(200):
        past.add("client", RunId(f"run-{number}", generation=1), 0.0)
        assert len(past._generations) <= LIMITS.max_past_runs
    for at_s in range(30):
        assert past.full("client")
        past.add("client", run_of("refused"), float(at_s), opened=False)
    past.add("another", R, 30.0)
    assert not past.full("client")


def test_many_client_names_take_bounded_memory_and_reopen_no_run() -> None:
    past = EndedRuns(LIMITS)
    past.add("client", R, 0.0)
    for number in range(1000):
        past.add(f"name {number}", R, 1.0)
        assert len(past.until_s) <= LIMITS.max_past_runs
    assert past.knows("client", R, 29.0) or past.full("client")


def test_ten_thousand_runs_are_forgotten_individually_by_age() -> None:
    past = EndedRuns(CoreConfig())
    for number in range(10_000):
        past.add("client", RunId(f"run-{number}"), number * 0.01)
    assert [past.knows("client", RunId(f"run-{number}"), 119.0) for number in (0, 5000, 9999)] == [True] * 3
    assert [past.knows("client", RunId(f"run-{number}"), 150.0) for number in (2999, 3001)] == [False, True]
    assert len(past.until_s) == 7000 - 1
