"""Outputs that an operator keeps, and sends again to a restarted consumer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.core.flow.actions import LAST, Ask, Dispatch, Lighten, Output
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.node_states import GATHERING, HOLDING, LIGHT, RUNNING
from thalweg.middleware.core.flow.replay_log import ReplayLog
from thalweg.middleware.dataflow import Code, Node

NODE = Node("o", "operator", ("s",), Code("some"))
STEPS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=40)


@given(STEPS, st.integers(1, 400))
def test_the_newest_outputs_are_kept_within_the_bound(steps: list[tuple[int, int]], most_bytes: int) -> None:
    log = ReplayLog(most_bytes)
    line = size_bytes = 0
    for index, (size, before) in enumerate(steps):
        log.add(Output(index, None, size))
        log.let_go(before)
        log.validate()
        line, size_bytes = max(line, min(before, index)), size_bytes + size
        indices = [output.index for output in log.outputs]
        assert indices == list(range(indices[0], index + 1))
        assert indices[0] >= line
        assert indices[0] == line or size_bytes > most_bytes


def made(count: int, most_bytes: int = 1000) -> NodeCore:
    """An operator that has dispatched ``count`` partitions and gathers the next. Partition i has i bytes."""
    node = NodeCore.begun(NODE, None, 0, {"c": 0})
    node.window.log = ReplayLog(most_bytes)
    for index in range(count):
        node.on_demand(index, consumer="c")
        node.on_partition("s", Output(index))
        node.on_finished(Output(index, f"value {index}", index))
        node.validate()
    node.on_demand(count, consumer="c")
    return node


@pytest.mark.parametrize("wanted", [3, 6, 9, 10])
def test_a_restarted_consumer_is_sent_the_outputs_from_the_demanded_partition_on(wanted: int) -> None:
    before = made(10)
    assert before.window.log is not None
    before.window.log.let_go(3)
    node = before.going_on(NODE, {"c": None})
    assert (node.state, node.received.asked, node.got) == (GATHERING, {"s"}, 10)
    node.validate()
    for index in range(wanted, 10):
        verdict, actions = node.on_demand(index, consumer="c")
        node.validate()
        assert (verdict, [action.output.value for action in actions if isinstance(action, Dispatch)]) == (
            "taken",
            [f"value {index}"],
        )
    assert node.on_demand(10, consumer="c") == ("taken", [])
    assert node.on_partition("s", Output(10))[0] == "taken"
    (dispatch, ask) = node.on_finished(Output(10, "value 10"))[1]
    assert (dispatch, ask) == (Dispatch(Output(10, "value 10"), consumer="c"), Ask(11))
    node.validate()
    assert not node.window.unheard


def test_a_dropped_output_is_reported_as_lacking_and_not_sent() -> None:
    before = made(10, most_bytes=20)
    node = before.going_on(NODE, {"c": None})
    assert node.on_demand(7, consumer="c") == ("lacking", [])
    assert node.on_demand(7, consumer="c") == ("lacking", [])  # asked again
    node.validate()
    assert node.on_demand(8, consumer="c")[0] == "taken"


@pytest.mark.parametrize(("free", "begins"), [(True, 12), (False, 4)])
def test_a_restarted_node_begins_at_the_demand_if_free_and_else_at_the_start(free: bool, begins: int) -> None:
    node = NodeCore.begun(NODE, None, 4, {"c": None}, free=free)
    assert node.on_demand(12, consumer="c") == ("taken", [Ask(begins)])
    for index in range(begins, 13):
        node.validate()
        assert node.on_partition("s", Output(index))[0] == "taken"
        sent = [action.output.index for action in node.on_finished(Output(index))[1] if isinstance(action, Dispatch)]
        assert sent == ([12] if index == 12 else [])


@pytest.mark.parametrize("state", [RUNNING, HOLDING, LIGHT])
def test_an_operator_continues_in_the_next_generation_from_every_state(state: object) -> None:
    before = made(5)
    before.on_demand(5, consumer="c")
    if state is LIGHT:
        before.leave(4, recall=True)
    else:
        before.on_partition("s", Output(5))
    if state is HOLDING:
        before.window.consumers["c"].demanded = 4
        before.on_finished(Output(5, "five"))
    assert before.state is state
    node = before.going_on(NODE, {"c": None})
    node.validate()
    assert (node.state, node.got) == ((GATHERING, 5) if state is LIGHT else (state, 6))
    assert [action.output.index for action in node.on_demand(4, consumer="c")[1] if isinstance(action, Dispatch)] == [4]
    node.validate()


def test_new_outputs_wait_until_every_consumer_has_named_a_restart_point() -> None:
    before = NodeCore.begun(NODE, None, 0, {"c": 0, "d": 0})
    before.window.log = ReplayLog(10**6)
    for index in range(3):
        for consumer in ("c", "d"):
            before.on_demand(index, consumer=consumer)
        before.on_partition("s", Output(index))
        before.on_finished(Output(index, index, 1))
    node = before.going_on(NODE, {"c": None, "d": None, "t": 3})  # of a sink it is known
    assert node.on_demand(1, consumer="c") == ("taken", [Dispatch(Output(1, 1, 1), consumer="c")])
    node.on_partition("s", Output(3))
    assert node.on_finished(Output(3, 3, 1))[1] == []
    assert node.on_demand(3, consumer="t")[1] == []  # d may be further behind than that
    assert node.on_skip(2, "d") == (True, [])
    for consumer, index in (("d", 2), ("c", 2)):
        assert node.on_demand(index, consumer=consumer)[1] == [Dispatch(Output(2, 2, 1), consumer=consumer)]
    assert node.on_demand(3, consumer="c")[1] == []
    sent = node.on_demand(3, consumer="d")[1][:3]
    assert sent == [Dispatch(Output(3, 3, 1), consumer=name) for name in ("c", "d", "t")]
    node.validate()


def test_a_free_node_begins_at_the_earliest_partition_that_a_consumer_needs() -> None:
    node = NodeCore.begun(NODE, None, 4, {"c": None, "d": None}, free=True)
    assert node.on_demand(9, consumer="c") == ("taken", [])
    assert node.on_skip(7, "d") == (True, [Ask(7)])  # it says so itself: who makes its inputs may wait for that
    node.on_partition("s", Output(7))
    node.on_finished(Output(7, 7, 1))
    assert node.on_demand(7, consumer="d")[1] == [Dispatch(Output(7, 7, 1), consumer="d"), Ask(8)]
    gone = NodeCore.begun(NODE, None, 4, {"c": None, "d": None}, free=True)
    gone.on_demand(9, consumer="c")
    assert gone.part({"d"}) == [Ask(9)]  # whose query has left


def test_a_demand_past_the_last_index_names_no_restart_point() -> None:
    node = NodeCore.begun(NODE, None, 4, {"x": None, "g": None}, free=True)
    node.on_demand(5, consumer="x")
    assert node.on_demand(LAST, consumer="g") == ("late", [])
    assert node.window.unheard == {"g"}
    assert node.on_skip(LAST, "g") == (True, [Ask(5)])


def test_a_leaving_node_waits_for_the_first_demand_of_the_consumer() -> None:
    node = made(5).going_on(NODE, {"c": None})
    assert node.leave(3, recall=True) == []  # nobody knows yet what is wanted of it
    assert node.leave_heard() == []
    assert node.state is GATHERING
    assert node.on_demand(4, consumer="c")[0] == "taken"
    assert node.leave_heard() == [Lighten(5)]
    assert node.state is LIGHT
    node.validate()
    assert node.leave_heard() == []


def test_a_node_that_stays_is_not_recalled_by_the_first_demand_of_the_consumer() -> None:
    node = made(5).going_on(NODE, {"c": None})
    node.leave(3, recall=True)
    node.stay()
    node.on_demand(4, consumer="c")
    assert (node.leave_heard(), node.state) == ([], GATHERING)
