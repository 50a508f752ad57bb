"""What a node's code returned as a value, and values on the wire."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from thalweg.middleware.errors import OperatorError, ProtocolError
from thalweg.middleware.protocol.messages import MAX_PARTITION_BYTES
from thalweg.middleware.shell.values import frames_of, returned_by, size_of, value_of

dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(min_len=1),
    st.sampled_from([np.dtype(name) for name in (">i4", "<f2", ">c16", "longdouble", "M8[25s]", ">m8[us]", "bool")]),
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))


def taken(value: Any) -> Any:
    """What becomes of it where code returns it."""
    return returned_by(lambda: value)


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
        ("text", "not str"),
        (3.5, "not float"),
        ([1, 2], "not list"),
    ],
)
def test_what_cannot_travel_is_refused(value: Any, says: str) -> None:
    with pytest.raises(OperatorError, match=says):
        taken(value)


def test_a_partition_over_the_limit_is_refused_before_it_is_copied() -> None:
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
def test_a_header_that_lies_is_a_protocol_error(dtype: str, shape: tuple[int, ...], body: bytes) -> None:
    with pytest.raises(ProtocolError):
        value_of(dtype, shape, memoryview(body))


@given(
    st.text(max_size=12) | st.from_regex(r"[<>|=]?[a-zA-Z]\d{0,3}(\[\d?\w{1,3}\])?", fullmatch=True),
    st.lists(st.integers(-(2**63), 2**64 - 1) | st.integers(0, 3), max_size=8).map(tuple),
    st.binary(max_size=24),
)
def test_any_header_gives_a_value_of_just_these_bytes_or_a_protocol_error(
    dtype: str, shape: tuple[int, ...], body: bytes
) -> None:
    try:
        value = value_of(dtype, shape, memoryview(body))
    except ProtocolError:
        return
    if isinstance(value, bytes):
        assert (dtype, value) == ("", body)
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
def test_what_nobody_else_can_write_is_not_copied(how: str) -> None:
    seen = []

    def produce() -> Any:
        array = MADE[how]()
        seen.append(address(array))
        return array

    assert address(returned_by(produce)) == seen[0]


def test_an_input_and_most_of_one_are_not_copied_and_a_small_part_does_not_keep_the_whole() -> None:
    given_ = taken(np.arange(1000.0))
    assert returned_by(lambda values: values[0], (given_,), inputs=(given_,)).base is given_.base
    most = returned_by(lambda values: values[0][100:], (given_,), inputs=(given_,))
    assert address(most) == address(given_) + 800
    part = returned_by(lambda values: values[0][:10], (given_,), inputs=(given_,))
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

    value = returned_by(produce)
    with pytest.raises(ValueError, match="read-only"):
        found[0]()[0] = 2
    assert value[0] == 1
