"""The network of each state's transfer, and when a state is sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playbook import ANY, Playbook, got
from run_ids import R

from thalweg.middleware.core.context.notes import HostLost
from thalweg.middleware.core.states.state_transfers import StateTransfer, StateTransfers, refusal
from thalweg.middleware.network.view import NET, Link
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

LARGE = bytes(m.INLINE_STATE_BYTES + 1)
STATE = m.State(R, "o", 1, 1, 1, len(LARGE), "")
LINK = Link("h1", "h2", "fast")


class Sender:
    """Host h1 of a run with its transfers of one state. h1 and h2 are both in a second network."""

    def __init__(self, book: Playbook, state: m.AnyState = STATE) -> None:
        self.book, self.state = book, state
        run = book.core.runs[R]
        ends = m.NetworkEndpoints({NET: "tcp://h:2", "fast": "tcp://h:3"})
        peers = {name: m.Peer(name, f"tcp://{name}:1", ends) for name in ("h1", "h2")}
        self.out, self.routes = run.out, run.directory.routes
        self.states = StateTransfers(run.out, self.routes, peers, book.core.links.monitor)
        self.transfers = {host: StateTransfer(host) for host in ("h2", "client")}

    def _sent(self) -> list[e.Send]:
        sent = [command for command in self.out.context.commands if isinstance(command, e.Send)]
        self.out.context.commands.clear()
        return sent

    def send(self, to: str = "h2", data: bytes = LARGE) -> list[e.Send]:
        """Return the sent messages, which must agree with the result of ``send``."""
        says = self.states.send(self.transfers[to], self.state, data)
        sent = self._sent()
        assert says == bool(sent)
        return sent

    def answer(self) -> list[e.Send]:
        self.states.answer(self.transfers["h2"], self.state, LARGE)
        return self._sent()

    def via(self, to: str = "h2") -> m.Via:
        """Send the state in a transfer that arrives, and return its network."""
        (sent,) = self.send(to)
        self.over(sent.via, to)
        return sent.via

    def over(self, via: m.Via = NET, to: str = "h2", *, arrived: bool = True) -> None:
        self.states.over(to, via, self.state, arrived=arrived)

    def learn(self, link: tuple[str, ...], rate_bps: float) -> None:
        self.book.core.links.monitor.measured(link, 100_000, 800_000 / rate_bps, self.book.now, "probe")

    def wait(self, seconds: float) -> None:
        self.out.context.now += seconds


@pytest.fixture
def sender(make_book: Callable[..., Playbook], install: m.Install) -> Sender:
    book = make_book("h1")
    book << got("client", install) >> ANY
    return Sender(book)


def test_a_state_goes_over_the_network_with_the_highest_rate(sender: Sender) -> None:
    assert sender.via() == NET, "nothing is known of any"
    sender.learn(LINK, 1e6)
    assert sender.via() == "fast" and sender.via("client") == NET
    sender.learn(("h1", "h2"), 2e6)
    assert sender.via() == NET


def test_a_small_state_is_a_control_message(sender: Sender) -> None:
    sender.state = m.State(R, "o", 1, 1, 1, 1, "")
    for _ in range(2):  # nobody learns what becomes of a control message, so it is sent each time
        (small,) = sender.send(data=b"x")
        assert not small.bulk and isinstance(small.message, m.State) and small.message.inline == b"x"
    assert not sender.transfers["h2"].under_way


def test_a_state_is_resent_only_if_the_transfer_is_stuck_and_a_second_network_exists(sender: Sender) -> None:
    sender.learn(LINK, 1e4)  # 13 s for the state
    assert [sent.via for sent in (*sender.send(), *sender.send("client"))] == ["fast", NET]
    sender.wait(4 * 13.0)
    assert sender.send() == []
    assert sender.send("client") == [], "there is no second network to the client"
    sender.wait(sender.routes.least_s + 1.0)
    assert [sent.via for sent in sender.send()] == [NET], "the link is left for a while"
    assert sender.send() == [], "this transfer has just begun"
    known = sender.book.core.links.monitor.latest(LINK)
    assert known is not None and known.rate_bps < 1e4


def test_a_network_with_a_failed_transfer_is_avoided(sender: Sender) -> None:
    sender.learn(LINK, 1e6)
    assert [sent.via for sent in sender.send()] == ["fast"]
    sender.over("fast", arrived=False)
    assert [sent.via for sent in sender.send()] == [NET]
    sender.over("fast", arrived=True)  # late: of the first transfer
    assert sender.transfers["h2"].under_way, "the second transfer is not over"


def test_failed_transfers_in_a_row_are_counted_from_the_first(sender: Sender) -> None:
    transfer, began_s = sender.transfers["h2"], sender.out.now
    for failures in (1, 2, 3):
        assert sender.send()
        sender.over(arrived=False)
        assert (transfer.failures, transfer.failing_since_s) == (failures, began_s)
        sender.wait(10.0)
    sender.send()
    sender.over(arrived=True)
    assert (transfer.failures, transfer.failing_since_s) == (0, None)
    sender.send()
    sender.over(arrived=False)
    assert (transfer.failures, transfer.failing_since_s) == (1, began_s + 30.0)


def test_a_request_that_crossed_the_state_is_ignored_and_the_next_request_is_answered(sender: Sender) -> None:
    assert sender.answer(), "it was never sent"
    assert sender.answer() == [], "it is under way"
    sender.over(arrived=True)
    assert sender.answer() == [], "most likely it was sent before the state arrived"
    assert sender.answer()
    sender.over(arrived=False)
    assert sender.answer(), "the transfer has failed"


def test_a_lost_host_has_no_transfers_under_way(sender: Sender) -> None:
    sender.send(), sender.send("client")
    sender.states.on_lost(HostLost("h2"))
    assert [sender.transfers[host].under_way for host in ("h2", "client")] == [False, True]
    sender.over(arrived=False)
    assert sender.transfers["h2"].failures == 0


@pytest.mark.parametrize(
    "other",
    [
        m.State(R, "o", 2, 1, 1, len(LARGE), ""),
        m.State(R, "p", 1, 1, 1, len(LARGE), ""),
        m.InheritedState(R, "o", 1, 1, 1, len(LARGE), "", heir="n"),
        m.Checkpoint(R, "o", 1, 1, 1, len(LARGE), ""),
        m.Checkpoint(R, "o", 1, 1, 1, len(LARGE), "", since=0),
    ],
    ids=lambda message: f"{type(message).__name__} of {message.node}",
)
def test_the_end_of_a_transfer_counts_only_for_the_transferred_state(sender: Sender, other: Any) -> None:
    sender.send()
    sender.states.over("h2", NET, other, arrived=True)
    sender.states.over("client", NET, STATE, arrived=True)
    assert sender.transfers["h2"].under_way
    assert sender.states.send(StateTransfer("h2"), other, LARGE), "both may be under way at a time"


def test_a_state_that_cannot_be_sent_is_refused_with_the_reason() -> None:
    state = e.StateTaken(R, "o", 1, b"12345", "digest")
    assert refusal(state, 5) == ""
    assert refusal(state, 4) == "its state has 5 bytes; this host sends up to 4"
    assert refusal(e.StateTaken(R, "o", 1, error="no disk"), 4) == "no disk"
