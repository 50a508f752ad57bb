"""Sweeps of simulations: placements with their parameters, on networks drawn from pools of traces."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from thalweg.experiments.records.analysis import BASELINE
from thalweg.experiments.runs.strategies import MOVING
from thalweg.experiments.sweeps.grid import PLACE, PlacementResult, Sweep
from thalweg.experiments.sweeps.pools import open_pool
from thalweg.experiments.sweeps.simulation import Simulation, prepare
from thalweg.experiments.sweeps.trial import Arm as AnyArm
from thalweg.experiments.sweeps.trial import Trial
from thalweg.experiments.sweeps.variants import VARIANTS
from thalweg.middleware.errors import UsageError, nearest

GENERATED = ("paper", "regions")  # pools that need no traces
MOVES = ("gate", "hysteresis")  # parameters that go only to placements which take them
WITH_PERIOD = ("local", "global", "thalweg")  # a researcher's own placement keeps what it was given
WITH_K = ("local",)


class Arm(AnyArm, frozen=True, order=True):
    """One way to run a configuration. ``period_s`` and ``k`` are None where they do not apply or were not given.

    ``variant``: a name of ``variants.VARIANTS``, of that placement with one thing changed.
    """

    placement: str
    servers: int = 8
    tree: str = "binary"
    period_s: float | None = None
    k: int | None = None
    variant: str = ""

    @property
    def name(self) -> str:
        """The placement, or what a variant is."""
        return VARIANTS[self.variant].says if self.variant else self.placement

    @property
    def rank(self) -> int:
        """Variants stand behind what they are variants of, in their order."""
        return list(VARIANTS).index(self.variant) if self.variant in VARIANTS else -1


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep runs on every configuration; None among periods or ks: the placement's own default.

    ``own_periods_s``: of ``thalweg`` alone, besides the others. ``variants``: of placements, besides those.
    """

    placements: tuple[str, ...]
    servers: tuple[int, ...] = (8,)
    trees: tuple[str, ...] = ("binary",)
    periods_s: tuple[float | None, ...] = (None,)
    ks: tuple[int | None, ...] = (None,)
    own_periods_s: tuple[float, ...] = ()
    variants: tuple[str, ...] = ()

    def with_more(self, *placements: str) -> Grid:
        """The same with other placements beside these."""
        return msgspec.structs.replace(self, placements=tuple(dict.fromkeys((*self.placements, *placements))))

    def arms(self) -> list[Arm]:
        """Each combination once; periods and ks only for placements that take them (others: their defaults)."""
        found: dict[Arm, None] = {}
        for servers, tree in itertools.product(self.servers, self.trees):
            for placement in self.placements:
                periods_s = self.periods_s if placement in WITH_PERIOD else (None,)
                if placement == "thalweg":
                    periods_s = (*self.own_periods_s, *periods_s)
                for period_s, k in itertools.product(periods_s, self.ks if placement in WITH_K else (None,)):
                    found[Arm(placement, servers, tree, period_s, k)] = None
            for name in self.variants:
                found[Arm(VARIANTS[name].placement, servers, tree, variant=name)] = None
        return list(found)


class Simulations(Sweep, frozen=True, kw_only=True):
    """Placements on many networks.

    ``periods_s`` and ``ks`` go to the placements that take them; empty: each placement's own default;
    ``own_periods_s`` go to ``thalweg`` besides, and ``variants`` are run as well.
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
    images: int = 180

    def arms(self) -> list[Arm]:
        """The ways in which every configuration is run."""
        return Grid(
            placements=self.placements,
            servers=self.servers,
            trees=self.trees,
            periods_s=self.periods_s or (None,),
            ks=self.ks or (None,),
            own_periods_s=self.own_periods_s,
            variants=self.variants,
        ).arms()

    def given(self, arm: AnyArm) -> dict[str, Any]:
        """The fields of a simulation that are the same on all configurations."""
        moves = MOVING[arm.series].__struct_fields__ if arm.series in MOVING else ()
        taken = {name: value for name, value in self.parameters.items() if name not in MOVES or name in moves}
        return {"images": self.images, **msgspec.structs.asdict(arm), **taken}

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
        if self.pool not in GENERATED:
            open_pool(self.pool, self.first_pool, self.traces)
        return self

    def summarize(self, results: pa.Table) -> dict[str, PlacementResult]:
        """By placement, and by what else the sweep varies: ``global, 16 servers``."""
        return _summarize(self, results)


# --- what came out ----------------------------------------------------------------------------------


def _summarize(sweep: Simulations, results: pa.Table) -> dict[str, PlacementResult]:
    columns = ("pool_seed", "configuration", "failed", "mean_interarrival_s", *Arm.__struct_fields__)
    base_s: dict[tuple[Any, ...], float] = {}
    by_arm: dict[Arm, list[dict[str, Any]]] = {arm: [] for arm in sweep.arms()}
    for one in results.select(columns).to_pylist():
        arm = Arm(**{name: one[name] for name in Arm.__struct_fields__})
        by_arm.setdefault(arm, []).append(one)
        if arm.placement == BASELINE and one["failed"] is None and one["mean_interarrival_s"]:
            base_s[_network(one)] = one["mean_interarrival_s"]
    return {_label(arm, by_arm): _result(rows, base_s) for arm, rows in by_arm.items()}


def _network(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return one["pool_seed"], one["configuration"], one["servers"], one["tree"]


def _result(rows: list[dict[str, Any]], base_s: Mapping[tuple[Any, ...], float]) -> PlacementResult:
    good = [one for one in rows if one["failed"] is None and one["mean_interarrival_s"]]
    speedups = [base_s[network] / one["mean_interarrival_s"] for one in good if (network := _network(one)) in base_s]
    return PlacementResult(
        runs=len(rows),
        failed=sum(one["failed"] is not None for one in rows),
        mean_interarrival_s=statistics.fmean(one["mean_interarrival_s"] for one in good) if good else None,
        median_speedup=statistics.median(speedups) if speedups else None,
    )


def minutes(period_s: float) -> str:
    """10 min, or 45 s below a minute."""
    return f"{period_s / 60:.3g} min" if period_s >= 60 else f"{period_s:.3g} s"


SAYS: Mapping[str, Callable[[Any], str]] = {
    "servers": lambda at: f"{at} servers",
    "tree": str,
    "period_s": minutes,
    "k": lambda at: f"k = {at}",
}


def _label(arm: Arm, among: Mapping[Arm, object]) -> str:
    """The placement, and what tells it from others of the same placement."""
    of_same = [other for other in among if (other.placement, other.variant) == (arm.placement, arm.variant)]
    own = {"period_s": "its own period", "k": "its own k"}
    values = {factor: getattr(arm, factor) for factor in SAYS}
    varied = [
        own[factor] if at is None else SAYS[factor](at)
        for factor, at in values.items()
        if len({getattr(other, factor) for other in of_same}) > 1
    ]
    return ", ".join([arm.name, *varied])
