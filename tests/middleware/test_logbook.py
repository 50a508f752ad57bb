"""The log of hosts and clients: the text of records, fields, levels, and rates."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from run_ids import R

from thalweg.middleware.core.context.outbox import NOTED, HostContext, Outbox
from thalweg.middleware.logbook import EVENTS, FIELDS, QUIET_S, REMEMBERED, SLOW_S, WORDS, Logbook
from thalweg.middleware.protocol import events as e

PAGE = (Path(__file__).parents[2] / "docs/reference/log-records.md").read_text(encoding="utf-8")
MOVES = {"moves": [["o", "h1", "h2"]], "reason": "asked for"}
# a record of a core: kind and fields, and the event, peer or node and part of the message that come of it
RECORDS: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("fault", {"peer": "h2", "detail": {"about": "host", "what": "was restarted; x"}}, "host-lost", "h2", "'h2' was"),
    ("fault", {"peer": "bob", "detail": {"about": "subscriber", "what": "is gone"}}, "subscriber-lost", "bob", "bob"),
    ("fault", {"peer": "me", "detail": {"about": "client", "what": "client silent"}}, "client-lost", "me", "silent"),
    ("fault", {"peer": "h2", "detail": {"about": "version", "what": "speaks 7"}}, "host-refused", "h2", "speaks 7"),
    ("fault", {"node": "o", "detail": {"about": "replica", "what": "full"}}, "replica-missing", "o", "'o': full"),
    ("fault", {"peer": "h2", "detail": {"about": "tree", "what": "h2 went"}}, "tree-lost", "h2", "h2 went"),
    ("fault", {"peer": "h2", "node": "o"}, "route-failed", "h2", "route to host 'h2' of 'o': a transfer got stuck"),
    (
        "fault",
        {"peer": "h2", "duration_s": 3.0, "detail": {"what": "nothing comes through", "via": "fast", "relays": ["h3"]}},
        "route-failed",
        "h2",
        "route to host 'h2' over fast by way of h3: nothing comes through, for 3 s",
    ),
    ("unexpected", {"peer": "h2", "detail": {"message": "Commit"}}, "message-refused", "h2", "Commit of 'h2' changes"),
    ("undeliverable", {"peer": "h2", "node": "o", "index": 3}, "message-dropped", "h2", "partition 3 of 'h2'"),
    ("undeliverable", {"peer": "h2", "node": "o", "index": None}, "message-dropped", "h2", "a message of 'h2'"),
    ("late", {"node": "count", "index": 7, "value": 5}, "rows-late", "count", "5 rows of 'count' are left out"),
    (
        "left-out",
        {"node": "count", "index": 7, "value": 5, "detail": {"why": "no time"}},
        "rows-skipped",
        "count",
        "'count' leaves 5 rows out of partition 7: no time",
    ),
    (
        "left-out",
        {"node": "o", "index": 7, "value": None, "detail": {"why": "ValueError: x"}},
        "partition-skipped",
        "o",
        "'o' leaves out partition 7, and gives nothing there: ValueError: x",
    ),
    (
        "relocated",
        {"node": "o", "peer": "h2", "index": 7, "detail": {"outcome": "moved", "reason": "asked for"}},
        "operator-moved",
        "h2",
        "'o' has moved to host 'h2' with partition 7 (asked for)",
    ),
    (
        "relocated",
        {"node": "o", "peer": "h2", "detail": {"outcome": "stayed", "reason": "asked for", "why": "too large"}},
        "move-refused",
        "h2",
        "'o' stays, and does not move to host 'h2' (asked for): too large",
    ),
    (
        "relocated",
        {"node": "o", "peer": "h2", "detail": {"outcome": "stayed", "why": "the stream ended first"}},
        "move-dropped",
        "h2",
        "the stream ended first",
    ),
    (
        "proposal",
        {"index": 6, "detail": {"outcome": "committed", **MOVES}},
        "placement-changed",
        "",
        "from partition 7 on, the run changes: 'o' to host 'h2' (asked for)",
    ),
    (
        "proposal",
        {"detail": {"outcome": "aborted", "why": "host 'h2': no room", **MOVES}},
        "move-refused",
        "",
        "this change is not made: 'o' to host 'h2' (asked for): host 'h2': no room",
    ),
    (
        "proposal",
        {"detail": {"outcome": "superseded", "why": "a later proposal took its place", "moves": []}},
        "move-dropped",
        "",
        "a later proposal took its place",
    ),
    ("reshaped", {"index": 7, "detail": {"outcome": "reshaped"}}, "tree-changed", "", "from partition 7 on"),
    ("reshaped", {"detail": {"outcome": "stayed", "why": "no room"}}, "move-refused", "", "no room"),
    ("query", {"index": 3, "detail": {"query": 2, "outcome": "begun"}}, "query-begun", "", "query 2 begins"),
    ("query", {"detail": {"query": 2, "outcome": "left", "why": ""}}, "query-left", "", "query 2 has left"),
    (
        "query",
        {"detail": {"query": -1, "guest": "bob", "node": "joint", "outcome": "refused", "why": "not allowed"}},
        "query-refused",
        "",
        "subscriber 'bob' of 'joint' cannot begin: not allowed",
    ),
    ("plan", {"detail": {"planner": "p", "failed": "x", "why": "it is ill"}}, "planner-failed", "", "it is ill"),
    ("plan", {"detail": {"planner": "p", "decision": "propose", "why": "better"}}, "plan-taken", "", "carried out"),
    (
        "plan",
        {"detail": {"planner": "p", "decision": "stay", "why": "better", "differs": True, "dropped": "h9 is gone"}},
        "plan-dropped",
        "",
        "the plan of planner 'p' is not carried out: h9 is gone",
    ),
    ("plan", {"detail": {"planner": "p", "decision": "stay", "why": "x"}}, "plan-kept", "", "where they are"),
    ("replaced", {"detail": {"planner": "p", "why": "it is ill"}}, "planner-failed", "", "it is ill"),
    (
        "recovered",
        {"duration_s": 2.5, "detail": {"generation": 1, "hosts": {"h2": "was restarted"}}},
        "run-recovered",
        "",
        "after 2.5 s as generation 1: host 'h2' was restarted",
    ),
    ("uneven", {"index": 4, "detail": {"ended": ["a"], "went_on": ["b"]}}, "sources-uneven", "", "'a' ended before"),
    ("joined", {"peer": "h3"}, "host-joined", "h3", "host 'h3' has joined"),
    ("drained", {"peer": "h3"}, "host-drained", "h3", "host 'h3' was drained"),
]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "thalweg")
    return caplog


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.mark.parametrize(("kind", "fields", "event", "about", "text"), RECORDS, ids=lambda each: str(each)[:30])
def test_a_record_of_a_core_is_logged_in_words_with_all_fields(
    kind: str, fields: dict[str, Any], event: str, about: str, text: str, log: pytest.LogCaptureFixture
) -> None:
    Logbook("me").record("r-1", kind, fields)
    (line,) = log.records
    assert (line.name, line.levelno) == ("thalweg", EVENTS[event].level)
    assert text in line.getMessage()
    assert "None" not in line.getMessage()
    told = {name: getattr(line, name) for name in FIELDS}
    assert (told["event"], told["host"], told["run"], told["suppressed"]) == (event, "me", "r-1", 0)
    assert about in (told["peer"], told["node"])
    assert {name: told[name] for name in fields.keys() & FIELDS} == {
        name: fields[name] for name in fields.keys() & FIELDS
    }


def test_every_kind_that_is_logged_is_tested_and_recorded_without_an_event_log() -> None:
    assert {kind for kind, *_ in RECORDS} == WORDS.keys() == NOTED
    desk = HostContext("h1", recording=False)
    out = Outbox(desk, R)
    for kind in ("estimate", *sorted(NOTED)):
        out.record(kind)
    assert [command.kind for command in desk.commands if isinstance(command, e.Record)] == sorted(NOTED)


def test_a_record_without_news_is_not_logged(log: pytest.LogCaptureFixture) -> None:
    Logbook("me").record("r", "replaced", {"detail": {"planner": "p", "placement": {}}})
    Logbook("me").record("r", "estimate", {})
    late = {"message": "Failed", "lost": "h1", "late": True}  # of a host that is waited for, which was reported once
    Logbook("me").record("r", "unexpected", {"peer": "h2", "detail": late})
    assert not log.records


def test_a_frequent_event_is_logged_once_a_second_per_peer(log: pytest.LogCaptureFixture) -> None:
    clock = Time()
    book = Logbook("h1", clock)
    for _ in range(1_024):
        book.write("message-refused", "no", peer="h2")
        book.write("message-refused", "no", peer="h3")
        book.write("rows-late", "no", node="o")
        book.write("host-lost", "each is logged", peer="h2")
        clock.s += 1 / 512
    by = [(line.event, line.peer, line.suppressed) for line in log.records if line.event != "host-lost"]  # type: ignore[attr-defined]
    often = [("message-refused", "h2"), ("message-refused", "h3"), ("rows-late", "")]
    assert by == [(*each, count) for count in (0, 511) for each in often]
    assert len(log.records) == 6 + 1_024
    assert log.records[-1].getMessage() == "each is logged"
    assert "no (511 more like this)" in log.messages


def test_the_last_suppressed_line_is_logged_when_the_peer_is_quiet(log: pytest.LogCaptureFixture) -> None:
    clock = Time()
    book = Logbook("h1", clock)
    for text in ("first", "second", "third", "fourth"):
        book.write("message-refused", text, peer="h2")
    book.flush()
    assert log.messages == ["first"], "its peer may go on"
    clock.s += QUIET_S
    book.flush()
    book.flush()
    assert log.messages == ["first", "fourth (2 more like this)"]


def test_peers_over_the_limit_are_counted_together(log: pytest.LogCaptureFixture) -> None:
    clock = Time()
    book = Logbook("h1", clock)
    for number in range(100_000):
        book.write("message-refused", "no", peer=f"peer {number}")
    assert len(log.records) == REMEMBERED + 1
    assert len(book._quiet) == REMEMBERED + 1
    clock.s += QUIET_S
    book.flush()
    assert log.messages[-1] == f"no ({100_000 - REMEMBERED - 2} more like this)"
    assert not book._quiet


def test_foreign_text_is_logged_as_a_single_printable_line(log: pytest.LogCaptureFixture) -> None:
    Logbook("h1").write("message-refused", "a\nb\x1b[31m c" + "d" * 10_000, peer="h\n2", reason="\x00x")
    (line,) = log.records
    assert line.getMessage().startswith("a b [31m c")
    assert len(line.getMessage()) <= 4_000
    assert (line.peer, line.reason) == ("h 2", "x")  # type: ignore[attr-defined]


def test_an_event_below_the_level_is_neither_logged_nor_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "thalweg")
    book = Logbook("h1")
    book.write("message-refused", "no", peer="h2")
    assert not caplog.records
    assert not book._quiet


def test_the_library_has_a_null_handler_and_no_other() -> None:
    assert [type(handler) for handler in logging.getLogger("thalweg").handlers] == [logging.NullHandler]


def test_the_page_has_every_event_with_the_level_and_every_field() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([A-Z]+)( \*)? \|", PAGE, re.MULTILINE)
    documented = {name: (level, bool(often)) for name, level, often in rows}
    assert documented == {name: (logging.getLevelName(event.level), event.often) for name, event in EVENTS.items()}
    assert tuple(re.findall(r"^\| `([a-z_]+)` \| (?!DEBUG|INFO|WARNING|ERROR)", PAGE, re.MULTILINE)) == FIELDS


def test_a_consumer_is_logged_as_slow_when_other_consumers_have_waited(log: pytest.LogCaptureFixture) -> None:
    clock = Time()
    book = Logbook("h1", clock)
    waits = [("r", "joint", "bob", "h2", 7), ("r", "t", "", "client", 3)]
    for _ in range(4):
        book.watch(waits)
        clock.s += SLOW_S / 2 - 0.5
    assert log.messages == [
        "consumer 'bob' on host 'h2' has not demanded partition 7 of 'joint' for 13.5 s; other consumers wait for the"
        " next partition",
        "the application has not taken partition 3 of 't' for 13.5 s; nodes that feed this sink wait",
    ]
    log.clear()
    for index in range(8, 20):
        book.watch([("r", "joint", "bob", "h2", index)])
        clock.s += SLOW_S
    assert not log.records, "it takes one after the other"


def test_a_filter_that_raises_does_not_break_logging(log: pytest.LogCaptureFixture) -> None:
    def raises(record: logging.LogRecord) -> bool:
        raise KeyError(record)

    logging.getLogger("thalweg").addFilter(raises)
    try:
        Logbook("h1").write("host-lost", "gone", peer="h2")
    finally:
        logging.getLogger("thalweg").removeFilter(raises)
    assert not log.records
