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

MOVES = ("gate", "hysteresis")  # parameters that go only to placements which take them
WITH_PERIOD = ("local", "global", "thalweg")  # a researcher's own placement keeps what it was given
WITH_K = ("local",)
AS_IS = "as it is"  # how a generated pool is made


class Arm(AnyArm, frozen=True, order=True):
    """One way to run a configuration. ``period_s`` and ``k`` are None where they do not apply or were not given.

    ``variant``: a name of ``variants.VARIANTS``, of that placement with one thing changed. ``made``: what the traces of
    a generated pool are made by, ``stretch=1.8``; of a simulation it is part of the pool's name.
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
        """The placement, or what a variant is."""
        return VARIANTS[self.variant].says if self.variant else self.placement

    @property
    def rank(self) -> int:
        """Variants stand behind what they are variants of, in their order."""
        return list(VARIANTS).index(self.variant) if self.variant in VARIANTS else -1


class Simulations(Sweep, frozen=True, kw_only=True):
    """Placements on many networks.

    ``periods_s`` and ``ks`` go to the placements that take them; empty: each placement's own default.
    ``own_periods_s``: of ``thalweg`` alone, besides the others. ``variants``: of placements, besides those.
    ``made``: how the generated pool is made, each in turn.
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
        """The same with other placements beside these."""
        return msgspec.structs.replace(self, placements=tuple(dict.fromkeys((*self.placements, *placements))))

    def arms(self) -> list[Arm]:
        """Each combination once; periods and ks only for placements that take them (others: their defaults)."""
        found: dict[Arm, None] = {}
        for made, servers, tree in itertools.product(self.made, self.servers, self.trees):
            for placement in self.placements:
                periods_s = (self.periods_s or (None,)) if placement in WITH_PERIOD else (None,)
                if placement == "thalweg":
                    periods_s = (*self.own_periods_s, *periods_s)
                ks = (self.ks or (None,)) if placement in WITH_K else (None,)
                for period_s, k in itertools.product(periods_s, ks):
                    found[Arm(placement, servers, tree, period_s, k, made=made)] = None
            for name in self.variants:
                found[Arm(VARIANTS[name].placement, servers, tree, variant=name, made=made)] = None
        return list(found)

    def given(self, arm: AnyArm) -> dict[str, Any]:
        """The fields of a simulation that are the same on all configurations."""
        moves = MOVING[arm.series].__struct_fields__ if arm.series in MOVING else ()
        taken = {name: value for name, value in self.parameters.items() if name not in MOVES or name in moves}
        fields = msgspec.structs.asdict(arm)
        made = fields.pop("made")
        pool = self.pool if made == AS_IS else f"{self.pool}{',' if ':' in self.pool else ':'}{made}"
        return {"images": self.images, "pool": pool, **fields, **taken}

    def arm_of(self, row: Mapping[str, Any]) -> Arm:
        made = row["pool"].removeprefix(self.pool)[1:]  # what stands between
        fields: dict[str, Any] = {name: row.get(name) for name in Arm.__struct_fields__}
        return Arm(**fields | {"made": made or AS_IS})

    def check(self) -> Simulations:
        """Return self, or raise UsageError naming what is out of range, unknown or not to be imported."""
        for name in ("placements", "servers", "trees"):
            if not getattr(self, name):
                raise UsageError(f"the sweep has no {name}; give at least one")
        super().check()
        if self.images < 2:
            raise UsageError(f"--images is {self.images}; between two there is a time to compare")
        for variant in self.variants:
            if variant not in VARIANTS:
                raise UsageError(f"unknown variant {variant!r}; {nearest(variant, list(VARIANTS))}")
        for arm in self.arms():
            one = self.trial_of(self.first_pool, 0, arm)
            assert isinstance(one, Simulation)
            prepare(one)  # planners named by import path are imported
        if self.made != (AS_IS,) and self.pool.partition(":")[0] not in GENERATED:
            raise UsageError(
                f"pool {self.pool!r} is not generated, so that it is not made otherwise; choose paper or regions"
            )
        if self.pool not in GENERATED:  # or made otherwise
            open_pool(self.pool, self.first_pool, self.traces)
        return self

    def measured(self, found: Mapping[Arm, Sequence[Mapping[str, Any]]]) -> dict[Arm, dict[str, float | None]]:
        """Mean inter-arrival times, and speed-ups over download-all on the same network."""
        times: dict[Arm, dict[tuple[Any, ...], float]] = {}
        for arm, rows in found.items():
            good = [one for one in rows if one["failed"] is None and one["mean_interarrival_s"]]
            networks = ((one["pool"], one["pool_seed"], one["configuration"], arm.servers, arm.tree) for one in good)
            times[arm] = dict(zip(networks, (one["mean_interarrival_s"] for one in good), strict=True))
        base = {network: at_s for arm in times if arm.placement == BASELINE for network, at_s in times[arm].items()}
        told: dict[Arm, dict[str, float | None]] = {}
        for arm, own in times.items():
            speedups = [base[network] / at_s for network, at_s in own.items() if network in base]
            told[arm] = {
                "mean_interarrival_s": statistics.fmean(own.values()) if own else None,
                "median_speedup": statistics.median(speedups) if speedups else None,
            }
        return told

    def label(self, arm: Arm, among: Iterable[Arm]) -> str:
        """The placement, and what tells it from others of the same placement: ``global, 16 servers``."""
        of_same = [other for other in among if (other.placement, other.variant) == (arm.placement, arm.variant)]
        own = {"period_s": "its own period", "k": "its own k"}
        varied = [
            own[factor] if (at := getattr(arm, factor)) is None else says(at)
            for factor, says in SAYS.items()
            if len({getattr(other, factor) for other in of_same}) > 1
        ]
        return ", ".join([arm.name, *varied])


def minutes(period_s: float) -> str:
    """10 min, or 45 s below a minute."""
    return f"{period_s / 60:.3g} min" if period_s >= 60 else f"{period_s:.3g} s"


SAYS: Mapping[str, Callable[[Any], str]] = {
    "servers": lambda at: f"{at} servers",
    "tree": str,
    "period_s": minutes,
    "k": lambda at: f"k = {at}",
    "made": str,
}
