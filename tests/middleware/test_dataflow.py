"""Dataflows: builders, derived properties, and errors that name the node."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest

from thalweg.middleware.dataflow import TREES, Code, Dataflow, Node, check_placement, complete_binary_tree
from thalweg.middleware.errors import DataflowError, PlacementError, UsageError

CODE = Code("composite")


def source(name: str, host: str | None = "h1") -> Node:
    return Node(name, "source", (), CODE, host)


def operator(name: str, *inputs: str) -> Node:
    return Node(name, "operator", inputs, CODE)


def sink(*inputs: str, name: str = "t") -> Node:
    return Node(name, "sink", inputs)


def codes(n: int) -> dict[str, Code]:
    return {f"h{i}": Code("scenes", {"site": i}) for i in range(n)}


@pytest.mark.parametrize("n", range(1, 34))
@pytest.mark.parametrize("shape", TREES)
def test_builders_make_valid_trees_that_keep_the_order_of_the_sources(shape: str, n: int) -> None:
    flow = TREES[shape](codes(n), CODE)
    assert flow.validate([*codes(n), "client"]) is flow
    assert flow.sources == tuple(f"source@h{i}" for i in range(n))
    assert [flow.by_name[name].pinned for name in flow.sources] == list(codes(n))
    assert flow.by_name[flow.sinks[0]].pinned == "client"
    assert len(flow.operators) == {"binary": n - 1, "left-deep": n - 1, "star": 1}[shape]
    assert leaves(flow, flow.sinks[0]) == list(flow.sources)
    assert len(flow.upward) == len(flow.nodes)
    position = {name: i for i, name in enumerate(flow.upward)}
    for node in flow.nodes:
        for producer in node.inputs:
            assert position[producer] < position[node.name]
            assert flow.level[producer] == flow.level[node.name] + 1
            assert flow.consumers[producer] == (node.name,)


def leaves(flow: Dataflow, name: str) -> list[str]:
    inputs = flow.by_name[name].inputs
    return [leaf for producer in inputs for leaf in leaves(flow, producer)] if inputs else [name]


@pytest.mark.parametrize("n", range(2, 34))
def test_trees_have_the_depth_of_the_shape(n: int) -> None:
    depth = {shape: max(TREES[shape](codes(n), CODE).level.values()) for shape in TREES}
    assert depth == {"binary": (n - 1).bit_length() + 1, "left-deep": n, "star": 2}


def test_a_tree_without_sources_is_refused() -> None:
    for build in TREES.values():
        with pytest.raises(DataflowError, match="at least one source"):
            build({}, CODE)


def test_a_dataflow_survives_the_wire() -> None:
    flow = complete_binary_tree(codes(5), CODE)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(flow), type=Dataflow)
    assert again == flow
    assert again.validate().upward == flow.upward


def test_a_very_deep_tree_is_valid() -> None:
    inner = [operator(f"o{i}", f"o{i - 1}" if i else "s") for i in range(5000)]
    flow = Dataflow((source("s"), *inner, sink("o4999"))).validate()
    assert flow.level["s"] == 5001


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([source("s"), source("s"), sink("s")], "source 's' is defined twice"),
        (
            [source("s"), operator("o", "s"), sink("o", name="o")],
            "operator 'o' and sink 'o' have the same name; both are nodes: give each its own",
        ),
        (
            [source("s"), Node("t", "sink", ("s",), pinned="alice")],
            "sink 't' is pinned to unknown host 'alice'; the hosts are client, h1; of a tree, give client=NAME to the",
        ),
        ([source("s")], "a dataflow has at least one sink, and this one has none"),
        ([source("s"), sink("s"), source("r"), sink("r", name="u")], "node 'r' has nothing to do with node 's'"),
        ([Node("x", "filter", (), CODE), sink("x")], "node 'x' is of unknown kind 'filter'"),  # type: ignore[arg-type]
        ([source(""), sink("")], "node name ''"),
        ([source("a\nb"), sink("a\nb")], r"node name 'a\nb' is not 1 to 128 printable"),
        ([source("a" * 129), sink("a" * 129)], "is not 1 to 128 printable"),
        ([source("s"), Node("r", "source", ("s",), CODE, "h1"), sink("r")], "source 'r' has inputs ['s']"),
        ([operator("o"), sink("o")], "operator 'o' has no inputs"),
        ([source("s"), sink("s", "s")], "node 't' names an input twice: ['s', 's']"),
        ([source("s"), sink()], "sink 't' has no inputs"),
        ([Node("s", "source", (), CODE, "h1", 0), sink("s")], "source 's' keeps 0 outputs ahead; give 1 to 1024"),
        ([source("s"), Node("t", "sink", ("s",), ahead=2)], "sink 't' keeps 2 outputs ahead; a sink keeps 1"),
        ([source("s"), Node("t", "sink", ("s",), CODE)], "sink 't' names code"),
        ([Node("s", "source", (), None, "h1"), sink("s")], "source 's' names no code"),
        ([source("s"), Node("o", "operator", ("s",)), sink("o")], "operator 'o' names no code"),
        ([source("s", None), sink("s")], "source 's' is not pinned"),
        ([source("s"), operator("o", "s", "ghost"), sink("o")], "unknown node 'ghost'; known are s, o"),
        (
            [source("s"), operator("o", "s", "S"), sink("o")],
            "node 'o' takes its input from unknown node 'S'; did you mean 's'",
        ),
        ([source("s"), operator("o", "s", "t"), sink("o")], "node 'o' takes its input from the sink 't'"),
        ([source("s"), operator("o", "s", "s"), sink("o")], "node 'o' names an input twice: ['s', 's']"),
        ([source("s"), source("idle"), sink("s")], "node 'idle' has no consumer"),
        ([source("s"), sink("s"), operator("a", "b"), operator("b", "a")], "is on a cycle"),
        ([source("s"), sink("s"), operator("a", "a")], "node 'a' is on a cycle"),
        ([source("s", "mars"), sink("s")], "source 's' is pinned to unknown host 'mars'; the hosts are client, h1"),
    ],
)
def test_errors_name_the_node(nodes: list[Node], says: str) -> None:
    with pytest.raises(DataflowError, match=re.escape(says)) as caught:
        Dataflow(tuple(nodes)).validate(["h1", "client"])
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UsageError)


FLOW = Dataflow((source("s"), operator("o", "s"), Node("t", "sink", ("o",), None, "client")))


def test_a_placement_is_completed_with_the_pins() -> None:
    assert check_placement(FLOW, {"o": "h2"}, ["h1", "h2", "client"]) == {"s": "h1", "o": "h2", "t": "client"}
    assert check_placement(FLOW, {"o": "h2", "s": "h1"}, ["h1", "h2", "client"])["s"] == "h1"


@pytest.mark.parametrize(
    ("placement", "says"),
    [
        ({}, "leaves out operator 'o'"),
        ({"o": "mars"}, "operator 'o' is placed on unknown host 'mars'; the hosts are client, h1"),
        ({"o": "h1", "x": "h1"}, "names node 'x', which the dataflow does not have"),
        ({"o": "h1", "s": "client"}, "source 's' is pinned to 'h1', not 'client'"),
    ],
)
def test_errors_of_a_placement_name_node_and_host(placement: dict[str, str], says: str) -> None:
    with pytest.raises(PlacementError, match=re.escape(says)):
        check_placement(FLOW, placement, ["h1", "client"])


@pytest.mark.parametrize("build", TREES.values())
def test_builders_accept_a_client_of_a_different_name(build: Callable[..., Dataflow]) -> None:
    assert build(codes(3), CODE, client="me").by_name["sink"].pinned == "me"
    assert build(codes(3), CODE, "me").validate([*codes(3), "me"])
