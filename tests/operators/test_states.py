"""Encoding of states: a round trip is exact, and bytes that are no state are refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from thalweg.middleware.errors import OperatorError
from thalweg.operators.states import is_numeric, pack, unpack

PARAMS = {"rule": "max", "key_band": None, "window": 4}
DTYPES = st.sampled_from(["u1", "i1", "<u2", "<i4", "<u8", "<f2", "<f4", "<f8"])
ARRAYS = DTYPES.flatmap(lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)))


def opened(state):
    return unpack(state, "it", 1, PARAMS, ["n"])


def forged(body=b"", **changes):
    """Return a state with a forged header, and ``body`` behind the header."""
    header = {"operator": "it", "version": 1, "params": dict(sorted(PARAMS.items())), "counts": {"n": 2}, "arrays": []}
    raw = msgspec.msgpack.encode(header | changes)
    return b"TWS1" + len(raw).to_bytes(4, "little") + raw + body


@given(st.lists(ARRAYS, max_size=4), st.integers(0, 2**40))
def test_a_round_trip_is_exact_and_copies_the_arrays(some, count):
    state = pack("it", 1, PARAMS, {"n": count}, some)
    assert pack("it", 1, dict(reversed(PARAMS.items())), {"n": count}, some) == state
    counts, back = opened(state)
    assert counts == {"n": count}
    assert len(back) == len(some)
    for array, copy in zip(some, back, strict=True):
        assert (copy.dtype, copy.shape, copy.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert copy.flags.writeable
        assert copy.flags.c_contiguous


@given(st.lists(ARRAYS, max_size=3), st.data())
def test_cut_or_extended_states_are_refused_and_an_accepted_state_is_canonical(some, data):
    state = pack("it", 1, PARAMS, {"n": 1}, some)
    with pytest.raises(OperatorError, match=r"^it: ") as caught:
        opened(state[: data.draw(st.integers(0, len(state) - 1))])
    assert "\n" not in str(caught.value)
    with pytest.raises(OperatorError, match=r"^it: .*bytes"):
        opened(state + data.draw(st.binary(min_size=1, max_size=9)))
    place = data.draw(st.integers(0, len(state) - 1))
    damaged = bytearray(state)
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        counts, back = opened(bytes(damaged))
    except OperatorError:
        pass
    else:
        assert pack("it", 1, PARAMS, counts, back) == damaged


@given(st.binary(max_size=64))
def test_noise_is_refused(noise):
    for state in (noise, b"TWS1" + noise, b"TWS1" + len(noise).to_bytes(4, "little") + noise):
        with pytest.raises(OperatorError, match=r"^it: "):
            opened(state)


def test_a_forged_state_without_changes_is_valid():
    assert forged() == pack("it", 1, PARAMS, {"n": 2}, [])
    assert opened(forged(b"\1\2", arrays=[{"dtype": "|u1", "shape": [2]}]))[1][0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (b"", "0 bytes are no state"),
        (b"\x80\x04K\x01.", "no state"),
        (b"TWS1\xff\xff\xff\xff", "cut off: it has 8 bytes, and its header ends at 4294967303"),
        (forged(operator="other"), "belongs to operator 'other'"),
        (forged(version=2), "of version 2; this is version 1"),
        (forged(params={"key_band": None, "rule": "min", "window": 4}), "other params: rule='min', here 'max'"),
        (forged(params={"rule": "max", "window": 4, "x": 1}), "header is not|other params: x=1, here None"),
        (forged(counts={"m": 2}), r"counts \['m'\], not \['n'\]"),
        (forged(counts={"n": -1}), "header cannot be read"),
        (forged(more=1), "header cannot be read.*more"),
        (forged(arrays=[{"dtype": "|u1", "shape": [2]}]), "take 2 bytes, but 0 follow"),
        (forged(b"123", arrays=[{"dtype": "<u2", "shape": [1]}]), "take 2 bytes, but 3 follow"),
        (forged(arrays=[{"dtype": "<f8", "shape": [2**40, 2**40]}]), "arrays take"),
        (forged(arrays=[{"dtype": "|u1", "shape": [2**62, 0, 2**62]}]), "no array has the state's shape"),
        (forged(b"1", arrays=[{"dtype": "|u1", "shape": [1] * 99}]), "no array has the state's shape"),
        (forged(arrays=[{"dtype": "|u1", "shape": [-1]}]), "header cannot be read"),
        (forged(arrays=[{"dtype": "|O8", "shape": [0]}]), "dtype '|O8', not of plain numbers"),
        (forged(arrays=[{"dtype": ">u2", "shape": [0]}]), "not of plain numbers"),
        (forged(arrays=[{"dtype": "|u1\n", "shape": [0]}]), "not of plain numbers"),
        (forged(arrays=[{"dtype": "u1,u1", "shape": [0]}]), "not of plain numbers"),
    ],
)
def test_invalid_states_are_refused_in_one_line(state, text):
    with pytest.raises(OperatorError, match=text) as caught:
        opened(state)
    assert str(caught.value).startswith("it: ")
    assert "\n" not in str(caught.value)


def test_a_header_in_a_different_order_is_refused():
    raw = msgspec.msgpack.encode(
        {"version": 1, "operator": "it", "params": dict(sorted(PARAMS.items())), "counts": {"n": 2}, "arrays": []}
    )
    with pytest.raises(OperatorError, match="header is not as this operator writes it"):
        opened(b"TWS1" + len(raw).to_bytes(4, "little") + raw)


def test_only_native_integers_and_floats_of_at_most_8_bytes_are_numeric():
    assert is_numeric(np.zeros(2, np.float16))
    assert is_numeric(np.zeros((), np.int64))
    for other in (np.zeros(2, np.bool_), np.zeros(2, ">u2"), np.zeros(2, np.longdouble), np.zeros(2, complex), b"12"):
        assert not is_numeric(other)
