"""Preparation of a stream over several trees: checks of the request, and the split of its graph."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec import UNSET

from thalweg.middleware.client.steering.replanning import Replanner
from thalweg.middleware.dataflow import Dataflow, Node, Placement
from thalweg.middleware.errors import DataflowError, OperatorError, UsageError, expect
from thalweg.middleware.loading import Allow, keeps_state, load_code
from thalweg.middleware.planning import Plan, Planner, Strategy, Stripe, get_strategy
from thalweg.middleware.planning.planners.below import Below
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.split_graph import (
    PlacedGraph,
    SplitGraph,
    feeding,
    inlet_of,
    inlets_of,
    is_inlet,
    parted,
    renamed,
    split_graph,
    whole,
)
from thalweg.middleware.protocol.stripes import MOST_STRIPES, WINDOW

Stripes = int | Literal["auto"] | Sequence[Stripe]
HINT = "run the dataflow with stripes=1"


def check_stripes(
    stripes: Stripes,
    window: int | None,
    dataflow: Dataflow,
    allow: Allow,
    others: Mapping[str, object],
) -> SplitGraph:
    """Return the split of a stream's graph. Raise UsageError, in one line, if the stream cannot go over so many trees.

    ``window``: how many partitions may wait. ``others``: options that several trees do not support, with their values.
    """
    expect(1 if window is None else window, int, "the window is a number of partitions")
    if window is not None and window < 1:
        raise UsageError(f"window is {window}; give how many partitions may wait for those before them, at least 1")
    if isinstance(stripes, int):
        if not 1 <= stripes <= MOST_STRIPES:
            raise UsageError(f"stripes is {stripes}; give 1 to {MOST_STRIPES} trees, or 'auto'")
    elif stripes != "auto":
        trees = () if isinstance(stripes, str) else tuple(stripes)
        if not 1 <= len(trees) <= MOST_STRIPES or not all(isinstance(tree, Stripe) for tree in trees):
            raise UsageError(f"stripes are a number of trees, 'auto', or 1 to {MOST_STRIPES} of planning's Stripe")
        for tree in trees:
            if not (isinstance(tree.share, int | float) and 0 < tree.share < math.inf):
                raise UsageError(f"the share of a stripe is {tree.share!r}; give its part of the partitions, above 0")
    if stripes == 1 or (not isinstance(stripes, int | str) and len(stripes) == 1):
        return SplitGraph(dataflow)
    if unfit := next((name for name, wanted in others.items() if wanted), None):
        raise UsageError(f"a stream over several trees has no {unfit}; leave that out, or run it with stripes=1")
    check_sources(dataflow, allow)
    return split_graph(dataflow, with_state(dataflow, allow), client_of(dataflow))


def client_of(dataflow: Dataflow) -> str:
    """Return the host of a dataflow's sinks."""
    return dataflow.by_name[dataflow.sinks[0]].pinned or ""


def check_sources(dataflow: Dataflow, allow: Allow) -> None:
    """Raise UsageError, in one line, for a source that does not give every partition on request."""
    for node in (dataflow.by_name[name] for name in dataflow.sources):
        if node.rate is not None:
            raise UsageError(
                f"source {node.name!r} has a rate, and a stripe gets its partitions when it asks for them; {HINT}"
            )
        assert node.code is not None
        with contextlib.suppress(OperatorError):  # the data is on another host
            if not getattr(load_code(node.code, allow), "replayable", True):
                raise UsageError(
                    f"source {node.name!r} ({node.code.use}) gives each partition once, in order, and a stripe asks"
                    f" for any partition; {HINT}"
                )


def with_state(dataflow: Dataflow, allow: Allow) -> list[str]:
    """Return the operators with state. Raise UsageError, in one line, if the code of an operator cannot be loaded."""
    stateful = []
    for node in (dataflow.by_name[name] for name in dataflow.operators):
        assert node.code is not None
        try:
            if keeps_state(load_code(node.code, allow)):
                stateful.append(node.name)
        except OperatorError as error:
            raise UsageError(
                f"this client cannot find out whether operator {node.name!r} has state: {error}; {HINT}"
            ) from None
    return stateful


def over_trees(planner: Planner, dataflow: Dataflow, allow: Allow, stripes: Stripes | None = None) -> Planner:
    """Return the planner of a dataflow that is to go over several trees.

    If ``stripes`` is None, the planner's own number of trees counts.
    """
    count = getattr(planner, "stripes", 1) if stripes is None else stripes
    if not isinstance(count, int | str) or count == 1:
        return planner
    parts = split_graph(dataflow, with_state(dataflow, allow), client_of(dataflow))
    if parts.lower is dataflow:
        return planner
    return Below(planner, parts, "auto" if isinstance(count, str) else count)


def strategy_of(placement: str, stripes: Stripes) -> Strategy:
    """Return the strategy for the trees of a stream. Raise UsageError if the strategy cannot choose their number."""
    strategy = get_strategy(placement)
    if stripes != 1 and isinstance(stripes, int | str):
        if hasattr(strategy.initial, "stripes"):
            return get_strategy(placement, stripes=stripes)
        if stripes == "auto":
            raise UsageError(
                f"planner {placement!r} plans one tree, and does not choose a number of trees; give a number of stripes"
            )
    return strategy


def count_of(placement: Mapping[str, str] | str, stripes: Stripes) -> Stripes:
    """Return the number of trees of a stream. A placement such as ``stars`` has several trees without a request."""
    if stripes != 1 or not isinstance(placement, str):
        return stripes
    own = getattr(get_strategy(placement).initial, "stripes", 1)
    return own if isinstance(own, int) else "auto" if own == "auto" else stripes


def trees_of(plan: Plan) -> tuple[Stripe, ...]:
    """Return the trees of a plan, as stripes."""
    return tuple(Stripe(tree.dataflow, tree.placement, tree.share) for tree in (plan, *plan.beside))


def all_of(stripes: Stripes, first: Stripe, beside: Sequence[Stripe]) -> tuple[Stripe, ...]:
    """Return the trees of a stream: the given trees, the planned trees, or several copies of one tree.

    With copies, as many partitions are under way over each edge as there are copies.
    """
    if not isinstance(stripes, int | str):
        return (msgspec.structs.replace(first, share=stripes[0].share), *stripes[1:])
    if beside or stripes == "auto":
        return (first, *beside)
    return (msgspec.structs.replace(first, share=1 / stripes),) * stripes


def check_below(tree: Dataflow, first: Dataflow, upper: Collection[str], allow: Allow) -> None:
    """Raise DataflowError if an operator of a further tree has state and is not in ``upper``, the upper graph."""
    known = [first.by_name[name].code for name in first.operators if name not in upper]
    operators = [tree.by_name[name] for name in tree.operators if name not in upper]
    if stateful := with_state(Dataflow(tuple([node for node in operators if node.code not in known])), allow):
        raise DataflowError(
            f"operator {stateful[0]!r} has state, and is not in the upper graph (above the trees) of the first stripe"
        )


def alike(trees: Sequence[Stripe], upper: Collection[str]) -> tuple[Stripe, ...]:
    """Return the trees, with operators ``upper`` on the hosts of the first tree unless a tree names a host."""
    stripes = []
    for tree in trees:
        over = {name: trees[0].placement[name] for name in upper if name in tree.dataflow.by_name}
        stripes.append(msgspec.structs.replace(tree, placement={**over, **tree.placement}))
    return tuple(stripes)


class StripedGraph(NamedTuple):
    """Stream over several trees, with the upper graph above the trees. A single tree is the whole graph."""

    trees: tuple[Stripe, ...]
    upper: PlacedGraph | None = None

    @property
    def whole(self) -> tuple[Stripe, ...]:
        """Each tree, joined with the upper graph."""
        if (above := self.upper) is None:
            return self.trees
        placed = [(PlacedGraph(tree.dataflow, tree.placement), tree.share) for tree in self.trees]
        return tuple([Stripe(*whole(below, above), share) for below, share in placed])


def divided(trees: Sequence[Stripe], upper: Collection[str]) -> StripedGraph:
    """Split whole graphs into trees and their common upper graph.

    ``upper``: operators of the upper graph, at least all with state. Raises DataflowError if the upper graph of a tree
    differs from that of the first tree in a node or a host.
    """
    if len(trees) == 1:
        return StripedGraph(tuple(trees))
    placed = [in_parts(tree, upper) for tree in trees]
    (below, above), *rest = placed
    for like, other in rest:
        if same_of(like, other) != same_of(below, above):
            raise DataflowError(
                "the stripes of a stream have the same upper graph, above their trees: the same operators with state,"
                " the same nodes above these operators, and the same hosts"
            )
    return StripedGraph(
        tuple([Stripe(*part, tree.share) for (part, _), tree in zip(placed, trees, strict=True)]), above
    )


def in_parts(tree: Stripe, upper: Collection[str]) -> tuple[PlacedGraph, PlacedGraph]:
    """Split a tree into a lower graph and an upper graph, which has the operators ``upper`` and the sinks."""
    client = client_of(tree.dataflow)
    return parted(PlacedGraph(tree.dataflow, tree.placement), split_graph(tree.dataflow, upper, client), client)


def same_of(below: PlacedGraph, above: PlacedGraph) -> tuple[list[set[str]], dict[str, Node], Placement]:
    """Return what every tree must share: the sources of each part, the nodes of the upper graph, and their hosts."""
    flow, fed = below.dataflow, inlets_of(above.dataflow)
    over = renamed(above.dataflow, {name: str(inlet_of(above.dataflow.by_name[name])) for name in fed})
    origins = [flow.below(name).intersection(flow.sources) for name in feeding(flow).values()]
    where = {name: host for name, host in above.placement.items() if name not in fed}
    return origins, {node.name: node for node in over.nodes if not is_inlet(node)}, where


def request_of(
    request: e.RunRequested, going: StripedGraph, window: int | None, start: int, above: m.Install | None
) -> e.RunRequested | e.StripesRequested:
    """Return the request to the core: ``request`` for a single tree, or a run like ``request`` for each tree.

    ``above``: the installation of the upper graph.
    """
    trees = going.trees
    if len(trees) == 1:
        return request
    install, requests = request.install, []
    for number, tree in enumerate(trees):
        of_stripe = msgspec.structs.replace(
            install,
            run=install.run.of_stripe(number),
            dataflow=tree.dataflow,
            locations=located(tree.placement),
            partitions=None,
            afresh=install.afresh and not number,
        )
        requests.append(msgspec.structs.replace(request, install=of_stripe))
    total = sum(tree.share for tree in trees)
    shares = tuple(tree.share / total for tree in trees)
    most = WINDOW * len(trees) if window is None else window
    over = UNSET if above is None else e.RunRequested(above)
    return e.StripesRequested(install.run, tuple(requests), shares, most, install.partitions, start, over)


def located(placement: Placement) -> tuple[m.Location, ...]:
    """Return the locations of nodes as a run begins."""
    return tuple([m.Location(node, host, 1) for node, host in placement.items()])


def searches_of(search: Replanner | None, trees: Sequence[Stripe]) -> list[Replanner]:
    """Return a replanner for each tree, which knows the remaining trees. Empty: there is no ``search``."""
    known = {str(number): tree for number, tree in enumerate(trees)}
    return [] if search is None else [
        msgspec.structs.replace(search.of(tree.dataflow), stripes=known, stripe=name) for name, tree in known.items()
    ]  # fmt: skip
