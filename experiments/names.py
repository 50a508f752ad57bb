"""Names for options, from the registries, each with its meaning. Help texts, shells and errors list the names.

A registry is imported when its names are needed. A verb's help page thus imports only its own registries.
"""

from __future__ import annotations

STAY, MOVE, RESHAPE = "operators stay", "operators move", "operators move, and the tree changes"
AT_RANDOM = "random changes, for tests"
RATES, LATENCIES = "by the rates of links", "by latencies, which the file must give"
CURRENT = "from the placement in the file"
SHAPES = "the tree as well, if operators are reorderable"
STATELESS, STATEFUL = "without state", "with state"
INSTALLED = "of an installed package"

TESTBEDS = {
    "netns": "shaped network namespaces",
    "docker": "shaped containers",
    "loopback": "processes without shaping",
    "sim": "virtual time",
}


def preset_names() -> dict[str, str]:
    """Return the presets of access lines and of paths, with their titles."""
    from thalweg.emulation.presets.table import PRESETS

    return {name: preset.title for name, preset in PRESETS.items()}


def testbed_names() -> dict[str, str]:
    """Return the testbeds for runs."""
    return TESTBEDS


def tree_names() -> dict[str, str]:
    """Return the shapes of a tree of operators."""
    from thalweg.middleware.dataflow import TREES

    return dict.fromkeys(TREES, "")


def forecaster_names() -> dict[str, str]:
    """Return the methods for the estimate of a link's next rate."""
    from thalweg.middleware.network.forecasting import FORECASTERS

    return dict.fromkeys(FORECASTERS, "")


def rule_names() -> dict[str, str]:
    """Return the rules for the composition of images."""
    from thalweg.operators.composition import RULES

    return dict.fromkeys(RULES, "")


def operator_names() -> dict[str, str]:
    """Return the registered operators for images, with a note on their state."""
    from thalweg.middleware.loading import keeps_state
    from thalweg.operators.composition import image_operators

    return {name: STATEFUL if keeps_state(kind) else STATELESS for name, kind in image_operators().items()}


def placement_names() -> dict[str, str]:
    """Return the placements of a run, with their changes while data flows."""
    from thalweg.middleware.planning.registry import MOVERS, PLANNERS, get_strategy, strategy_names

    meanings = dict.fromkeys(strategy_names(), INSTALLED)
    for name in {**PLANNERS, **MOVERS}:
        strategy = get_strategy(name)
        if strategy.driver is not None:
            meanings[name] = AT_RANDOM
        elif strategy.adaptation is None:
            meanings[name] = STAY
        else:
            meanings[name] = RESHAPE if getattr(strategy.initial, "reshapes", False) else MOVE
    return meanings


def free_placement_names() -> dict[str, str]:
    """Return the placements that need no plan file."""
    from thalweg.middleware.planning.planners.fixed import Fixed
    from thalweg.middleware.planning.registry import PLANNERS

    return {name: meaning for name, meaning in placement_names().items() if PLANNERS.get(name) is not Fixed}


def planner_names() -> dict[str, str]:
    """Return the planners of placement files, with the basis of each planner."""
    from thalweg.middleware.planning import registry
    from thalweg.middleware.planning.planners.fixed import Fixed
    from thalweg.middleware.planning.planners.planner import needs_of

    meanings = dict.fromkeys(registry.planner_names(), INSTALLED)
    for name in registry.PLANNERS:
        planner = registry.get_planner(name)
        if "latency" in needs_of(planner):
            meanings[name] = LATENCIES
        elif isinstance(planner, Fixed) or getattr(planner, "start", "") == "current":
            meanings[name] = CURRENT
        else:
            meanings[name] = SHAPES if getattr(planner, "reshapes", False) else RATES
    return meanings


def cost_names() -> dict[str, str]:
    """Return the cost models of placement files, with the estimates that each model needs."""
    from thalweg.middleware.planning.registry import cost_model_names, needs_latencies

    return {name: LATENCIES if needs_latencies(name) else RATES for name in cost_model_names()}


def run_cost_names() -> dict[str, str]:
    """Return the cost models of runs."""
    return {name: "" for name, meaning in cost_names().items() if meaning != LATENCIES}
