"""Ids of runs: their text, their streams, and the order of generations."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_ids import R, run_of

from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import LIMIT, NO_RUN, PROCESSES, RunId

processes = st.integers(1, PROCESSES - 1)


def later(run: RunId, times: int) -> RunId:
    """Return the generation after ``times`` losses of hosts."""
    for _ in range(times):
        run = run.next_generation
    return run


@pytest.mark.parametrize("text", ["r", "r~7", "r/0", "r/12~3", "r/"])
def test_an_id_is_shown_in_the_short_form_of_the_tests(text: str) -> None:
    assert str(run_of(text)) == text
    assert run_of(text)


def test_an_empty_run_id_is_false_and_invalid_ids_are_refused_in_messages() -> None:
    assert not NO_RUN and str(NO_RUN) == ""
    for run in (NO_RUN, R.trees, RunId("x" * 129), RunId("r", 1, LIMIT)):
        with pytest.raises((msgspec.ValidationError, OverflowError)):
            msgspec.msgpack.decode(msgspec.msgpack.encode(m.Remove(run)), type=m.Remove)


def test_the_id_of_a_stripe_names_the_stream() -> None:
    stripe = R.of_stripe(3).next_generation
    assert stripe == run_of("r/3~1") == RunId("r", 3, 1)
    assert (stripe.first_generation, stripe.stream_id, stripe.asked_as) == (run_of("r/3"), R, R)
    assert (R.next_generation.asked_as, R.next_generation.stream_id, R.first_generation) == (run_of("r~1"), R, R)
    assert len({R, R.trees, R.of_stripe(0), R.next_generation, RunId("r")}) == 4


@given(processes, processes, st.integers(0, 200), st.integers(0, 200))
def test_two_processes_that_resume_the_same_run_never_have_equal_generations(
    one: int, other: int, losses: int, others: int
) -> None:
    """The leader stays the leader, however often the other process restarts the run."""
    seventh = run_of("r~7")
    first, second = later(seventh.taken_over(one), losses), later(seventh.taken_over(other), others)
    if one != other:
        assert first.generation != second.generation
        assert (first.generation < second.generation) == (one < other)
        assert first.leader != second.leader


@given(st.lists(processes, min_size=1, max_size=20), st.integers(0, 5_000))
def test_a_process_that_takes_over_a_run_has_a_later_generation_than_all_before(chain: list[int], losses: int) -> None:
    run, before = R, -1
    for process in chain:
        run = run.taken_over(process)
        last = RunId("r", generation=run.generation + losses)
        for each in (run, later(run, 3), last):
            assert before < each.generation < LIMIT
            assert each.first_generation == R
        before, run = last.generation, last


def test_generations_of_the_process_that_began_a_run_count_from_zero() -> None:
    assert [run_of(name).generation for name in ("r", "r~1", "r~64")] == [0, 1, 64]
    assert run_of("r~1").next_generation == run_of("r~2")
    assert later(run_of("r~9").taken_over(5), 3).restarts == 3
    assert R.taken_over(5, term=7).term == 8


@pytest.mark.parametrize("generation", [0, 1, LIMIT - 1])
def test_messages_carry_every_generation(generation: int) -> None:
    for message in (
        m.Failed(RunId("r", 2, generation), "", "why", led=generation),
        m.HistoryGap("n", 1, generation, generation),
    ):
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))
        assert again == message
