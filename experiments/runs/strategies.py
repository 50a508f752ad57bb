"""Strategies of a run's placements: the options of ``thalweg run`` for each, and the placements with the same start."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from thalweg.experiments.command import flag
from thalweg.experiments.names import run_cost_names
from thalweg.experiments.run_config import RunConfig
from thalweg.experiments.runs.plan_file import FIXED, given_plan
from thalweg.middleware.dataflow import check_placement
from thalweg.middleware.errors import UsageError
from thalweg.middleware.planning import (
    CostModel,
    CostParameters,
    Interface,
    OneShot,
    Plan,
    ProbedPlan,
    Task,
    Thalweg,
    get_cost_model,
)
from thalweg.middleware.planning.planners.cost_space import CostSpace
from thalweg.middleware.planning.planners.planner import MeasuredHintsPlanner
from thalweg.middleware.planning.registry import MOVERS, RandomReshapes, Strategy, get_strategy, needs_latencies
from thalweg.middleware.protocol.adaptation import GlobalMoves, LocalCost

MOVING: Mapping[str, type[msgspec.Struct]] = {
    **{name: kind for name, (_, kind) in MOVERS.items()},
    "thalweg": Thalweg,
    "cost-space": CostSpace,
}
FREE_BYTES_PER_S = 1e18  # a disk that costs nothing; JSON has no infinity
OURS = ("thalweg-once", "thalweg")
OF_MOVES = (  # options of a run that only strategies with moves have
    "period_s", "k", "gate", "hysteresis", "saving", "displacement_s", "load_s", "moves", "reshapes",
    "stripes",
)  # fmt: skip


def strategy_options(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Return the options of the strategy of every placement of the run.

    The seed and the cost by which ``local`` judges hosts come from the run. Raises UsageError for an option that fits
    no placement of the run.
    """
    of_moves = {name: value for name in OF_MOVES if (value := getattr(config, name)) is not None}
    if of_moves.get("stripes", "auto") != "auto":
        of_moves["stripes"] = int(of_moves["stripes"])
    own = {**of_moves, "seed": config.seed, "startup_s": config.startup_s}
    if config.cost in get_args(LocalCost):  # otherwise local uses the paper's cost
        own["cost"] = config.cost
    options: dict[str, dict[str, Any]] = {}
    for label in config.placements:
        accepted = MOVING[label].__struct_fields__ if label in MOVING else ()
        options[label] = {name: value for name, value in own.items() if name in accepted}
        if label in OURS:
            options[label].pop("seed", None)  # the same search for all, so that all start alike
            # links of a testbed are independent, unless the run says so
            options[label]["interface"] = planned_interface(config.interface or "independent")
        if label == FIXED:
            options[label]["placement"] = given_plan(config).placement
        if config.measured:
            options[label]["measured"] = True
    for name in of_moves:
        if not any(name in fields for fields in options.values()):
            takers = [f"--placement {label}" for label, kind in MOVING.items() if name in kind.__struct_fields__]
            raise UsageError(f"{flag(RunConfig, name)} goes with {' or '.join(takers)}, which this run has not")
    return options


def make_strategies(config: RunConfig) -> dict[str, Strategy]:
    """Return the strategy of every placement of the run. Raise UsageError for unknown names and values out of range."""
    cost_model(config.cost, config.interface or "independent")
    strategies = {label: make_strategy(label, options) for label, options in strategy_options(config).items()}
    if config.measured and not any(
        isinstance(strategy.again, MeasuredHintsPlanner) for strategy in strategies.values()
    ):
        raise UsageError(
            "--measured goes with placements that are planned again, as global or thalweg; this run has none"
        )
    return strategies


def make_strategy(label: str, options: Mapping[str, Any]) -> Strategy:
    """Return the strategy with this name.

    Random moves begin with operators spread over the hosts, without measurements.
    """
    options = dict(options)
    measured = options.pop("measured", False)
    strategy = get_strategy(label, **options)
    if measured and isinstance(strategy.adaptation, GlobalMoves):
        return msgspec.structs.replace(strategy, again=MeasuredHintsPlanner(strategy.again))
    if strategy.driver is not None:
        return msgspec.structs.replace(strategy, initial=Spread())
    return strategy


def changes_shapes(config: RunConfig) -> bool:
    """Return whether a placement of the run may change the tree's shape.

    A planner with an attribute ``reshapes`` may, and so may random changes.
    """
    return reshapes_at_random(config) or any(
        getattr(strategy.initial, "reshapes", False) for strategy in make_strategies(config).values()
    )


def reshapes_at_random(config: RunConfig) -> bool:
    return any(isinstance(strategy.driver, RandomReshapes) for strategy in make_strategies(config).values())


class Spread(msgspec.Struct, frozen=True):
    """Planner that deals the operators out to the hosts in turn. It ignores links, and its cost is nan."""

    def plan(self, task: Task, model: CostModel) -> Plan:
        free = [node.name for node in task.dataflow.nodes if node.kind == "operator" and node.pinned is None]
        placement = dict(zip(free, itertools.cycle(task.hosts), strict=False))
        return Plan(check_placement(task.dataflow, placement, task.hosts), task.dataflow)


def cost_model(cost: str, interface: str) -> CostModel:
    """Return the named cost model for hosts with such interfaces (see ``cost_options``).

    Raises UsageError for an unknown name, and for a model that needs the latencies of a placement file.
    """
    if needs_latencies(cost):
        known = ", ".join(run_cost_names())
        raise UsageError(f"--cost {cost} needs the latencies of a placement file (thalweg place); runs take {known}")
    return get_cost_model(cost, **cost_options(cost, planned_interface(interface)))


def planned_interface(interface: str) -> Interface:
    """Return the model of interfaces for planners.

    No planner knows shared interfaces, so these count as independent.
    """
    return "single" if interface == "single" else "independent"


def cost_options(cost: str, interface: str) -> dict[str, Any]:
    """Return the options of a cost model: the rate is bounded by a host's one interface, or by each of its links.

    With independent links, a node demands over a link while it sends.
    """
    return {"interface": "independent", "node_cycles": False} if (cost, interface) == ("period", "independent") else {}


def cost_parameters(config: RunConfig) -> CostParameters:
    """Return the costs besides links that planners use."""
    return CostParameters(startup_s=config.startup_s, disk_bytes_per_s=config.disk_bytes_per_s or FREE_BYTES_PER_S)


def moving(strategies: Mapping[str, Strategy]) -> dict[str, Any]:
    """Return the parameters of moves by placement, defaults included. Placements without moves are left out."""
    return {
        label: msgspec.to_builtins(strategy.moving)
        for label, strategy in strategies.items()
        if strategy.moving is not None
    }


def placed_detail(label: str, plan: ProbedPlan, *, shared: bool, truth: bool) -> dict[str, Any]:
    """Return a plan and its basis for the records. A ``shared`` plan was made, and its links probed, before.

    ``truth``: planners knew the true links.
    """
    result = plan.result
    detail = {
        "planner": label,
        "shared": shared,
        "placement": result.placement,
        "predicted_s": result.cost_s,
        "initial_s": result.initial_cost_s,
        "critical": list(result.critical),
        "probed": 0 if shared or truth else len(plan.asked),
        "rounds": plan.rounds,
        "evaluated": result.evaluated,
        "inputs": {node.name: list(node.inputs) for node in result.dataflow.nodes if node.inputs},
        "links": {f"{a}>{b}": [estimate.rate_bps, estimate.count, estimate.spread_bps]
                  for (a, b), estimate in sorted(plan.view.estimates.items())},
    }  # fmt: skip
    return {key: value for key, value in detail.items() if not (isinstance(value, float) and value - value != 0)}


def begins_with_one_shot(strategy: Strategy) -> bool:
    """Return whether a strategy begins with the plan of one-shot.

    Such placements share the first such plan of a run.
    """
    return strategy.initial == OneShot()


def same_start(strategies: Mapping[str, Strategy]) -> list[str]:
    """Return the placements that share one plan. Empty if fewer than two do."""
    labels = [label for label, strategy in strategies.items() if begins_with_one_shot(strategy)]
    return labels if len(labels) > 1 else []
