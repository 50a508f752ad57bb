"""Silent hosts are detected in three seconds if answers come regularly, and never while answers are only late."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
import pytest
from playbook import ANY, Playbook, got
from run_ids import R, fired

from thalweg.middleware.core.measuring.response_times import ResponseTimes
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig

DAY_S = 86_400.0


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_a_day_of_answers_that_vary_raises_no_alarm(seed: int) -> None:
    """Round trips are drawn every ten seconds, from 10 ms to some seconds, with noise on each."""
    dice, answers, now, level_s = Random(seed), ResponseTimes(), 0.0, 0.05
    worst_s = 0.0
    while now < DAY_S:
        if int(now) % 10 == 0:
            level_s = min(2.0, max(0.01, level_s * dice.lognormvariate(0.0, 0.4)))
        took_s = level_s * dice.lognormvariate(0.0, 0.3)
        silent_s = 1.0 + took_s  # from one sign of life to the next
        worst_s = max(worst_s, silent_s)
        assert silent_s <= answers.silence_s(1.0, 3.0, 15.0), (now, silent_s)
        answers.pinged(now)
        answers.came(now + took_s)
        now += 1.0
    assert worst_s > 3.0, "a fixed limit would have raised one"


def test_regular_answers_lead_to_a_silence_limit_of_three_seconds() -> None:
    answers = ResponseTimes()
    assert answers.silence_s(1.0, 3.0, 15.0) == 15.0, "as long as none has come"
    for second in range(100):
        answers.pinged(float(second))
        answers.pinged(second + 0.5)  # which is not when it was asked first
        answers.came(second + 0.6)
        answers.came(second + 0.7)
    assert answers.silence_s(1.0, 3.0, 15.0) == 3.0
    assert answers.silence_s(1.0, 0.5, 15.0) == pytest.approx(1.6)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_busy_machine_leads_to_a_silence_limit_of_at_most_five_seconds(seed: int) -> None:
    """Answers take 1 ms, and sometimes a third of a second, as on a machine whose processors are busy."""
    dice, answers, longest_s = Random(seed), ResponseTimes(), 0.0
    for second in range(3600):
        answers.pinged(float(second))
        answers.came(second + (dice.uniform(0.05, 0.35) if dice.random() < 0.15 else dice.uniform(0.001, 0.02)))
        if second > 100:
            longest_s = max(longest_s, answers.silence_s(1.0, 3.0, 15.0))
    assert longest_s <= 5.0


@pytest.fixture
def client(make_book: Callable[..., Playbook], make_install: Callable[..., m.Install]) -> Playbook:
    """The client of a run with failover, whose hosts answer every ping until second 60."""
    book = make_book("client", CoreConfig())
    install = msgspec.structs.replace(make_install(others=("h3",)), failover=m.Failover())
    book << e.RunRequested(install) >> ANY
    for name in ("h1", "h2", "h3"):
        book << got(name, m.Installed(R, name)) >> ANY
    for second in range(2, 61):
        book.at(float(second)) << fired("ping r") >> ANY
        for name in ("h1", "h2", "h3"):
            book << got(name, m.Pong(R)) >> ANY
    return book


def lost(book: Playbook) -> set[str]:
    return {record.fields["peer"] for record in book.only(e.Record) if record.kind == "fault"}


def test_a_silent_host_is_lost_after_three_seconds(client: Playbook) -> None:
    for second in range(61, 64):
        client.at(float(second)) << fired("ping r") >> ANY
        assert not lost(client)
        for name in ("h1", "h2"):
            client << got(name, m.Pong(R)) >> ANY
    client.at(64.0) << fired("ping r") >> ANY
    assert lost(client) == {"h3"}


def test_no_host_is_lost_after_a_stop_of_the_client(client: Playbook) -> None:
    client.at(400.0) << fired("ping r") >> ANY
    assert not lost(client)
    for second in range(401, 405):
        for name in ("h1", "h2", "h3"):
            client << got(name, m.Pong(R)) >> ANY
        client.at(float(second)) << fired("ping r") >> ANY
        assert not lost(client)


def test_a_run_without_failover_gives_silent_hosts_fifteen_seconds(
    make_book: Callable[..., Playbook], make_install: Callable[..., m.Install]
) -> None:
    book = make_book("client", msgspec.structs.replace(CoreConfig(), ping_s=1.0))
    book << e.RunRequested(make_install()) >> ANY
    for name in ("h1", "h2"):
        book << got(name, m.Installed(R, name)) >> ANY
    for second in range(1, 16):
        book.at(float(second)) << fired("ping r") >> ANY
        assert not book.only(e.Fail)
    book.at(16.0) << fired("ping r") >> ANY
    assert "has been silent for 15 s" in book.only(e.Fail)[0].reason
