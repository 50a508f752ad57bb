"""Split graph: a graph in two parts, the lower part that goes over several trees and the upper graph above the trees.

Operators with state must receive every partition in order, and so must every node above them. Such nodes are in the
upper graph. The remaining nodes are in the lower part, which goes over several trees, each a stripe
(``protocol.stripes``). Each tree ends in a sink of its own, which takes the outputs that the upper graph needs. In the
upper graph an *inlet*, a source at the client, stands for each of these nodes. The inlet is fed with the partitions
from the trees (``core.stripes.upper_feed``).

Rules:

P1. All sinks are in the upper graph, so that further queries can take outputs of the trees. If the upper graph would be
    a single sink, the trees have the unchanged graph, with a sink of the same name.
P2. The inlets have the same order in all trees, whatever the names of nodes: the order in which upper nodes take them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement

INLET = "thalweg/trunk"  # code of an inlet, which is never loaded: no module has this name
SINK = "trunk"  # name of the sink of a stripe, if no node has this name


class PlacedGraph(NamedTuple):
    """Graph with a placement of its nodes."""

    dataflow: Dataflow
    placement: Placement


class SplitGraph(NamedTuple):
    """Graph in two parts: ``lower`` goes over several trees, ``upper`` runs once. None: nothing is above the trees."""

    lower: Dataflow
    upper: Dataflow | None = None

    def rests(self, placement: Mapping[str, str], client: str) -> Mapping[str, str]:
        """Return the placement with the missing upper nodes added.

        An upper node without a host is on the host to which it is pinned, else at the client.
        """
        return placement if self.upper is None else {**resting(self.upper, client), **placement}


def is_inlet(node: Node) -> bool:
    """Return whether a node is an inlet: a source that the trees feed."""
    return node.kind == "source" and node.code is not None and node.code.use == INLET


def inlet_of(node: Node) -> int:
    """Return the place of an inlet: the part of the stream's partitions that feeds it."""
    assert node.code is not None
    return int(node.code.params["place"])


def inlet_source(name: str, place: int, client: str, ahead: int = 1) -> Node:
    """Return an inlet that is fed with part ``place`` of the stream's partitions."""
    return Node(name, "source", (), Code(INLET, {"place": place}), client, ahead)


def split_graph(dataflow: Dataflow, remembering: Collection[str], client: str) -> SplitGraph:
    """Split a graph whose operators ``remembering`` have state. ``client``: the host of the sinks."""
    upper = {name for name in dataflow.by_name if not dataflow.below(name).isdisjoint(remembering)}
    upper |= {*dataflow.sinks}
    trunk = tuple(dict.fromkeys(name for name in _taken(dataflow, upper) if name not in upper))
    # P1: the upper graph would be a single sink, so the trees have the unchanged graph
    below = dataflow if len(upper) == 1 else _ending(dataflow, upper, trunk, client)
    fed = [inlet_source(name, place, client, dataflow.by_name[name].ahead) for place, name in enumerate(trunk)]
    return SplitGraph(below, Dataflow((*fed, *(node for node in dataflow.nodes if node.name in upper))))


def _ending(dataflow: Dataflow, upper: Collection[str], trunk: tuple[str, ...], client: str) -> Dataflow:
    """Return the lower part with a sink of its own."""
    sink, count = SINK, 1
    while sink in dataflow.by_name:
        count += 1
        sink = f"{SINK}.{count}"
    own = [node for node in dataflow.nodes if node.name not in upper]
    return Dataflow((*own, Node(sink, "sink", trunk, None, client)))


def _taken(dataflow: Dataflow, upper: Collection[str]) -> Iterator[str]:
    """Return the inputs of upper nodes in the order of P2. Upper nodes have the same names in all trees."""
    for name in sorted(upper):
        yield from dataflow.by_name[name].inputs


def inlets_of(above: Dataflow) -> tuple[str, ...]:
    """Return the names of the inlets of an upper graph, in the order of their places."""
    return tuple([node.name for node in sorted(filter(is_inlet, above.nodes), key=inlet_of)])


def feeding(below: Dataflow, places: Mapping[int, int] | None = None) -> dict[int, str]:
    """Return the nodes of a tree that feed inlets, by place.

    ``places``: number of the sink's input by place. None: the input with the number of the place.
    """
    (sink,) = below.sinks
    inputs = below.by_name[sink].inputs
    return dict(enumerate(inputs)) if places is None else {place: inputs[at] for place, at in places.items()}


def resting(above: Dataflow, client: str) -> Placement:
    """Return the default hosts of upper nodes: the host to which a node is pinned, else the client."""
    return {node.name: node.pinned or client for node in above.nodes if not is_inlet(node)}


def renamed(above: Dataflow, names: Mapping[str, str]) -> Dataflow:
    """Return the upper graph with new names of its inlets."""
    nodes = []
    for node in above.nodes:
        inputs = tuple([names.get(producer, producer) for producer in node.inputs])
        nodes.append(msgspec.structs.replace(node, name=names.get(node.name, node.name), inputs=inputs))
    return Dataflow(tuple(nodes))


def whole(below: PlacedGraph, above: PlacedGraph, places: Mapping[int, int] | None = None) -> PlacedGraph:
    """Return a single placed graph of both parts. Inlets are replaced by the nodes of the tree that feed them.

    ``places``: as in ``feeding``.
    """
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
    """Return the lower and the upper part of a placed graph. The sink of the lower part and the inlets are at the
    client.
    """
    assert parts.upper is not None
    (sink,) = parts.lower.sinks
    lower = {name: placed.placement[name] for name in parts.lower.by_name if name != sink}
    fed = inlets_of(parts.upper)
    upper = {name: client if name in fed else placed.placement[name] for name in parts.upper.by_name}
    return PlacedGraph(parts.lower, {**lower, sink: client}), PlacedGraph(parts.upper, upper)
