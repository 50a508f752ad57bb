"""``thalweg place``: a placement problem from a file, solved by any planner under any cost model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from thalweg.experiments.cli.console import JsonOption, output, print_json
from thalweg.experiments.cli.options import find_own_code, takes
from thalweg.experiments.command import Option
from thalweg.experiments.names import cost_names, planner_names
from thalweg.experiments.problems.placement import load_placement
from thalweg.experiments.records.trees import as_edges
from thalweg.middleware.dataflow import Placement
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import (
    LatenciesNeeded,
    LinksNeeded,
)
from thalweg.middleware.planning import (
    COST_MODELS,
    CostModel,
    DownloadAll,
    ExpectedPeriod,
    Hints,
    Interface,
    Odp,
    Period,
    Plan,
    Problem,
    Task,
    Thalweg,
    ask_planner,
    bound_period_s,
    evaluate,
    get_cost_model,
    get_planner,
)
from thalweg.middleware.planning.odp.objective import value_of
from thalweg.middleware.planning.odp.tasks import QualityCost
from thalweg.middleware.planning.planners.cost_space import CostSpace
from thalweg.middleware.planning.problem.choice import choice_of, cost_of, with_all_networks
from thalweg.middleware.planning.problem.routes import HOPS, route_of
from thalweg.middleware.protocol.messages import MAX_HOPS

PLANNER, NETWORKS = "Planner", "Files with several networks"


def _options(pairs: Sequence[str], flag: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise UsageError(f"{flag} {pair!r} is not KEY=VALUE")
        try:
            options[key] = json.loads(value)
        except (ValueError, RecursionError):
            options[key] = value
    return options


class PlaceOptions(msgspec.Struct, frozen=True):
    """Options of ``place``: planner, cost model, and further output."""

    planner: Annotated[str, Option("Planner.", names=planner_names, own="package.module:Class", panel=PLANNER)] = (
        "one-shot"
    )
    cost: Annotated[
        str,
        Option(
            "Cost model, which planners minimise. objective: the weighted metrics of the file.",
            names=cost_names,
            own="package.module:Class",
            panel=PLANNER,
        ),
    ] = "critical-path"
    option: Annotated[
        tuple[str, ...],
        Option("Option of the planner: start=current; for local: k=2.", metavar="KEY=VALUE", panel=PLANNER),
    ] = ()
    cost_option: Annotated[
        tuple[str, ...],
        Option("Option of the cost model: interface=duplex.", metavar="KEY=VALUE", panel=PLANNER),
    ] = ()
    bound: Annotated[bool, Option("Print the period that no tree and no mixture of trees can beat.")] = False
    mps: Annotated[
        str | None, Option("Write the program of planner odp to a file, for other solvers.", metavar="PATH")
    ] = None
    compare: Annotated[
        bool, Option("Compare every heuristic and planner with the optimum, by the objective of the file.")
    ] = False
    random: Annotated[
        int | None,
        Option("With --compare, in place of FILE: number of random problems to compare on.", shown="none", least=1),
    ] = None
    wanted_hz: Annotated[
        float | None,
        Option(
            "Wanted partitions a second. Among the placements and networks that keep this rate, the cheapest ones by"
            " the price of their bytes are chosen.",
            flag="--wanted",
            shown="as many as links carry",
            panel=NETWORKS,
        ),
    ] = None
    hops: Annotated[int, Option("Largest number of rented links that an edge takes in a row.", panel=NETWORKS)] = HOPS
    seed: Annotated[int, Option("With --compare: seed of random problems and of heuristics.", least=0)] = 1


@takes(PlaceOptions)
def place(
    options: PlaceOptions,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Placement problem, a TOML file.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Solve a placement problem from a file.

    The answer is a host for each operator, and the cost of this placement. FILE is needed unless --random is given.

    Example: thalweg place docs/examples/placement.toml --cost period

    The tree as well, beside the bound: thalweg place docs/examples/placement.toml --cost period --planner thalweg
    --bound

    Several trees at once: thalweg place docs/examples/placement.toml --cost period --cost-option interface=independent
    --planner thalweg --option stripes=4 --bound

    Proven optimal, or how far from it: thalweg place docs/examples/optimal.toml --planner odp --option
    objective='{"response": 0.5, "availability": 0.5}'

    Every heuristic beside the optimum: thalweg place docs/examples/optimal.toml --compare

    The network of each edge: thalweg place docs/examples/two-networks-placement.toml --cost period --wanted 0.2

    The next step of local: thalweg place docs/examples/placement.toml --planner local --option k=2
    """
    if options.random is not None:
        if not options.compare or file is not None:
            raise UsageError("--random goes with --compare, in place of FILE; leave FILE away, or --random")
        from thalweg.experiments.cli.compared import compare_random

        compare_random(options.random, options.seed, as_json=as_json)
        return
    if file is None:
        raise UsageError("place needs a FILE, or --compare --random N; docs/examples/placement.toml is an example")
    task, planner, cost = _with_wanted(file, options, load_placement(file)), options.planner, options.cost
    if options.compare:
        _compare(file, options, task, as_json=as_json)
        return
    find_own_code([planner, cost])
    model = get_cost_model(cost, **_options(options.cost_option, "--cost-option"))
    chosen = get_planner(planner, **_options(options.option, "--option"))
    if isinstance(chosen, Odp):
        if task.networks:
            raise UsageError(f"{file} has networks, which odp does not plan for; take another planner")
        _place_odp(file, _for_a_file(chosen), task, options.mps, as_json)
        return
    if options.mps is not None:
        raise UsageError("--mps writes the program of --planner odp; add --planner odp")
    if isinstance(chosen, Thalweg):  # thalweg plans by periods under every cost model
        model = chosen.goes_by(model)
        cost = model.name
    if planner == "global" and task.current is None:
        raise UsageError(f"{file} has no table [placement], which global starts from; add one, or use one-shot")
    try:
        result = ask_planner(chosen, task, model)
    except LinksNeeded as needed:
        raise _not_given(file, needed, planner) from None
    baseline_s = DownloadAll().plan(with_all_networks(task), model).cost_s
    if isinstance(chosen, CostSpace):  # cost-space minimises bytes in transit under every cost model
        before_s = baseline_s if task.current is None else _cost_s(task, model, task.current)
        costs = {"cost_s": _cost_s(task, model, result.placement), "initial_cost_s": before_s}
        result = msgspec.structs.replace(result, **costs)
    bound_s = _bound_s(file, task, _interface(chosen, model)) if options.bound else None
    if as_json:
        answer = {
            "planner": planner,
            "cost_model": cost,
            "cost_s": result.cost_s,
            "initial_cost_s": result.initial_cost_s,
            "download_all_cost_s": baseline_s,
            **_answer(result, task),
        }
        if bound_s is not None:
            answer["bound_period_s"] = bound_s
        print_json(answer)
    else:
        _print(result, task, cost, baseline_s)
        if bound_s is not None:
            text = f"no tree and no mixture of trees has a period below {_seconds(bound_s)}"
            output().print(f"{text} ({_interface(chosen, model)} interfaces; transfers alone)", soft_wrap=True)


def _answer(result: Plan, task: Task) -> dict[str, Any]:
    """Return the plan's placement, its search, and its trees or the networks of its edges, as fields of the JSON."""
    answer: dict[str, Any] = {
        "placement": result.placement,
        "critical": result.critical,
        "steps": result.steps,
        "evaluated": result.evaluated,
        "links_used": sorted(result.links_used),
    }
    if result.hints is not None:
        answer["inputs"] = {node.name: node.inputs for node in result.dataflow.nodes if node.inputs}
    if result.beside:
        trees = (result, *result.beside)
        answer["trees"] = [{"share": tree.share, "edges": _links(tree)} for tree in trees]
    elif task.networks:
        choice = choice_of(task, result)
        answer["edges"] = [
            {"src": pair[0], "dst": pair[1], "over": [link.row for link in route_of(pair, over)]}
            for pair, (over,) in choice.items()
        ]
        period_s, price = cost_of(task, result.dataflow, result.placement, choice, result.hints)
        answer |= {"networks_period_s": period_s, "price_per_partition": price}
    return answer


def _with_wanted(file: Path, options: PlaceOptions, task: Task) -> Task:
    """Return the task with the wanted rate and the hops.

    Raise UsageError if the file has no networks to choose between, or if a value is out of range.
    """
    if not task.networks and (options.wanted_hz is not None or options.hops != HOPS):
        raise UsageError(f"--wanted and --hops choose between networks, and {file} has none; add [networks.NAME]")
    if options.wanted_hz is not None and not 0 < options.wanted_hz < math.inf:
        raise UsageError(f"--wanted is {options.wanted_hz:g}; give partitions a second, above 0")
    if not 1 <= options.hops <= MAX_HOPS:
        raise UsageError(f"--hops is {options.hops}; give 1, for links from host to host, to {MAX_HOPS}")
    return task.but(wanted_hz=options.wanted_hz, hops=options.hops)


def _links(plan: Plan) -> list[tuple[str, str]]:
    """Return the pairs of hosts between which an edge of the plan goes."""
    where = plan.placement
    return sorted({(where[a], where[b]) for a, b in plan.dataflow.edges if where[a] != where[b]})


def _compare(file: Path, options: PlaceOptions, task: Task, *, as_json: bool) -> None:
    """Print every heuristic and planner beside the optimum. Options of the planner are options of odp."""
    if options.planner not in ("one-shot", "odp"):
        raise UsageError(f"--compare compares with odp; leave --planner {options.planner} away")
    from thalweg.experiments.cli.compared import compare_task

    planner = _for_a_file(Odp(**_options(options.option, "--option")))
    with _solving(file):
        compare_task(planner, task, options.seed, as_json=as_json)


@contextmanager
def _solving(file: Path) -> Iterator[None]:
    """Make errors of odp name the file, and the links without figures."""
    try:
        yield
    except LinksNeeded as needed:
        raise _not_given(file, needed, "odp") from None
    except UsageError as error:
        raise type(error)(f"{file}: {error}") from None


def _not_given(file: Path, needed: LinksNeeded, planner: str) -> UsageError:
    first = ", ".join(f"{a} to {b}" for a, b in sorted(needed.links)[:4])
    more = f" and {len(needed.links) - 4} more" if len(needed.links) > 4 else ""
    figure, advice = "rate", "add links, or set default_rate"
    if isinstance(needed, LatenciesNeeded):
        figure, advice = "latency", "add it to links, set default_latency, or name a matrix of round trips (latency)"
    return UsageError(f"{file} gives no {figure} for {first}{more}, which {planner} needs; {advice}")


def _for_a_file(planner: Odp) -> Odp:
    if planner.shared:
        raise UsageError("shared is for runs; place counts every stream, as the paper does: leave --option shared away")
    return planner


def _place_odp(file: Path, planner: Odp, task: Task, mps: str | None, as_json: bool) -> None:
    """Print the optimum, or the best placement and how far it may be from the optimum."""
    with _solving(file):
        goal = planner.goal(task)
    if mps is not None:
        planner.write(goal, mps)
    with _solving(file):
        solved = planner.solve(goal, task)
    instance, counted = goal.instance, goal.objective.availability_of
    metrics = instance.metrics(solved.where)
    available = math.exp(-value_of(metrics, "availability", counted))
    placement = {name: instance.hosts[host] for name, host in zip(instance.names, solved.where.tolist(), strict=True)}
    figures = {
        "response_s": metrics.response_s,
        "availability": available,
        "traffic": metrics.traffic,
        "usage": metrics.usage,
        "energy": metrics.energy,
    }
    if as_json:
        answer = {
            "planner": "odp",
            "weights": goal.objective.weights,
            "placement": placement,
            "metrics": figures,
            "utility": goal.utility(solved.where),
            "extremes": goal.extremes,
            "cost": solved.cost,
            "bound": solved.bound,
            "gap": solved.gap,
            "proven": solved.proven,
            "way": solved.way,
            "evaluated": solved.looked_at,
        }
        print_json(answer)
        return
    out = output()
    table = Table("node", "host", "inputs", "C", "room")
    left = instance.capacity - instance.loads(solved.where)
    for node, (name, host) in enumerate(placement.items()):
        inputs = " ".join(instance.names[producer] for producer, _ in instance.inputs[node])
        room = left[solved.where[node]]
        table.add_row(name, host, inputs, f"{instance.demand[node]:g}", "" if math.isinf(room) else f"{room:g}")
    out.print(table)
    text = f"response {metrics.response_s * 1e3:.3f} ms; availability {available:.4%}"
    text += f"; traffic {metrics.traffic:g} B/s; usage {metrics.usage:g} B; energy {metrics.energy:g} B s"
    out.print(text, soft_wrap=True)
    if goal.extremes:
        out.print(f"utility {goal.utility(solved.where):.6f} of 1:", soft_wrap=True)
    for metric, weight in goal.objective.weights.items():
        ends = goal.extremes[metric]
        of = "-log availability" if metric == "availability" else metric
        how = "proven" if ends.proven else "a bound"
        out.print(f"  {of} counts {weight:g}: best {ends.best:g} ({how}), worst {ends.worst:g}", soft_wrap=True)
    candidates = f", of {planner.candidates:.0%} of the candidates" if planner.candidates < 1 else ""
    proof = "proven optimal" if solved.proven else f"at most {solved.gap:.2%} above the bound"
    out.print(f"{proof}{candidates}; found by {solved.way}, {solved.looked_at} parts of placements looked at")


def _cost_s(task: Task, model: CostModel, placement: Placement) -> float:
    """Return the cost of a placement by a model. It is NaN if a link is not given."""
    try:
        return evaluate(model, Problem(task), placement)
    except LinksNeeded:
        return math.nan


def _interface(planner: object, model: object) -> Interface:
    """Return the interface of the bounded period: the cost model's, or else the planner's."""
    if isinstance(model, ExpectedPeriod):
        return "independent"
    if isinstance(model, Period):
        return model.interface
    return planner.interface if isinstance(planner, Thalweg) else "single"


def _bound_s(file: Path, task: Task, interface: Interface) -> float:
    try:
        return bound_period_s(task, interface)
    except LinksNeeded as needed:
        a, b = min(needed.links)
        raise UsageError(
            f"{file} gives no rate for {a} to {b}, which --bound needs; add links, or set default_rate"
        ) from None


def _seconds(value: float) -> str:
    if math.isnan(value):
        return "unknown (not all links are given)"
    return "infinite (over a link of rate 0)" if math.isinf(value) else f"{value:.3f} s"


def _figure(value: float) -> str:
    """Return a metric as a text, in its own unit."""
    return f"{value:g}"


def _node_table(result: Plan, hints: Hints) -> Table:
    """Return the table of the nodes on their hosts."""
    table = Table("node", "host", "inputs", "bytes", "compute s", "critical")
    for name in result.dataflow.upward:
        node = result.dataflow.by_name[name]
        size, compute_s = hints.output_bytes.get(name), hints.compute_s.get(name)
        table.add_row(
            name,
            result.placement[name] + ("" if node.pinned is None else " (pinned)"),
            " ".join(node.inputs),
            "" if size is None else f"{size:.0f}",
            "" if compute_s is None else f"{compute_s:.3f}",
            "yes" if name in result.critical else "",
        )
    return table


def _print(result: Plan, task: Task, cost: str, baseline_s: float) -> None:
    out = output()
    out.print(_node_table(result, result.hints or task.hints))
    if result.dataflow.not_a_tree():
        out.print(f"graph: {as_edges(result.dataflow.edges)}", soft_wrap=True)
    show = _seconds if cost not in COST_MODELS or COST_MODELS[cost] is not QualityCost else _figure
    out.print(f"{cost}: {show(result.cost_s)}; download-all: {show(baseline_s)}", end="", soft_wrap=True)
    out.print(f"; {len(result.steps)} moves, {result.evaluated} placements looked at", soft_wrap=True)
    for number, tree in enumerate((result, *result.beside) if result.beside else (), 1):
        edges = ", ".join(f"{a} > {b}" for a, b in _links(tree))
        out.print(f"tree {number}, {tree.share:.0%} of the partitions: {edges}", soft_wrap=True)
    if task.networks and not result.beside:
        choice = choice_of(task, result)
        for (source, target), (over,) in choice.items():
            on = [over] if isinstance(over, str) else [f"{link.via} to {link.target}" for link in over]
            out.print(f"{source} > {target}: over {', '.join(on)}", soft_wrap=True)
        period_s, price = cost_of(task, result.dataflow, result.placement, choice, result.hints)
        out.print(
            f"over these a partition takes {_seconds(period_s)}, and the bytes of a thousand cost ${1000 * price:.3g}",
            soft_wrap=True,
        )
    if result.critical:
        where = [f"{name} at {result.placement[name]}" for name in result.critical]
        path = cost == "critical-path"
        out.print(
            ("critical path: " if path else "at the bottleneck: ") + (" > " if path else ", ").join(where),
            soft_wrap=True,
        )
