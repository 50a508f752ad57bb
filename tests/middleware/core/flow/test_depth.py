"""A node with several partitions under way (R12 of ``node``)."""

from __future__ import annotations

from nodes import deep, operator, out, source
from playbook import (
    Arrived,
    Demanded,
    Finished,
    NodePlaybook,
    Stayed,
    ToLeave,
    ToTurn,
    TransferOver,
    TurnedTo,
)

from thalweg.middleware.core.flow.actions import (
    Ask,
    Dispatch,
    Lighten,
    RunCode,
    Turned,
)
from thalweg.middleware.core.flow.node_states import NodeState


def sent(book: NodePlaybook, index: int, host: str = "h2", *, arrived: bool | None = None) -> None:
    """Begin a transfer of partition ``index``, and end it if ``arrived`` is not None."""
    book.node.window.consumers[""].was_sent(index, host, under_way=True)
    if arrived is not None:
        book << TransferOver(index, arrived=arrived)


def test_a_demand_gives_credit_for_several_partitions_and_acknowledges_earlier_partitions() -> None:
    book = deep(source())
    book << Demanded(0) >> [RunCode(0, ())]
    for index in range(3):
        book << Finished(index, f"p{index}") >> [Dispatch(out(index, f"p{index}")), RunCode(index + 1, ())]
        sent(book, index)
    book << Finished(3, "p3") >> []
    assert book.node.window.unacked == [out(index, f"p{index}") for index in range(3)]
    book << Demanded(1) >> [Dispatch(out(3, "p3")), RunCode(4, ())]
    assert book.node.window.unacked == [out(index, f"p{index}") for index in range(1, 4)]
    book << Demanded(0) >> "late"
    book << Demanded(5) >> "ahead"


def test_an_input_that_arrives_early_waits_for_earlier_partitions() -> None:
    book = deep(operator())
    book << Demanded(0) >> [Ask(0)]
    book << Arrived("a", 1, "a1") >> []
    book << Arrived("b", 2, "b2") >> []
    book << Arrived("a", 1, "a1") >> "ahead"  # it has that
    book << Arrived("a", 3, "a3") >> "ahead"  # nobody gave credit for that
    book << Arrived("a", 0, "a0") >> []
    book << Arrived("b", 1, "b1") >> []
    book << Arrived("b", 0, "b0") >> [RunCode(0, ("a0", "b0"))]
    book << Arrived("a", 0, "a0") >> "duplicate"
    book << Finished(0, "ab0") >> [Dispatch(out(0, "ab0")), Ask(1), RunCode(1, ("a1", "b1"))]
    assert book.node.received.last == "b"
    sent(book, 0)
    book << Finished(1, "ab1") >> [Dispatch(out(1, "ab1")), Ask(2)]
    assert book.node.received.asked == {"a"}


def test_only_the_repeatedly_demanded_partition_is_sent_again() -> None:
    book = deep(source())
    book << Demanded(0)
    for index in range(3):
        book << Finished(index, f"p{index}")
        sent(book, index)
    book << Demanded(0, again=True) >> "duplicate"  # it is under way
    book << TransferOver(0)
    book << Demanded(0, again=True) >> "duplicate"  # R2: it was asked for before it came
    book << Demanded(0, again=True) >> [Dispatch(out(0, "p0"), again=True)]
    sent(book, 0)
    book << TransferOver(1, arrived=False)
    book << Demanded(1, again=True) >> [Dispatch(out(1, "p1"), again=True)]  # nobody knows what became of it
    sent(book, 1, arrived=True)
    book << Demanded(1) >> [Dispatch(out(1, "p1"), again=True)]  # it wants it in another place
    sent(book, 1)
    book << TransferOver(2, arrived=False)
    book << Demanded(1, again=True) >> [Dispatch(out(2, "p2"), again=True)]  # it has not got the later one either


def test_an_operator_leaves_when_all_but_the_last_output_are_acknowledged() -> None:
    book = deep(operator())
    book << Demanded(0) >> [Ask(0)]
    for index in range(2):
        book << Arrived("a", index, "a") >> []
        book << Arrived("b", index, "b") >> [RunCode(index, ("a", "b"))]
        book << Finished(index, "ab") >> [Dispatch(out(index, "ab")), Ask(index + 1)]
        sent(book, index)
    book << Arrived("a", 2, "a") >> []
    book << ToLeave(recall=True) >> []
    assert book.node.state is NodeState.DRAINING
    book << Arrived("b", 2, "b") >> []  # it may stay
    book << Demanded(1) >> [Lighten(2)]
    assert book.node.window.unacked == [out(1, "ab")]
    book << Arrived("a", 3, "a") >> []
    book << Stayed() >> [Ask(2), RunCode(2, ("a", "b"))]
    book << Finished(2, "ab") >> [Dispatch(out(2, "ab")), Ask(3)]
    assert book.node.received.asked == {"b"}


def test_a_leaving_operator_holds_the_last_output_until_the_output_before_is_acknowledged() -> None:
    book = deep(operator())
    book << Demanded(0) >> [Ask(0)]
    for index in range(2):
        book << ToLeave(1) >> []
        book << Arrived("a", index, "a") >> []
        book << Arrived("b", index, "b") >> [RunCode(index, ("a", "b"))]
        book << Finished(index, "ab") >> ([Dispatch(out(0, "ab")), Ask(1)] if index == 0 else [])
        sent(book, 0)
    book << Demanded(1) >> [Dispatch(out(1, "ab")), Lighten(2)]


def to_turn() -> NodePlaybook:
    """A source that has sent three unacknowledged partitions, and then gets another consumer."""
    book = deep(source())
    book << Demanded(0) >> [RunCode(0, ())]
    for index in range(3):
        book << Finished(index, f"p{index}")
        sent(book, index)
    book << ToTurn(2) >> []
    return book


def test_a_source_turns_when_the_old_consumer_lacks_only_the_last_output() -> None:
    book = to_turn()
    book << Finished(3, "p3") >> []
    book << Demanded(3, by="new") >> []
    book << Demanded(3, by="new") >> "duplicate"
    book << Demanded(1) >> []
    book << Demanded(2) >> [Turned()]
    left = book.node.turned()
    assert left is not None
    assert (left.unacked, left.consumers.keys()) == ([out(2, "p2")], {""})
    assert book.node.go_on() == [Dispatch(out(3, "p3"), consumer="new"), RunCode(4, ())]
    book << Finished(4, "p4") >> [Dispatch(out(4, "p4"), consumer="new"), RunCode(5, ())]


def test_a_new_consumer_has_no_credit_before_the_first_demand() -> None:
    book = deep(source())
    book << Demanded(0) >> [RunCode(0, ())]
    book << ToTurn(0) >> []
    book << Finished(0, "p0") >> [Dispatch(out(0, "p0")), Turned(), RunCode(1, ())]
    book << TurnedTo() >> []
    book << Finished(1, "p1") >> []
    book << Demanded(1, by="new") >> [Dispatch(out(1, "p1"), consumer="new"), RunCode(2, ())]


def test_the_old_tree_is_retired_without_an_acknowledgement_of_the_old_consumer() -> None:
    book = to_turn()
    book << Demanded(3, by="new") >> []
    book << Finished(3, "p3") >> []
    assert book.node.retire() == [Dispatch(out(3, "p3"), consumer="new"), RunCode(4, ())]
    assert book.node.window.unacked == [out(3, "p3")]
