"""Splitting of a query that joins a striped stream into nodes for every tree and nodes that run once above the trees.

Rules:

R1. A node that the trees make for the upper graph is an inlet there, whatever shape the trees have. An inlet is known
    by its place, a number. A node that the trees are to make for the query is an inlet too.
R2. The upper graph has the operators with state, every node above them, the sinks, and operators whose inputs the trees
    make already. The remaining nodes go over every tree. A node that a tree has already runs once in the tree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from thalweg.middleware.core.queries.sharing import join, shared
from thalweg.middleware.dataflow import Dataflow, Node, Placement
from thalweg.middleware.protocol.split_graph import PlacedGraph, feeding, inlet_of, inlet_source, is_inlet

ENDS = "\0"  # name of a sink that no node has


class LowerTree(NamedTuple):
    """Graph of one tree, below the upper graph.

    ``places``: for the place of every inlet that the tree feeds, the number of an input of the tree's sink.
    """

    lower: PlacedGraph
    places: dict[int, int]

    @classmethod
    def first(cls, below: PlacedGraph) -> LowerTree:
        """Return a tree as a stream begins: each input of the sink feeds the inlet of the same number."""
        return cls(below, {place: place for place in feeding(below.dataflow)})

    @property
    def feeding(self) -> dict[int, str]:
        """Nodes that feed inlets, by place."""
        return feeding(self.lower.dataflow, self.places)

    def pruned(self, places: Collection[int]) -> LowerTree:
        """Return the tree without nodes that serve only places outside ``places``."""
        fed = {place: name for place, name in self.feeding.items() if place in places}
        return self._ending(self.lower.dataflow.nodes, self.lower.placement, fed)

    def theirs(self, own: Collection[int]) -> dict[str, tuple[int, ...]]:
        """Return the nodes that serve only places outside ``own``, with the places."""
        flow, places_by_name = self.lower.dataflow, dict[str, list[int]]()
        used = {name for place, top in self.feeding.items() if place in own for name in flow.below(top)}
        for place, top in self.feeding.items():
            for name in flow.below(top) - used:
                places_by_name.setdefault(name, []).append(place)
        return {name: tuple(places) for name, places in places_by_name.items()}

    def with_query(
        self, query: Dataflow, rises: SplitQuery, placement: Placement, number: int
    ) -> tuple[LowerTree, dict[str, str]]:
        """Return the tree with the nodes that a query needs of it, and the names of the query's nodes in the tree.

        ``placement``: hosts of the query's nodes that the tree does not have yet.
        """
        flow, fed = self.lower.dataflow, self.feeding
        known = {name: fed[place] for name, place in rises.known.items() if place in fed}
        wanted = _lowered(query, rises.made, known)
        joined = join(flow, wanted, {**placement, ENDS: ""}, number, (), given=known)
        names, nodes, where = joined.names, list(flow.nodes), dict(self.lower.placement)
        sink = names.pop(ENDS)
        for graft in joined.grafts:
            if graft.node != sink and isinstance(graft.like, Node):
                nodes.append(graft.like)
                where[graft.node] = graft.host
        fed |= {place: names[name] for name, place in rises.made.items()}
        return self._ending(nodes, where, fed), names

    def _ending(self, nodes: Iterable[Node], placement: Mapping[str, str], fed: Mapping[int, str]) -> LowerTree:
        """Return a tree of the needed nodes among ``nodes``. The sink of the tree feeds the places of ``fed``."""
        (sink,) = self.lower.dataflow.sinks
        inputs = tuple(dict.fromkeys(fed.values()))
        flow = Dataflow(tuple([node if node.name != sink else _with(node, inputs) for node in nodes]))
        needed = flow.below(sink)
        flow = Dataflow(tuple([node for node in flow.nodes if node.name in needed]))
        where = {name: placement[name] for name in flow.by_name}
        return LowerTree(PlacedGraph(flow, where), {place: inputs.index(name) for place, name in fed.items()})


def _with(node: Node, inputs: tuple[str, ...]) -> Node:
    return msgspec.structs.replace(node, inputs=inputs)


class SplitQuery(NamedTuple):
    """Query in two parts: an upper graph with inlets, and nodes that the trees are to make.

    ``known``: nodes that the trees make already. ``made``: nodes that the trees do not make yet. Both map names of the
    query to places.
    """

    upper: Dataflow
    known: dict[str, int]
    made: dict[str, int]

    @property
    def places(self) -> frozenset[int]:
        """Places of the inlets in the query's upper graph."""
        return frozenset(inlet_of(node) for node in self.upper.nodes if is_inlet(node))

    def without(self, there: Collection[int]) -> SplitQuery:
        """Return the query for trees that make only the places ``there``: missing places are to be made."""
        gone = {name: place for name, place in self.known.items() if place in self.places and place not in there}
        known = {name: place for name, place in self.known.items() if name not in gone}
        return self._replace(known=known, made={**self.made, **gone})


def known_in(query: Dataflow, graph: Dataflow, fed: Mapping[int, str]) -> dict[str, int]:
    """Return the nodes of a query that a tree makes for the upper graph, with their places.

    ``graph``: the tree with the upper graph. ``fed``: the tree's nodes that feed inlets, by place.
    """
    place_by_name = {name: place for place, name in fed.items()}
    return {
        name: place_by_name[tree_name] for name, tree_name in shared(graph, query).items() if tree_name in place_by_name
    }


def in_two(
    query: Dataflow,
    known: Mapping[str, int],
    remembering: Collection[str],
    client: str,
    fresh: int,
) -> SplitQuery:
    """Split a query, whose operators ``remembering`` have state, into an upper graph and nodes for the trees.

    ``known``: nodes of the query that trees make already, with their places. ``fresh``: the first of the places that
    were never used.
    """
    from_trees, nodes, new_places = set(known), dict[str, Node](), dict[str, int]()
    for name in query.upward:
        node = query.by_name[name]
        if node.kind == "operator" and all(producer in from_trees for producer in node.inputs):
            from_trees.add(name)
    waiting = [*query.sinks]
    while waiting:
        name = waiting.pop()
        node = query.by_name[name]
        if name in nodes:
            continue
        if name in known:
            nodes[name] = inlet_source(name, known[name], client, node.ahead)
        elif node.kind == "sink" or name in from_trees or not query.below(name).isdisjoint(remembering):
            nodes[name] = node
            waiting += node.inputs
        else:
            new_places[name] = fresh + len(new_places)
            nodes[name] = inlet_source(name, new_places[name], client, node.ahead)
    above = Dataflow(tuple([nodes[name] for name in query.by_name if name in nodes]))
    return SplitQuery(above, dict(known), new_places)


def _lowered(query: Dataflow, made: Iterable[str], given: Collection[str]) -> Dataflow:
    """Return the part of a query that makes the nodes ``made``, with a sink.

    Nodes in ``given`` are there already, so their inputs are left out.
    """
    needed, waiting = set[str](), [*made]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += () if name in given else query.by_name[name].inputs
    nodes = [_with(node, ()) if node.name in given else node for node in query.nodes if node.name in needed]
    return Dataflow((*nodes, Node(ENDS, "sink", tuple(made))))
