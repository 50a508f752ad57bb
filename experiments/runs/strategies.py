"""Which options of ``thalweg run`` go with which placement, the strategies they make, and which of them start alike."""

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
OF_MOVES = (  # options of a run that go to those alone
    "period_s", "k", "gate", "hysteresis", "saving", "displacement_s", "load_s", "moves", "reshapes",
    "stripes",
)  # fmt: skip


def strategy_options(config: RunConfig) -> dict[str, dict[str, Any]]:
    """For every placement of the run the options its strategy is made with.

    A seed and what local judges hosts by are the run's own. Raises UsageError for an option that goes with no
    placement of the run.
    """
    given = {name: value for name in OF_MOVES if (value := getattr(config, name)) is not None}
    if given.get("stripes", "auto") != "auto":
        given["stripes"] = int(given["stripes"])
    ours = {**given, "seed": config.seed, "startup_s": config.startup_s}
    if config.cost in get_args(LocalCost):  # of others, which only a planner knows, local has the paper's instead
        ours["cost"] = config.cost
    options: dict[str, dict[str, Any]] = {}
    for label in config.placements:
        taken = MOVING[label].__struct_fields__ if label in MOVING else ()
        options[label] = {name: value for name, value in ours.items() if name in taken}
        if label in OURS:
            options[label].pop("seed", None)  # all of them search alike, so that they start alike
            # links of a testbed do not hinder each other, unless the run says so
            options[label]["interface"] = planned_interface(config.interface or "independent")
        if label == FIXED:
            options[label]["placement"] = given_plan(config).placement
        if config.measured:
            options[label]["measured"] = True
    for name in given:
        if not any(name in one for one in options.values()):
            takers = [f"--placement {label}" for label, kind in MOVING.items() if name in kind.__struct_fields__]
            raise UsageError(f"{flag(RunConfig, name)} goes with {' or '.join(takers)}, which this run has not")
    return options


def make_strategies(config: RunConfig) -> dict[str, Strategy]:
    """The strategy of every placement of the run; raises UsageError for what is unknown or out of range."""
    cost_model(config.cost, config.interface or "independent")
    made = {label: make_strategy(label, options) for label, options in strategy_options(config).items()}
    if config.measured and not any(isinstance(one.again, MeasuredHintsPlanner) for one in made.values()):
        raise UsageError("--measured goes with placements that are planned again, as global or thalweg; there is none")
    return made


def make_strategy(label: str, options: Mapping[str, Any]) -> Strategy:
    """The strategy of that name; random moves begin with operators spread over the hosts, which takes no knowledge."""
    options = dict(options)
    measured = options.pop("measured", False)
    strategy = get_strategy(label, **options)
    if measured and isinstance(strategy.adaptation, GlobalMoves):
        return msgspec.structs.replace(strategy, again=MeasuredHintsPlanner(strategy.again))
    if strategy.driver is not None:
        return msgspec.structs.replace(strategy, initial=Spread())
    return strategy


def changes_shapes(config: RunConfig) -> bool:
    """Whether a placement of the run may give the tree another shape: its planner has an attribute ``reshapes``, or
    the tree changes at random."""
    return reshapes_at_random(config) or any(
        getattr(strategy.initial, "reshapes", False) for strategy in make_strategies(config).values()
    )


def reshapes_at_random(config: RunConfig) -> bool:
    return any(isinstance(strategy.driver, RandomReshapes) for strategy in make_strategies(config).values())


class Spread(msgspec.Struct, frozen=True):
    """A planner that deals the operators out to the hosts in turn. It looks at no link; its cost is nan."""

    def plan(self, task: Task, model: CostModel) -> Plan:
        free = [node.name for node in task.dataflow.nodes if node.kind == "operator" and node.pinned is None]
        placement = dict(zip(free, itertools.cycle(task.hosts), strict=False))
        return Plan(check_placement(task.dataflow, placement, task.hosts), task.dataflow)


def cost_model(cost: str, interface: str) -> CostModel:
    """Return the cost model of that name for hosts with such interfaces; see ``cost_options``.

    Raise UsageError for an unknown one, and for one that goes by the latencies of a placement file.
    """
    if needs_latencies(cost):
        known = ", ".join(run_cost_names())
        raise UsageError(f"--cost {cost} needs the latencies of a placement file (thalweg place); runs take {known}")
    return get_cost_model(cost, **cost_options(cost, planned_interface(interface)))


def planned_interface(interface: str) -> Interface:
    """What planners take a host's interface for; of one that links share none knows, and it hinders nothing."""
    return "single" if interface == "single" else "independent"


def cost_options(cost: str, interface: str) -> dict[str, Any]:
    """What bounds the rate: a host's one interface, or each of its links, over which a node demands while it sends."""
    return {"interface": "independent", "node_cycles": False} if (cost, interface) == ("period", "independent") else {}


def cost_parameters(config: RunConfig) -> CostParameters:
    """What planners reckon with besides links."""
    return CostParameters(startup_s=config.startup_s, disk_bytes_per_s=config.disk_bytes_per_s or FREE_BYTES_PER_S)


def moving(strategies: Mapping[str, Strategy]) -> dict[str, Any]:
    """How operators move under each placement, defaults and all; placements that stay are left out."""
    return {
        label: msgspec.to_builtins(strategy.moving)
        for label, strategy in strategies.items()
        if strategy.moving is not None
    }


def placed_detail(label: str, plan: ProbedPlan, *, shared: bool, truth: bool) -> dict[str, Any]:
    """A plan and what it rests on, for the records; a ``shared`` one was made, and its links probed, before.

    ``truth``: planners were told the links as they are.
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
        "links": {f"{a}>{b}": [each.rate_bps, each.count, each.spread_bps]
                  for (a, b), each in sorted(plan.view.estimates.items())},
    }  # fmt: skip
    return {key: value for key, value in detail.items() if not (isinstance(value, float) and value - value != 0)}


def begins_with_one_shot(strategy: Strategy) -> bool:
    """Whether it begins with what one-shot plans; all such placements of a run share the first such plan."""
    return strategy.initial == OneShot()


def same_start(strategies: Mapping[str, Strategy]) -> list[str]:
    """The placements that share one plan; none when there are fewer than two."""
    labels = [label for label, strategy in strategies.items() if begins_with_one_shot(strategy)]
    return labels if len(labels) > 1 else []
