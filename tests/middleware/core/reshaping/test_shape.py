"""Valid new shapes of a tree: the same combinations, with any names and hosts of the operators."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest
from adversary import CLIENT, FREE, MERGING, content, mixed_tree
from hypothesis import given
from hypothesis import strategies as st

from thalweg.experiments.drivers.random_moves import shuffled
from thalweg.middleware.core.reshaping.shape import is_free, regrow, reshape
from thalweg.middleware.dataflow import Code, Dataflow, Node, Reorderable
from thalweg.middleware.errors import DataflowError
from thalweg.middleware.protocol.messages import Graft

HOSTS = [CLIENT, "h1", "h2", "h3"]
OTHER = Code("other")


def tree(*operators: tuple[str, tuple[str, ...]], stateful: str = "", root: str = "", code: Code = FREE) -> Dataflow:
    """Return a tree of sources a, b and c, free operators (name, inputs) except the ``stateful`` one, and a sink t."""
    nodes = [Node(name, "source", (), Code("s", {"of": name}), "h1") for name in "abc"]
    nodes += [Node(name, "operator", inputs, OTHER if name == stateful else code) for name, inputs in operators]
    return Dataflow((*nodes, Node("t", "sink", (root or operators[-1][0],), None, CLIENT))).validate()


OLD = tree(("o", ("a", "b")), ("p", ("o", "c")))
WHERE = {"a": "h1", "b": "h1", "c": "h1", "o": "h2", "p": "h3", "t": CLIENT}
NEW, TAKES = Graft("t", ("x",), CLIENT, ""), "operator {!r} cannot take over the state of {!r}"
JOINED = tree(("o", ("a", "b")), ("p", ("o", "c")), stateful="p")


def test_the_grafts_are_the_difference_between_the_trees() -> None:
    reshaped = reshape(
        OLD, tree(("x", ("c", "b")), ("y", ("x", "a"))), {"x": "h2", "y": "h1"}, WHERE, Reorderable((FREE,)), 7
    )
    assert reshaped.grafts == (
        Graft("x~7", ("c", "b"), "h2", "o"),
        Graft("y~7", ("x~7", "a"), "h1", "o"),
        Graft("t", ("y~7",), CLIENT, ""),
    )
    assert set(reshaped.dataflow.operators) == {"x~7", "y~7"}
    assert reshaped.moves == {}


def test_an_equal_operator_stays_regardless_of_the_name() -> None:
    new = tree(("x", ("a", "b")), ("y", ("c", "x")))
    reshaped = reshape(OLD, new, {"x": "h2", "y": "h3"}, WHERE, Reorderable((FREE,)), 1)
    assert reshaped.grafts == (Graft("y~1", ("c", "o"), "h3", "o"), Graft("t", ("y~1",), CLIENT, ""))
    same = reshape(
        OLD, tree(("x", ("a", "b")), ("y", ("x", "c"))), {"x": "h2", "y": "h3"}, WHERE, Reorderable((FREE,)), 1
    )
    assert (same.grafts, same.dataflow) == ((), OLD)
    moved = reshape(OLD, OLD, {"o": "h2", "p": "h2"}, WHERE, Reorderable((FREE,)), 1)
    assert moved.grafts == (Graft("p~1", ("o", "c"), "h2", "o"), Graft("t", ("p~1",), CLIENT, ""))


def test_a_stateful_operator_stays_and_gets_the_same_inputs_from_new_operators() -> None:
    old = tree(("o", ("a",)), ("q", ("o", "b")), ("j", ("q", "c")), stateful="j")
    where = WHERE | {"q": "h2", "j": "h3"}
    new = tree(("x", ("b", "a")), ("j", ("x", "c")), stateful="j")
    reshaped = reshape(old, new, {"x": "h1", "j": "h1"}, where, Reorderable((FREE,)), 2)
    assert reshaped.grafts == (Graft("x~2", ("b", "a"), "h1", "o"), Graft("j", ("x~2", "c"), "h3", ""))
    assert reshaped.moves == {"j": "h1"}


def test_the_last_new_operator_of_a_combination_takes_over_all_states() -> None:
    """``x`` equals ``o`` and is on the same host. Without states ``o`` would stay."""
    old = tree(("o", ("a", "b")), ("p", ("o", "c")), code=MERGING)
    new = tree(("x", ("a", "b")), ("y", ("c", "x")), code=MERGING)
    reshaped = reshape(old, new, {"x": "h2", "y": "h3"}, WHERE, Reorderable((MERGING,), (MERGING,)), 1)
    assert reshaped.grafts == (
        Graft("x~1", ("a", "b"), "h2", "o"),
        Graft("y~1", ("c", "x~1"), "h3", "o", ("p", "o")),
        Graft("t", ("y~1",), CLIENT, ""),
    )
    assert reshape(old, old, WHERE, WHERE, Reorderable((MERGING,), (MERGING,)), 1).grafts == ()


def test_a_lower_operator_is_replaced_instead_of_becoming_the_last_of_a_combination() -> None:
    old = tree(("o", ("a", "b", "c")), ("p", ("o",)), code=MERGING)
    reshaped = reshape(
        old, tree(("o", ("a", "b", "c")), code=MERGING), {}, WHERE, Reorderable((MERGING,), (MERGING,)), 1
    )
    assert reshaped.grafts == (Graft("o~1", ("a", "b", "c"), "h2", "o", ("p", "o")), Graft("t", ("o~1",), CLIENT, ""))


def test_an_unchanged_combination_keeps_the_states_when_a_second_combination_changes() -> None:
    """Between the two combinations is an operator that has to stay."""
    old = tree(("o", ("a", "b")), ("q", ("o",)), ("p", ("q", "c")), stateful="q", code=MERGING)
    new = tree(("o", ("a", "b")), ("q", ("o",)), ("p", ("c", "q")), stateful="q", code=MERGING)
    reshaped = reshape(old, new, {}, WHERE | {"q": "h1"}, Reorderable((MERGING,), (MERGING,)), 1)
    assert reshaped.grafts == (Graft("p~1", ("c", "q"), "h3", "o", ("p",)), Graft("t", ("p~1",), CLIENT, ""))
    alone = reshape(old, new, {}, WHERE | {"q": "h1"}, Reorderable((MERGING,)), 1)  # without states
    assert [graft.states for graft in alone.grafts] == [(), ()]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (OLD, tree(("o", ("a", "b", "c"))), None),
        (JOINED, tree(("o", ("a", "c")), ("p", ("o", "b")), stateful="p"), "operator 'p' keeps its inputs ['o', 'c']:"),
        (JOINED, tree(("o", ("b", "a")), ("p", ("c", "o")), stateful="p"), "operator 'p' keeps its inputs ['o', 'c']:"),
        (JOINED, tree(("o", ("a", "b", "c"))), "operator 'p' is left out, and its code is not reorderable"),
        (OLD, JOINED, "operator 'p' is not the same in both trees"),
        (OLD, tree(("o", ("a", "b", "c")), ("q", ("o",)), stateful="q"), "operator 'q' cannot appear: its code"),
        (OLD, Dataflow(OLD.nodes[1:]), "node 'o' takes its input from unknown node 'a'"),
        (
            OLD,
            Dataflow((msgspec.structs.replace(OLD.nodes[0], pinned="h2"), *OLD.nodes[1:])),
            "source 'a' is not the same in both trees",
        ),
    ],
)
def test_a_tree_that_would_give_different_bytes_is_refused(old: Dataflow, new: Dataflow, line: str | None) -> None:
    placement = dict.fromkeys(new.by_name, "h1")
    if line is None:
        assert reshape(old, new, placement, WHERE, Reorderable((FREE,)), 1).grafts
    else:
        with pytest.raises(DataflowError) as refused:
            reshape(old, new, placement, WHERE, Reorderable((FREE,)), 1)
        assert str(refused.value).startswith(line), refused.value


def test_a_new_tree_of_operators_that_are_not_reorderable_is_refused() -> None:
    with pytest.raises(DataflowError, match=r"operator 'o' keeps its inputs \['a', 'b'\]: it is not reorderable"):
        reshape(OLD, tree(("o", ("a", "c")), ("p", ("o", "b"))), {"o": "h1", "p": "h1"}, WHERE, Reorderable(), 1)


def test_an_operator_without_a_host_is_refused() -> None:
    with pytest.raises(DataflowError, match="the placement leaves out operator 'y'; name its host"):
        reshape(OLD, tree(("y", ("a", "b", "c"))), {}, WHERE, Reorderable((FREE,)), 1)


@pytest.mark.parametrize(
    ("grafts", "line"),
    [
        ([Graft("o", ("a",), "h1", "p")], "node 'o' cannot appear: the tree has it already"),
        ([Graft("x", ("a",), "h1", "a")], "operator 'x' cannot be like 'a', which is no operator"),
        ([Graft("x", ("a",), "h1", "gone")], "operator 'x' cannot be like 'gone', which is no operator"),
        ([Graft("x", ("a",), "h1", "")], "node 'x' cannot get other inputs: the tree does not have it"),
        ([Graft("t", ("gone",), CLIENT, "")], "node 'gone' is an input, and the tree does not have it"),
        ([Graft("t", ("o",), CLIENT, "")], "node 'c' would not reach the sink any more"),
        ([Graft("x", ("a",), "h1", "o")], "node 'x' would not reach the sink any more"),
        ([Graft("t", ("o",), CLIENT, "", ("p",)), Graft("o", ("a", "b", "c"), "h2")], TAKES.format("t", "p")),
        ([NEW, Graft("x", ("a", "b", "c"), "h1", "o", ("a",))], TAKES.format("x", "a")),
        ([NEW, Graft("x", ("a", "b", "c"), "h1", "o", ("gone",))], TAKES.format("x", "gone")),
        ([NEW, Graft("x", ("o", "c"), "h1", "o", ("o",))], TAKES.format("x", "o")),
        ([NEW, Graft("x", ("a", "b", "c"), "h1", "o", ("o", "o"))], TAKES.format("x", "o")),
        (
            [Graft("p", ("o", "c", "a"), "h1", "")],
            "only trees change their shape, and this is a graph: node 'a' has several consumers ['o', 'p'];"
            " move its operators instead",
        ),
    ],
)
def test_grafts_that_make_no_tree_are_refused(grafts: list[Graft], line: str) -> None:
    with pytest.raises(DataflowError) as refused:
        regrow(OLD, grafts)
    assert str(refused.value) == line


def test_names_are_never_used_twice() -> None:
    flow, where, seen = OLD, dict(WHERE), set(OLD.by_name) | {"x~2"}
    for number in range(1, 30):
        inputs = ("a", "b", "c")[number % 3 :] + ("a", "b", "c")[: number % 3]
        name = flow.operators[0] if number % 2 else "x" * 128
        reshaped = reshape(flow, tree((name, inputs)), {name: "h1"}, where, Reorderable((FREE,)), number, {"x~2"})
        fresh = set(reshaped.dataflow.operators)
        assert not fresh & seen
        assert all(len(operator) <= 128 for operator in fresh)
        seen |= fresh
        flow, where = reshaped.dataflow, where | dict.fromkeys(fresh, "h1")


@given(seed=st.integers(0, 2**32), sources=st.integers(1, 9))
def test_random_shapes_give_the_same_content_step_by_step(seed: int, sources: int) -> None:
    random = Random(seed)
    code = random.choice([FREE, MERGING])
    free, merging = [FREE, MERGING], [MERGING]
    flow, where = mixed_tree(random, sources, HOSTS, code)
    first = flow
    for number in range(1, 6):
        new, placement = shuffled(flow, where, free, HOSTS, random.randrange)
        reshaped = reshape(flow, new, placement, where, Reorderable(free, merging), number)
        states = Counter(name for graft in reshaped.grafts for name in graft.states)
        gone = flow.by_name.keys() - reshaped.dataflow.by_name.keys()
        assert states == Counter(name for name in gone if code == MERGING), "each state that is there is taken over"
        assert regrow(flow, reshaped.grafts) == reshaped.dataflow if reshaped.grafts else reshaped.dataflow == flow
        assert content(reshaped.dataflow, "t", 3)[3] == content(first, "t", 3)[3]
        where = {name: where.get(name, "") for name in reshaped.dataflow.by_name}
        where |= {graft.node: graft.host for graft in reshaped.grafts if graft.like}
        for name, node in first.by_name.items():
            assert is_free(node, free) or reshaped.dataflow.by_name[name].code == node.code
        flow = reshaped.dataflow
