"""Requests for states that have not come."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playbook import ANY, Playbook, got
from run_ids import R

from thalweg.middleware.core.context.outbox import Timer
from thalweg.middleware.core.states.awaited_states import AwaitedStates
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


class Waiting:
    """Host h2 of a run, which has operator ``o``, and the states that it waits for."""

    def __init__(self, book: Playbook) -> None:
        run = book.core.runs[R]
        self.out, self.limits, self.awaited = run.out, run.context.limits, run.parts.get(AwaitedStates)

    def commands(self) -> list[e.Command]:
        commands = list(self.out.context.commands)
        self.out.context.commands.clear()
        return commands

    def requests(self) -> list[tuple[str, m.StateRequest]]:
        sends = [command for command in self.commands() if isinstance(command, e.Send)]
        return [(send.to, send.message) for send in sends if isinstance(send.message, m.StateRequest)]

    def wakes_s(self) -> list[float]:
        """Return the times of the timers for missing states, from now."""
        timers = [command for command in self.commands() if isinstance(command, e.SetTimer)]
        return [timer.at_s - self.out.now for timer in timers if timer.key.timer is Timer.STATES]

    def wait(self, seconds: float) -> list[tuple[str, m.StateRequest]]:
        """Let time pass, and return the requests."""
        self.out.context.now += seconds
        self.awaited.on_timer()
        return self.requests()


@pytest.fixture
def waiting(make_book: Callable[..., Playbook], install: m.Install) -> Waiting:
    book = make_book("h2")
    book << got("client", install) >> ANY
    return Waiting(book)


def test_a_missing_state_is_requested_with_back_off_until_the_state_arrives(waiting: Waiting) -> None:
    retry_s, most_s = waiting.limits.retry_s, waiting.limits.retry_max_s
    waiting.awaited.expect("p", "h3", "o")
    assert waiting.requests() == [], "its holder sends it on its own"
    interval_s, request = retry_s, ("h3", m.StateRequest(R, "p", "o"))
    for _ in range(8):
        assert waiting.wait(interval_s / 2) == []
        assert waiting.wait(interval_s / 2) == [request]
        interval_s = min(2 * interval_s, most_s)
    assert interval_s == most_s
    waiting.awaited.came("p", "o")
    assert waiting.wait(2 * most_s) == []


def test_a_replica_is_requested_at_once(waiting: Waiting) -> None:
    waiting.awaited.expect("o", "h3", at_once=True)
    assert waiting.requests() == [("h3", m.StateRequest(R, "o"))]
    assert waiting.wait(waiting.limits.retry_s) == [("h3", m.StateRequest(R, "o"))]


def test_the_host_wakes_up_for_the_state_that_is_due_first(waiting: Waiting) -> None:
    retry_s = waiting.limits.retry_s
    waiting.awaited.expect("p", "h3", "o")
    waiting.out.context.now += retry_s / 2
    waiting.awaited.expect("q", "h1", "o")
    assert waiting.wakes_s() == [retry_s / 2, retry_s / 2], "a state that is awaited later does not delay the first"
    assert waiting.wait(retry_s / 2) == [("h3", m.StateRequest(R, "p", "o"))]


def test_a_host_that_keeps_a_missing_state_is_waited_for(waiting: Waiting) -> None:
    assert waiting.awaited.waits_for("h3") is None
    waiting.awaited.expect("p", "h3", "o")
    waiting.awaited.expect("o", "h1")
    assert waiting.awaited.waits_for("h3") == ("o", "which holds 'p'")
    assert waiting.awaited.waits_for("h1") == ("o", "which keeps its replica")
    waiting.awaited.came("p", "o")
    assert waiting.awaited.waits_for("h3") is None and waiting.awaited.missing("o") is not None


def test_states_of_operators_that_have_left_are_requested_no_longer(waiting: Waiting) -> None:
    waiting.awaited.expect("p", "h3", "gone")
    waiting.awaited.expect("gone", "h3")
    assert waiting.wait(waiting.limits.retry_s) == []
    assert waiting.awaited.waits_for("h3") is None
