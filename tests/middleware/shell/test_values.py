"""Values that the code of a node returns, and values on the wire."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from value_codes import KINDS, Reading

from thalweg.middleware.errors import OperatorError, ProtocolError
from thalweg.middleware.parcels import NOTHING, Parcel
from thalweg.middleware.protocol.messages import MAX_PARTITION_BYTES
from thalweg.middleware.shell.packing import HEADS_KNOWN, arrow, check_schema, marked, opened
from thalweg.middleware.shell.values import frames_of, returned_by, size_of, value_of

LOOP: list[Any] = []
LOOP.append(LOOP)
dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(min_len=1),
    st.sampled_from([np.dtype(name) for name in (">i4", "<f2", ">c16", "longdouble", "M8[25s]", ">m8[us]", "bool")]),
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))


def taken(value: Any) -> Any:
    """Return the value that the runtime makes of a value that code returns."""
    return returned_by(lambda: value, ())


def there_and_back(value: Any) -> Any:
    dtype, shape, body = frames_of(taken(value))
    assert size_of(taken(value)) == body.nbytes
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
    array = value_of("<u4", (2,), memoryview(body))
    body[0] = 7
    assert array[0] == 7


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.array([None, "x"]), "dtype object holds Python objects"),
        (np.zeros(2, [("a", "i4"), ("b", "O")]), "holds Python objects"),
        (np.zeros(2, [("a", "i4")]), "has fields"),
        (np.ma.array([1, 2], mask=[0, 1]), r"mask; return array\.filled"),
        (np.zeros((1,) * 9), "9 dimensions"),
        ({1, 2}, "type set does not travel; return a list"),
        ({"a": [0, 2j]}, r"type complex at \['a'\]\[1\] does not travel; return a list of two"),
        ([np.float32(1)], r"float32 at \[0\] does not travel; return its item"),
        ({1.5: 0}, "key 1.5 does not travel; use a str or an int"),
        (
            [Reading("h", [])],
            r"Reading at \[0\] does not travel; return a msgspec.Struct with a field of list\[Reading\]",
        ),
        (Reading("h", ["no number"]), "a Reading does not travel: Expected `float`, got `str`"),
        ({"n": [2**70]}, r"the number 1180591620717411303424 at \['n'\]\[0\] does not travel; return a str or a float"),
        ({-(2**63) - 1: 0}, "the number -9223372036854775809 does not travel"),
        ("\udc00", "str does not travel"),
        (msgspec.defstruct("Inner", [])(), "define its class in a module"),
        (LOOP, "a list that contains itself"),
        (object(), "plain data"),
        (pa.array([1]), "type pyarrow.Int64Array does not travel; return a pyarrow.RecordBatch or"),
        (pa.scalar(1), "as_py"),
    ],
)
def test_a_value_that_cannot_travel_is_refused(value: Any, says: str) -> None:
    with pytest.raises(OperatorError, match=says):
        taken(value)


def test_a_partition_over_the_limit_is_refused_before_a_copy() -> None:
    huge = np.broadcast_to(np.zeros(1, np.uint8), (MAX_PARTITION_BYTES + 1,))
    with pytest.raises(OperatorError, match="at most"):
        taken(huge)


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
def test_a_false_header_is_a_protocol_error(dtype: str, shape: tuple[int, ...], body: bytes) -> None:
    with pytest.raises(ProtocolError):
        value_of(dtype, shape, memoryview(body))


@given(
    st.text(max_size=12) | st.from_regex(r"[<>|=]?[a-zA-Z]\d{0,3}(\[\d?\w{1,3}\])?", fullmatch=True),
    st.lists(st.integers(-(2**63), 2**64 - 1) | st.integers(0, 3), max_size=8).map(tuple),
    st.binary(max_size=24),
)
def test_every_header_gives_a_value_of_exactly_the_bytes_or_a_protocol_error(
    dtype: str, shape: tuple[int, ...], body: bytes
) -> None:
    try:
        value = value_of(dtype, shape, memoryview(body))
    except ProtocolError:
        return
    if isinstance(value, bytes):
        assert (dtype, value) == ("", body)
    elif isinstance(value, Parcel):
        assert value.head + value.body == body
    else:
        assert (value.shape, value.nbytes) == (shape, len(body))


# --- who has the memory -------------------------------------------------------------------------------

MADE: dict[str, Callable[[], Any]] = {
    "an array": lambda: np.ones(1000),
    "another shape of one": lambda: np.ones(1000).reshape(10, 100),
    "another dtype of one": lambda: np.ones(1000).view("<i4"),
    "over bytes": lambda: np.frombuffer(bytes(8000)),
    "a row over bytes": lambda: np.frombuffer(bytes(8000)).reshape(2, 500)[1],
}


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("how", MADE)
def test_an_array_that_no_other_code_can_write_is_not_copied(how: str) -> None:
    seen = []

    def produce() -> Any:
        array = MADE[how]()
        seen.append(address(array))
        return array

    assert address(returned_by(produce, ())) == seen[0]


def test_a_large_part_of_an_input_is_a_view_and_a_small_part_is_a_copy() -> None:
    given_ = taken(np.arange(1000.0))
    assert returned_by(lambda values: values[0], ((given_,),), (given_,)).base is given_.base
    most = returned_by(lambda values: values[0][100:], ((given_,),), (given_,))
    assert address(most) == address(given_) + 800
    part = returned_by(lambda values: values[0][:10], ((given_,),), (given_,))
    whole = weakref.ref(given_.base)
    del given_, most
    gc.collect()
    assert whole() is None
    assert part.tolist() == list(range(10))


def test_an_array_that_is_found_again_by_a_weak_reference_is_sealed() -> None:
    found: list[Any] = []

    def produce() -> Any:
        array = np.ones(10)
        found.append(weakref.ref(array))
        return array

    value = returned_by(produce, ())
    with pytest.raises(ValueError, match="read-only"):
        found[0]()[0] = 2
    assert value[0] == 1


# --- parcels ------------------------------------------------------------------------------------------

PACKAGES = ("value_codes",)
SECOND = pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode(), "b": [{"c": [1]}, None, {"c": []}]})
plain = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner | st.none(), max_size=3) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=8,
)


class Line:
    def __init__(self) -> None:
        self.heads: set[str] = set()


@given(plain.filter(lambda value: type(value) is not bytes))
def test_plain_data_come_back_as_a_new_object_every_time(value: Any) -> None:
    parcel = there_and_back(value)
    assert opened(parcel) == value
    assert opened(parcel) == opened(taken(value))
    if isinstance(value, dict | list):
        assert opened(parcel) is not opened(parcel)


@pytest.mark.parametrize("kind", ["struct", "batch", "table", "slice", "no rows"])
@pytest.mark.parametrize("watermark_s", [None, -1.5, 1e9 + 0.25, float("inf")])
def test_structs_and_records_come_back_with_the_watermark(kind: str, watermark_s: float | None) -> None:
    value = KINDS[kind]()
    parcel = there_and_back(marked(taken(value), watermark_s))
    got = opened(parcel, PACKAGES)
    assert type(got) is type(value)
    assert got == value
    assert parcel.watermark_s == watermark_s
    assert parcel.size_bytes < 2000, "a slice is sent, and kept, without the rest"
    assert opened(taken(got), PACKAGES) == value


def test_the_value_nothing_takes_no_bytes_and_comes_back_as_the_same_object() -> None:
    parcel = there_and_back(NOTHING)
    assert (opened(parcel), parcel.size_bytes) == (NOTHING, 0)
    assert opened(parcel) is NOTHING


def test_a_schema_is_sent_once_and_a_schema_with_dictionaries_every_time() -> None:
    line, heads = Line(), dict[str, bytes]()
    parcel = taken(pa.record_batch({"a": [1, 2], "b": ["x", "y"]}))
    dtype, shape, body = frames_of(parcel, line)
    assert opened(value_of(dtype, shape, memoryview(bytes(body)), heads)) == parcel.opened
    line.heads.add(parcel.digest)
    short = frames_of(parcel, line)
    assert short[2].nbytes == body.nbytes - len(parcel.head)
    assert opened(value_of(*short, heads)) == parcel.opened
    assert value_of(*short, {}) is None, "and a host that does not know it gets it again"
    with pytest.raises(ProtocolError, match="head"):
        value_of(dtype.replace(parcel.digest, "0" * 32), shape, body, heads)
    for count in range(HEADS_KNOWN):
        value_of(*frames_of(taken(pa.table({f"c{count}": [1]}))), heads)
    assert len(heads) == HEADS_KNOWN
    whole = taken(SECOND)
    assert whole.digest == ""
    assert opened(there_and_back(SECOND)) == SECOND


def test_records_are_copied_once_and_then_viewed() -> None:
    scratch = np.arange(4.0)
    parcel = taken(pa.record_batch({"a": scratch}))
    scratch[:] = 9
    assert parcel.opened.column(0).to_pylist() == [0, 1, 2, 3]
    assert not parcel.opened.column(0).buffers()[1].is_mutable
    assert taken(parcel) is parcel
    body = memoryview(bytearray(b"1234567" + bytes(parcel.head + parcel.body)))[7:]
    dtype, shape, _ = frames_of(parcel)
    got = opened(value_of(dtype, shape, body))
    assert got == parcel.opened
    assert got.column(0).buffers()[1].address % 8 == 0


@pytest.mark.parametrize(
    ("parcel", "says"),
    [
        (Parcel("batch", b"junk", b"junk"), "records of 4 bytes cannot be read"),
        (Parcel("plain", b"", b"\xc1"), "cannot be decoded"),
        (Parcel("plain", b"os:system", b"\x01"), "does not allow code from 'os'"),
        (Parcel("plain", b"value_codes:Camera", b"\x01"), "no msgspec.Struct"),
        (Parcel("plain", b"value_codes:Reading", b"\x01"), "cannot be decoded: Expected `object`"),
    ],
)
def test_a_false_parcel_is_an_operator_error(parcel: Parcel, says: str) -> None:
    with pytest.raises(OperatorError, match=says):
        opened(parcel, PACKAGES)


def test_records_with_offsets_beyond_the_end_are_refused() -> None:
    parcel = taken(pa.record_batch({"a": ["abc", "def"]}))
    body = bytearray(parcel.body)
    at = body.index(b"\x03\0\0\0\x06\0\0\0")  # the offsets
    body[at + 4 : at + 8] = (2**30).to_bytes(4, "little")
    with pytest.raises(OperatorError, match="cannot be read"):
        opened(Parcel("batch", parcel.head, bytes(body), parcel.digest))


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ({"a": [1.5], "b": ["x"]}, "column 'a' is double, and was int64 before"),
        ({"a": [1]}, "column 'b' is missing, and was string before"),
        ({"a": [1], "b": ["x"], "c": [True]}, "column 'c' is bool, and was missing before"),
        ({"b": ["x"], "a": [1]}, "the columns are b, a, and were a, b before"),
    ],
)
def test_the_error_about_a_changed_schema_names_the_column(now: dict[str, Any], says: str) -> None:
    before = taken(pa.record_batch({"a": [1], "b": ["x"]}))
    with pytest.raises(OperatorError, match=f"partition 3: {says}"):
        check_schema(taken(pa.table(now)), before.head, "partition 3")


def test_the_error_about_absent_pyarrow_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.ipc", None)
    with pytest.raises(OperatorError, match=r"not installed here: pip install 'thalweg\[records\]'$"):
        arrow()
