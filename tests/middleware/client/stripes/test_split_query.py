"""Queries split over trees: no node is computed twice, and no node is left when the query has left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.client.stripes.split_query import LowerTree, in_two, known_in
from thalweg.middleware.core.queries.sharing import shared
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.protocol.split_graph import PlacedGraph, is_inlet, parted, split_graph, whole

CODES = [Code(f"code{number}") for number in range(3)]
KEEPS = Code("keeps")


@st.composite
def graphs(draw: st.DrawFn, name: str, codes: tuple[Code, ...]) -> Dataflow:
    """Draw operators on three sources, all consumed, with one sink or two."""
    nodes = [Node(f"s{host}", "source", (), CODES[0], f"h{host}") for host in range(3)]
    for number in range(draw(st.integers(1, 5))):
        inputs = draw(st.lists(st.sampled_from([node.name for node in nodes]), min_size=1, max_size=3, unique=True))
        nodes.append(Node(f"{name}{number}", "operator", tuple(inputs), draw(st.sampled_from(codes))))
    taken = {each for node in nodes for each in node.inputs}
    tops = [node.name for node in nodes if node.name not in taken]
    cut = draw(st.integers(0, len(tops) - 1))
    sinks = [tuple(part) for part in (tops[: cut + 1], tops[cut + 1 :]) if part]
    nodes += [Node(f"{name}t{i}", "sink", part, None, "cl") for i, part in enumerate(sinks)]
    return Dataflow(tuple(nodes)).validate(connected=False)


def remembering(flow: Dataflow) -> list[str]:
    return [name for name in flow.operators if flow.by_name[name].code == KEEPS]


def placed(flow: Dataflow) -> PlacedGraph:
    return PlacedGraph(flow, {node.name: node.pinned or "h9" for node in flow.nodes})


@given(graphs("a", (*CODES, KEEPS)), graphs("b", (*CODES, KEEPS)))
def test_trees_grow_by_the_nodes_of_a_query_and_shrink_back_when_the_query_leaves(
    stream: Dataflow, query: Dataflow
) -> None:
    below, above = parted(placed(stream), split_graph(stream, remembering(stream), "cl"), "cl")
    tree = LowerTree.first(below)
    fresh = len(tree.places)
    graph = whole(below, above).dataflow
    known = known_in(query, graph, tree.feeding)
    rises = in_two(query, known, remembering(query), "cl", fresh)
    grown, names = tree.with_query(query, rises, placed(query).placement, 7)
    lower = grown.lower.dataflow.validate(connected=False)
    assert lower.by_name.keys() == grown.lower.placement.keys()
    assert not remembering(lower)
    assert grown.feeding.items() >= tree.feeding.items(), "what fed before feeds as it did"
    assert {grown.feeding[place] for place in rises.made.values()} == {names[name] for name in rises.made}
    there = shared(graph, query)
    for name in rises.made:  # as on one machine
        for each in query.below(name):
            if names.get(each) is not None and each not in known:
                node = lower.by_name[names[each]]
                assert node.code == query.by_name[each].code
                assert node.inputs == tuple(names[one] for one in query.by_name[each].inputs)
    twice = {names[name] for name in names} - below.dataflow.by_name.keys()
    assert twice == {names[name] for name in names if name not in there}, "what is there is not made again"
    again = grown.pruned(tree.places)
    assert again.lower.dataflow.by_name == below.dataflow.by_name
    assert again.feeding == tree.feeding
    assert (rises.made == {}) == (lower.by_name == below.dataflow.by_name)
    for node in rises.upper.nodes:
        if node.kind == "source":
            assert is_inlet(node)
        elif node.kind == "operator":
            own = query.below(node.name)
            assert own & {*remembering(query)} or all(is_made(rises.upper, each) for each in node.inputs)


def is_made(above: Dataflow, name: str) -> bool:
    """Return whether all inputs of a node of the upper graph come from the trees."""
    return all(above.by_name[each].kind == "operator" or is_inlet(above.by_name[each]) for each in above.below(name))


@given(graphs("a", tuple(CODES)), graphs("b", tuple(CODES)), graphs("c", tuple(CODES)))
def test_a_node_of_a_query_is_listed_with_every_place_that_the_node_feeds(
    one: Dataflow, two: Dataflow, three: Dataflow
) -> None:
    below, _ = parted(placed(one), split_graph(one, (), "cl"), "cl")
    tree, own = LowerTree.first(below), frozenset(LowerTree.first(below).places)
    for number, query in ((1, two), (2, three)):
        known = known_in(query, tree.lower.dataflow, tree.feeding)
        rises = in_two(query, known, (), "cl", max(tree.places) + 1)
        tree, _ = tree.with_query(query, rises, placed(query).placement, number)
    theirs, flow = tree.theirs(own), tree.lower.dataflow
    mine = {name for place, top in tree.feeding.items() if place in own for name in flow.below(top)}
    (sink,) = flow.sinks
    assert theirs.keys() == flow.by_name.keys() - mine - {sink}
    for name, places in theirs.items():
        assert {*places} == {place for place, top in tree.feeding.items() if name in flow.below(top)}
    kept = {*list(tree.places)[::2]} | own
    assert tree.pruned(kept).lower.dataflow.by_name.keys() - mine - {sink} == {
        name for name, places in theirs.items() if not kept.isdisjoint(places)
    }


def test_a_query_takes_over_a_node_that_a_departed_query_shared() -> None:
    nodes = (Node("s", "source", (), CODES[0], "h1"), Node("o", "operator", ("s",), CODES[1]))
    query = Dataflow((*nodes, Node("t", "sink", ("o", "s"), None, "cl")))
    rises = in_two(query, {"o": 4, "s": 0}, (), "cl", 9)
    assert (rises.made, rises.places) == ({}, {0, 4})
    left = rises.without({0, 1})
    assert (left.known, left.made, left.upper) == ({"s": 0}, {"o": 4}, rises.upper)
