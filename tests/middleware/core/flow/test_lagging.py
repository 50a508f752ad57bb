"""Consumers that delay other consumers, as hosts log them."""

from __future__ import annotations

from collections.abc import Callable

from playbook import ANY, Playbook, got
from run_ids import R

from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

CODE = Code("some")
FORK = Dataflow(
    (
        Node("s", "source", (), CODE, "h1"),
        Node("o", "operator", ("s",), CODE),
        Node("p", "operator", ("s",), CODE),
        Node("t", "sink", ("o", "p"), None, "client"),
    )
).validate()


def demand(consumer: str, index: int) -> m.Demand:
    return m.Demand(R, "s", consumer, index)


def test_a_consumer_is_lagging_while_behind_a_faster_consumer(
    make_book: Callable[..., Playbook], make_install: Callable[..., m.Install]
) -> None:
    book = make_book("h1")
    book << got("client", make_install({"o": "h2", "p": "h3"}, dataflow=FORK)) >> ANY
    assert list(book.core.lagging()) == []
    book << got("h2", demand("o", 0)) >> ANY
    assert list(book.core.lagging()) == [("r", "s", "p", "h3", 0)]
    book << e.OperatorFinished(R, "s", 0, b"0", 1) >> ANY
    book << got("h3", demand("p", 0)) >> ANY
    assert list(book.core.lagging()) == []
    book << got("h3", demand("p", 1)) >> ANY
    assert list(book.core.lagging()) == [("r", "s", "o", "h2", 1)]


def test_an_application_with_an_unconsumed_delivery_is_lagging(
    make_book: Callable[..., Playbook], make_install: Callable[..., m.Install]
) -> None:
    book = make_book("client")
    book << e.RunRequested(make_install()) >> ANY
    for host in ("h1", "h2"):
        book << got(host, m.Installed(R, host)) >> ANY
    assert list(book.core.lagging()) == [], "it has not begun"
    book << e.NextRequested(R) >> ANY
    assert list(book.core.lagging()) == [], "it waits itself"
    book << got("h2", m.Partition(R, "o", "t", 0), b"0", 1) >> ANY
    assert list(book.core.lagging()) == [("r", "t", "", "client", 0)]
    book << e.NextRequested(R) >> ANY
    assert list(book.core.lagging()) == []
