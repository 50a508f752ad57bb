"""Bulk that a host accepts or refuses, and transfers that break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from run_ids import R, run_of

from thalweg.middleware.core.host import HostCore
from thalweg.middleware.errors import ProtocolError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.bulk import Bulk
from thalweg.middleware.shell.sockets import Listening, Sockets


class Teller:
    """Receiver of events that keeps the broken runs."""

    def __init__(self) -> None:
        self.broken: list[tuple[str, str]] = []

    def handle(self, event: e.Event, now: float) -> None: ...

    def tell(self, event: e.Event) -> None: ...

    def break_run(self, run: RunId, about: object, error: Exception) -> None:
        self.broken.append((run, type(error).__name__))


def again_in_the_house(bulk: Bulk, now: float) -> None:
    bulk.keep_house(now)


def again_by_a_credit(bulk: Bulk, now: float) -> None:
    (last,) = [number for number, out in bulk._outgoing.items() if out.message.run == run_of("other")]
    bulk.credited("h2", m.Credit(last, 0, False, 0.0, 0.0, now), now)


@pytest.mark.parametrize("again", [again_in_the_house, again_by_a_credit])
def test_a_transfer_that_breaks_when_resumed_breaks_only_the_run_of_the_transfer(
    again: Callable[[Bulk, float], None],
) -> None:
    peers = [m.Peer(name, f"tcp://{name}:1", f"tcp://{name}:2") for name in ("h1", "h2")]
    limits, teller, sent = CoreConfig(), Teller(), []
    sockets = Sockets("h1", Listening("tcp://127.0.0.1:*", insecure=True), None)
    try:
        bulk = Bulk(teller, sockets, HostCore(peers[0], limits), limits, 1.0)
        sockets.send_chunk = lambda *_: False  # type: ignore[method-assign]  # there is no room
        for run in (run_of("broken"), run_of("other")):
            sockets.meet(run, peers)
            bulk.send(e.Send(run, "h2", m.Partition(run, "s", "o", 0), b"body", bulk=True))

        def breaks(line: Any, chunk: m.Chunk, piece: memoryview) -> bool:
            if line.run == run_of("broken"):
                raise MemoryError
            sent.append(chunk.message.run)
            return True

        sockets.send_chunk = breaks  # type: ignore[method-assign]
        again(bulk, 0.0)
    finally:
        sockets.destroy(0)
    assert teller.broken == [(run_of("broken"), "MemoryError")]
    assert sent == [run_of("other")]


class Hosts:
    """Host h1 of a run with h2 and h3. It accepts all chunks, and keeps its answers and its events."""

    def __init__(self, limits: CoreConfig) -> None:
        peers = [m.Peer(name, f"tcp://{name}:1", f"tcp://{name}:2") for name in ("h1", "h2", "h3")]
        self.sockets = Sockets("h1", Listening("tcp://127.0.0.1:*", insecure=True), None)
        self.sockets.meet(R, peers)
        core = HostCore(peers[0], limits)
        core.wants = core.passes = lambda *_: True  # type: ignore[method-assign]
        self.answers: list[tuple[str, m.Credit]] = []
        self.told: list[e.Event] = []
        self.sockets.post = self._post  # type: ignore[method-assign]
        self.sockets.send_chunk = lambda *_: True  # type: ignore[method-assign]
        teller = Teller()
        teller.handle = lambda event, now: self.told.append(event)  # type: ignore[method-assign]
        self.bulk = Bulk(teller, self.sockets, core, limits, 1.0)

    def _post(self, run: RunId, host: str, message: Any, asker: bytes = b"") -> bool:
        self.answers.append((host, message))
        return True

    def comes(self, chunk: m.Chunk, size: int, sender: str = "h2") -> None:
        self.bulk.came(f"{sender}/1".encode(), sender, chunk, memoryview(bytes(size)), 1.0, "net")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts(CoreConfig(max_transfers=2, max_partition_bytes=1000))
    yield made
    made.sockets.destroy(0)


def part(index: int) -> m.Partition:
    return m.Partition(R, "s", "o", index)


def test_a_transfer_over_the_limit_of_simultaneous_transfers_is_declined(hosts: Hosts) -> None:
    for number in range(3):
        hosts.comes(m.Chunk(number, 100, 0, part(number)), 10)
    assert [(credit.transfer, credit.received_bytes, credit.done) for _, credit in hosts.answers] == [
        (0, 10, False),
        (1, 10, False),
        (2, 0, True),
    ]


@pytest.mark.parametrize("size", [1000, 1001])
def test_a_partition_over_the_limit_is_refused_before_a_byte_is_kept(hosts: Hosts, size: int) -> None:
    too_large = pytest.raises(ProtocolError, match="a partition of 1001 bytes is over this host's limit")
    with nullcontext() if size == 1000 else too_large:
        hosts.comes(m.Chunk(1, size, 0, part(0)), 10)
    assert len(hosts.bulk._incoming) == (size == 1000)


def test_a_relayed_chunk_of_a_different_source_is_not_added_to_a_transfer(hosts: Hosts) -> None:
    hops = (m.LinkEnd("h1", "net"),)
    hosts.comes(m.RelayedChunk(1, 30, 0, part(0), "|u1", (30,), source="h2", hops=hops), 10)
    with pytest.raises(ProtocolError, match="a chunk of 'h3' came in a transfer of 'h2'"):
        hosts.comes(m.RelayedChunk(1, 30, 10, part(0), "|u1", (30,), source="h3", hops=hops), 10)
    assert [each.received for each in hosts.bulk._incoming.values()] == [10]


def test_a_probe_in_the_name_of_a_third_host_is_refused(hosts: Hosts) -> None:
    """A probe in the name of a third host would make this host dial any address that the probe gives."""
    for name in ("h2", "h3"):
        probe = m.Probe(R, 1, m.Peer(name, "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"), echo=False)
        with nullcontext() if name == "h2" else pytest.raises(ProtocolError, match="a probe of 'h3' came from"):
            hosts.comes(m.Chunk(1, 0, 0, probe), 0)
    assert [host for host, _ in hosts.answers] == ["h2"]


def test_a_transfer_is_credited_by_the_target_host_alone(hosts: Hosts) -> None:
    hosts.bulk.send(e.Send(R, "h2", part(0), b"body", bulk=True))
    (number,) = hosts.bulk._outgoing
    hosts.bulk.credited("h3", m.Credit(number, 4, True), 1.0)
    assert (hosts.told, [*hosts.bulk._outgoing]) == ([], [number])
    hosts.bulk.credited("h2", m.Credit(number, 4, True), 1.0)
    assert [type(event) for event in hosts.told] == [e.TransferMeasured]


@pytest.mark.parametrize(("received", "event"), [(0, e.TransferFailed), (3, e.TransferFailed), (4, e.TransferMeasured)])
def test_a_transfer_has_arrived_when_all_bytes_have_arrived(hosts: Hosts, received: int, event: type[e.Event]) -> None:
    hosts.bulk.send(e.Send(R, "h2", part(0), b"body", bulk=True))
    (number,) = hosts.bulk._outgoing
    hosts.bulk.credited("h2", m.Credit(number, received, True), 1.0)
    assert [type(each) for each in hosts.told] == [event]
