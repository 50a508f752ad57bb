"""How operators move while the data flows: the options of every way, and when a move is worth its cost.

Ways: ``global`` (the client plans now and then and changes over at a barrier), ``local`` (every operator's host
decides for it at the end of an epoch) and ``space`` (its host asks the client for a move, by coordinates). Times are
seconds of the emulated network.

Sources: Ranganathan, Acharya, Saltz (1998), sections 2.2 (global), 2.3 (local), 4 (a period of ten minutes), 5 (up
to six random candidates, periods of one minute to an hour); the critical-path gate and the hysteresis as options
are refinements of ours.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from thalweg.middleware.errors import UsageError

MIN_PERIOD_S = 0.001  # below it a host would do nothing but decide
PAPER_PERIOD_S = 600.0  # "the on-line placement algorithms were run once every 10 minutes" (section 4)
Need = Literal["latency", "hosts", "work", "coordinates"]  # what planners may ask hosts to measure, besides bandwidth
NEEDS: tuple[Need, ...] = get_args(Need)
LocalCost = Literal["critical-path", "serialised-critical-path", "period", "expected-period"]


class GlobalMoves(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="global"):
    """The client plans anew every ``period_s`` seconds, from the placement there is, and changes over at a barrier.

    ``hysteresis``, ``gain``: see ``worth_moving``; 0 takes every plan that is better. ``horizon_s``: the planner
    is told what links will be like in the next so many seconds, from all that was measured while the run went on
    (``network.outlook``); None tells it the estimates that have not timed out, and the horizon is the period. Another
    tree is judged by 20 of the present one's partitions at least, and must repay one of them (``REFILL``). ``looks``:
    it plans so often at most, if it is set. Raises UsageError for times that are not above 0 and
    finite, a hysteresis below 0, a gain that is no part of 1, or looks below 1.
    """

    period_s: float = PAPER_PERIOD_S
    hysteresis: float = 0.0
    gain: float = 0.0
    horizon_s: float | None = None
    looks: int | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        _check_times(self.period_s, self.hysteresis)
        if not 0 <= self.gain < 1:
            raise UsageError(f"gain is {self.gain}; it must be at least 0 and below 1")
        if self.horizon_s is not None and not (math.isfinite(self.horizon_s) and self.horizon_s >= MIN_PERIOD_S):
            raise UsageError(f"horizon_s is {self.horizon_s}; it must be at least {MIN_PERIOD_S:g} seconds and finite")
        if self.looks is not msgspec.UNSET and self.looks < 1:
            raise UsageError(f"looks is {self.looks}; it must be at least 1")


class LocalMoves(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="local"):
    """Every operator's host decides once every ``period_s`` seconds where the operator should be
    (``steering.by_epochs``).

    - ``k``: so many hosts at random are candidates besides the operator's own and its neighbours'; ``seed`` draws them
    - ``gate``: only operators on the critical path move (the paper's rule); off, every operator may
    - ``hysteresis``: see ``worth_moving``; 0 takes every host that is better
    - ``cost``: what a candidate is judged by. ``critical-path``: longest way from a producer through the operator to
      its consumer (the paper's); ``serialised-critical-path``: the same with inputs one after the other; ``period``:
      the largest single load; ``expected-period``: the 4-norm of the loads
    - ``startup_s``: start-up cost of a message between two hosts

    Raises UsageError for a figure out of its range.
    """

    period_s: float = PAPER_PERIOD_S
    k: int = 0
    gate: bool = True
    hysteresis: float = 0.0
    seed: int = 0
    cost: LocalCost = "critical-path"
    startup_s: float = 0.0

    def __post_init__(self) -> None:
        _check_times(self.period_s, self.hysteresis)
        if not (math.isfinite(self.startup_s) and self.startup_s >= 0):
            raise UsageError(f"startup_s is {self.startup_s}; it must be finite and at least 0")
        if self.k < 0:
            raise UsageError(f"k is {self.k}; give how many random hosts are considered, at least 0")
        if self.cost not in get_args(LocalCost):
            raise UsageError(f"the local cost {self.cost!r} is unknown; known are {', '.join(get_args(LocalCost))}")


class SpaceMoves(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="space"):
    """Every host looks every ``period_s`` seconds at each operator that is there, by coordinates
    (``steering.by_coordinates``).

    - ``displacement_s``: a host for an operator is looked for when the place where it would be at rest between its
      neighbours is so far from where it was when one was looked for last
    - ``saving``: an operator moves where that saves so large a share of its usage
    - ``load_s``: so many seconds farther from all others is a host whose load is 1

    Source: Pietzuch et al. (2006), section 3.2. Raises UsageError for a figure out of its range.
    """

    period_s: float = 60.0
    displacement_s: float = 0.02
    saving: float = 0.2
    load_s: float = 0.0

    def __post_init__(self) -> None:
        _check_times(self.period_s, 0.0)
        for name in ("displacement_s", "load_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be finite and at least 0")
        if not 0 <= self.saving < 1:
            raise UsageError(f"saving is {self.saving}; it must be at least 0 and below 1")


Adaptation = GlobalMoves | LocalMoves | SpaceMoves
ByHosts = LocalMoves | SpaceMoves  # each operator's host decides


def migration_s(state_bytes: float, rate_bps: float) -> float:
    """Seconds that a move costs: ``state_bytes`` over a link of ``rate_bps``.

    Infinite over an unusable link (a rate of 0) where there is state to carry; over one's own host (an infinite
    rate) state takes no time.
    """
    if state_bytes <= 0:
        return 0.0
    return state_bytes * 8 / rate_bps if rate_bps > 0 else math.inf


def worth_moving(
    current_s: float, better_s: float, horizon_s: float, migration_s: float, hysteresis: float, gain: float = 0.0
) -> bool:
    """Whether to go from a placement that costs ``current_s`` a partition to one that costs ``better_s``.

    It must be better, by more than ``gain`` of what the present one costs. With ``hysteresis`` above 0, what is
    gained over one horizon (``horizon_s``, the time until the next decision: ``horizon_s / better_s`` partitions) must
    also exceed ``hysteresis × migration_s``, the seconds that the moves themselves cost: 1 asks that a move pays for
    itself, 2 that it does so twice.
    """
    if not better_s < current_s * (1 - gain):
        return False
    if hysteresis <= 0:
        return True
    partitions = horizon_s / better_s if better_s > 0 else math.inf
    return (current_s - better_s) * partitions > hysteresis * migration_s


def _check_times(period_s: float, hysteresis: float) -> None:
    if not (math.isfinite(period_s) and period_s >= MIN_PERIOD_S):
        raise UsageError(f"period_s is {period_s}; it must be at least {MIN_PERIOD_S:g} seconds and finite")
    if not (math.isfinite(hysteresis) and hysteresis >= 0):
        raise UsageError(f"hysteresis is {hysteresis}; it must be finite and at least 0 (0 turns it off)")
