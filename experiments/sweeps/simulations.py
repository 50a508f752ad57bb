"""Sweeps of simulations: placements with their parameters, on networks drawn from pools of traces."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from thalweg.experiments.records.analysis import BASELINE
from thalweg.experiments.runs.strategies import MOVING
from thalweg.experiments.sweeps.grid import PLACE, Sweep
from thalweg.experiments.sweeps.pools import GENERATED, open_pool
from thalweg.experiments.sweeps.simulation import Simulation, prepare
from thalweg.experiments.sweeps.trial import Arm as AnyArm
from thalweg.experiments.sweeps.trial import Trial
from thalweg.experiments.sweeps.variants import VARIANTS
from thalweg.middleware.errors import UsageError, nearest

MOVES = ("gate", "hysteresis")  # parameters only of placements that have them
WITH_PERIOD = ("local", "global", "thalweg")  # a researcher's own placement keeps its parameters
WITH_K = ("local",)
AS_IS = "as it is"  # default option of a generated pool


class Arm(AnyArm, frozen=True, order=True):
    """Way to run a configuration. ``period_s`` and ``k`` are None if not applicable or not given.

    ``variant``: name in ``variants.VARIANTS``, of the placement with one change. ``made``: option of a generated pool's
    traces, such as ``stretch=1.8``. In a simulation the option is part of the pool's name.
    """

    placement: str
    servers: int = 8
    tree: str = "binary"
    period_s: float | None = None
    k: int | None = None
    variant: str = ""
    made: str = AS_IS

    @property
    def name(self) -> str:
        """The placement, or the description of the variant."""
        return VARIANTS[self.variant].says if self.variant else self.placement

    @property
    def rank(self) -> int:
        """Sort key that puts variants after their placements, in the order of ``VARIANTS``."""
        return list(VARIANTS).index(self.variant) if self.variant in VARIANTS else -1


class Simulations(Sweep, frozen=True, kw_only=True):
    """Sweep of placements on many networks.

    ``periods_s`` and ``ks`` apply to placements with such a parameter. Empty: the placement's default.
    ``own_periods_s``: further periods of ``thalweg`` alone. ``variants``: variants besides the placements. ``made``:
    options of the generated pool, each in turn.
    """

    trial: ClassVar[type[Trial]] = Simulation
    swept: ClassVar[tuple[str, ...]] = (*PLACE, "images", *Arm.__struct_fields__)

    placements: tuple[str, ...]
    servers: tuple[int, ...] = (8,)
    trees: tuple[str, ...] = ("binary",)
    periods_s: tuple[float, ...] = ()
    ks: tuple[int, ...] = ()
    own_periods_s: tuple[float, ...] = ()
    variants: tuple[str, ...] = ()
    made: tuple[str, ...] = (AS_IS,)
    images: int = 180

    def with_more(self, *placements: str) -> Simulations:
        """Return a copy with further placements."""
        return msgspec.structs.replace(self, placements=tuple(dict.fromkeys((*self.placements, *placements))))

    def arms(self) -> list[Arm]:
        """Return every combination once, with periods and ks only for placements with such a parameter."""
        arms: dict[Arm, None] = {}
        for pool_option, servers, tree in itertools.product(self.made, self.servers, self.trees):
            for placement in self.placements:
                periods_s = (self.periods_s or (None,)) if placement in WITH_PERIOD else (None,)
                if placement == "thalweg":
                    periods_s = (*self.own_periods_s, *periods_s)
                ks = (self.ks or (None,)) if placement in WITH_K else (None,)
                for period_s, k in itertools.product(periods_s, ks):
                    arms[Arm(placement, servers, tree, period_s, k, made=pool_option)] = None
            for name in self.variants:
                arms[Arm(VARIANTS[name].placement, servers, tree, variant=name, made=pool_option)] = None
        return list(arms)

    def given(self, arm: AnyArm) -> dict[str, Any]:
        """Return the fields of a simulation that are the same on all configurations."""
        moves = MOVING[arm.series].__struct_fields__ if arm.series in MOVING else ()
        parameters = {name: value for name, value in self.parameters.items() if name not in MOVES or name in moves}
        fields = msgspec.structs.asdict(arm)
        pool_option = fields.pop("made")
        pool = self.pool if pool_option == AS_IS else f"{self.pool}{',' if ':' in self.pool else ':'}{pool_option}"
        return {"images": self.images, "pool": pool, **fields, **parameters}

    def arm_of(self, row: Mapping[str, Any]) -> Arm:
        pool_option = row["pool"].removeprefix(self.pool)[1:]  # after the separator
        fields: dict[str, Any] = {name: row.get(name) for name in Arm.__struct_fields__}
        return Arm(**fields | {"made": pool_option or AS_IS})

    def check(self) -> Simulations:
        """Return self, or raise UsageError naming a value out of range, an unknown value or a failed import."""
        for name in ("placements", "servers", "trees"):
            if not getattr(self, name):
                raise UsageError(f"the sweep has no {name}; give at least one")
        super().check()
        if self.images < 2:
            raise UsageError(f"--images is {self.images}; give 2 or more, because times between images are compared")
        for variant in self.variants:
            if variant not in VARIANTS:
                raise UsageError(f"unknown variant {variant!r}; {nearest(variant, list(VARIANTS))}")
        for arm in self.arms():
            trial = self.trial_of(self.first_pool, 0, arm)
            assert isinstance(trial, Simulation)
            prepare(trial)  # imports planners that are named by import path
        if self.made != (AS_IS,) and self.pool.partition(":")[0] not in GENERATED:
            raise UsageError(
                f"pool {self.pool!r} is not generated, and this sweep varies the generation of its pool; choose paper"
                " or regions"
            )
        if self.pool not in GENERATED:  # also a generated pool with options
            open_pool(self.pool, self.first_pool, self.traces)
        return self

    def measured(self, found: Mapping[Arm, Sequence[Mapping[str, Any]]]) -> dict[Arm, dict[str, float | None]]:
        """Return mean inter-arrival times, and speed-ups over download-all on the same network, by arm."""
        times: dict[Arm, dict[tuple[Any, ...], float]] = {}
        for arm, rows in found.items():
            good = [row for row in rows if row["failed"] is None and row["mean_interarrival_s"]]
            networks = ((row["pool"], row["pool_seed"], row["configuration"], arm.servers, arm.tree) for row in good)
            times[arm] = dict(zip(networks, (row["mean_interarrival_s"] for row in good), strict=True))
        base = {network: at_s for arm in times if arm.placement == BASELINE for network, at_s in times[arm].items()}
        figures: dict[Arm, dict[str, float | None]] = {}
        for arm, own in times.items():
            speedups = [base[network] / at_s for network, at_s in own.items() if network in base]
            figures[arm] = {
                "mean_interarrival_s": statistics.fmean(own.values()) if own else None,
                "median_speedup": statistics.median(speedups) if speedups else None,
            }
        return figures

    def label(self, arm: Arm, among: Iterable[Arm]) -> str:
        """Return the placement and its differences from arms of the same placement: ``global, 16 servers``."""
        of_same = [other for other in among if (other.placement, other.variant) == (arm.placement, arm.variant)]
        own = {"period_s": "its own period", "k": "its own k"}
        varied = [
            own[factor] if (at := getattr(arm, factor)) is None else says(at)
            for factor, says in SAYS.items()
            if len({getattr(other, factor) for other in of_same}) > 1
        ]
        return ", ".join([arm.name, *varied])


def minutes(period_s: float) -> str:
    """Return a time as ``10 min``, or as ``45 s`` below a minute."""
    return f"{period_s / 60:.3g} min" if period_s >= 60 else f"{period_s:.3g} s"


SAYS: Mapping[str, Callable[[Any], str]] = {
    "servers": lambda at: f"{at} servers",
    "tree": str,
    "period_s": minutes,
    "k": lambda at: f"k = {at}",
    "made": str,
}
