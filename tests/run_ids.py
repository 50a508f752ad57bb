"""Ids of runs and keys of timers from short texts. ``R`` is run r, ``run_of("r/3~2")`` generation 2 of stripe 3."""

from __future__ import annotations

from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.run_id import GENERATION_SIGN, NO_RUN, STRIPE_SIGN, TREES, RunId

R = RunId("r")


def run_of(text: str) -> RunId:
    """Return the id of a run from its text in logs, such as ``r/3~2``."""
    first, _, generation = text.partition(GENERATION_SIGN)
    stream, sign, number = first.partition(STRIPE_SIGN)
    return RunId(stream, int(number or TREES) if sign else None, int(generation or 0))


def timer_of(text: str) -> e.TimerKey:
    """Return the key of a timer from its name, run and node, such as ``epoch r o``. Run and node may be absent."""
    timer, *rest = text.split(" ")
    run, subject = (*rest, "", "")[:2]
    return e.TimerKey(timer, run_of(run) if run else NO_RUN, subject)


def fired(text: str) -> e.TimerFired:
    """Return the event of a timer that is due."""
    return e.TimerFired(timer_of(text))


def alarm(text: str, at_s: float) -> e.SetTimer:
    """Return the command that sets a timer to a time."""
    return e.SetTimer(timer_of(text), at_s)
