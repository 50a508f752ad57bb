"""Transfers in chunks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_ids import R

from thalweg.middleware.errors import ProtocolError
from thalweg.middleware.protocol.messages import Chunk, Credit, Partition
from thalweg.middleware.shell.transfers import (
    CHUNK_BYTES,
    MAX_CHUNK_BYTES,
    WINDOW_CHUNKS,
    Incoming,
    Outgoing,
    chunk_bytes_for,
)
from thalweg.middleware.shell.values import value_of

PART = Partition(R, "p", "c", 0)
# --- chunks -----------------------------------------------------------------------------------------


def send_all(out: Outgoing, now: float = 0.0) -> list[tuple[Chunk, Any]]:
    """Take and return the chunks that the credit allows."""
    taken = []
    while (each := out.next_chunk()) is not None:
        chunk, piece = each
        taken.append((chunk, piece))
        out.advance(piece.nbytes, now)
    return taken


@given(
    st.one_of(
        st.integers(0, 4),
        st.integers(-2, 2).map(lambda d: CHUNK_BYTES + d),
        st.integers(-1, 1).map(lambda d: CHUNK_BYTES * (WINDOW_CHUNKS + 2) + d),
    ),
    st.integers(1, WINDOW_CHUNKS),
    st.sampled_from([CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES]),
)
def test_chunks_keep_the_window_and_add_up_to_the_value(size: int, credit_every: int, chunk_bytes: int) -> None:
    value = np.arange(size, dtype=np.uint32).astype(np.uint8)
    out = Outgoing(1, None, PART, value, 0.0, chunk_bytes)
    incoming = Incoming(size)
    under_way = send_all(out)
    complete = size == 0
    chunk, _ = under_way[0]
    while under_way:
        assert sum(piece.nbytes for _, piece in under_way) <= out.window_bytes
        assert out.window_bytes == max(WINDOW_CHUNKS * CHUNK_BYTES, 2 * chunk_bytes)
        arrived, under_way = under_way[:credit_every], under_way[credit_every:]
        for chunk, piece in arrived:
            assert not complete or size == 0
            complete = incoming.add(chunk, memoryview(piece))
        out.credited(Credit(1, incoming.received, complete), 1.0, 1.0)
        under_way += send_all(out) if out.sent < size else []
    assert complete
    assert value_of(chunk.dtype, chunk.shape, incoming.buffer.data).tobytes() == value.tobytes()


def test_a_transfer_with_a_gap_is_an_error() -> None:
    out = Outgoing(1, None, PART, bytes(3 * CHUNK_BYTES), 0.0)
    first, second, third = send_all(out)
    incoming = Incoming(3 * CHUNK_BYTES)
    assert not incoming.add(first[0], memoryview(first[1]))
    with pytest.raises(ProtocolError, match=f"does not continue a transfer that has {CHUNK_BYTES} bytes"):
        incoming.add(third[0], memoryview(third[1]))
    with pytest.raises(ProtocolError):
        incoming.add(first[0], memoryview(first[1]))
    assert not incoming.add(second[0], memoryview(second[1]))
    assert incoming.add(third[0], memoryview(third[1]))


def test_a_chunk_beyond_the_declared_length_is_an_error() -> None:
    incoming = Incoming(10)
    with pytest.raises(ProtocolError):
        incoming.add(Chunk(1, 10, 0, PART), memoryview(bytes(11)))
    with pytest.raises(ProtocolError):
        incoming.add(Chunk(1, 12, 0, PART), memoryview(bytes(5)))


def test_credit_for_more_than_was_sent_opens_no_further_window() -> None:
    """Such a receiver would make its sender fill the line with all of a large value."""
    out = Outgoing(1, None, PART, bytes(8 * WINDOW_CHUNKS * CHUNK_BYTES), 0.0)
    assert len(send_all(out)) == WINDOW_CHUNKS
    out.credited(Credit(1, out.total, done=False), 1.0, 1.0)
    assert out.credit == out.sent
    assert len(send_all(out)) == WINDOW_CHUNKS


@pytest.mark.parametrize(
    ("rate_bps", "chunk_bytes"),
    [(64e3, CHUNK_BYTES), (40e6, CHUNK_BYTES), (80e6, 500_000), (1e9, MAX_CHUNK_BYTES), (math.inf, MAX_CHUNK_BYTES)],
)
def test_the_size_of_a_chunk_grows_with_the_rate_of_the_line(rate_bps: float, chunk_bytes: int) -> None:
    assert chunk_bytes_for(10**6, 8e6 / rate_bps) == pytest.approx(chunk_bytes, abs=1)


# --- the time a transfer takes ----------------------------------------------------------------------

RATE = 1e6  # bytes per second
WAY_S = 0.05  # one way, for chunks and credits


class Line:
    """Connection on which chunks arrive in order, at ``RATE``. Credits come back at once or are held."""

    def __init__(self) -> None:
        self.free_s = 0.0  # when the last chunk has been sent off
        self.arrived_s = -1e9
        self.credits: list[tuple[float, int, Credit, Outgoing]] = []

    def run(self, starts: list[tuple[float, int, float]]) -> list[Outgoing]:
        """Run transfers, as (start, size, hold of the last credit), until all have arrived."""
        outs = []
        for number, (start_s, size, hold_s) in enumerate(starts):
            self._credit_until(start_s)
            outs.append(Outgoing(number, hold_s, PART, bytes(size), start_s))
            self._put(outs[-1], start_s)
        self._credit_until(float("inf"))
        return outs

    def _put(self, out: Outgoing, now: float) -> None:
        for chunk, piece in send_all(out, now):
            self.free_s = max(self.free_s, now) + piece.nbytes / RATE
            arrived_s = self.free_s + WAY_S
            done = chunk.offset + piece.nbytes == chunk.total_bytes
            held_s = out.to if done else 0.0
            gap_s = min(3600.0, arrived_s - self.arrived_s)
            self.arrived_s = arrived_s
            credit = Credit(out.number, chunk.offset + piece.nbytes, done, held_s, gap_s)
            self.credits.append((arrived_s + held_s + WAY_S, len(self.credits), credit, out))
        self.credits.sort(key=lambda due: due[:2])

    def _credit_until(self, now: float) -> None:
        while self.credits and self.credits[0][0] <= now:
            at, _, credit, out = self.credits.pop(0)
            out.credited(credit, at, at - credit.held_s)
            if not credit.done:
                self._put(out, at)


@pytest.mark.parametrize(
    "starts",
    [
        [(0.0, 100_000, 0.0)],
        [(0.0, 100_000, 0.02)],
        [(0.0, 100_000, 0.02), (0.0, 50_000, 0.0), (0.0, 16_384, 0.01)],  # queueing behind one's own others
        [(0.0, 100_000, 0.0), (30.0, 100_000, 0.02)],  # idle between them
        [(0.0, 8192, 0.0), (0.0, 16_384, 0.0)],
        [(0.0, 100_000, 0.5), (0.01, 16_384, 0.0)],  # the first one's credit comes last
        [(0.0, 20 * CHUNK_BYTES + 5, 0.02)],  # waits for credit on the way
        [(0.0, 12 * CHUNK_BYTES, 0.02), (1.0, 20_000, 0.0), (1.0, 30_000, 0.02)],  # between the chunks of another
        [(0.0, 5 * CHUNK_BYTES, 0.02), (0.3, 5 * CHUNK_BYTES, 0.0)],
    ],
)
def test_only_the_time_that_the_line_was_busy_with_a_transfer_counts(starts: list[tuple[float, int, float]]) -> None:
    outs = Line().run(starts)
    for out, (_, size, _) in zip(outs, starts, strict=True):
        assert size / RATE - 1e-9 <= out.busy_s <= size / RATE + 2 * WAY_S + 1e-9
    assert outs[0].busy_s == pytest.approx(starts[0][1] / RATE + 2 * WAY_S), "its first chunk was alone"


def test_the_wait_behind_an_earlier_transfer_does_not_count() -> None:
    _, last = Line().run([(0.0, 8192, 0.0), (0.0, 16_384, 0.0)])
    assert last.busy_s == pytest.approx(16_384 / RATE)


def test_an_empty_transfer_takes_a_round_trip() -> None:
    alone, behind = Line().run([(0.0, 0, 0.02), (0.0, 0, 0.0)])
    assert alone.busy_s == behind.busy_s == pytest.approx(2 * WAY_S)


def test_a_lost_or_repeated_credit_neither_hides_time_nor_counts_time_twice() -> None:
    out = Outgoing(1, None, PART, bytes(2 * CHUNK_BYTES), 0.0)
    send_all(out, now=1.0)
    out.credited(Credit(1, 2 * CHUNK_BYTES, True, 0.0, 0.25), 1.5, 1.5)  # says how long the last chunk took, not both
    assert out.busy_s == 0.5
    out.credited(Credit(1, 2 * CHUNK_BYTES, True, 0.0, 0.25), 9.0, 9.0)
    assert out.busy_s == 0.5


def test_a_refused_transfer_counts_no_time() -> None:
    out = Outgoing(1, None, PART, bytes(100), 0.0)
    send_all(out, now=1.0)
    out.credited(Credit(1, 0, True), 2.0, 2.0)
    assert (out.busy_s, out.credit) == (0.0, 0)
