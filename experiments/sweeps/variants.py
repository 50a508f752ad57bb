"""Variants of placements for the ablation, which measures the contribution of every part of ``thalweg``.

A variant is a placement with a single difference. Sweeps run variants by name (``Simulation.variant``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from thalweg.experiments.sweeps.given_tree import GivenTree, KeepsTree
from thalweg.middleware.planning import (
    CostModel,
    CriticalPath,
    OneShot,
    Plan,
    Problem,
    Strategy,
    Task,
    Thalweg,
    evaluate,
)
from thalweg.middleware.protocol.adaptation import GlobalMoves

Told = Literal["measured", "last", "ahead"]


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """Row of the ablation.

    - ``says``: description for readers
    - ``fields``: changed fields of the Simulation. ``options``: changed options of the planner ``thalweg``
    - ``planner``: class of a planner that wraps ``thalweg``
    - ``told``: knowledge of planners while data flows. ``measured``: measurements (or the truth, by ``view``).
      ``last``: only the last measurement of each link. ``ahead``: future rates of links within the horizon
    - ``steady``: links stay as at the start of the run
    """

    says: str
    placement: str = "thalweg"
    fields: dict[str, Any] = {}
    options: dict[str, Any] = {}
    planner: type[FixedTree | FixedTreeByPath | GivenTree | TimedOut] | None = None
    told: Told = "measured"
    steady: bool = False

    def strategy(self, given: Strategy) -> Strategy:
        """Return the placement's strategy with the variant's changes."""
        planner = given.initial
        if not (self.options or self.planner):
            return given
        assert isinstance(planner, Thalweg)
        planner = msgspec.structs.replace(planner, **self.options)
        replacement = planner if self.planner is None else self.planner(planner)
        return Strategy(replacement, replacement.adaptation, replacement)


class FixedTree(KeepsTree, frozen=True):
    """Planner that moves the operators of the given tree for the shortest period."""

    def model(self, given: CostModel) -> CostModel:
        return self.like.goes_by(given)

    def plan(self, task: Task, model: CostModel) -> Plan:
        start = OneShot() if task.current is None else OneShot(start="current")
        return start.plan(task, self.model(model))


class FixedTreeByPath(FixedTree, frozen=True):
    """Planner that moves the operators of the given tree for the shortest critical path."""

    def model(self, given: CostModel) -> CostModel:
        return CriticalPath()


class TimedOut(msgspec.Struct, frozen=True):
    """Planner that uses estimates until a time-out, and then has links measured again as before a run.

    The plan is compared with the present tree, as ``like`` does by forecasts.
    """

    compared: ClassVar[bool] = True

    like: Thalweg
    reshapes: ClassVar[bool] = True

    @property
    def adaptation(self) -> GlobalMoves | None:
        adaptation = self.like.adaptation
        return None if adaptation is None else msgspec.structs.replace(adaptation, horizon_s=None)

    def plan(self, task: Task, model: CostModel) -> Plan:
        plan = self.like.plan(task, model)
        if task.current is None:
            return plan
        present_s = evaluate(self.like.goes_by(model), Problem(task), task.current)
        return msgspec.structs.replace(plan, judged=(present_s, plan.cost_s))


def _every(period_s: float) -> Variant:
    interval = f"{period_s / 60:g} min" if period_s >= 60 else f"{period_s:g} s"
    return Variant(says=f"planned every {interval}", fields={"period_s": period_s})


def _forecaster(name: str) -> Variant:
    return Variant(says=f"forecaster of the monitor: {name}", fields={"forecaster": name})


def _aged(period_s: float) -> Variant:
    """Return a variant that replans every ``period_s`` with estimates that live a fifteenth of that time.

    The paper varied T_thres, the lifetime of estimates, to find how often to place. 40 s go with 10 minutes.
    """
    fields = {"period_s": period_s, "max_age_s": period_s / 15}
    says = f"global, every {period_s / 60:g} min, estimates live {period_s / 15:g} s"
    return Variant(says=says, placement="global", fields=fields)


def _stripes(name: str) -> Variant:
    interface, number, *known = name.split("-")
    if number == "stars":
        return Variant(says=f"{interface}, a star for each host", placement="stars", fields={"interface": interface})
    chosen = number == "auto"
    suffixes = {
        "": "", "ahead": ", exact: links in the next 5 min", "steady": ", exact, links stay as they begin",
        "pipelined": f", {PIPELINED} images under way over each edge",
    }  # fmt: skip
    how = known[0] if known else ""
    fields: dict[str, Any] = {"ahead": PIPELINED} if how == "pipelined" else {"view": "truth"} if how else {}
    trees = "as many trees as repay" if chosen else "1 tree" if number == "1" else f"{number} trees"
    return Variant(
        says=f"{interface}, {trees}{suffixes[how]}",
        fields={"interface": interface} | fields,
        options={"stripes": "auto" if chosen else int(number), "interface": interface},
        told="ahead" if how == "ahead" else "measured",
        steady=how == "steady",
    )


PIPELINED = 8  # images under way over each edge of a single tree
TREES = ("1", "1-pipelined", "2", "4", "8", "stars", "auto")  # planned trees of a stream, and a tree for each host
STRIPES = (
    *(f"{interface}-{number}" for interface in ("single", "independent") for number in TREES),
    *(f"{interface}-auto-{known}" for interface in ("single", "independent") for known in ("ahead", "steady")),
)
AGED = ("aged-120", "aged-300", "aged-1800", "aged-3600")  # of figure 9
VARIANTS: Mapping[str, Variant] = {
    "global-period": Variant(says="global, by periods", placement="global", fields={"cost": "period"}),
    "fixed-path": Variant(says="given tree, critical path", planner=FixedTreeByPath),
    "fixed": Variant(says="given tree, periods", planner=FixedTree),
    "fixed-searched": Variant(says="given tree, same search", planner=GivenTree),
    "busiest": Variant(says="the busiest resource alone", options={"shape": 32.0}),
    "every-10": _every(10.0),
    "every-30": _every(30.0),
    "every-120": _every(120.0),
    "every-300": _every(300.0),
    "every-600": _every(600.0),
    "gain-0": Variant(says="changed for any gain", options={"gain": 0.0}),
    "gain-20": Variant(says="changed for 20 %", options={"gain": 0.2}),
    "timed-out": Variant(
        says="estimates of 10 min, probed anew, every 2 min",
        fields={"period_s": 120.0, "max_age_s": 600.0},
        planner=TimedOut,
    ),
    "last": Variant(says="the last measurement of each link", told="last"),
    "no-probes": Variant(says="forecasts, no probes while running", options={"probes_again": 0.0}),
    "exact": Variant(says="exact: links as they are", fields={"view": "truth"}),
    "ahead": Variant(says="exact: links in the next 5 min", fields={"view": "truth"}, told="ahead"),
    "forecaster-last": _forecaster("last"),
    "forecaster-mean": _forecaster("mean"),
    "forecaster-median": _forecaster("median"),
    "forecaster-exponential": _forecaster("exponential"),
    **{name: _aged(float(name.partition("-")[2])) for name in AGED},
    **{name: _stripes(name) for name in STRIPES},
    "once-exact": Variant(says="once, exact", placement="thalweg-once", fields={"view": "truth"}),
    "steady": Variant(says="exact, links stay as they begin", fields={"view": "truth"}, steady=True),
}
