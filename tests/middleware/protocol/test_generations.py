"""Generations of a run: all hosts agree on their order, and those of two processes are never equal."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.generations import (
    LIMIT,
    PROCESSES,
    base_of,
    begun_anew,
    following,
    generation_of,
    leader_of,
    taken_over,
)

processes = st.integers(1, PROCESSES - 1)


def later(run: str, times: int) -> str:
    """The generation after so many losses of hosts."""
    for _ in range(times):
        run = following(run)
    return run


@given(processes, processes, st.integers(0, 200), st.integers(0, 200))
def test_two_processes_that_go_on_with_one_run_never_have_the_same_generation(
    one: int, other: int, losses: int, others: int
) -> None:
    """Who leads stays the leader, however often the other begins anew."""
    first, second = later(taken_over("r~7", one), losses), later(taken_over("r~7", other), others)
    if one != other:
        assert generation_of(first) != generation_of(second)
        assert (generation_of(first) < generation_of(second)) == (one < other)
        assert leader_of(generation_of(first)) != leader_of(generation_of(second))


@given(st.lists(processes, min_size=1, max_size=20), st.integers(0, 5_000))
def test_who_takes_over_is_later_than_all_before(chain: list[int], losses: int) -> None:
    run, before = "r", -1
    for process in chain:
        run = taken_over(run, process)
        for name in (run, later(run, 3), f"r~{generation_of(run) + losses}"):
            assert before < generation_of(name) < LIMIT
            assert base_of(name) == "r"
        before, run = generation_of(run) + losses, name


def test_generations_of_who_began_the_run_count_from_zero() -> None:
    assert [generation_of(name) for name in ("r", "r~1", "r~64")] == [0, 1, 64]
    assert following("r~1") == "r~2"
    assert begun_anew(later(taken_over("r~9", 5), 3)) == 3
    assert [generation_of(f"r~{odd}") for odd in ("x", "-1", "²", "9" * 40, str(LIMIT))] == [0] * 5


@pytest.mark.parametrize("generation", [0, 1, LIMIT - 1])
def test_messages_carry_every_generation(generation: int) -> None:
    for message in (m.Failed("r", "", "why", led=generation), m.HistoryGap("n", 1, generation, generation)):
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))
        assert again == message
