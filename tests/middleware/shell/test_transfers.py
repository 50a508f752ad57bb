"""Values on the wire and transfers in chunks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from thalweg.middleware.errors import OperatorError, ProtocolError
from thalweg.middleware.protocol.messages import MAX_PARTITION_BYTES, Chunk, Credit, Partition
from thalweg.middleware.shell.transfers import (
    CHUNK_BYTES,
    MAX_CHUNK_BYTES,
    WINDOW_CHUNKS,
    Incoming,
    Outgoing,
    chunk_bytes_for,
    frames_of,
    size_of,
    value_of,
)

PART = Partition("r", "p", "c", 0)
dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(min_len=1),
    st.sampled_from([np.dtype(name) for name in (">i4", "<f2", ">c16", "longdouble", "M8[25s]", ">m8[us]", "bool")]),
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))


def there_and_back(value: Any) -> Any:
    dtype, shape, body = frames_of(value)
    assert size_of(value) == body.nbytes
    return value_of(dtype, shape, memoryview(bytes(body)))


def assert_same(got: Any, value: np.ndarray[Any, Any]) -> None:
    assert got.dtype.str == value.dtype.str
    assert got.shape == value.shape
    assert got.tobytes() == value.tobytes()


@given(arrays, st.sampled_from(["as it is", "transposed", "every second, backwards", "as Fortran has it"]))
def test_every_array_of_numbers_comes_back_and_is_read_only(value: np.ndarray[Any, Any], how: str) -> None:
    if how == "transposed":
        value = value.T
    elif how == "every second, backwards" and value.ndim:
        value = value[::-2]
    elif how == "as Fortran has it":
        value = np.asfortranarray(value)
    got = there_and_back(value)
    assert_same(got, value)
    with pytest.raises(ValueError, match="read-only"):
        got[...] = value


@given(st.binary(max_size=100), st.sampled_from([bytes, bytearray, memoryview]))
def test_bytes_come_back_as_bytes(value: bytes, kind: Any) -> None:
    got = there_and_back(kind(value))
    assert type(got) is bytes
    assert got == value


def test_a_received_array_views_the_frame() -> None:
    body = bytearray(8)
    array = value_of("<u4", (2,), body)
    body[0] = 7
    assert array[0] == 7


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.array([None, "x"]), "dtype object holds Python objects"),
        (np.zeros(2, [("a", "i4"), ("b", "O")]), "holds Python objects"),
        (np.zeros(2, [("a", "i4")]), "has fields"),
        ("text", "not str"),
        (3.5, "not float"),
        ([1, 2], "not list"),
        (None, "not NoneType"),
    ],
)
def test_what_cannot_travel_is_refused(value: Any, says: str) -> None:
    with pytest.raises(OperatorError, match=says):
        frames_of(value)


def test_a_partition_over_the_limit_is_refused_before_it_is_sent() -> None:
    huge = np.broadcast_to(np.zeros(1, np.uint8), (MAX_PARTITION_BYTES + 1,))
    with pytest.raises(OperatorError, match="over the limit"):
        frames_of(huge)


@pytest.mark.parametrize(
    ("dtype", "shape", "body"),
    [
        ("O", (1,), bytes(8)),
        ("|O", (1,), bytes(8)),
        ("<f4,(", (1,), bytes(4)),
        ("(1,)O", (1,), bytes(8)),
        ("\x00", (1,), bytes(1)),
        ("|V4", (1,), bytes(4)),
        ("|S0", (1,), b""),
        ("<f4", (-1,), bytes(4)),
        ("<f4", (2,), bytes(4)),
        ("<f4", (1,), bytes(5)),
        ("<f4", (), b""),
        ("<f4", (2**63,), bytes(4)),
        ("<f4", (2**31, 2**31, 0), b""),
        ("<M8[fortnight]", (1,), bytes(8)),
        ("<i3", (1,), bytes(3)),
        ("<f" + "9" * 40, (1,), bytes(4)),
    ],
)
def test_a_header_that_lies_is_a_protocol_error(dtype: str, shape: tuple[int, ...], body: bytes) -> None:
    with pytest.raises(ProtocolError):
        value_of(dtype, shape, body)


@given(
    st.text(max_size=12) | st.from_regex(r"[<>|=]?[a-zA-Z]\d{0,3}(\[\d?\w{1,3}\])?", fullmatch=True),
    st.lists(st.integers(-(2**63), 2**64 - 1) | st.integers(0, 3), max_size=8).map(tuple),
    st.binary(max_size=24),
)
def test_any_header_gives_a_value_of_just_these_bytes_or_a_protocol_error(
    dtype: str, shape: tuple[int, ...], body: bytes
) -> None:
    try:
        value = value_of(dtype, shape, body)
    except ProtocolError:
        return
    if isinstance(value, bytes):
        assert (dtype, value) == ("", body)
    else:
        assert (value.shape, value.nbytes) == (shape, len(body))


# --- chunks -----------------------------------------------------------------------------------------


def send_all(out: Outgoing, now: float = 0.0) -> list[tuple[Chunk, Any]]:
    """The chunks that the credit allows, taken."""
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
    assert_same(value_of(chunk.dtype, chunk.shape, incoming.buffer.data), value)


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


@pytest.mark.parametrize(
    ("rate_bps", "chunk_bytes"),
    [(64e3, CHUNK_BYTES), (40e6, CHUNK_BYTES), (80e6, 500_000), (1e9, MAX_CHUNK_BYTES), (math.inf, MAX_CHUNK_BYTES)],
)
def test_a_chunk_is_what_a_fast_line_carries_at_once(rate_bps: float, chunk_bytes: int) -> None:
    assert chunk_bytes_for(10**6, 8e6 / rate_bps) == pytest.approx(chunk_bytes, abs=1)


# --- the time a transfer takes ----------------------------------------------------------------------

RATE = 1e6  # bytes per second
WAY_S = 0.05  # one way, for chunks and credits


class Line:
    """A connection: chunks arrive in the order they were sent, each at ``RATE``; credits come back at once or held."""

    def __init__(self) -> None:
        self.free_s = 0.0  # when the last chunk has been sent off
        self.arrived_s = -1e9
        self.credits: list[tuple[float, int, Credit, Outgoing]] = []

    def run(self, starts: list[tuple[float, int, float]]) -> list[Outgoing]:
        """Transfers as (start, size, hold of the last credit), until all have arrived."""
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


def test_what_is_right_behind_another_takes_its_own_bytes_only() -> None:
    _, last = Line().run([(0.0, 8192, 0.0), (0.0, 16_384, 0.0)])
    assert last.busy_s == pytest.approx(16_384 / RATE)


def test_an_empty_transfer_takes_the_way_there_and_back() -> None:
    alone, behind = Line().run([(0.0, 0, 0.02), (0.0, 0, 0.0)])
    assert alone.busy_s == behind.busy_s == pytest.approx(2 * WAY_S)


def test_a_lost_or_repeated_credit_neither_hides_time_nor_counts_it_twice() -> None:
    out = Outgoing(1, None, PART, bytes(2 * CHUNK_BYTES), 0.0)
    send_all(out, now=1.0)
    out.credited(Credit(1, 2 * CHUNK_BYTES, True, 0.0, 0.25), 1.5, 1.5)  # says how long the last chunk took, not both
    assert out.busy_s == 0.5
    out.credited(Credit(1, 2 * CHUNK_BYTES, True, 0.0, 0.25), 9.0, 9.0)
    assert out.busy_s == 0.5


def test_a_refused_transfer_has_taken_no_time() -> None:
    out = Outgoing(1, None, PART, bytes(100), 0.0)
    send_all(out, now=1.0)
    out.credited(Credit(1, 0, True), 2.0, 2.0)
    assert (out.busy_s, out.credit) == (0.0, 0)
