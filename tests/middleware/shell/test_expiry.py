"""Certificates that expire: warnings in the log, and the certificates that have expired."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from thalweg.middleware.logbook import Logbook
from thalweg.middleware.shell import expiry as module
from thalweg.middleware.shell.expiry import AGAIN_S, AHEAD_S, Expiry
from thalweg.middleware.shell.security import MEMBERS, Keys, MemberCertificate, Role, new_certificate, write_certificate

DAY_S = 86_400.0


class Clock:
    """The wall clock, as ``expiry`` reads it."""

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def time(self) -> float:
        return self.at_s


class Book(Logbook):
    """A logbook that keeps its lines."""

    def __init__(self) -> None:
        super().__init__("h1")
        self.texts: list[str] = []

    def write(self, event: str, text: str, **_: object) -> None:  # type: ignore[override]
        assert event == "certificate-expires"
        self.texts.append(text)


def make(folder: Path, name: str, role: Role, days: float | None) -> tuple[MemberCertificate, Path]:
    made, _, secret = new_certificate(name, role, folder, days)
    write_certificate(folder / MEMBERS / f"{name}.key", made.text())
    return made, secret


def test_an_expiring_certificate_is_logged_daily_and_returned_once_after_the_expiry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three certificates expire, and one of them is in no run."""
    own, secret = make(tmp_path, "h1", "host", 40)
    alice, _ = make(tmp_path, "alice", "client", 30)
    make(tmp_path, "h2", "host", None)
    make(tmp_path, "h3", "host", 30)
    assert own.expires is not None
    assert alice.expires is not None
    clock, book, expiry = Clock(0.0), Book(), Expiry(Keys.load(secret))
    monkeypatch.setattr(module, "time", clock)
    peers = ("alice", "h2", "h1")

    def look(at_s: float) -> tuple[list[tuple[str, str]], list[str]]:
        clock.at_s, book.texts = at_s, []
        return [*expiry.check(peers, book)], book.texts

    over_s = alice.expires.timestamp()
    date = f"{datetime.fromtimestamp(over_s, UTC):%Y-%m-%d %H:%M} UTC"
    assert look(over_s - AHEAD_S - 1) == ([], [])
    assert look(over_s - AHEAD_S) == ([], [f"the certificate of 'alice' expires on {date}, in 14 days"])
    assert look(over_s - AHEAD_S + AGAIN_S - 1) == ([], [])
    assert look(over_s - AHEAD_S + AGAIN_S) == ([], [f"the certificate of 'alice' expires on {date}, in 13 days"])
    _, (own_soon, last) = look(over_s - 100)
    assert own_soon.startswith("the certificate of 'h1' expires on ")
    assert last == f"the certificate of 'alice' expires on {date}, in 100 s"
    how = f"has a certificate that expired on {date}; make one with thalweg keys new"
    assert look(over_s) == ([("alice", how)], [])
    assert look(over_s + 1) == ([], [])
    ((name, _),), texts = look(own.expires.timestamp())
    assert (name, texts) == ("h1", [])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (14 * DAY_S, "14 days"),
        (2 * DAY_S, "2 days"),
        (DAY_S, "24 hours"),
        (7200, "2 hours"),
        (120, "2 minutes"),
        (9, "9 s"),
    ],
)
def test_durations_are_written_in_the_largest_unit_that_fits_at_least_twice(seconds: float, words: str) -> None:
    assert module._in_words(seconds) == words
