"""Trial of one tree of Benoit et al. (2008), section 7, and of the machines that one heuristic buys for the tree.

A draw (``pool_seed``, ``configuration``) with N has the same tree, objects and servers for all further factors. Pools
are of trees: ``paper``, or trees with N operators, or trees of a different shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec
import numpy as np

from thalweg.experiments.papers.benoit2008.instances import Drawing, Shape, drawn
from thalweg.experiments.provisioning.answer import Answer, cost
from thalweg.experiments.provisioning.best import ProvisioningLimits, best
from thalweg.experiments.provisioning.heuristics import HEURISTICS, rented
from thalweg.experiments.provisioning.instance import ProvisioningInstance
from thalweg.experiments.provisioning.selection import NoServerError
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.middleware.errors import PlannerError, UsageError, nearest

CHEAPEST = "cheapest"  # of the seven, of each tree
SUBTREE = "subtree-bottom-up"
OPTIMUM = "optimum"  # only if one of the seven finds machines
SERIES = (*HEURISTICS, CHEAPEST)
POOLS: Mapping[str, Shape] = {"paper": "random", "operators": "random", "left-deep": "left-deep", "n-ary": "n-ary"}
LIMIT_S = 20.0  # of the solver, for one tree


class Renting(Trial, frozen=True, kw_only=True):
    """Draw of a tree, and the heuristic that buys. The remaining fields are of ``Drawing``, and ``period_s`` is 1/f."""

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.papers.benoit2008.renting:rent"

    heuristic: str = SUBTREE
    nodes: int = 60
    alpha: float = 0.9
    sizes: Literal["small", "big"] = "small"
    period_s: float = 2.0
    copies: int = 3
    machines: Literal["all", "one"] = "all"

    @property
    def drawing(self) -> Drawing:
        """Parameters of the draw."""
        return Drawing(
            nodes=self.nodes,
            alpha=self.alpha,
            sizes=self.sizes,
            frequency_hz=1 / self.period_s,
            copies=self.copies,
            machines=self.machines,
            shape=POOLS.get(self.pool, "random"),
            counted="operators" if self.pool == "operators" else "nodes",
        )


class Rented(Outcome, frozen=True, kw_only=True):
    """Cost and number of the machines. None: no machines were found that sustain the throughput.

    ``short``: what ran short then, ``machines`` or ``servers``. ``subtree``: of the cheapest, ``short`` of
    Subtree-Bottom-Up. ``tied``: of the cheapest, the heuristics that are as cheap. ``proven``: the optimum is certain.
    """

    dollars: float | None = None
    bought: int | None = None
    short: str = ""
    subtree: str = ""
    tied: str = ""
    proven: bool = False


Renting.outcome = Rented


def rent(trial: Renting) -> Rented:
    """Run one trial. Raise UsageError for an unknown heuristic."""
    if trial.heuristic not in (*SERIES, OPTIMUM):
        raise UsageError(f"{trial.heuristic!r} is no heuristic of this study; {nearest(trial.heuristic, SERIES)}")
    instance = drawn(trial.drawing, np.random.default_rng((trial.pool_seed, trial.configuration)))
    if trial.heuristic in HEURISTICS:
        return _bought(instance, trial.heuristic, trial.configuration)
    platforms = {name: _bought(instance, name, trial.configuration) for name in HEURISTICS}
    known = [platform for platform in platforms.values() if platform.dollars is not None]
    least = min(known, key=lambda one: one.dollars or 0.0, default=platforms[SUBTREE])
    if known and trial.heuristic == OPTIMUM:
        optimum = best(instance, ProvisioningLimits(time_limit_s=LIMIT_S))
        return Rented(dollars=optimum.cost, bought=optimum.answer.machines, proven=optimum.proven)
    tied = [name for name, platform in platforms.items() if known and platform.dollars == least.dollars]
    return msgspec.structs.replace(least, subtree=platforms[SUBTREE].short, tied=" ".join(tied))


def _bought(instance: ProvisioningInstance, heuristic: str, seed: int) -> Rented:
    try:
        answer: Answer = rented(instance, heuristic, seed)
    except NoServerError:
        return Rented(short="servers")
    except PlannerError:
        return Rented(short="machines")
    return Rented(dollars=cost(instance, answer), bought=answer.machines)
