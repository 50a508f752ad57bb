"""The lines of a host, when those at their other ends change."""

from __future__ import annotations

from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell.sockets import Sockets

CHUNK = m.Chunk(1, 1, 0, m.Partition("r", "p", "c", 0))


def peer(instance: str, port: int) -> m.Peer:
    return m.Peer("x", f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}", instance)


def test_a_transfer_to_a_host_that_listens_elsewhere_now_finds_no_closed_sockets() -> None:
    sockets = Sockets("a", "tcp://127.0.0.1:*", None, None, insecure=False)
    try:
        sockets.meet("r", [peer("before", 1)])
        line = sockets.line("r", "x")
        assert line is not None
        assert sockets.send_chunk(line, CHUNK, memoryview(b"1"))
        sockets.meet("r", [peer("now", 3)])
        sockets.meet("other", [peer("now", 3)])
        sockets.forget("other")  # and with it every dealer that no line is for
        assert "tcp://127.0.0.1:2" not in sockets.dealers
        assert sockets.send_chunk(line, CHUNK, memoryview(b"1"))
    finally:
        sockets.destroy(0)
