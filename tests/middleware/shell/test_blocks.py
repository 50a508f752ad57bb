"""Changes in the states of operators that only give whole states."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_ids import R

from benchmarks.tree import ALLOW, WORKLOAD
from thalweg.middleware.dataflow import Code, Node
from thalweg.middleware.errors import OperatorError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.shell.blocks import BLOCK_BYTES, LEAST_BYTES, SIGN, changed, digest_after, patched
from thalweg.middleware.shell.node_code import OwnCode, digest_of, take_or_give

SIZE = LEAST_BYTES + 100


def opened(state_bytes: int = SIZE) -> OwnCode:
    code = Code(f"{WORKLOAD}:Ballast", {"state_bytes": state_bytes})
    return OwnCode(Node("o", "operator", ("s",), code), ALLOW)


def taken(code: OwnCode, *, delta: bool, replica: bool = True) -> e.StateTaken:
    answer = take_or_give(lambda: code, e.TakeState(R, "o", 1, replica=replica, delta=delta))
    assert isinstance(answer, e.StateTaken)
    return answer


def make(code: OwnCode, index: int) -> bytes:
    return bytes(code.make(index, (np.zeros(9, np.uint8), np.ones(9, np.uint8))).value)


def restored(code: OwnCode, first: e.StateTaken, *others: e.StateTaken) -> str:
    deltas = tuple([e.Inherited(each.state, each.digest, 1) for each in others])
    answer = take_or_give(lambda: code, e.RestoreState(R, "o", 1, first.state, first.digest, 1, deltas))
    assert isinstance(answer, e.StateRestored)
    return answer.error


@given(st.integers(), st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 9)), min_size=1, max_size=5))
def test_a_chain_of_changes_leads_to_the_latest_state(seed: int, steps: list[tuple[int, int]]) -> None:
    """Any bytes change, and the state grows or shrinks."""
    dice = Random(seed)
    now = first = dice.randbytes(SIZE)
    digest, chain = digest_of(first), list[e.Inherited]()
    for grows, places in steps:
        before, size = now, max(LEAST_BYTES, len(now) + grows * dice.randrange(BLOCK_BYTES))
        edited = bytearray((now + dice.randbytes(3 * BLOCK_BYTES))[:size])
        for _ in range(places):
            edited[dice.randrange(size)] ^= 255
        now = bytes(edited)
        delta = changed(before, now)
        if delta is None:
            assert places > 5 or size > len(before) + BLOCK_BYTES
            return
        assert len(delta) <= len(now) // 2 + 200
        digest = digest_after(delta, digest)
        chain.append(e.Inherited(delta, digest, 1))
        assert patched(first, digest_of(first), chain) == now


@pytest.mark.parametrize("size", [0, 1, LEAST_BYTES - 1])
def test_small_states_are_sent_whole(size: int) -> None:
    assert changed(bytes(size), bytes(size)) is None


def test_a_mostly_changed_state_is_sent_whole() -> None:
    assert changed(bytes(SIZE), b"x" * SIZE) is None


def test_an_operator_that_is_restored_from_changes_goes_on_like_the_original() -> None:
    code = opened()
    first = taken(code, delta=True)
    assert (len(first.state), first.delta is True) == (SIZE, False)
    others = []
    for index in range(5):
        make(code, index)
        others.append(taken(code, delta=True))
    assert all(each.delta is True and len(each.state) < 2 * BLOCK_BYTES for each in others)
    there = opened()
    assert restored(there, first, *others) == ""
    assert [make(there, index) for index in range(5, 9)] == [make(code, index) for index in range(5, 9)]


def test_the_next_replica_after_a_hand_over_or_a_restoration_is_whole() -> None:
    code = opened()
    first = taken(code, delta=True)
    taken(code, delta=False, replica=False)  # after which it stayed
    assert taken(code, delta=True).delta is not True
    assert restored(code, first) == ""
    assert taken(code, delta=True).delta is not True


def test_a_change_of_a_different_state_is_refused() -> None:
    """The states of two hosts after the same partition may be equal in meaning and have different bytes."""
    one, other = opened(), opened(SIZE + 1)
    firsts = taken(one, delta=False), taken(other, delta=False)
    make(one, 0)
    change = taken(one, delta=True)
    assert restored(opened(), firsts[0], change) == ""
    assert "are not of the state that came" in restored(opened(SIZE + 1), firsts[1], change)
    make(one, 1)
    assert "are not of the state that came" in restored(opened(), firsts[0], taken(one, delta=True))


@pytest.mark.parametrize("delta", [b"", b"x" * 16, (99).to_bytes(8, "little") * 3, b"\xff" * 64, bytes(16)])
def test_an_invalid_change_is_refused_with_an_error(delta: bytes) -> None:
    code, state = opened(), bytes(SIZE)
    first = e.StateTaken(R, "o", 1, state, digest_of(state), 1)
    assert restored(code, first, e.StateTaken(R, "o", 1, delta, digest_after(delta, first.digest), 1))
    assert restored(code, first, e.StateTaken(R, "o", 1, delta, f"{SIGN}?", 1))
    with pytest.raises(OperatorError):
        patched(state, first.digest, [e.Inherited(delta, digest_of(delta), 1)])
