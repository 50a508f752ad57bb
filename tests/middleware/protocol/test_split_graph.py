"""A graph in two parts: the lower graph goes over several trees, and the upper graph runs once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.dataflow import Code, Dataflow, Node, complete_binary_tree
from thalweg.middleware.protocol.split_graph import (
    SINK,
    PlacedGraph,
    SplitGraph,
    inlets_of,
    is_inlet,
    parted,
    renamed,
    resting,
    split_graph,
    whole,
)

CODE = Code("composite")


@st.composite
def graphs(draw: st.DrawFn) -> Dataflow:
    """Draw a graph of a few nodes, with sinks at the client. ``trunk`` may be the name of a node."""
    nodes = [Node(f"s{i}", "source", (), CODE, f"h{i}") for i in range(draw(st.integers(1, 4)))]
    free = [node.name for node in nodes]
    names = draw(st.permutations([SINK, "a", "b", "c", "d"]))
    for name in names[: draw(st.integers(0, 5))]:
        inputs = draw(st.lists(st.sampled_from([node.name for node in nodes]), min_size=1, max_size=3, unique=True))
        nodes.append(Node(name, "operator", tuple(inputs), CODE, ahead=draw(st.integers(1, 3))))
        free = [each for each in free if each not in inputs] + [name]
    cut = draw(st.integers(0, len(free) - 1))
    tops = [free[: cut + 1], free[cut + 1 :]]
    return Dataflow((*nodes, *(Node(f"t{i}", "sink", tuple(top), None, "cl") for i, top in enumerate(tops) if top)))


@given(graphs(), st.data())
def test_no_operator_with_state_is_below_and_both_parts_make_the_whole_graph(
    flow: Dataflow, data: st.DataObject
) -> None:
    remembering = data.draw(st.sets(st.sampled_from(flow.operators))) if flow.operators else set[str]()
    where = {node.name: node.pinned or f"h{len(node.name)}" for node in flow.nodes}
    parts = split_graph(flow, remembering, "cl")
    assert parts.upper is not None
    assert (parts.lower is flow) == (not remembering and len(flow.sinks) == 1)
    parts.lower.validate()
    parts.upper.validate(connected=False)
    assert not remembering & parts.lower.by_name.keys()
    own = {node.name for node in parts.upper.nodes if not is_inlet(node)}
    for name in own:
        assert own & flow.below(name) & {*remembering, *flow.sinks}, f"{name} is above without need"
    (sink,) = parts.lower.sinks
    assert parts.lower.by_name[sink].inputs == inlets_of(parts.upper)
    below, above = parted(PlacedGraph(flow, where), parts, "cl")
    again = whole(below, above)
    assert again.dataflow.by_name == flow.by_name
    assert again.placement == where


@given(graphs(), st.data())
def test_the_names_of_nodes_in_trees_do_not_change_the_order_of_inlets(flow: Dataflow, data: st.DataObject) -> None:
    """The order of the trunk follows the nodes above, which have the same names in all trees."""
    remembering = data.draw(st.sets(st.sampled_from(flow.operators), min_size=1)) if flow.operators else set[str]()
    parts = split_graph(flow, remembering, "cl")
    if parts.lower is flow:
        return
    own = {node.name for node in parts.lower.nodes if node.kind == "operator"}
    names = {name: f"{name}~1" for name in own}
    other = split_graph(Dataflow(tuple(reversed(renamed(flow, names).nodes))), remembering, "cl")
    assert other.upper is not None
    assert inlets_of(other.upper) == tuple(names.get(name, name) for name in inlets_of(parts.upper))


def test_a_tree_of_operators_with_state_has_only_sources_below() -> None:
    flow = complete_binary_tree({"h1": CODE, "h2": CODE, "h3": CODE}, Code("running"), "cl")
    parts = split_graph(flow, flow.operators, "cl")
    assert parts.upper is not None
    assert parts.lower.operators == ()
    assert inlets_of(parts.upper) == parts.lower.sources == flow.sources
    assert all(is_inlet(parts.upper.by_name[name]) for name in parts.upper.sources)
    assert resting(parts.upper, "cl") == dict.fromkeys(("op0", "op1", "sink"), "cl")
    assert parts.rests({"op1": "h2"}, "cl") == {"op0": "cl", "op1": "h2", "sink": "cl"}
    assert SplitGraph(flow).rests({"op1": "h2"}, "cl") == {"op1": "h2"}
