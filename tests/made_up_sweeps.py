"""Made-up results of a sweep, from a seeded generator. The defaults are close to the paper's results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from thalweg.experiments.sweeps.results import row, schema
from thalweg.experiments.sweeps.simulation import Simulated, Simulation
from thalweg.experiments.sweeps.simulations import AS_IS, Arm

GAINS = {"download-all": 1.0, "one-shot": 4.0, "local": 4.6, "global": 5.8, "thalweg-once": 11.0, "thalweg": 16.0}


def gain(arm: Arm) -> float:
    """Return the speed-up of an arm over download-all on an ordinary configuration."""
    factor = GAINS.get(arm.placement, 5.0)
    if arm.placement in ("global", "local"):
        factor *= 1 - 0.06 * abs(np.log2((arm.period_s or 600) / 500))
        factor *= 0.82 if arm.tree == "left-deep" else 1.0
    if arm.placement == "global":
        factor *= (arm.servers / 8) ** 0.3
    return float(factor)


def rows(
    arms: Iterable[Arm],
    *,
    pools: Iterable[int] = (1001, 1002, 1003),
    configurations: int = 10,
    pool: str = "paper",
    gain: Callable[[Arm], float] = gain,
    noise: float = 0.05,
    **more: Any,
) -> list[dict[str, Any]]:
    """Return one row a simulation, configuration by configuration. ``more``: fields of ``Simulation``."""
    arms = list(arms)
    results = []
    for pool_seed in pools:
        random = np.random.default_rng(pool_seed)
        for configuration in range(configurations):
            slow_s = 101.2 * random.lognormal(-0.02, 0.2)
            luck = random.lognormal(0, 0.2)
            for arm in arms:
                factor = luck * random.lognormal(0, noise) if arm.placement != "download-all" else 1.0
                at_s = float(slow_s * arm.servers / 8 / (gain(arm) * factor))
                fields = msgspec.structs.asdict(arm)
                name = pool if (made_by := fields.pop("made")) == AS_IS else f"{pool}:{made_by}"
                place = {"pool": name, "pool_seed": pool_seed, "configuration": configuration}
                config = Simulation(**place, **fields, **more)
                outcome = Simulated(
                    delivered=180, mean_interarrival_s=at_s, median_interarrival_s=at_s, relocations=3, reshapings=2,
                    plans=4, planning_s=0.1, probe_bytes=2_000_000, bound_period_s=1.5, predicted_s=2.5,
                )  # fmt: skip
                results.append(row(config, outcome))
    return results


def fail(made: Mapping[str, Any], why: str) -> dict[str, Any]:
    """Return the row of the same simulation as a failure."""
    return {**made, "failed": why, "mean_interarrival_s": None, "median_interarrival_s": None}


def table(made: Iterable[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(made), schema=schema(Simulation))
