"""Trial of one problem of Cardellini et al. (2016), section 7.3: time to solve, and cost of sampling candidates.

Operators and hosts are alike (Table 2), and nothing is pinned. Execution takes R_i = 1 s per operator everywhere, so
two placements differ only in network delays. Both R and the network delay are recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import ClassVar

import numpy as np

from thalweg.experiments.papers.cardellini2016.instances import fat, sequential, table_2
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.planning.odp.instance import OdpInstance, sampled
from thalweg.middleware.planning.odp.objective import Goal, only
from thalweg.middleware.planning.odp.solve import OdpLimits, solve
from thalweg.middleware.planning.odp.solved import Solved

SHAPES: Mapping[str, Callable[[int], tuple[int, ...]]] = {"sequential": sequential, "fat": fat}


class Solving(Trial, frozen=True, kw_only=True):
    """Draw of delays, the application's shape, sizes, and the share of hosts that an operator may be on."""

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.papers.cardellini2016.solving.solving:solve_one"

    shape: str = "sequential"
    operators: int = 20
    hosts: int = 20
    capacity: int = 4
    share: float = 1.0
    time_limit_s: float = 20.0


class Answered(Outcome, frozen=True, kw_only=True):
    """Wall-clock seconds, R, and network delay of the longest path, with the sample and (``full``) with all candidates.

    ``proven``: the placement is the best. ``gap``: how far the bound is below R, as a share of the network delay.
    """

    solve_s: float | None = None
    full_s: float | None = None
    proven: bool = False
    gap: float | None = None
    network_s: float | None = None
    response_s: float | None = None
    full_network_s: float | None = None
    full_response_s: float | None = None
    way: str = ""


Solving.outcome = Answered


def solve_one(trial: Solving) -> Answered:
    """Run one trial. Raise UsageError for an unknown shape."""
    if trial.shape not in SHAPES:
        raise UsageError(f"{trial.shape!r} is no shape of this study; {nearest(trial.shape, SHAPES)}")
    random = np.random.default_rng((trial.pool_seed, trial.configuration))
    full = table_2(random, SHAPES[trial.shape](trial.operators), trial.hosts, trial.capacity)
    effort = OdpLimits(time_limit_s=trial.time_limit_s)
    _load(trial.shape)
    whole, full_s = _timed(full, effort)
    answer, solve_s = whole, full_s
    if trial.share < 1:
        answer, solve_s = _timed(sampled(full, trial.share, random), effort)
    took_s = float(full.responses_s(np.zeros((1, full.count), dtype=np.intp))[0])
    network_s = answer.cost - took_s
    return Answered(
        solve_s=solve_s,
        full_s=full_s,
        proven=answer.proven,
        gap=0.0 if answer.proven else (answer.cost - answer.bound) / network_s,
        network_s=network_s,
        response_s=answer.cost,
        full_network_s=whole.cost - took_s,
        full_response_s=whole.cost,
        way=answer.way,
    )


@cache
def _load(shape: str) -> None:
    """Solve a small problem once per process, as loading takes longer than the first solution."""
    small = table_2(np.random.default_rng(0), SHAPES[shape](6), 4, 2)
    _timed(small, OdpLimits())
    _timed(sampled(small, 0.75, np.random.default_rng(0)), OdpLimits(structure=False))


def _timed(instance: OdpInstance, effort: OdpLimits) -> tuple[Solved, float]:
    begun = time.perf_counter()
    return solve(Goal(instance, only("response", ties=False)), effort), time.perf_counter() - begun
