"""What a host takes in bulk and what it refuses, and transfers that break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from thalweg.middleware.core.host import HostCore
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.shell.bulk import Bulk
from thalweg.middleware.shell.sockets import Listening, Sockets


class Teller:
    """Keeps the runs that broke."""

    def __init__(self) -> None:
        self.broken: list[tuple[str, str]] = []

    def handle(self, event: e.Event, now: float) -> None: ...

    def tell(self, event: e.Event) -> None: ...

    def break_run(self, run: str, about: object, error: Exception) -> None:
        self.broken.append((run, type(error).__name__))


def again_in_the_house(bulk: Bulk, now: float) -> None:
    bulk.keep_house(now)


def again_by_a_credit(bulk: Bulk, now: float) -> None:
    (last,) = [number for number, out in bulk._outgoing.items() if out.message.run == "other"]
    bulk.credited("h2", m.Credit(last, 0, False, 0.0, 0.0, now), now)


@pytest.mark.parametrize("again", [again_in_the_house, again_by_a_credit])
def test_a_transfer_that_breaks_when_it_goes_on_breaks_its_run_alone(again: Callable[[Bulk, float], None]) -> None:
    peers = [m.Peer(name, f"tcp://{name}:1", f"tcp://{name}:2") for name in ("h1", "h2")]
    limits, teller, sent = CoreConfig(), Teller(), []
    sockets = Sockets("h1", Listening("tcp://127.0.0.1:*", insecure=True), None)
    try:
        bulk = Bulk(teller, sockets, HostCore(peers[0], limits), limits, 1.0)
        sockets.send_chunk = lambda *_: False  # type: ignore[method-assign]  # there is no room
        for run in ("broken", "other"):
            sockets.meet(run, peers)
            bulk.send(e.Send(run, "h2", m.Partition(run, "s", "o", 0), b"body", bulk=True))

        def breaks(line: Any, chunk: m.Chunk, piece: memoryview) -> bool:
            if line.run == "broken":
                raise MemoryError
            sent.append(chunk.message.run)
            return True

        sockets.send_chunk = breaks  # type: ignore[method-assign]
        again(bulk, 0.0)
    finally:
        sockets.destroy(0)
    assert teller.broken == [("broken", "MemoryError")]
    assert sent == ["other"]
