"""Runs and timers as tests write them: ``R`` is run r, ``run_of("r/3~2")`` generation 2 of its stripe 3."""

from __future__ import annotations

from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.run_id import GENERATION_SIGN, NO_RUN, STRIPE_SIGN, TREES, RunId

R = RunId("r")


def run_of(text: str) -> RunId:
    """The id that is shown as that."""
    first, _, generation = text.partition(GENERATION_SIGN)
    stream, sign, number = first.partition(STRIPE_SIGN)
    return RunId(stream, int(number or TREES) if sign else None, int(generation or 0))


def timer_of(text: str) -> e.TimerKey:
    """The key of a timer, of the run if there is one, and of what in the run: ``ping r``."""
    timer, *rest = text.split(" ")
    run, what = (*rest, "", "")[:2]
    return e.TimerKey(timer, run_of(run) if run else NO_RUN, what)


def fired(text: str) -> e.TimerFired:
    """That timer is due."""
    return e.TimerFired(timer_of(text))


def alarm(text: str, at_s: float) -> e.SetTimer:
    """That timer is set for that time."""
    return e.SetTimer(timer_of(text), at_s)
