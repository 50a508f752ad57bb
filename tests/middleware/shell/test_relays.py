"""Relays: chunks pass a host one by one on their way between two others, within their credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from run_ids import R

from thalweg.middleware.core.host import HostCore
from thalweg.middleware.errors import ProtocolError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.shell.bulk import Bulk
from thalweg.middleware.shell.relays import PASSAGES
from thalweg.middleware.shell.sockets import HostConnections, Listening, Sockets
from thalweg.middleware.shell.transfers import CHUNK_BYTES, WINDOW_CHUNKS, Outgoing, Route

HOPS = m.LinkEnd("h2", "fast"), m.LinkEnd("h3", "fast")
COUNT = 12  # chunks
BODY = bytes(range(256)) * (COUNT * CHUNK_BYTES // 256)
FROM_H1 = b"h1/connection"


class Teller:
    """Receiver that keeps the events for the core."""

    def __init__(self) -> None:
        self.told: list[e.Event] = []

    def handle(self, event: e.Event, now: float) -> None:
        self.told.append(event)

    def tell(self, event: e.Event) -> None:
        self.told.append(event)

    def break_run(self, run: str, about: object, error: Exception) -> None:
        raise error


class Relay:
    """Host h2, which passes on the chunks of h1 to h3. It keeps what it sends."""

    def __init__(self, limits: CoreConfig | None = None) -> None:
        ends = m.NetworkEndpoints({"net": "tcp://h:1", "fast": "tcp://h:2"})
        self.sockets = Sockets("h2", Listening("tcp://127.0.0.1:*", insecure=True), None)
        self.teller, core = Teller(), HostCore(m.Peer("h2", "tcp://h2:1", ends), limits)
        core.passes = lambda *_: True  # type: ignore[method-assign]
        self.bulk = Bulk(self.teller, self.sockets, core, limits or CoreConfig(), 1.0)
        self.sockets.meet(R, [m.Peer(name, f"tcp://{name}:1", ends) for name in ("h1", "h3")])
        self.on: deque[tuple[m.RelayedChunk, bytes]] = deque()
        self.credits: list[tuple[str, m.Credit]] = []
        self.room = True
        self.sockets.send_chunk = self._send  # type: ignore[method-assign]
        self.sockets.post = self._post  # type: ignore[method-assign]

    def _send(self, line: HostConnections, chunk: Any, piece: memoryview) -> bool:
        assert (line.host, line.via) == ("h3", "fast")
        if self.room:
            self.on.append((chunk, bytes(piece)))
        return self.room

    def _post(self, run: str, host: str, message: Any, asker: bytes = b"") -> bool:
        self.credits.append((host, message))
        return True

    def comes(self, chunk: m.RelayedChunk, piece: Any, now: float = 1.0, identity: bytes = FROM_H1) -> None:
        self.bulk.came(identity, "h1", chunk, memoryview(piece), now, "fast")

    def credit(self, received: int, *, done: bool = False, now: float = 2.0) -> None:
        """Handle a credit of h3 for the transfer that passes here."""
        (number,) = {chunk.transfer for chunk, _ in self.on}
        self.bulk.credited("h3", m.Credit(number, received, done, 0.0, 0.0, now), now)

    def held(self) -> list[tuple[int, int, float, float]]:
        """Return the last credits that wait for a message to h1."""
        line = self.sockets.line(R, "h1")
        assert line is not None
        return line.credits


@pytest.fixture
def relay() -> Iterator[Relay]:
    made = Relay()
    yield made
    made.sockets.destroy(0)


def chunks(number: int = 7, index: int = 1, body: bytes = BODY) -> list[tuple[m.RelayedChunk, memoryview]]:
    """Return all chunks that h1 sends."""
    out = Outgoing(number, None, m.Partition(R, "s", "t", index), body, 0.0, route=Route("h1", HOPS, None))
    found: list[Any] = []
    while (following := out.next_chunk()) is not None:
        found.append(following)
        out.advance(following[1].nbytes, 0.0)
        out.credit = out.sent
    return found


def test_a_chunk_is_passed_on_and_credited_as_soon_as_the_chunk_arrives(relay: Relay) -> None:
    sent = chunks()
    for number, (chunk, piece) in enumerate(sent[:WINDOW_CHUNKS]):
        relay.comes(chunk, piece)
        assert len(relay.on) == number + 1
    assert [credit.received_bytes for _, credit in relay.credits] == [
        CHUNK_BYTES * (i + 1) for i in range(WINDOW_CHUNKS)
    ]
    assert {(host, credit.transfer) for host, credit in relay.credits} == {("h1", 7)}
    on, piece = relay.on[1]
    assert (on.at, on.offset, on.source, on.hops, on.message) == (1, CHUNK_BYTES, "h1", HOPS, sent[1][0].message)
    assert piece == BODY[CHUNK_BYTES : 2 * CHUNK_BYTES]


def test_chunks_without_credit_of_the_next_host_are_held_up_to_a_window(relay: Relay) -> None:
    for chunk, piece in chunks()[: 2 * WINDOW_CHUNKS]:
        relay.comes(chunk, piece)
    assert len(relay.on) == WINDOW_CHUNKS == len(relay.credits)  # the others got none: h1 has no more to send
    (passage,) = relay.bulk._passing.values()
    assert passage.came - passage.sent == WINDOW_CHUNKS * CHUNK_BYTES
    relay.credit(CHUNK_BYTES)
    assert len(relay.on) == WINDOW_CHUNKS + 1 == len(relay.credits)


def test_the_sender_gets_the_last_credit_when_the_target_has_all_bytes(relay: Relay) -> None:
    sent = chunks()
    for number, (chunk, piece) in enumerate(sent):
        relay.comes(chunk, piece, 1.0 + number)
        if number < COUNT - 1:
            relay.credit(CHUNK_BYTES * (number + 1), now=1.5 + number)
    assert b"".join(piece for _, piece in relay.on) == BODY
    assert all(not credit.done for _, credit in relay.credits) and relay.held() == []
    assert relay.bulk._passing
    relay.credit(len(BODY), done=True, now=20.0)
    assert relay.held() == [
        (7, len(BODY), pytest.approx(1.0), COUNT * 1.0)
    ]  # when its last chunk came, not when h3 said so
    (told,) = relay.teller.told
    assert isinstance(told, e.Relayed)
    assert (told.source, told.hops, told.size_bytes) == ("h1", HOPS[1:], len(BODY))
    assert not relay.bulk._passing and not relay.bulk._outgoing


@pytest.mark.parametrize("received", [0, CHUNK_BYTES])
def test_a_refusal_of_the_next_host_is_passed_on_to_the_sender(relay: Relay, received: int) -> None:
    for chunk, piece in chunks()[:2]:
        relay.comes(chunk, piece)
    relay.credit(received, done=True)
    host, last = relay.credits[-1]
    assert (host, last.transfer, last.received_bytes, last.done) == ("h1", 7, 0, True)
    assert not relay.bulk._passing and not relay.bulk._outgoing and relay.teller.told == []


def test_a_last_credit_for_unsent_bytes_counts_as_a_refusal(relay: Relay) -> None:
    for chunk, piece in chunks()[:2]:
        relay.comes(chunk, piece)
    relay.credit(len(BODY), done=True)
    assert relay.credits[-1][1].received_bytes == 0 and relay.credits[-1][1].done and relay.teller.told == []


def test_a_credit_for_unsent_bytes_opens_no_larger_window(relay: Relay) -> None:
    sent = chunks()
    for chunk, piece in sent[:2]:
        relay.comes(chunk, piece)
    relay.credit(len(BODY))
    for chunk, piece in sent[2:]:
        relay.comes(chunk, piece)
    assert len(relay.on) == 2 + WINDOW_CHUNKS


def test_a_passing_transfer_without_progress_is_abandoned(relay: Relay) -> None:
    chunk, piece = chunks()[0]
    relay.comes(chunk, piece)
    relay.bulk.keep_house(10.0)
    assert relay.bulk._passing
    relay.bulk.keep_house(1e6)
    assert not relay.bulk._passing and relay.credits[-1][1].done and relay.credits[-1][1].received_bytes == 0


def test_chunks_that_find_no_room_on_a_line_are_passed_on_later(relay: Relay) -> None:
    relay.room = False
    for chunk, piece in chunks()[:2]:
        relay.comes(chunk, piece)
    assert relay.credits == []
    relay.room = True
    relay.bulk.keep_house(2.0)
    assert len(relay.on) == 2 == len(relay.credits)


def test_the_end_of_a_run_ends_the_passing_transfers_of_the_run(relay: Relay) -> None:
    chunk, piece = chunks()[0]
    relay.comes(chunk, piece)
    relay.bulk.forget(R)
    assert not relay.bulk._passing and not relay.bulk._outgoing


# --- chunks that are refused ----------------------------------------------------------------------------


def test_chunks_of_an_unknown_route_are_refused_and_not_kept(relay: Relay) -> None:
    relay.bulk._core.passes = lambda *_: False  # type: ignore[method-assign]
    for chunk, piece in chunks()[:3]:
        relay.comes(chunk, piece)
    assert not relay.on and not relay.bulk._passing
    assert [(credit.received_bytes, credit.done) for _, credit in relay.credits] == [(0, True)] * 3


def test_a_chunk_that_does_not_continue_a_transfer_ends_the_transfer(relay: Relay) -> None:
    first, second, third = chunks()[:3]
    for wrong in (
        third,
        first,
        (m.RelayedChunk(7, len(BODY), CHUNK_BYTES, second[0].message, source="h9", hops=HOPS), second[1]),
        (m.RelayedChunk(7, len(BODY) + 1, CHUNK_BYTES, second[0].message, source="h1", hops=HOPS), second[1]),
        (second[0], bytes(len(BODY))),
    ):
        relay.comes(*first)
        with pytest.raises(ProtocolError, match="does not continue a transfer that passes here"):
            relay.comes(*wrong)
        assert not relay.bulk._passing and not relay.bulk._outgoing


def test_a_sender_without_credit_is_cut_off_at_a_window(relay: Relay) -> None:
    relay.room, held = False, [0]

    def flood() -> None:
        for chunk, piece in chunks(body=bytes(40 * CHUNK_BYTES)):
            relay.comes(chunk, piece)
            held.extend(passage.came for passage in relay.bulk._passing.values())

    with pytest.raises(ProtocolError, match="does not continue"):
        flood()
    assert max(held) == 32 * CHUNK_BYTES and not relay.bulk._passing  # 8 MB, the window of the largest chunks


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1])
def test_a_small_chunk_within_a_transfer_is_refused(relay: Relay, size: int) -> None:
    """A window has room for any number of empty or small chunks, and each of them takes memory of its own."""
    relay.room = False
    first, piece = chunks()[0]
    relay.comes(first, piece)
    small = m.RelayedChunk(7, len(BODY), CHUNK_BYTES, first.message, source="h1", hops=HOPS)
    with pytest.raises(ProtocolError, match="does not continue a transfer that passes here"):
        relay.comes(small, bytes(size))
    assert not relay.bulk._passing and not relay.bulk._outgoing


@pytest.mark.parametrize("body", [b"", BODY[: CHUNK_BYTES + 1]])
def test_a_chunk_after_the_last_chunk_is_refused(relay: Relay, body: bytes) -> None:
    sent = chunks(body=body)
    for chunk, piece in sent:
        relay.comes(chunk, piece)
    assert len(relay.on) == len(sent)
    more = m.RelayedChunk(7, len(body), len(body), sent[0][0].message, source="h1", hops=HOPS)
    with pytest.raises(ProtocolError, match="does not continue a transfer that passes here"):
        relay.comes(more, b"")
    assert len(relay.on) == len(sent) and not relay.bulk._passing


def test_transfers_over_the_limits_of_a_relay_are_refused(relay: Relay) -> None:
    for number in range(PASSAGES + 2):
        chunk, piece = chunks(number, number)[0]
        relay.comes(chunk, piece)
    assert len(relay.bulk._passing) == PASSAGES
    refused = [credit for _, credit in relay.credits if credit.done]
    assert [credit.transfer for credit in refused] == [PASSAGES, PASSAGES + 1]
    other = Relay(CoreConfig(max_transfer_bytes=3 * len(BODY)))
    try:
        for number in range(5):
            other.comes(*chunks(number, number)[0])
        assert len(other.bulk._passing) == 3
    finally:
        other.sockets.destroy(0)
