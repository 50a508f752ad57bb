"""A query that begins in a stream over several trees: what of it these are to make, and what begins above them.

Rules:

R1. What the trees make already for what is above them, in whatever shape, is a source above, known by its place. So is
    what they are to make from now on.
R2. Above is what has state, and all that is made of it, the sinks, and what can be made of what comes from the trees.
    The rest goes over each of the trees: what one of them has already is done once there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from thalweg.middleware.core.queries.sharing import join, shared
from thalweg.middleware.dataflow import Dataflow, Node, Placement
from thalweg.middleware.protocol.split_graph import PlacedGraph, feeding, inlet_of, inlet_source, is_inlet

ENDS = "\0"  # the name of a sink, which no node has


class LowerTree(NamedTuple):
    """What goes over one tree; ``places``: by place, which inputs of its sink feed which sources above."""

    lower: PlacedGraph
    places: dict[int, int]

    @classmethod
    def first(cls, below: PlacedGraph) -> LowerTree:
        """A tree as a stream begins, each input of whose sink feeds the source of its own place."""
        return cls(below, {place: place for place in feeding(below.dataflow)})

    @property
    def feeding(self) -> dict[int, str]:
        """By place the nodes that feed sources above."""
        return feeding(self.lower.dataflow, self.places)

    def pruned(self, places: Collection[int]) -> LowerTree:
        """Without what is made for other places alone."""
        fed = {place: name for place, name in self.feeding.items() if place in places}
        return self._ending(self.lower.dataflow.nodes, self.lower.placement, fed)

    def theirs(self, own: Collection[int]) -> dict[str, tuple[int, ...]]:
        """The nodes of which none of these places is made, and of which some others are."""
        flow, places_by_name = self.lower.dataflow, dict[str, list[int]]()
        used = {name for place, top in self.feeding.items() if place in own for name in flow.below(top)}
        for place, top in self.feeding.items():
            for name in flow.below(top) - used:
                places_by_name.setdefault(name, []).append(place)
        return {name: tuple(places) for name, places in places_by_name.items()}

    def with_query(
        self, query: Dataflow, rises: SplitQuery, placement: Placement, number: int
    ) -> tuple[LowerTree, dict[str, str]]:
        """With what the tree is to make for a query, and what its nodes are called there.

        ``placement``: where nodes of the query are to be that are not there.
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
        """A tree of some of these nodes, which feeds those places."""
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
    """A query in two: ``above``, with what comes from the trees as its sources, and what these are to make.

    ``known``: what they make already, and ``made``: what they do not, by their names in the query; and their places.
    """

    upper: Dataflow
    known: dict[str, int]
    made: dict[str, int]

    @property
    def places(self) -> frozenset[int]:
        """Those of all that it takes above."""
        return frozenset(inlet_of(node) for node in self.upper.nodes if is_inlet(node))

    def without(self, there: Collection[int]) -> SplitQuery:
        """The same where only these places are made: what it takes of others is to be made."""
        gone = {name: place for name, place in self.known.items() if place in self.places and place not in there}
        known = {name: place for name, place in self.known.items() if name not in gone}
        return self._replace(known=known, made={**self.made, **gone})


def known_in(query: Dataflow, graph: Dataflow, fed: Mapping[int, str]) -> dict[str, int]:
    """The nodes of a query that one tree makes for what is above it, by place; ``graph``: the tree and that."""
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
    """A query, whose operators ``remembering`` have state, in two.

    ``known``: what trees make of it, by place; ``fresh``: no place from that one on was ever used.
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
    """What of a query is ``made``, with a sink; of what is ``given`` not what that is made of."""
    needed, waiting = set[str](), [*made]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += () if name in given else query.by_name[name].inputs
    nodes = [_with(node, ()) if node.name in given else node for node in query.nodes if node.name in needed]
    return Dataflow((*nodes, Node(ENDS, "sink", tuple(made))))
