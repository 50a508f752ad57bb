"""The state tables of a recovery: at the client of a run, and at a host."""

from __future__ import annotations

import pytest
from run_ids import run_of

from thalweg.middleware.core.context.machine import InvalidTransition
from thalweg.middleware.core.failover.generation_states import (
    GENERATION,
    RENEWAL,
    GenerationState,
    RecoveryEvent,
    RecoveryPhase,
    RunGeneration,
    generation_state,
)


@pytest.mark.parametrize("events", [("started", "delivered"), ("delivered", "delivered", "started"), ("closed",)])
def test_a_generation_is_whole_once_started_and_delivered_or_once_closed(events: tuple[str, ...]) -> None:
    renewal = RunGeneration(run_of("r~1"))
    renewal.to(RecoveryEvent.LOST)
    for event in events:
        assert renewal.state is not RecoveryPhase.WHOLE
        renewal.to(RecoveryEvent(event))
    assert renewal.state is RecoveryPhase.WHOLE


def test_a_generation_loses_hosts_once() -> None:
    renewal = RunGeneration(run_of("r~1"))
    renewal.to(RecoveryEvent.LOST)
    with pytest.raises(InvalidTransition, match="run r~1 is decided: lost"):
        renewal.to(RecoveryEvent.LOST)


@pytest.mark.parametrize(
    ("here", "asked", "late", "then"),
    [
        (None, 0, False, GenerationState.HAS),
        (None, 3, False, GenerationState.HAS),
        (None, 3, True, GenerationState.OVER),
        (3, 3, False, GenerationState.HAS),
        (3, 4, False, GenerationState.HAS),
        (3, 2, False, GenerationState.FENCED),
        (3, 2, True, GenerationState.OVER),
    ],
)
def test_the_state_of_a_generation_follows_from_the_local_and_the_requested_number(
    here: int | None, asked: int, late: bool, then: GenerationState
) -> None:
    assert generation_state(here, asked, late=late) is then


def test_the_tables_reach_every_state() -> None:
    assert {*RENEWAL.values()} == {*RecoveryPhase}
    assert {*GENERATION.values()} | {GenerationState.NONE} == {*GenerationState}
