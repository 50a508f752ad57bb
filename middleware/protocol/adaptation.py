"""Options of steering: how operators move while data flows, and when a move is worth its cost.

With ``global`` the client plans from time to time and changes the placement at a barrier. With ``local`` each
operator's host decides for the operator at the end of an epoch. With ``space`` the host asks the client for a move, by
coordinates. Times are seconds of the emulated network.

Sources: Ranganathan, Acharya, Saltz (1998), sections 2.2 (global), 2.3 (local), 4 (a period of ten minutes), 5 (up to
six random candidates, periods of one minute to an hour). The critical-path gate and the hysteresis as options are our
refinements.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from thalweg.middleware.errors import UsageError

MIN_PERIOD_S = 0.001  # with a shorter period a host would be busy with decisions alone
PAPER_PERIOD_S = 600.0  # "the on-line placement algorithms were run once every 10 minutes" (section 4)
Need = Literal["latency", "hosts", "work", "coordinates"]  # measurements for planners, besides bandwidth
NEEDS: tuple[Need, ...] = get_args(Need)
LocalCost = Literal["critical-path", "serialised-critical-path", "period", "expected-period"]


class GlobalMoves(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="global"):
    """Moves by the client, which replans every ``period_s`` seconds and changes the placement at a barrier.

    Planning starts from the present placement.

    - ``hysteresis``, ``gain``: see ``worth_moving``. With 0 every better plan is adopted.
    - ``horizon_s``: the planner gets forecasts of links for the next ``horizon_s`` seconds, from all measurements of
      the run (``network.outlook``). None: the planner gets the estimates that are not too old, and the horizon is the
      period.
    - ``looks``: largest number of replannings. Not limited if unset.

    A change of the tree is judged over at least 20 partitions of the present tree. It also has to repay one partition
    of the present tree (``REFILL``). Raises UsageError for times that are not finite and above 0, a hysteresis below 0,
    a gain outside [0, 1), or ``looks`` below 1.
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
    """Moves by each operator's own host, which decides every ``period_s`` seconds (``steering.by_epochs``).

    - ``k``: number of random hosts that are candidates, besides the operator's host and the hosts of its neighbours.
    - ``seed``: seed of the random choice.
    - ``gate``: only operators on the critical path may move, as in the paper. If False, every operator may move.
    - ``hysteresis``: see ``worth_moving``. With 0 every better host is adopted.
    - ``cost``: cost by which candidates are compared. ``critical-path``: longest path from a producer through the
      operator to its consumer, as in the paper. ``serialised-critical-path``: the same with the inputs one after the
      other. ``period``: the largest single load. ``expected-period``: the 4-norm of the loads.
    - ``startup_s``: start-up cost of a message between two hosts.

    Raises UsageError for a value out of its range.
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
    """Moves by coordinates: every ``period_s`` seconds each host checks its operators (``steering.by_coordinates``).

    - ``displacement_s``: distance that starts a search for a host. An operator's best position is the point of rest
      between its neighbours. If the position is farther than this from the position at the last search, a search
      starts.
    - ``saving``: an operator moves if the move saves more than this share of its network usage.
    - ``load_s``: a host with load 1 counts as this many seconds farther from every host.

    Source: Pietzuch et al. (2006), section 3.2. Raises UsageError for a value out of its range.
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
ByHosts = LocalMoves | SpaceMoves  # decisions by each operator's host


def migration_s(state_bytes: float, rate_bps: float) -> float:
    """Return the seconds that a move costs: the transfer of ``state_bytes`` over a link of ``rate_bps``.

    If there is a state and the link is unusable (a rate of 0), the cost is infinite. On a single host (an infinite
    rate) the transfer takes no time.
    """
    if state_bytes <= 0:
        return 0.0
    return state_bytes * 8 / rate_bps if rate_bps > 0 else math.inf


def worth_moving(
    current_s: float, better_s: float, horizon_s: float, migration_s: float, hysteresis: float, gain: float = 0.0
) -> bool:
    """Return whether to change from a placement with cost ``current_s`` a partition to one with cost ``better_s``.

    The new placement must save more than the share ``gain`` of the present cost. If ``hysteresis`` is above 0, the
    seconds saved over one horizon must also exceed ``hysteresis × migration_s``, the cost of the moves themselves. A
    horizon is the time until the next decision, with ``horizon_s / better_s`` partitions. A hysteresis of 1 requires
    that the moves pay for themselves, 2 that they do so twice.
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
