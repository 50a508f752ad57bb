"""Cost models against naive definitions, on random trees, placements and rates."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement, complete_binary_tree
from thalweg.middleware.errors import DataflowError, PlacementError, UsageError
from thalweg.middleware.network.view import LinkEstimate, LinksNeeded, NetworkView
from thalweg.middleware.planning import (
    CostModel,
    CostParameters,
    CriticalPath,
    ExpectedPeriod,
    Hints,
    LoadModel,
    Period,
    Position,
    Problem,
    Task,
    evaluate,
    propagate_hints,
)

HOSTS = ("client", "a", "b", "c")
MODELS: list[CostModel] = [
    CriticalPath(),
    CriticalPath(serialised=True),
    Period(),
    Period(interface="duplex"),
    Period(interface="independent"),
    Period(node_cycles=False),
    ExpectedPeriod(),
    ExpectedPeriod(2.5),
    ExpectedPeriod(60.0),
]
rates = st.sampled_from([0.0, 1e3, 5e4, 2e5, 1e6, 1e7]) | st.floats(1e3, 1e8)


@st.composite
def trees(draw: st.DrawFn) -> Dataflow:
    """Draw a tree of up to 6 operators with any fan-in, of which some are pinned."""
    nodes: list[Node] = []

    def grow(depth: int) -> str:
        pin = draw(st.sampled_from(HOSTS))
        if depth == 0 or draw(st.booleans()) or len(nodes) > 8:
            nodes.append(Node(f"n{len(nodes)}", "source", (), Code("x"), pin))
        else:
            inputs = tuple(grow(depth - 1) for _ in range(draw(st.integers(1, 3))))
            pinned = pin if draw(st.integers(0, 4)) == 0 else None
            nodes.append(Node(f"n{len(nodes)}", "operator", inputs, Code("y"), pinned))
        return nodes[-1].name

    root = grow(3)
    nodes.append(Node("sink", "sink", (root,), None, "client"))
    return Dataflow(tuple(draw(st.permutations(nodes)))).validate(HOSTS)


@st.composite
def queries(draw: st.DrawFn) -> tuple[Dataflow, ...]:
    """Draw a tree, or a tree and a query that shares nodes with it."""
    tree = draw(trees())
    if draw(st.booleans()):
        return (tree,)
    takes = draw(st.lists(st.sampled_from([*tree.sources, *tree.operators]), unique=True, min_size=1, max_size=2))
    shared, queue = [], [*takes]
    while queue:
        node = tree.by_name[queue.pop()]
        if node not in shared:
            shared.append(node)
            queue += node.inputs
    sink = Node("other", "sink", ("too",), None, "a")
    return tree, Dataflow((*shared, Node("too", "operator", tuple(takes), Code("y")), sink)).validate()


@st.composite
def problems(draw: st.DrawFn, *, all_known: bool = True) -> tuple[Problem, Placement]:
    dataflows = draw(queries())
    dataflow = Task(dataflows, HOSTS, NetworkView({}), Hints({})).dataflow
    sizes = st.sampled_from([0.0, 16_384.0, 131_072.0]) | st.floats(0, 1e6)
    hints = Hints(
        {node.name: draw(sizes) for node in dataflow.nodes if node.kind != "sink"},
        {name: draw(st.floats(0, 2)) for name in dataflow.operators},
    )
    costs = CostParameters(
        startup_s=draw(st.sampled_from([0.0, 0.05])),
        disk_bytes_per_s=draw(st.sampled_from([3e6, math.inf])),
        compute_factor=draw(st.sampled_from([0.0, 1.0])),
        host_compute_factor={"a": 2.0},
        cores=draw(st.sampled_from([1, 3])),
    )
    pairs = [(a, b) for a in HOSTS for b in HOSTS if a != b]
    known = pairs if all_known else draw(st.lists(st.sampled_from(pairs), unique=True))
    values = draw(st.lists(rates, min_size=len(known), max_size=len(known)))
    view = NetworkView({link: LinkEstimate(rate) for link, rate in zip(known, values, strict=True)})
    placement = {node.name: node.pinned or draw(st.sampled_from(HOSTS)) for node in dataflow.nodes}
    return Problem(Task(dataflows, HOSTS, view, hints, costs)), placement


# --- the definitions, naively ---------------------------------------------------------------------


def transfer_s(problem: Problem, placement: Placement, producer: str, consumer: str) -> float:
    a, b = placement[producer], placement[consumer]
    rate_bps = problem.task.view.rate_bps(a, b)
    assert rate_bps is not None
    if a == b:
        return 0.0
    task = problem.task
    return task.costs.startup_s + task.hints.output_bytes[producer] * 8 / rate_bps if rate_bps else math.inf


def compute_s(problem: Problem, placement: Placement, name: str) -> float:
    factor = problem.task.costs.compute_factor * problem.task.costs.host_compute_factor.get(placement[name], 1.0)
    return problem.task.hints.compute_s.get(name, 0.0) * factor


def disk_s(problem: Problem, name: str) -> float:
    source = problem.dataflow.by_name[name].kind == "source"
    return problem.task.hints.output_bytes[name] / problem.task.costs.disk_bytes_per_s if source else 0.0


def paths(dataflow: Dataflow, *begun: str) -> Iterator[tuple[str, ...]]:
    """Every path from a source to a sink, both included (Ranganathan et al., section 2)."""
    onward = dataflow.consumers[begun[-1]] if begun else dataflow.sources
    for name in onward:
        yield from paths(dataflow, *begun, name)
    if not onward:
        yield begun


def longest_path_s(problem: Problem, placement: Placement) -> float:
    longest = 0.0
    for path in paths(problem.dataflow):
        length = disk_s(problem, path[0]) + sum(compute_s(problem, placement, name) for name in path)
        longest = max(longest, length + sum(transfer_s(problem, placement, *edge) for edge in pairwise(path)))
    return longest


def period_s(problem: Problem, placement: Placement, model: Period) -> float:
    loads: dict[object, float] = {}
    independent = model.interface == "independent"

    def add(resource: object, seconds: float) -> None:
        loads[resource] = loads.get(resource, 0.0) + seconds

    together = max if independent else sum
    for node in problem.dataflow.nodes:
        host = placement[node.name]
        add(("processor", host), compute_s(problem, placement, node.name) / problem.task.costs.cores)
        add(("disk", host), disk_s(problem, node.name))
        arrivals = [transfer_s(problem, placement, name, node.name) for name in node.inputs]
        takers = {
            placement[name]: name for name in problem.dataflow.consumers[node.name]
        }  # the partition is sent once to a host
        leavings = [transfer_s(problem, placement, node.name, name) for name in takers.values()]
        if model.node_cycles:
            own = compute_s(problem, placement, node.name) + disk_s(problem, node.name)
            add(("cycle", node.name), together(arrivals or [0.0]) + own + together(leavings or [0.0]))
    for (producer, target), consumer in {(a, placement[b]): b for a, b in problem.dataflow.edges}.items():
        host = placement[producer]
        if host != target:
            ends = [(host, "out"), (target, "in")] if model.interface == "duplex" else [host, target]
            for end in [(host, target)] if independent else ends:
                add(("interface", end), transfer_s(problem, placement, producer, consumer))
    return max(loads.values())


def critical_nodes(model: CostModel, problem: Problem, placement: Placement) -> tuple[str, ...]:
    return problem.names_of(model.at(problem, problem.where(placement)).critical())


def close(seconds: float) -> object:
    return pytest.approx(seconds, abs=2e-8, rel=1e-12)  # each of up to 20 terms is rounded to 1 ns


@given(problems())
def test_critical_path_is_the_longest_path(case: tuple[Problem, Placement]) -> None:
    problem, placement = case
    cost_s, critical = evaluate(CriticalPath(), problem, placement), critical_nodes(CriticalPath(), problem, placement)
    assert cost_s == close(longest_path_s(problem, placement))
    assert critical in set(paths(problem.dataflow))
    if math.isfinite(cost_s):
        alone = disk_s(problem, critical[0])
        alone += sum(compute_s(problem, placement, name) for name in critical)
        alone += sum(transfer_s(problem, placement, *edge) for edge in pairwise(critical))
        assert alone == close(cost_s)


@given(problems(), st.sampled_from([model for model in MODELS if isinstance(model, Period)]))
def test_period_is_the_busiest_resource_or_node(case: tuple[Problem, Placement], model: Period) -> None:
    problem, placement = case
    assert evaluate(model, problem, placement) == close(period_s(problem, placement, model))


@pytest.mark.parametrize("model", [Period(), Period(interface="independent"), ExpectedPeriod(), ExpectedPeriod(60.0)])
def test_consumers_on_the_same_host_are_sent_a_partition_once(model: CostModel) -> None:
    """The cost is the same for one and three consumers, and for the moves of one of them."""
    given = shared_by(3)
    one, costs = given.where(dict.fromkeys(("x0", "x1", "x2"), "b")), []
    for count in (1, 3):
        costs.append(evaluate(model, shared_by(count), {f"x{i}": "b" for i in range(count)}))
    assert costs[0] == costs[1] == pytest.approx(1.0, rel=0.02)
    apart = model.at(given, one).moves_of([given.index["x1"]])[0] / 1e9
    assert apart[HOSTS.index("b")] == pytest.approx(1.0, rel=0.02)
    assert apart[HOSTS.index("c")] > 1.0 or model == Period(interface="independent")


def shared_by(count: int) -> Problem:
    """Return a problem with a source on host a, and ``count`` operators on it with empty outputs."""
    takers = [Node(f"x{i}", "operator", ("s",), Code("y")) for i in range(count)]
    sink = Node("t", "sink", tuple(node.name for node in takers), None, "client")
    flow = Dataflow((Node("s", "source", (), Code("x"), "a"), *takers, sink))
    view = NetworkView({(a, b): LinkEstimate(8e6) for a in HOSTS for b in HOSTS})
    hints = Hints({"s": 1e6, **{node.name: 0.0 for node in takers}})
    return Problem(Task((flow,), HOSTS, view, hints, CostParameters(startup_s=0.0, disk_bytes_per_s=math.inf)))


@given(problems(all_known=False), st.sampled_from(MODELS))
def test_the_costs_of_moves_equal_a_fresh_evaluation(case: tuple[Problem, Placement], model: CostModel) -> None:
    problem, placement = case
    position = model.at(problem, problem.where(placement))
    for node, movable in enumerate(problem.movable):
        if movable:
            assert position.moves_of((node,)).tolist() == Position.moves_of(position, (node,)).tolist()


@given(problems(all_known=False), st.sampled_from(MODELS), st.randoms(use_true_random=False))
def test_the_costs_of_moves_of_many_nodes_equal_separate_evaluations(
    case: tuple[Problem, Placement], model: CostModel, rng: random.Random
) -> None:
    problem, placement = case
    position = model.at(problem, problem.where(placement))
    nodes = [node for node, movable in enumerate(problem.movable) if movable]
    nodes = rng.sample(nodes, rng.randint(0, len(nodes)))
    together = position.moves_of(nodes)
    assert together.shape == (len(nodes), len(HOSTS))
    assert together.tolist() == Position.moves_of(position, nodes).tolist()


@given(problems(), st.sampled_from(MODELS))
def test_only_moves_of_critical_nodes_can_help(case: tuple[Problem, Placement], model: CostModel) -> None:
    problem, placement = case
    position = model.at(problem, problem.where(placement))
    critical = position.critical()
    for node, movable in enumerate(problem.movable):
        if movable and node not in critical:
            assert position.moves_of((node,)).min() >= position.lower_ns


@given(problems(all_known=False), st.sampled_from(MODELS))
def test_a_bound_is_at_most_the_cost_and_all_missing_links_are_requested_at_once(
    case: tuple[Problem, Placement], model: CostModel
) -> None:
    problem, placement = case
    edges = {(placement[producer], placement[consumer]) for producer, consumer in problem.dataflow.edges}
    used = {(source, target) for source, target in edges if source != target}
    missing = used - problem.task.view.estimates.keys()
    view = problem.task.view.with_estimates(dict.fromkeys(missing, LinkEstimate(7e5)))
    known = Problem(problem.task.but(view=view))
    truth_s = evaluate(model, known, placement)
    assert model.at(problem, problem.where(placement)).lower_ns / 1e9 <= truth_s
    if missing:
        with pytest.raises(LinksNeeded) as needed:
            evaluate(model, problem, placement)
        assert needed.value.links == missing  # all of them, in one go
        return
    assert evaluate(model, problem, placement) == truth_s
    assert critical_nodes(model, problem, placement) == critical_nodes(model, known, placement)


def test_serialised_inputs_arrive_at_a_host_in_turn() -> None:
    dataflow = complete_binary_tree({"a": Code("x"), "b": Code("x")}, Code("y"))
    hints = Hints({"source@a": 1e6, "source@b": 1e6, "op0": 1e6}, disk_bytes={"source@a": 3e6, "source@b": 0.0})
    view = NetworkView({("a", "client"): LinkEstimate(8e6), ("b", "client"): LinkEstimate(4e6)})
    problem = Problem(Task((dataflow,), HOSTS, view, hints, CostParameters(startup_s=0)))
    placement = problem.placement(problem.at_sink())
    assert evaluate(CriticalPath(), problem, placement) == pytest.approx(2.0)
    # b's transfer holds the interface from 0 to 2 s; a is ready at 1 s, waits, and arrives at 3 s
    model = CriticalPath(serialised=True)
    assert evaluate(model, problem, placement) == pytest.approx(3.0)
    assert set(critical_nodes(model, problem, placement)) == {"source@a", "source@b", "op0", "sink"}


def test_every_part_of_the_cost_can_be_turned_off() -> None:
    dataflow = complete_binary_tree({"a": Code("x"), "b": Code("x")}, Code("y"))
    hints = Hints({"source@a": 3e6, "source@b": 3e6, "op0": 3e6}, {"op0": 4.0})
    view = NetworkView({(a, b): LinkEstimate(24e6) for a in HOSTS for b in HOSTS})

    def cost_s(**changed: float) -> float:
        costs = CostParameters(**changed)  # type: ignore[arg-type]
        problem = Problem(Task((dataflow,), HOSTS, view, hints, costs))
        return evaluate(CriticalPath(), problem, problem.placement(problem.at_sink()))

    assert cost_s() == pytest.approx(1 + 0.05 + 1 + 4)
    assert cost_s(startup_s=0, disk_bytes_per_s=math.inf, compute_factor=0) == pytest.approx(1)


class Larger:
    def output_size_bytes(self, input_sizes: list[float]) -> float:
        return max(input_sizes)

    def compute_s(self, input_sizes: list[float]) -> float:
        return sum(input_sizes) / 1e6


def test_hints_propagate_up_the_tree() -> None:
    dataflow = complete_binary_tree(dict.fromkeys("abc", Code("x")), Code("y"))
    sizes = {"source@a": 1e6, "source@b": 3e6, "source@c": 2e6}
    hints = propagate_hints(dataflow, sizes, lambda node: Larger())
    assert hints.output_bytes == {**sizes, "op0": 3e6, "op1": 3e6}
    assert hints.compute_s == {"op0": 4.0, "op1": 5.0}
    with pytest.raises(UsageError, match="source@c"):
        propagate_hints(dataflow, {"source@a": 1, "source@b": 1}, lambda node: Larger())


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: CostParameters(startup_s=-1), "startup_s is -1"),
        (lambda: CostParameters(disk_bytes_per_s=0), "inf turns it off"),
        (lambda: CostParameters(cores=0), "cores is 0"),
        (lambda: CostParameters(host_compute_factor={"a": math.nan}), "'a' is nan"),
    ],
)
def test_impossible_costs_are_refused(wrong: object, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        wrong()  # type: ignore[operator]


def test_loads_are_added_up_for_every_resource() -> None:
    dataflow = complete_binary_tree({"a": Code("x"), "b": Code("x")}, Code("y"))
    hints = Hints({"source@a": 1e6, "source@b": 2e6, "op0": 1e6}, {"op0": 3.0}, disk_bytes={"source@a": 3e6})
    view = NetworkView({(a, b): LinkEstimate(8e6) for a in HOSTS for b in HOSTS})
    given = Problem(Task((dataflow,), HOSTS, view, hints, CostParameters(startup_s=0.0, cores=2)))
    where = given.where({"op0": "a"})
    for interface, kinds in (("single", {"interface"}), ("duplex", {"out", "in"}), ("independent", {"link"})):
        model = LoadModel(HOSTS, interface, 2)  # type: ignore[arg-type]
        assert {each.kind for each in model.resources} == {*kinds, "processor", "disk"}
        carried = model.of_transfers(where[given.producer], where[given.consumer])
        compute_ns = given.compute_ns[given.everyone, where]
        loads = model.add_up(carried, given.edge_ns(where), where, compute_ns, given.disk_ns) / 1e9
        busy = {(each.kind, *each.hosts): load for each, load in zip(model.resources, loads, strict=True) if load}
        of_transfers = {
            "single": {("interface", "a"): 3.0, ("interface", "b"): 2.0, ("interface", "client"): 1.0},
            "duplex": {("out", "b"): 2.0, ("in", "a"): 2.0, ("out", "a"): 1.0, ("in", "client"): 1.0},
            "independent": {("link", "b", "a"): 2.0, ("link", "a", "client"): 1.0},
        }[interface]
        own = {("processor", "a"): 3.0, ("disk", "a"): 1.0, ("disk", "b"): 2 / 3}
        assert busy == pytest.approx({**of_transfers, **own})
        assert {each.capacity for each in model.resources if each.kind == "processor"} == {2}


def test_equal_nodes_of_two_dataflows_are_merged_and_different_nodes_are_refused() -> None:
    one = complete_binary_tree({"a": Code("x"), "b": Code("x")}, Code("y"))
    other = complete_binary_tree({"a": Code("x"), "c": Code("x")}, Code("y"))
    task = Task((one, other), HOSTS, NetworkView({}), Hints({}))
    with pytest.raises(DataflowError, match="node 'op0' differs between two dataflows"):
        _ = task.dataflow
    assert task.but(dataflows=(one, one)).dataflow == one


def test_problems_that_cannot_be_planned_are_refused() -> None:
    dataflow = complete_binary_tree({"a": Code("x"), "b": Code("x")}, Code("y"))
    hints = Hints({"source@a": 1, "source@b": 1, "op0": 1})
    view, costs = NetworkView({}), CostParameters()
    with pytest.raises(UsageError, match="output size of operator 'op0'"):
        Problem(Task((dataflow,), HOSTS, view, Hints({"source@a": 1, "source@b": 1}), costs))
    with pytest.raises(UsageError, match=r"source@b.* inf"):
        Problem(Task((dataflow,), HOSTS, view, Hints({"source@a": 1, "source@b": math.inf, "op0": 1}), costs))
    with pytest.raises(UsageError, match="named once each"):
        Problem(Task((dataflow,), ("a", "a"), view, hints, costs))
    with pytest.raises(UsageError, match="unknown host 'b'"):
        Problem(Task((dataflow,), ("client", "a"), view, hints, costs))
    with pytest.raises(PlacementError, match="leaves out operator 'op0'"):
        Problem(Task((dataflow,), HOSTS, view, hints, costs)).where({})


@given(trees(), st.integers(0, 10**6))
def test_node_cycles_bound_a_demand_driven_tree_without_contention(tree: Dataflow, seed: int) -> None:
    """Partitions are played through the tree. After n partitions the clock shows n periods, give or take one path."""
    rng = random.Random(seed)
    hosts = tuple(node.name for node in tree.nodes)  # every node on a host of its own
    alone = Dataflow(tuple(Node(n.name, n.kind, n.inputs, n.code, n.name) for n in tree.nodes))
    view = NetworkView({(a, b): LinkEstimate(rng.lognormvariate(13, 1)) for a in hosts for b in hosts})
    hints = Hints({name: rng.uniform(1e4, 2e5) for name in hosts}, {name: rng.uniform(0, 2) for name in tree.operators})
    problem = Problem(Task((alone,), hosts, view, hints))
    placement = {name: name for name in hosts}
    period = evaluate(Period(interface="independent"), problem, placement)
    path = evaluate(CriticalPath(), problem, placement)

    root = alone.by_name["sink"].inputs[0]
    sent = dict.fromkeys(hosts, 0.0)  # when the node's latest output had arrived at its consumer
    last = 300
    for _ in range(last + 1):
        before = dict(sent)
        for name in alone.upward[:-1]:
            node = alone.by_name[name]
            consumer = alone.consumers[name][0]
            if node.kind == "source":
                ready = before[name] + disk_s(problem, name)
            else:
                ready = max(sent[producer] for producer in node.inputs) + hints.compute_s[name]
            demanded = before[root if consumer == "sink" else consumer]
            sent[name] = max(ready, demanded) + transfer_s(problem, placement, name, consumer)
    assert (last + 1) * period <= sent[root] * (1 + 1e-9) + 1e-6
    assert sent[root] <= (path + last * period) * (1 + 1e-9) + 1e-6
