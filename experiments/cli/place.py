"""``thalweg place``: a placement problem from a file, solved by any planner under any cost model.

The file's form is documented by ``docs/examples/placement.toml``, which is one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.table import Table

from thalweg.experiments.cli.console import JsonOption, output, print_json
from thalweg.experiments.cli.options import find_own_code, takes
from thalweg.experiments.command import Option
from thalweg.experiments.records.trees import as_edges
from thalweg.middleware.dataflow import TREES, Code, Dataflow, Node, Placement
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.files import decode_toml, read_bounded
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.view import (
    LatenciesNeeded,
    Latency,
    Link,
    LinkEstimate,
    LinksNeeded,
    NetworkView,
    links_between,
)
from thalweg.middleware.planning import (
    COST_MODELS,
    Answers,
    CostParameters,
    DownloadAll,
    ExpectedPeriod,
    Hints,
    Interface,
    Odp,
    Period,
    Plan,
    Quality,
    Task,
    Thalweg,
    ask_planner,
    bound_period_s,
    get_cost_model,
    get_planner,
    propagate_hints,
)
from thalweg.middleware.planning.odp.objective import value_of
from thalweg.middleware.planning.odp.tasks import QualityCost, objective_of

_CODE = Code("unused")  # the operators are only planned for, never run


class OperatorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator makes of its inputs: the size of its output, and how long it computes."""

    output: Literal["max", "sum"] | float = "max"  # of the inputs' bytes, or that many bytes
    compute_s: float = 0.0
    compute_s_per_byte: float = 0.0  # of output, in addition
    reorderable: bool = False  # associative and commutative to the byte: the tree's shape is free

    def output_size_bytes(self, input_sizes: Sequence[float], /) -> float:
        if isinstance(self.output, str):
            return max(input_sizes) if self.output == "max" else sum(input_sizes)
        return self.output

    def compute_seconds(self, input_sizes: Sequence[float], /) -> float:
        return self.compute_s + self.compute_s_per_byte * self.output_size_bytes(input_sizes)

    @property
    def answers(self) -> Answers:
        return Answers(self.output_size_bytes, self.compute_seconds, self.reorderable)


class NodeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node of a tree that no builder makes. Without inputs it is a source: ``host`` and ``bytes`` are needed.

    ``operator`` replaces the dataflow's for this node; ``host`` pins it. ``state``: bytes that move with it from where
    the file's placement has it. ``demand``: C_i, ``candidates``: hosts that it
    may be on; ``takes``: by input the bytes of a partition that comes from there, where that is not all that is given.
    """

    name: str
    inputs: tuple[str, ...] = ()
    host: str | None = None
    bytes: float | None = None
    operator: OperatorSpec | None = None
    state: float = 0.0
    demand: float | None = None
    candidates: tuple[str, ...] | None = None
    takes: dict[str, float] = {}


class HostSpec(HostFigures, frozen=True, forbid_unknown_fields=True):
    """A host: besides its processor its room C_u for operators, and its availability A_u."""

    capacity: float | None = None
    availability: float = 1.0


class DataflowSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either ``tree`` over ``sources`` (host to bytes of a partition, in the order of combination), or ``nodes``.

    ``sinks``: by name what the client takes of these nodes; by default sink ``sink`` the one that is no other's input.
    ``rate_hz``: partitions a second; ``demand``: C_i of every operator that does not say, ``demands``: of single nodes.
    """

    tree: str | None = None
    sources: dict[str, float] = {}
    nodes: tuple[NodeSpec, ...] = ()
    sinks: dict[str, tuple[str, ...]] = {}
    operator: OperatorSpec = OperatorSpec()
    rate_hz: float = 1.0
    demand: float = 1.0
    demands: dict[str, float] = {}


class LinkSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rate from host ``src`` to host ``dst``: tc's notation or bits per second; ``both``: and back.

    ``latency``: what an empty message takes, as ``"20ms"`` or seconds; ``bandwidth``: B_uv, what placements may use of
    it; ``availability``: A_uv. Any may be left out.
    """

    src: str
    dst: str
    rate: str | float | None = None
    both: bool = False
    latency: str | float | None = None
    bandwidth: str | float | None = None
    availability: float = 1.0


class PlacementFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file. ``hosts``' order breaks ties; the sink is at ``client``, the first host by default.

    ``default_rate``: of the links not listed; ``latency``: round trips between all hosts, a file or data set, of which
    their latency is half; ``default_latency``: of other links not listed. ``capacities``: speed, cores and load of
    hosts, their room and availability. ``placement``: where operators are now, for planners that start there.
    ``objective``: weights by metric; ``availability``: whether operators count for it or hosts.
    """

    hosts: tuple[str, ...]
    dataflow: DataflowSpec
    client: str | None = None
    links: tuple[LinkSpec, ...] = ()
    default_rate: str | float | None = None
    latency: str | None = None
    default_latency: str | float | None = None
    capacities: dict[str, HostSpec] = {}
    costs: CostParameters = CostParameters()
    placement: dict[str, str] = {}
    objective: dict[str, float] = {}
    availability: Literal["operators", "hosts"] = "operators"


def load_problem(path: Path) -> Task:
    """Read and check a placement file; UsageError naming the file and the key, host or node that is wrong."""
    try:
        data = read_bounded(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        spec = msgspec.convert(decode_toml(data.decode()), PlacementFile)
    except (ValueError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path}: {_explain(str(error))}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    try:
        return _task(spec, path.parent)
    except UsageError as error:
        raise type(error)(f"{path}: {error}") from error


def _explain(message: str) -> str:
    """msgspec's message, with the nearest known key where a key is unknown."""
    unknown = re.search(r"unknown field `([^`]*)`", message)
    if unknown is None:
        return message
    structs = (PlacementFile, DataflowSpec, NodeSpec, OperatorSpec, LinkSpec, HostSpec, CostParameters)
    known = [field for struct in structs for field in struct.__struct_encode_fields__]
    return f"{message}; {nearest(unknown[1], known)}"


def _task(spec: PlacementFile, folder: Path) -> Task:
    if not spec.hosts:
        raise UsageError("hosts is empty; name at least one")
    client = spec.hosts[0] if spec.client is None else spec.client
    if client not in spec.hosts:
        raise UsageError(f"client {client!r} is not among the hosts; {nearest(client, spec.hosts)}")
    dataflow, hints = _dataflow(spec.dataflow, client)
    dataflow.validate(spec.hosts)
    if not (math.isfinite(spec.dataflow.rate_hz) and spec.dataflow.rate_hz > 0):
        raise UsageError(f"dataflow.rate_hz is {spec.dataflow.rate_hz}; give partitions a second, above 0")
    hints = msgspec.structs.replace(hints, rates_hz={node.name: spec.dataflow.rate_hz for node in dataflow.nodes})
    current: Placement | None = None
    if spec.placement:
        current = {node.name: node.pinned for node in dataflow.nodes if node.pinned} | spec.placement
    for host in spec.capacities:
        if host not in spec.hosts:
            raise UsageError(f"capacities name unknown host {host!r}; {nearest(host, spec.hosts)}")
    hints = hints.measured({}, {host: HostFigures(of.speed, of.cores, of.load) for host, of in spec.capacities.items()})
    quality = _quality(spec, dataflow)
    return Task((dataflow,), spec.hosts, _view(spec, folder), hints, spec.costs, current, quality)


def _quality(spec: PlacementFile, dataflow: Dataflow) -> Quality:
    objective_of(spec.objective or "response")
    demand = {node.name: spec.dataflow.demand for node in dataflow.nodes if node.kind == "operator"}
    demand |= {node.name: node.demand for node in spec.dataflow.nodes if node.demand is not None}
    ends = [(link, pair) for link in spec.links for pair in _pairs(link)]
    return Quality(
        demand | spec.dataflow.demands,
        {node.name: node.candidates for node in spec.dataflow.nodes if node.candidates is not None},
        {host: of.capacity for host, of in spec.capacities.items() if of.capacity is not None},
        {host: of.availability for host, of in spec.capacities.items()},
        {pair: link.availability for link, pair in ends},
        {pair: _rate_bps(link.bandwidth, _name(link)) / 8 for link, pair in ends if link.bandwidth is not None},
        {node.name: node.state for node in spec.dataflow.nodes},
        spec.objective,
        spec.availability,
    ).check(dataflow, spec.hosts)


def _pairs(link: LinkSpec) -> list[Link]:
    return [Link(link.src, link.dst), Link(link.dst, link.src)][: 1 + link.both]


def _name(link: LinkSpec) -> str:
    return f"the link {link.src} to {link.dst}"


def _dataflow(spec: DataflowSpec, client: str) -> tuple[Dataflow, Hints]:
    if (spec.tree is None) == (not spec.nodes):
        raise UsageError("dataflow needs either tree and sources, or nodes")
    if spec.tree is not None:
        if spec.sinks:
            raise UsageError("dataflow.sinks goes with nodes; a tree has one sink, which takes its last operator")
        if spec.tree not in TREES:
            raise UsageError(f"unknown tree {spec.tree!r}; {nearest(spec.tree, list(TREES))}")
        dataflow = TREES[spec.tree](dict.fromkeys(spec.sources, _CODE), _CODE, client)
        sizes = {f"source@{host}": size for host, size in spec.sources.items()}
        return dataflow, propagate_hints(dataflow, sizes, lambda _: spec.operator.answers)
    if spec.sources:
        raise UsageError("dataflow.sources goes with tree; with nodes, a source is a node with host and bytes")
    nodes = []
    for node in spec.nodes:
        if node.inputs and node.bytes is not None:
            raise UsageError(f"node {node.name!r} has inputs and bytes; an operator's output follows from operator")
        if not node.inputs and node.operator is not None:
            raise UsageError(f"node {node.name!r} has operator but no inputs; give it inputs, or bytes for a source")
        kind: Literal["source", "operator"] = "operator" if node.inputs else "source"
        nodes.append(Node(node.name, kind, node.inputs, _CODE, node.host))
    sinks = spec.sinks
    if not sinks:
        taken = {name for node in nodes for name in node.inputs}
        roots = tuple(node.name for node in nodes if node.name not in taken)
        if len(roots) != 1:
            said = f"the client takes the one node that is no other's input; here that is {list(roots)}"
            raise UsageError(f"{said}; name what it takes in [dataflow.sinks]")
        sinks = {"sink": roots}
    if named := next((node.name for node in nodes if node.name in sinks), ""):
        raise UsageError(f"the name {named!r} stands for the client; give the node another")
    ends = (Node(name, "sink", inputs, None, client) for name, inputs in sinks.items())
    dataflow = Dataflow((*nodes, *ends)).validate()
    own = {node.name: node.operator or spec.operator for node in spec.nodes}
    sizes = {node.name: node.bytes for node in spec.nodes if node.bytes is not None}
    hints = propagate_hints(dataflow, sizes, lambda node: own[node.name].answers)
    for node in spec.nodes:
        for name in node.takes:
            if name not in node.inputs:
                raise UsageError(f"node {node.name!r} takes from {name!r}, which is none of its inputs; name it there")
    takes = {node.name: node.takes for node in spec.nodes if node.takes}
    return dataflow, msgspec.structs.replace(hints, input_bytes=takes).check(dataflow)


def _view(spec: PlacementFile, folder: Path) -> NetworkView:
    rates: dict[Link, float] = {}
    delays_s: dict[Link, float] = {}
    if spec.latency is not None:
        from thalweg.emulation.scenarios.delays import read_delays

        delays_s, _ = read_delays(spec.latency, spec.hosts, 1, folder)
    given: set[Link] = set()
    for link in spec.links:
        for host in (link.src, link.dst):
            if host not in spec.hosts:
                raise UsageError(f"a link names unknown host {host!r}; {nearest(host, spec.hosts)}")
        if link.src == link.dst:
            raise UsageError(f"a link leads from {link.src!r} to itself; that takes no time, leave it out")
        for pair in _pairs(link):
            if pair in given:
                raise UsageError(f"the link {pair[0]} to {pair[1]} is given twice")
            given.add(pair)
            if link.rate is not None:
                rates[pair] = _rate_bps(link.rate, _name(link))
            if link.latency is not None:
                delays_s[pair] = _latency_s(link.latency, _name(link))
    if spec.default_rate is not None:
        default = _rate_bps(spec.default_rate, "default_rate")
        for pair in links_between(spec.hosts):
            rates.setdefault(pair, default)
    if spec.default_latency is not None:
        default_s = _latency_s(spec.default_latency, "default_latency")
        for pair in links_between(spec.hosts):
            delays_s.setdefault(pair, delays_s.get(Link(*pair[::-1]), default_s))
    estimates = {pair: LinkEstimate(rate) for pair, rate in rates.items()}
    return NetworkView(estimates, {pair: Latency(delay_s) for pair, delay_s in delays_s.items()})


def _latency_s(latency: str | float, where: str) -> float:
    from thalweg.emulation.units import seconds

    try:
        return seconds(latency)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _rate_bps(rate: str | float, where: str) -> float:
    from thalweg.emulation.units import parse_rate

    try:
        return parse_rate(rate)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


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
    """Of ``place``: who places, what is minimised, and what else is told."""

    planner: Annotated[
        str,
        Option(
            "one-shot, download-all, exhaustive; thalweg: the tree's shape as well, where operators are reorderable;"
            " odp: proven optimal by response time, availability and network; global, local: what they do in one"
            " period, from the file's placement (global needs it); or package.module:Class."
        ),
    ] = "one-shot"
    cost: Annotated[
        str,
        Option(
            "critical-path, period, expected-period; response, availability, traffic, usage, energy, or objective: the"
            " file's weights of these; or package.module:Class."
        ),
    ] = "critical-path"
    option: Annotated[
        tuple[str, ...], Option("Of the planner, as start=current, or k=2 of local.", metavar="KEY=VALUE")
    ] = ()
    cost_option: Annotated[tuple[str, ...], Option("As interface=duplex.", metavar="KEY=VALUE")] = ()
    bound: Annotated[bool, Option("Also print the period that no tree and no mixture of trees can beat.")] = False
    mps: Annotated[
        str | None, Option("Also write the program of odp to a file, for other solvers.", metavar="PATH")
    ] = None
    compare: Annotated[
        bool, Option("Instead: every heuristic and planner beside the optimum, by the file's objective.")
    ] = False
    random: Annotated[
        int | None,
        Option("With --compare, in place of FILE: so many random problems, of which ratios are told.", least=1),
    ] = None
    seed: Annotated[int, Option("With --compare: of the random problems, and of heuristics.", least=0)] = 1


@takes(PlaceOptions)
def place(
    options: PlaceOptions,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A placement problem in TOML.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Solve a placement problem from a file: where does each operator go, and what does that cost?

    Example: thalweg place docs/examples/placement.toml --cost period

    The tree as well, beside what is possible at all: thalweg place docs/examples/placement.toml --cost period
    --planner thalweg --bound

    Proven optimal, or the gap: thalweg place docs/examples/optimal.toml --planner odp --option
    objective='{"response": 0.5, "availability": 0.5}'

    Every heuristic beside it: thalweg place docs/examples/optimal.toml --compare

    What local would do next: thalweg place docs/examples/placement.toml --planner local --option k=2
    """
    if options.random is not None:
        if not options.compare or file is not None:
            raise UsageError("--random goes with --compare, in place of FILE; leave FILE away, or --random")
        from thalweg.experiments.cli.compared import compare_random

        compare_random(options.random, options.seed, as_json=as_json)
        return
    if file is None:
        raise UsageError("place needs a FILE, or --compare --random N; docs/examples/placement.toml is an example")
    task, planner, cost = load_problem(file), options.planner, options.cost
    if options.compare:
        _compare(file, options, task, as_json=as_json)
        return
    find_own_code([planner, cost])
    model = get_cost_model(cost, **_options(options.cost_option, "--cost-option"))
    chosen = get_planner(planner, **_options(options.option, "--option"))
    if isinstance(chosen, Odp):
        _place_odp(file, _for_a_file(chosen), task, options.mps, as_json)
        return
    if options.mps is not None:
        raise UsageError("--mps writes the program of --planner odp; add that")
    if isinstance(chosen, Thalweg):  # goes by periods, whatever others go by
        model = chosen.goes_by(model)
        cost = model.name
    if planner == "global" and task.current is None:
        raise UsageError(f"{file} has no table [placement], which global starts from; add one, or use one-shot")
    try:
        result = ask_planner(chosen, task, model)
    except LinksNeeded as needed:
        raise _not_given(file, needed, planner) from None
    baseline_s = DownloadAll().plan(task, model).cost_s
    bound_s = _bound_s(file, task, _interface(chosen, model)) if options.bound else None
    if as_json:
        answer = {
            "planner": planner,
            "cost_model": cost,
            "cost_s": result.cost_s,
            "initial_cost_s": result.initial_cost_s,
            "download_all_cost_s": baseline_s,
            "placement": result.placement,
            "critical": result.critical,
            "steps": result.steps,
            "evaluated": result.evaluated,
            "links_used": sorted(result.links_used),
        }
        if result.hints is not None:
            answer["inputs"] = {node.name: node.inputs for node in result.dataflow.nodes if node.inputs}
        if bound_s is not None:
            answer["bound_period_s"] = bound_s
        print_json(answer)
    else:
        _print(result, task, cost, baseline_s)
        if bound_s is not None:
            text = f"no tree and no mixture of trees has a period below {_seconds(bound_s)}"
            output().print(f"{text} ({_interface(chosen, model)} interfaces; transfers alone)", soft_wrap=True)


def _compare(file: Path, options: PlaceOptions, task: Task, *, as_json: bool) -> None:
    """Print every heuristic and planner beside the optimum; options of a planner are those of odp."""
    if options.planner not in ("one-shot", "odp"):
        raise UsageError(f"--compare is beside odp; leave --planner {options.planner} away")
    from thalweg.experiments.cli.compared import compare_task

    planner = _for_a_file(Odp(**_options(options.option, "--option")))
    try:
        compare_task(planner, task, options.seed, as_json=as_json)
    except LinksNeeded as needed:
        raise _not_given(file, needed, "odp") from None
    except UsageError as error:
        raise type(error)(f"{file}: {error}") from None


def _not_given(file: Path, needed: LinksNeeded, planner: str) -> UsageError:
    first = ", ".join(f"{a} to {b}" for a, b in sorted(needed.links)[:4])
    more = f" and {len(needed.links) - 4} more" if len(needed.links) > 4 else ""
    what, advice = "rate", "add links, or set default_rate"
    if isinstance(needed, LatenciesNeeded):
        what, advice = "latency", "add it to links, set default_latency, or name a matrix of round trips (latency)"
    return UsageError(f"{file} gives no {what} for {first}{more}, which {planner} needs; {advice}")


def _for_a_file(planner: Odp) -> Odp:
    if planner.shared:
        raise UsageError("shared is for runs; place counts every stream, as the paper does: leave --option shared away")
    return planner


def _place_odp(file: Path, planner: Odp, task: Task, mps: str | None, as_json: bool) -> None:
    """Print the optimum, or the best placement and how far it may be from it."""
    try:
        goal = planner.goal(task)
        if mps is not None:
            planner.write(goal, mps)
        solved = planner.solve(goal, task)
    except LinksNeeded as needed:
        raise _not_given(file, needed, "odp") from None
    except UsageError as error:
        raise type(error)(f"{file}: {error}") from None
    instance, counted = goal.instance, goal.objective.availability_of
    metrics = instance.metrics(solved.where)
    available = math.exp(-value_of(metrics, "availability", counted))
    placement = {name: instance.hosts[host] for name, host in zip(instance.names, solved.where.tolist(), strict=True)}
    found = {
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
            "metrics": found,
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
    said = f"response {metrics.response_s * 1e3:.3f} ms; availability {available:.4%}"
    said += f"; traffic {metrics.traffic:g} B/s; usage {metrics.usage:g} B; energy {metrics.energy:g} B s"
    out.print(said, soft_wrap=True)
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


def _interface(planner: object, model: object) -> Interface:
    """Of the period that is bounded: the cost model's, or else the planner's."""
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
    """Of a metric, in its own unit."""
    return f"{value:g}"


def _print(result: Plan, task: Task, cost: str, baseline_s: float) -> None:
    out = output()
    hints = result.hints or task.hints
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
    out.print(table)
    if result.dataflow.not_a_tree():
        out.print(f"graph: {as_edges(result.dataflow.edges)}", soft_wrap=True)
    said = _seconds if cost not in COST_MODELS or COST_MODELS[cost] is not QualityCost else _figure
    out.print(f"{cost}: {said(result.cost_s)}; download-all: {said(baseline_s)}", end="", soft_wrap=True)
    out.print(f"; {len(result.steps)} moves, {result.evaluated} placements looked at", soft_wrap=True)
    if result.critical:
        where = [f"{name} at {result.placement[name]}" for name in result.critical]
        path = cost == "critical-path"
        out.print(
            ("critical path: " if path else "at the bottleneck: ") + (" > " if path else ", ").join(where),
            soft_wrap=True,
        )
