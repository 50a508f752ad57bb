"""Only guests that delay other consumers are reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playbook import ANY, Playbook, got
from run_ids import R, alarm, fired

from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig

CODE = Code("composite")
WHY = "it takes 's' too slowly: the others have waited for it for 4 s (guest_s)"
REPORT = m.Failed(R, "s", WHY, lost="g")


@pytest.fixture
def source(make_book: Callable[..., Playbook], make_install: Callable[..., m.Install]) -> Playbook:
    """h1 with a source. An operator on h2 and ``w``, a sink of the guest ``g``, consume it. Both demand partition 0."""
    nodes = Node("s", "source", (), CODE, "h1"), Node("o", "operator", ("s",), CODE), Node("t", "sink", ("o",), None)
    flow = Dataflow((*nodes, Node("w", "sink", ("s",), None)))
    book = make_book("h1", CoreConfig(guest_s=4.0))
    book << got("client", make_install({"w": "g"}, dataflow=flow)) >> ANY
    assert alarm("guests r", 0.5) in book.commands
    book << got("h2", m.Demand(R, "s", "o", 0)) >> ANY
    book << got("g", m.Demand(R, "s", "w", 0)) >> ANY
    make(book, 0)
    return book


def make(book: Playbook, index: int) -> None:
    """Have the source make a partition, and the next one."""
    for partition in (index, index + 1):
        book << e.OperatorFinished(R, "s", partition, b"x", 1) >> ANY


def look(book: Playbook, at_s: float) -> list[m.Message]:
    """Return the reports to the client at one check."""
    book.at(at_s) << fired("guests r") >> ANY
    assert alarm("guests r", at_s + 0.5) in book.commands
    return [message for message in book.sent("client") if isinstance(message, m.Failed)]


def test_a_guest_that_delays_other_consumers_is_reported(source: Playbook) -> None:
    assert look(source, 0.5) == []  # nobody waits: the operator has not demanded the next one
    source << got("h2", m.Demand(R, "s", "o", 1)) >> ANY
    assert [look(source, 0.5 * number) for number in range(2, 9)] == [[]] * 7
    assert [look(source, at_s) for at_s in (4.5, 5.0)] == [[REPORT]] * 2
    source.core.runs[R].directory.subscribers.clear()
    source.at(5.5) << fired("guests r") >> []


def test_a_guest_at_half_the_pace_is_not_reported(source: Playbook) -> None:
    for number in range(1, 40):
        if number % 2:
            source << got("h2", m.Demand(R, "s", "o", (number + 1) // 2)) >> ANY
        else:
            source << got("g", m.Demand(R, "s", "w", number // 2)) >> ANY
            source << e.OperatorFinished(R, "s", number // 2 + 1, b"x", 1) >> ANY
        assert look(source, 0.5 * number) == []


def test_a_guest_that_waits_for_a_slower_consumer_is_not_reported(source: Playbook) -> None:
    source << got("g", m.Demand(R, "s", "w", 1)) >> ANY
    assert [look(source, 0.5 * number) for number in range(1, 20)] == [[]] * 19


def test_the_client_dismisses_a_guest_that_a_host_reports(
    make_book: Callable[..., Playbook], make_install: Callable[..., m.Install]
) -> None:
    book = make_book("client")
    book << e.RunRequested(make_install()) >> ANY
    for name in ("h1", "h2"):
        book << got(name, m.Installed(R, name)) >> ANY
    book << e.SubscribersAllowed(R, 0, frozenset({"g"})) >> []
    book << got("g", m.Subscribe(R, 7, "s", m.Peer("g", "tcp://g:1", "tcp://g:2", "1"))) >> ANY
    (admit,) = {word for word in book.sent("h1") if isinstance(word, m.AddMember)}
    book << got("g", m.Installed(R, "g")) >> ANY
    book << got("h1", m.Failed(R, "s", "it takes it too slowly", lost="g")) >> ANY
    for host in ("h1", "h2"):
        book << got(host, m.Detached(R, admit.number)) >> ANY
    assert m.SubscriptionEnded(R, 7, "it was given up: it takes it too slowly") in book.sent("g")
    assert not book.only(e.Fail), "nothing else ends"
