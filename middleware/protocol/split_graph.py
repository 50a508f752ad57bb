"""What of a graph goes over several trees, and what runs once above them.

Operators with state have to see every partition in order, and so has all that is made of theirs: both are above. What
is below goes over several trees, each a stripe (``protocol.stripes``) that ends in a sink of its own, which takes all
that is taken above. In the upper graph a source at the client, an *inlet*, stands for each of these nodes. It is fed
with what came (``core.stripes.upper_feed``).

Rules:

P1. All sinks are above, so that others can take what the trees make. Where there is one, and nothing else is above, the
    trees are the graph as it is, with a sink that is called the same.
P2. The inlets have one order in all trees, whatever the nodes are called: that in which nodes above take them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement

INLET = "thalweg/trunk"  # of a source that no code makes; no name by which any could be found
SINK = "trunk"  # of the stripes, where no node has that name


class PlacedGraph(NamedTuple):
    """A graph, and where its nodes are."""

    dataflow: Dataflow
    placement: Placement


class SplitGraph(NamedTuple):
    """A graph in two: ``lower`` goes over several trees, ``upper`` runs once; None: there is nothing above."""

    lower: Dataflow
    upper: Dataflow | None = None

    def rests(self, placement: Mapping[str, str], client: str) -> Mapping[str, str]:
        """A placement with what is above at the client, where it is not pinned and nobody says where it is."""
        return placement if self.upper is None else {**resting(self.upper, client), **placement}


def is_inlet(node: Node) -> bool:
    """Whether a node is a source that the trees below feed."""
    return node.kind == "source" and node.code is not None and node.code.use == INLET


def inlet_of(node: Node) -> int:
    """Return which part of the stream's partitions feeds an inlet."""
    assert node.code is not None
    return int(node.code.params["place"])


def inlet_source(name: str, place: int, client: str, ahead: int = 1) -> Node:
    """The source above that is fed with that part of the stream's partitions."""
    return Node(name, "source", (), Code(INLET, {"place": place}), client, ahead)


def split_graph(dataflow: Dataflow, remembering: Collection[str], client: str) -> SplitGraph:
    """A graph whose operators ``remembering`` have state, in two; ``client``: where its sinks are."""
    upper = {name for name in dataflow.by_name if not dataflow.below(name).isdisjoint(remembering)}
    upper |= {*dataflow.sinks}
    trunk = tuple(dict.fromkeys(name for name in _taken(dataflow, upper) if name not in upper))
    # P1: above is one sink alone, so the trees are the graph as it is
    below = dataflow if len(upper) == 1 else _ending(dataflow, upper, trunk, client)
    fed = [inlet_source(name, place, client, dataflow.by_name[name].ahead) for place, name in enumerate(trunk)]
    return SplitGraph(below, Dataflow((*fed, *(node for node in dataflow.nodes if node.name in upper))))


def _ending(dataflow: Dataflow, upper: Collection[str], trunk: tuple[str, ...], client: str) -> Dataflow:
    """What is below, with a sink of its own."""
    sink, count = SINK, 1
    while sink in dataflow.by_name:
        count += 1
        sink = f"{SINK}.{count}"
    own = [node for node in dataflow.nodes if node.name not in upper]
    return Dataflow((*own, Node(sink, "sink", trunk, None, client)))


def _taken(dataflow: Dataflow, upper: Collection[str]) -> Iterator[str]:
    """P2: the inputs of nodes above, which have the same names in all trees."""
    for name in sorted(upper):
        yield from dataflow.by_name[name].inputs


def inlets_of(above: Dataflow) -> tuple[str, ...]:
    """The sources above that the trees feed, by their places."""
    return tuple([node.name for node in sorted(filter(is_inlet, above.nodes), key=inlet_of)])


def feeding(below: Dataflow, places: Mapping[int, int] | None = None) -> dict[int, str]:
    """By place which nodes of a tree feed sources above; ``places``: by place, which inputs of its sink."""
    (sink,) = below.sinks
    inputs = below.by_name[sink].inputs
    return dict(enumerate(inputs)) if places is None else {place: inputs[at] for place, at in places.items()}


def resting(above: Dataflow, client: str) -> Placement:
    """Where what is above is, where nobody says: at the client, but for what is pinned."""
    return {node.name: node.pinned or client for node in above.nodes if not is_inlet(node)}


def renamed(above: Dataflow, names: Mapping[str, str]) -> Dataflow:
    """What is above, where inlets have these names."""
    nodes = []
    for node in above.nodes:
        inputs = tuple([names.get(producer, producer) for producer in node.inputs])
        nodes.append(msgspec.structs.replace(node, name=names.get(node.name, node.name), inputs=inputs))
    return Dataflow(tuple(nodes))


def whole(below: PlacedGraph, above: PlacedGraph, places: Mapping[int, int] | None = None) -> PlacedGraph:
    """A graph of both parts, with inlets called as their nodes are below; ``places``: as in ``feeding``."""
    (sink,) = below.dataflow.sinks
    fed_by = feeding(below.dataflow, places)
    names = {node.name: fed_by[inlet_of(node)] for node in above.dataflow.nodes if is_inlet(node)}
    over = renamed(above.dataflow, names)
    nodes = [node for node in below.dataflow.nodes if node.name != sink]
    nodes += [node for node in over.nodes if not is_inlet(node)]
    where = {name: host for name, host in below.placement.items() if name != sink}
    fed = inlets_of(above.dataflow)
    where |= {name: host for name, host in above.placement.items() if name not in fed}
    return PlacedGraph(Dataflow(tuple(nodes)), where)


def parted(placed: PlacedGraph, parts: SplitGraph, client: str) -> tuple[PlacedGraph, PlacedGraph]:
    """A placed graph as its two parts, lower and upper; the sinks of both are at the client."""
    assert parts.upper is not None
    (sink,) = parts.lower.sinks
    lower = {name: placed.placement[name] for name in parts.lower.by_name if name != sink}
    fed = inlets_of(parts.upper)
    upper = {name: client if name in fed else placed.placement[name] for name in parts.upper.by_name}
    return PlacedGraph(parts.lower, {**lower, sink: client}), PlacedGraph(parts.upper, upper)
