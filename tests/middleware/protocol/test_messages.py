"""Wire format: every message is decoded unchanged, and anything else raises a ProtocolError."""

from __future__ import annotations

import math
import struct
import tracemalloc
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_ids import R

from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import ProtocolError
from thalweg.middleware.network.view import Link
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import LocalCost, LocalMoves, SpaceMoves
from thalweg.middleware.protocol.messages import BookState
from thalweg.middleware.protocol.run_id import NO_RUN

BIG = 2**40
NETS = {"net": "tcp://h1:1"}
VERSION = bytes([frames.PROTOCOL_VERSION])


def strategy_of(kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a wire type, within all its limits."""
    match kind:
        case msgspec.inspect.StrType(pattern=str(pattern)):
            return st.from_regex(pattern).filter(lambda text: len(text) <= (kind.max_length or len(text)))
        case msgspec.inspect.StrType():
            return st.text(st.characters(codec="utf-8"), min_size=kind.min_length or 0, max_size=12)
        case msgspec.inspect.IntType():
            at_most = kind.le if kind.le is not None else (kind.lt - 1 if kind.lt is not None else BIG)
            return st.integers(kind.ge if kind.ge is not None else -BIG, at_most)
        case msgspec.inspect.FloatType():
            least = kind.ge if kind.gt is None else kind.gt
            return st.floats(least, kind.le, allow_nan=False, exclude_min=kind.gt is not None)
        case msgspec.inspect.BytesType():
            return st.binary(max_size=12)
        case msgspec.inspect.StructType(cls=cls) if cls is LocalMoves:  # it checks more than types can say
            return st.builds(
                LocalMoves,
                period_s=st.floats(0.001, 1e6),
                k=st.integers(0, 10),
                hysteresis=st.floats(0, 10),
                seed=st.integers(-BIG, BIG),
                cost=st.sampled_from(get_args(LocalCost)),
                startup_s=st.floats(0, 10),
            )
        case msgspec.inspect.StructType(cls=cls) if cls is SpaceMoves:
            return st.builds(
                SpaceMoves,
                period_s=st.floats(0.001, 1e6),
                displacement_s=st.floats(0, 10),
                saving=st.floats(0, 1, exclude_max=True),
                load_s=st.floats(0, 10),
            )
        case msgspec.inspect.StructType(cls=cls) if cls is BookState:
            book = st.tuples(*[strategy_of(field.type) for field in kind.fields])
            return book.map(lambda book: BookState(book[0], *sorted(book[1:3], reverse=True), *_plain(book[3:])))
        case msgspec.inspect.StructType(cls=cls) if cls is m.RoutePreference:
            return WAYS
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.LiteralType():
            return st.sampled_from(kind.values)
        case msgspec.inspect.UnionType():
            return st.one_of([strategy_of(each) for each in kind.types])
        case msgspec.inspect.TupleType():
            return st.tuples(*map(strategy_of, kind.item_types))
        case msgspec.inspect.VarTupleType():
            least = kind.min_length or 0
            return st.lists(strategy_of(kind.item_type), min_size=least, max_size=least + 3).map(tuple)
        case msgspec.inspect.DictType():
            return st.dictionaries(strategy_of(kind.key_type), strategy_of(kind.value_type), max_size=3)
        case msgspec.inspect.AnyType():
            plain = st.none() | st.booleans() | st.integers(-BIG, BIG) | st.text(max_size=5) | st.binary(max_size=5)
            return st.recursive(plain, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
        case msgspec.inspect.StructType():
            fields = {field.encode_name: strategy_of(field.type) for field in kind.fields}
            if kind.cls is m.NetworkEndpoints:  # the network that all share is never left out
                fields["ends"] = fields["ends"].map(lambda ends: ends | NETS)
            return st.builds(kind.cls, **fields)
        case msgspec.inspect.Metadata():
            return strategy_of(kind.type)
    raise AssertionError(f"no strategy for {kind}")


NAMES = st.text(min_size=1, max_size=12)
ROUTES = st.lists(NAMES, min_size=3, max_size=m.MAX_HOPS + 1, unique=True)


@st.composite
def _ways(draw: st.DrawFn) -> m.RoutePreference:
    """Draw a preference of routes over networks and relays. No route meets a host twice."""
    source, *between, target = draw(ROUTES)
    routes = [tuple(m.LinkEnd(host, draw(NAMES)) for host in (*between[:count], target)) for count in range(1, 3)]
    over = draw(st.lists(NAMES | st.sampled_from(routes), max_size=3))
    return m.RoutePreference(source, target, tuple(over), tuple(draw(st.lists(st.integers(0, 2**53 - 1), max_size=3))))


WAYS = _ways()


def _plain(rest: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the rest of a book's fields (unmarked, last, …) in a consistent form."""
    unmarked, last, *others = rest
    return (unmarked and last >= 0, last, *others)


CONTROL = get_args(m.Control)


def test_a_peer_without_an_endpoint_in_the_shared_network_is_refused() -> None:
    with pytest.raises(ValueError, match="'net', which all hosts share"):
        m.NetworkEndpoints({"fast": "tcp://a:2"})
    assert (
        m.Peer("a", "tcp://a:1", m.NetworkEndpoints({"fast": "tcp://a:2"} | NETS)).ends == {"fast": "tcp://a:2"} | NETS
    )


def fitting(chunk: m.Chunk) -> bool:
    """Return whether the size and kind of a chunk agree with its message."""
    match chunk.message:
        case m.Probe():
            return chunk.total_bytes <= m.PROBE_BYTES
        case m.State() | m.InheritedState() | m.Checkpoint():
            return chunk.message.inline is None
    return not chunk.message.end


def with_size(chunk: m.Chunk) -> m.Chunk:
    if not isinstance(chunk.message, m.AnyState):
        return chunk
    state = msgspec.structs.replace(chunk.message, size_bytes=chunk.total_bytes)
    return msgspec.structs.replace(chunk, message=state, dtype="")


chunks = strategy_of(msgspec.inspect.type_info(m.Chunk)).filter(fitting).map(with_size)


def messages_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    every = strategy_of(msgspec.inspect.type_info(kind))
    if kind in (m.State, m.InheritedState, m.Checkpoint):
        return every.map(lambda state: msgspec.structs.replace(state, inline=state.inline or b""))
    return every.map(lambda part: msgspec.structs.replace(part, end=True)) if kind is m.Partition else every


control_messages = st.one_of([messages_of(kind) for kind in CONTROL])


CREDIT = m.Credit(1, 2, True, 0.5, 0.25, 8.0)


@pytest.mark.parametrize("kind", CONTROL, ids=lambda kind: kind.__name__)
def test_every_control_message_is_decoded_unchanged(kind: type[Any]) -> None:
    @given(messages_of(kind))
    def check(message: Any) -> None:
        assert frames.decode_control(frames.encode(message)) == message
        assert frames.decode_control(memoryview(bytearray(frames.encode(message)))) == message
        assert frames.decode_all(frames.encode(message)) == (message,)
        assert frames.decode_all(frames.encode_piggybacking(message, [CREDIT])) == (CREDIT, message)

    check()


@given(chunks)
def test_every_bulk_header_is_decoded_unchanged(chunk: m.Chunk) -> None:
    assert frames.decode_chunk(frames.encode(chunk)) == chunk


HOPS = m.LinkEnd("r", "fast"), m.LinkEnd("b", "fast")
PART, PROBE = m.Partition(R, "s", "o", 1), m.Probe(R, 1, m.Peer("a", "tcp://a:1", "tcp://a:2"), True)


def test_a_relayed_chunk_names_a_source_and_valid_hops() -> None:
    chunk = m.RelayedChunk(7, 100, 0, PART, "|u1", (100,), source="a", hops=HOPS, at=1)
    assert frames.decode_chunk(frames.encode(chunk)) == chunk
    for wrong, why in (
        (msgspec.structs.replace(chunk, at=2), "a Partition came at hop 2 of 2; relays pass partitions on"),
        (msgspec.structs.replace(chunk, message=PROBE), "a Probe came at hop 1 of 2; relays pass partitions on"),
        (msgspec.structs.replace(chunk, hops=HOPS[:1], at=0), "of length >= 2"),
        (msgspec.structs.replace(chunk, hops=HOPS * 5), "of length <= 8"),
    ):
        with pytest.raises(ProtocolError, match=why):
            frames.decode_chunk(frames.encode(wrong))


@pytest.mark.parametrize(
    "hops", [HOPS[:1], (*HOPS, m.LinkEnd("c", "fast")), (m.LinkEnd("a", "fast"), *HOPS), HOPS[:1] + HOPS]
)
def test_a_route_leads_to_the_target_and_meets_no_host_twice(hops: tuple[m.LinkEnd, ...]) -> None:
    assert m.RoutePreference("a", "b", (HOPS, "net")).links[0] == (Link("a", "r", "fast"), Link("r", "b", "fast"))
    with pytest.raises(ValueError, match="a route from 'a' to 'b' cannot go over"):
        m.RoutePreference("a", "b", (hops,))


def decoded(frame: bytes) -> list[Any]:
    """Return the results of decoding a frame as control and as bulk. Any error but a ProtocolError is a failure."""
    out: list[Any] = []
    errors: list[str] = []
    for decode in (frames.decode_control, frames.decode_chunk):
        try:
            out.append(decode(frame))
        except ProtocolError as error:
            errors.append(str(error))
    assert all(len(text.splitlines()) == 1 for text in errors)
    return out


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda body: frames.MAGIC + b"\x01" + body))
def test_garbage_raises_no_error_but_a_protocol_error(frame: bytes) -> None:
    decoded(frame)


@given(st.one_of(control_messages, chunks), st.integers(0, 2**16), st.binary(min_size=1, max_size=9), st.booleans())
def test_a_damaged_message_keeps_the_limits_or_raises_a_protocol_error(
    message: Any, where: int, damage: bytes, insert: bool
) -> None:
    frame = frames.encode(message)
    at = 3 + where % (len(frame) - 3)
    for survivor in decoded(frame[:at] + damage + frame[at + (0 if insert else len(damage)) :]):
        again = frames.encode(survivor)  # compared as frames: a float may have become NaN
        assert [frames.encode(each) for each in decoded(again)] == [again]


@given(control_messages, st.data())
def test_a_cut_message_is_a_protocol_error(message: Any, data: st.DataObject) -> None:
    frame = frames.encode(message)
    assert decoded(frame[: data.draw(st.integers(0, len(frame) - 1))]) == []


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "not Thalweg's"),
        (b"TW\x01", "not Thalweg's"),
        (b"XX\x01\x90", "not Thalweg's"),
        (frames.encode(m.Ping(R), 1), "protocol version 1; this host speaks version 13$"),
        (frames.encode(m.Hello()) + b"\xc0", "does not decode"),
        (frames.encode(m.Ping(R))[:3] + b"\x92\xa4Nope\xa1r", "does not decode"),
        (frames.encode(m.Demand(R, "p", "c", 1, 65)), "<= 64"),
        (frames.encode(m.Demand(NO_RUN, "p", "c", 1)), "length >= 1"),
        (frames.encode(m.Demand(R, "p", "c", -1)), ">= 0"),
        (frames.encode(m.Demand(R, "p" * 129, "c", 1)), "length <= 128"),
        (frames.encode(m.ProbeRequest(R, (), m.Peer("h", "ipc://@x", "tcp://h:1"))), "matching regex"),
        (frames.encode(m.Partition(R, "p", "c", 7)), "came as control, without its bytes"),
    ],
)
def test_a_protocol_error_names_the_fault_of_the_frame(frame: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        frames.decode_control(frame)


@pytest.mark.parametrize(
    "endpoint",
    [
        *("tcp://-:5", "tcp://*:5", "tcp://h:*", "tcp://h", "tcp://h:5\n", "tcp://é:5", "inproc://x"),
        *("ipc://x", "ipc:///", "ipc:///é", "ipc:///a b", "ipc:///a\n", f"ipc:///{'a' * 107}"),
    ],
)
def test_an_endpoint_that_no_socket_can_dial_is_refused(endpoint: str) -> None:
    with pytest.raises(ProtocolError):
        frames.decode_control(frames.encode(m.ProbeRequest(R, (m.Peer("h", "tcp://h:1", endpoint),), PEER)))


PEER = m.Peer("h", "tcp://h:1", "tcp://h:2")


def test_chunks_over_the_limits_of_bulk_are_refused() -> None:
    part = m.Partition(R, "p", "c", 7)
    with pytest.raises(ProtocolError, match="1073741824"):
        frames.decode_chunk(frames.encode(m.Chunk(1, m.MAX_PARTITION_BYTES + 1, 0, part)))
    with pytest.raises(ProtocolError, match="a probe has 16385 bytes"):
        frames.decode_chunk(frames.encode(m.Chunk(1, 16_385, 0, m.Probe(R, 1, PEER, True))))
    with pytest.raises(ProtocolError, match="the end of 'p' came as bulk"):
        frames.decode_chunk(frames.encode(m.Chunk(1, 0, 0, m.Partition(R, "p", "c", 7, end=True))))


STATE = m.State(R, "o", 1, 0, 1, 8, "sha256:x")
DOUBLE = b"\xcb"  # msgpack's mark of a double


@pytest.mark.parametrize(
    "wrong",
    [
        m.Chunk(1, 8, 0, STATE, "<f8", ()),
        m.Chunk(1, 8, 0, STATE, "<f8", (1,)),
        m.Chunk(1, 9, 0, STATE),
        m.Chunk(1, 8, 0, msgspec.structs.replace(STATE, inline=b"12345678")),
    ],
    ids=["an array without a shape", "an array", "another size", "inline as well"],
)
def test_a_state_in_bulk_with_a_wrong_form_or_size_is_refused(wrong: m.Chunk) -> None:
    assert frames.decode_chunk(frames.encode(m.Chunk(1, 8, 0, STATE))).message == STATE
    with pytest.raises(ProtocolError, match=r"^the state of 'o' came as bulk, but names another size$"):
        frames.decode_chunk(frames.encode(wrong))


@pytest.mark.parametrize("period_s", [0.0, 1e-300, 0.000999, -1.0, math.inf, math.nan])
def test_an_invalid_period_of_moves_is_a_protocol_error(period_s: float) -> None:
    locations = (m.Location("s", "h1", 1),)
    frame = frames.encode(m.Install(R, Dataflow(()), locations, (), "client", moves=LocalMoves(period_s=0.125)))
    assert frame.count(DOUBLE + struct.pack(">d", 0.125)) == 1
    shorter = frame.replace(struct.pack(">d", 0.125), struct.pack(">d", period_s))
    with pytest.raises(ProtocolError, match=r"period_s is .*; it must be at least 0\.001 seconds and finite"):
        frames.decode_control(shorter)


def test_an_oversized_frame_is_refused_unread() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        frames.decode_control(frames.MAGIC + b"\x01" + bytes(frames.MAX_CONTROL_BYTES))


def test_very_deep_nesting_is_a_protocol_error() -> None:
    text = msgspec.msgpack.encode
    code = b"\x82" + text("use") + text("u") + text("params") + b"\x81" + text("k") + b"\x91" * 100_000
    node = b"\x83" + text("name") + text("n") + text("kind") + text("source") + text("code") + code
    frame = frames.MAGIC + VERSION + b"\x96" + text("Install") + text(R) + b"\x81" + text("nodes") + b"\x91" + node
    with pytest.raises(ProtocolError, match="recursion"):
        frames.decode_control(frame)


def test_a_declared_length_without_content_is_a_protocol_error_and_takes_no_memory() -> None:
    text = msgspec.msgpack.encode
    frame = frames.MAGIC + VERSION + b"\x93" + text("Located") + text(R) + b"\xdd\xff\xff\xff\xff"
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="truncated"):
            frames.decode_control(frame)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000  # of 4 billion locations
    finally:
        tracemalloc.stop()


def test_greetings_of_a_foreign_version_are_decoded_and_other_messages_are_refused() -> None:
    me = m.Peer("h1", "tcp://h1:1", "tcp://h1:2")
    welcome = m.Welcome(me.name, me.control, me.bulk, speaks=(200, 201))
    for greeting in (m.Hello(), welcome):
        assert frames.decode_all(frames.encode(greeting, 201)) == (greeting,)
    for message in (m.Ping(R), m.Enlist(me)):
        with pytest.raises(ProtocolError, match=r"version 200; this host speaks versions 8 to 9$"):
            frames.decode_all(frames.encode(message, 200), (8, 9))
        assert frames.decode_all(frames.encode(message, 9), (8, 9)) == (message,)
        assert frames.decode_all(frames.encode_piggybacking(message, [CREDIT], 9), (8, 9)) == (CREDIT, message)


@pytest.mark.parametrize(
    ("ranges", "version"),
    [([(8, 8)], 8), ([(7, 9), (8, 10)], 9), ([(7, 9), (8, 10), (8, 8)], 8), ([(7, 8), (9, 9)], 0)],
)
def test_a_run_speaks_the_newest_version_that_all_hosts_know(ranges: list[tuple[int, int]], version: int) -> None:
    assert frames.agreed(ranges) == version


@given(st.one_of(control_messages, chunks))
def test_the_type_and_run_of_a_frame_are_read_even_if_the_rest_does_not_decode(message: Any) -> None:
    about = message.message if isinstance(message, m.Chunk) else message
    expected = m.tag_of(type(about)), about.run if isinstance(about, m.RunMessage) else NO_RUN
    frame = frames.encode(message)
    kind, run = frames.subject_of(frame)
    assert (kind, run if expected[1] else NO_RUN) == expected
    if not isinstance(message, m.Chunk):
        assert frames.subject_of(frames.encode_piggybacking(message, [CREDIT])) == (kind, run)
    if expected[1]:
        text = msgspec.msgpack.encode(expected[1])
        at = frame.index(text) + len(text)
        assert frames.subject_of(frame[:at] + b"\xc1" * 9) == expected


@given(st.binary(max_size=600))
def test_noise_in_a_frame_gives_no_invalid_type_and_no_long_run_id(noise: bytes) -> None:
    for magic in (frames.MAGIC, frames.PIGGYBACKING):
        kind, run = frames.subject_of(magic + VERSION + noise)
        assert not kind or kind.isidentifier()
        assert len(kind) <= 64
        assert len(run.stream) <= 128


@pytest.mark.parametrize("wrong", [ValueError, TypeError, OverflowError, KeyError, ZeroDivisionError, RecursionError])
def test_every_exception_in_the_check_of_a_field_is_a_protocol_error(
    monkeypatch: pytest.MonkeyPatch, wrong: type[Exception]
) -> None:
    class Checks:
        def decode(self, _: bytes) -> None:
            raise wrong("a defect of the check")

    monkeypatch.setattr(frames, "_control", Checks())
    with pytest.raises(ProtocolError, match=r"^a control frame does not decode: .*a defect of the check"):
        frames.decode_control(frames.encode(m.Ping(R)))
