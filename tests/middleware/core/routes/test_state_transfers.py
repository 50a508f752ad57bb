"""Over which network operators' states go, and which of them are sent again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playbook import ANY, Playbook, got
from run_ids import R

from thalweg.middleware.core.routes.state_transfers import StateTransfers
from thalweg.middleware.network.view import NET, Link
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

LARGE = bytes(m.INLINE_STATE_BYTES + 1)
STATE = m.State(R, "o", 1, 1, 0, 1, len(LARGE), "")
LINK = Link("h1", "h2", "fast")


@pytest.fixture
def book(make_book: Callable[..., Playbook], install: m.Install) -> Playbook:
    """Host h1 of a run, which is joined to one more network, as h2 is."""
    book = make_book("h1")
    book << got("client", install) >> ANY
    run = book.core.runs[R]
    ends = m.NetworkEndpoints({NET: "tcp://h:2", "fast": "tcp://h:3"})
    peers = {name: m.Peer(name, f"tcp://{name}:1", ends) for name in ("h1", "h2")}
    directory = run.directory
    directory._states = StateTransfers(run.out, directory.routes, peers, book.core.links.monitor)
    return book


def send(book: Playbook, to: str = "h2", state: m.State = STATE, data: bytes = LARGE) -> e.Send:
    run = book.core.runs[R]
    assert run.directory.states.send(to, state, data) == (len(data) > m.INLINE_STATE_BYTES)
    (sent,) = (each for each in run.out.context.commands if isinstance(each, e.Send))
    run.out.context.commands.clear()
    return sent


def learn(book: Playbook, link: tuple[str, ...], rate_bps: float) -> None:
    book.core.links.monitor.measured(link, 100_000, 800_000 / rate_bps, book.now, "probe")


def test_a_state_goes_over_what_carries_most_and_a_small_one_ahead_of_all(book: Playbook) -> None:
    assert send(book).via == NET, "nothing is known of any"
    learn(book, LINK, 1e6)
    assert send(book).via == "fast" and send(book, "client").via == NET
    learn(book, ("h1", "h2"), 2e6)
    assert send(book).via == NET
    small = send(book, state=m.State(R, "o", 1, 1, 0, 1, 1, ""), data=b"x")
    assert not small.bulk and small.message.inline == b"x"


def test_one_is_stuck_only_when_it_should_have_come_long_since_and_there_is_another_way(book: Playbook) -> None:
    states, out = book.core.runs[R].directory.states, book.core.runs[R].out
    least_s = book.core.runs[R].directory.routes.least_s
    learn(book, LINK, 1e4)  # 13 s for the state
    assert send(book).via == "fast" and send(book, "client").via == NET
    out.context.now += 4 * 13.0
    assert not states.stuck("h2", "o")
    assert not states.stuck("client", "o"), "it is waited for where there is no other network"
    assert not states.stuck("h2", "another")
    out.context.now += least_s + 1.0
    assert states.stuck("h2", "o") and not states.stuck("h2", "o")
    assert send(book).via == NET, "the link is left for a while"
    known = book.core.links.monitor.latest(LINK)
    assert known is not None and known.rate_bps < 1e4


def test_a_network_on_which_a_transfer_has_failed_is_left_and_what_comes_late_says_nothing(book: Playbook) -> None:
    states = book.core.runs[R].directory.states
    learn(book, LINK, 1e6)
    assert send(book).via == "fast"
    states.over("h2", "fast", STATE, arrived=False)
    assert send(book).via == NET
    states.over("h2", "fast", STATE, arrived=True)  # of the first
    book.core.runs[R].out.context.now += 1000.0
    assert states.stuck("h2", "o"), "the second is under way still"
