"""A node with several consumers: the outputs that each consumer is sent, and when."""

from __future__ import annotations

from nodes import CODE, ahead, out, shared, under_way
from playbook import (
    Arrived,
    Demanded,
    Finished,
    NodePlaybook,
    Skipped,
    Stayed,
    ToLeave,
)

from thalweg.middleware.core.flow.actions import (
    LAST,
    Action,
    Ask,
    Dispatch,
    Lighten,
    Renounce,
    RunCode,
)
from thalweg.middleware.core.flow.consumer_state import ConsumerState
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.node_states import NodeState
from thalweg.middleware.dataflow import Node


def both(index: int, value: object) -> list[Action]:
    return [Dispatch(out(index, value), consumer="x"), Dispatch(out(index, value), consumer="y")]


def test_an_output_is_sent_to_all_consumers_after_the_demand_of_the_last_consumer() -> None:
    book = shared()
    book << Demanded(0, by="x") >> [RunCode(0, ())]
    book << Finished(0, "s0") >> []  # y is not there yet
    book << Demanded(0, by="x") >> "duplicate"
    book << Demanded(0, by="y") >> [*both(0, "s0"), RunCode(1, ())]
    book << Demanded(1, by="x") >> []
    book << Finished(1, "s1") >> []
    assert book.node.window.last == out(0, "s0")  # which y has perhaps not got
    book << Demanded(0, by="x") >> "late"  # as x has
    book << Demanded(0, by="y") >> [Dispatch(out(0, "s0"), True, "y")]
    book << Demanded(2, by="x") >> "ahead"
    book << Demanded(1, by="y") >> [*both(1, "s1"), RunCode(2, ())]
    assert book.node.window.last == out(1, "s1")


def test_a_node_runs_ahead_of_the_slowest_consumer_by_the_number_of_kept_outputs() -> None:
    book = ahead(3)
    book << Arrived("a", 3) >> [RunCode(3, (None,))]
    book << Finished(3, "o3") >> []  # a fourth is not kept
    for index in range(3):
        more: list[Action] = [] if index != 1 else [Dispatch(out(3, "o3"), consumer="x"), Ask(4)]
        book << Demanded(index, by="y") >> [Dispatch(out(index, f"o{index}"), consumer="y"), *more]
    book << Demanded(1, by="y") >> "late"
    book << Demanded(2, by="y") >> [Dispatch(out(2, "o2"), True, "y")]
    assert book.node.window.unacked == [out(2, "o2"), out(3, "o3")]


def test_a_held_output_goes_to_the_demanding_consumer_once_the_node_stays() -> None:
    book = ahead(2)
    for index in range(2):
        book << Demanded(index, by="y") >> [Dispatch(out(index, f"o{index}"), consumer="y")]
    book << ToLeave(2) >> []
    book << Arrived("a", 2) >> [RunCode(2, (None,))]
    book << Finished(2, "o2") >> []  # with it the node would leave
    book << Stayed() >> [Dispatch(out(2, "o2"), consumer="x"), Ask(3)]


def test_a_node_tracks_transfers_separately_for_every_consumer() -> None:
    book = shared()
    book << Demanded(0, by="x") >> [RunCode(0, ())]
    book << Demanded(0, by="y") >> []
    book << Finished(0, "s0") >> [*both(0, "s0"), RunCode(1, ())]
    under_way(book, 0, "x")
    book << Demanded(0, by="x") >> "duplicate"
    book << Demanded(0, by="y") >> [Dispatch(out(0, "s0"), True, "y")]
    book.node.window.on_transfer_over(0, "x", arrived=True)
    book << Demanded(0, again=True, by="x") >> "duplicate"  # it was on its way then
    book << Demanded(0, again=True, by="x") >> [Dispatch(out(0, "s0"), True, "x")]


def test_an_output_without_a_consumer_is_not_left_behind() -> None:
    book = shared(Node("o", "operator", ("a",), CODE))
    book.node.window.consumers["y"] = ConsumerState.of(5)  # its query begins later
    book << Demanded(0, by="x") >> [Ask(0)]
    book << Skipped(LAST, by="x") >> []
    book << Arrived("a", 0) >> [RunCode(0, (None,))]
    book << Finished(0, "o0") >> [Ask(1)]
    assert book.node.window.split() is None


def test_a_consumer_that_skips_to_the_end_delays_no_other_consumer() -> None:
    book = shared(Node("o", "operator", ("a",), CODE))
    book << Demanded(0, by="x") >> [Ask(0)]
    book << Arrived("a", 0) >> [RunCode(0, (None,))]
    book << Finished(0, "o0") >> []
    book << Skipped(LAST, by="y") >> [Dispatch(out(0, "o0"), consumer="x"), Ask(1)]
    book << Skipped(LAST, by="y") >> []
    book << Demanded(1, by="x") >> []
    book << Demanded(1, by="y") >> "late"  # from before it said so
    assert book.node.window.last is None
    book << Skipped(LAST, by="x") >> [Renounce(("a",))]
    assert book.node.state is NodeState.ENDED


def test_a_moving_operator_takes_the_states_of_the_consumers_along() -> None:
    book = shared(Node("o", "operator", ("a",), CODE))
    book << Demanded(0, by="x") >> [Ask(0)]
    book << ToLeave(recall=True) >> [Lighten(0)]
    book << Skipped(LAST, by="x") >> []  # where it goes says so
    book << Skipped(LAST, by="y") >> []
    arrived = NodePlaybook(NodeCore.come(book.node.node, None, 0, {"x": ConsumerState(LAST), "y": ConsumerState(LAST)}))
    arrived << Stayed() >> [Renounce(("a",))]
