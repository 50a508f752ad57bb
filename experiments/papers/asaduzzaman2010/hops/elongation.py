"""Trial of chains of public hops: how much longer a task takes, by the data that a hop may hold, in steps of 10 ms.

``lock-step``: nothing is held, and every hop runs at the rate of the slowest, never faster than the task's own.
``held``: seconds of data may wait before every hop but the first, and a hop sends waiting data at its own rate. A hop's
mean is the task's rate. Over time it is drawn as in the simulation (``drawn``), or follows a measured trace.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from thalweg.emulation.traces.files import ENVIRONMENT_VARIABLE
from thalweg.emulation.traces.pool import read_pool
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.experiments.papers.asaduzzaman2010.platforms import COMPONENTS, RATE_BPS, SIZE_BITS
from thalweg.experiments.papers.asaduzzaman2010.rates import MEAN, STEP_S
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.middleware.errors import UsageError

HOPS, HELD_S = COMPONENTS + 1, 1.0
OWN_S = SIZE_BITS / RATE_BPS
BLOCK = 4000  # steps that are drawn at once
LEAST = 1e-3  # least share of a trace's mean, in place of a rate of 0, so that chains end
Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int_]
Rates = Callable[[int], Floats]  # from a step on: (BLOCK steps, hops, chains), as shares of a hop's mean


class Chain(Trial, frozen=True, kw_only=True):
    """Several chains at once (``pool_seed``, ``configuration``). ``rates``: drawn, or the name of a folder of traces
    under ``bandwidth`` of the data sets. ``held_s``: seconds of data that a hop may hold.
    """

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.papers.asaduzzaman2010.hops.elongation:flow"

    model: Literal["lock-step", "held"] = "lock-step"
    rates: str = "drawn"
    held_s: float | None = None
    hops: int = HOPS
    chains: int = 20


class Flowed(Outcome, frozen=True, kw_only=True):
    """Result of a trial. ``times``: the mean time of a chain over the time at the task's own rate."""

    times: float | None = None


Chain.outcome = Flowed


@lru_cache(maxsize=4)
def _traces(name: str) -> list[BandwidthTrace]:
    folder = os.environ.get(ENVIRONMENT_VARIABLE)
    if folder is None:
        raise UsageError(f"{name} are measured traces; set {ENVIRONMENT_VARIABLE} to the folder with bandwidth/{name}")
    return [trace for trace in read_pool(Path(folder) / "bandwidth" / name, 0) if trace.mean_bps > 0]


def _drawn(random: np.random.Generator, shape: tuple[int, int]) -> Rates:
    return lambda first: np.exp2(random.standard_normal((BLOCK, *shape))) / MEAN


def _measured(name: str, random: np.random.Generator, shape: tuple[int, int]) -> Rates:
    """Return rates with a trace for every hop of every chain, from a random moment on."""
    pool = _traces(name)
    picked = [
        [(pool[int(random.integers(len(pool)))], random.random()) for _ in range(shape[1])] for _ in range(shape[0])
    ]

    def rates(first: int) -> Floats:
        at_s = np.arange(first, first + BLOCK) * STEP_S
        shares = np.empty((BLOCK, *shape))
        for hop, row in enumerate(picked):
            for chain, (trace, share) in enumerate(row):
                shifted = (at_s + share * trace.duration_s) % trace.duration_s
                number = np.searchsorted(trace.times_s, shifted, "right") - 1
                shares[:, hop, chain] = np.maximum(trace.rates_bps[number] / trace.mean_bps, LEAST)
        return shares

    return rates


def _lock_step(rates: Rates, chains: int) -> Steps:
    """Return the steps that each chain takes if nothing is held."""
    done, ended, steps = np.zeros(chains), np.zeros(chains, int), 0
    while not ended.all():
        run = np.cumsum(np.minimum(rates(steps).min(axis=1), 1.0) * STEP_S, axis=0) + done
        over = run >= OWN_S
        for chain in np.flatnonzero(over.any(axis=0) & (ended == 0)):
            ended[chain] = steps + int(over[:, chain].argmax()) + 1
        done = run[-1]
        steps += BLOCK
    return ended


def _held(rates: Rates, shape: tuple[int, int], room: float) -> Steps:
    """Return the steps that each chain takes if ``room`` seconds of data may wait before every hop but the first."""
    held = np.zeros(shape)  # of the first hop: the data that has left the source
    done, ended, steps = np.zeros(shape[1]), np.zeros(shape[1], int), 0
    while not ended.all():
        for can in rates(steps) * STEP_S:
            steps += 1
            can[0] = np.minimum(can[0], OWN_S - held[0])
            can[1:] = np.minimum(can[1:], held[1:])
            can[:-1] = np.minimum(can[:-1], room - held[1:])
            held[0] += can[0]
            held[1:] += can[:-1] - can[1:]
            done += can[-1]
            ended[(ended == 0) & (done >= OWN_S - 1e-9)] = steps
    return ended


def flow(trial: Chain) -> Flowed:
    """Run one trial. Raise UsageError if traces are missing."""
    random = np.random.default_rng((trial.pool_seed, trial.configuration))
    shape = trial.hops, trial.chains
    rates = _drawn(random, shape) if trial.rates == "drawn" else _measured(trial.rates, random, shape)
    room = HELD_S if trial.held_s is None else trial.held_s
    holds = trial.model == "held" and room > 0
    ended = _held(rates, shape, room) if holds else _lock_step(rates, trial.chains)
    return Flowed(times=float(ended.mean()) * STEP_S / OWN_S)
