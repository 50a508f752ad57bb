"""The demand-driven node: every transition of its table, and everything that must change nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nodes import CODE, ahead, deep, operator, out, sink, source, under_way
from playbook import (
    Arrived,
    Demanded,
    Finished,
    NodePlaybook,
    Replaced,
    Resumed,
    Rewired,
    Skipped,
    Stayed,
    Stimulus,
    Suspended,
    ToLeave,
    ToTurn,
    TransferOver,
    TurnedTo,
    state_of,
)

from thalweg.middleware.core.context.machine import InvalidTransition
from thalweg.middleware.core.flow.actions import (
    LAST,
    Action,
    Ask,
    Dispatch,
    Hand,
    Lighten,
    Renounce,
    RunCode,
    Turned,
)
from thalweg.middleware.core.flow.consumer_state import ConsumerState
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.node_states import TRANSITIONS, NodeEvent, NodeState
from thalweg.middleware.core.flow.receive_window import ReceiveWindow
from thalweg.middleware.core.flow.send_window import SendWindow
from thalweg.middleware.dataflow import Node
from thalweg.middleware.protocol import messages as m

# --- conversations, each of which uses the transitions it is listed for ------------------------------


def source_runs_when_demanded_and_prefetches_one() -> NodePlaybook:
    book = source()
    book << Demanded(0) >> [RunCode(0, ())]
    book << Finished(0, "p0") >> [Dispatch(out(0, "p0")), RunCode(1, ())]
    book << Finished(1, "p1") >> []
    assert book.node.state is NodeState.HOLDING
    book << Demanded(1) >> [Dispatch(out(1, "p1")), RunCode(2, ())]
    return book


def operator_gathers_runs_and_dispatches() -> NodePlaybook:
    book = operator()
    book << Demanded(0) >> [Ask(0)]
    book << Arrived("b", 0, "b0") >> []
    book << Arrived("a", 0, "a0") >> [RunCode(0, ("a0", "b0"))]
    book << Finished(0, "ab0") >> [Dispatch(out(0, "ab0")), Ask(1)]
    return book


def operator_holds_until_demanded() -> NodePlaybook:
    book = operator_gathers_runs_and_dispatches()
    book << Arrived("a", 1, "a1") >> []
    book << Arrived("b", 1, "b1") >> [RunCode(1, ("a1", "b1"))]
    book << Finished(1, "ab1") >> []
    assert book.node.state is NodeState.HOLDING
    assert book.node.window.last == out(0, "ab0")
    book << Demanded(1) >> [Dispatch(out(1, "ab1")), Ask(2)]
    assert book.node.window.last == out(1, "ab1")
    return book


def demand_while_running_dispatches_when_finished() -> NodePlaybook:
    book = operator_gathers_runs_and_dispatches()
    book << Demanded(1) >> []
    book << Arrived("a", 1) >> []
    book << Arrived("b", 1) >> [RunCode(1, (None, None))]
    book << Finished(1, "ab1") >> [Dispatch(out(1, "ab1")), Ask(2)]
    return book


def operator_passes_the_end_on_without_running() -> NodePlaybook:
    book = operator()
    book << Demanded(0) >> [Ask(0)]
    book << Arrived("a", 0, end=True) >> []
    book << Arrived("b", 0, "b0") >> [Dispatch(out(0, end=("b",))), Renounce(("b",))]  # R8
    assert book.node.state is NodeState.ENDED
    return book


def source_ends_its_stream() -> NodePlaybook:
    book = source()
    book << Demanded(0) >> [RunCode(0, ())]
    book << Finished(0, end=True) >> [Dispatch(out(0, end=True))]
    assert book.node.state is NodeState.ENDED
    return book


def sink_hands_each_partition_to_the_application() -> NodePlaybook:
    book = sink()
    for i in range(3):
        book << Demanded(i) >> [Ask(i)]
        book << Arrived("o", i, f"p{i}") >> [Hand(out(i, f"p{i}"))]
        assert book.node.state is NodeState.IDLE
    return book


def sink_hands_the_end() -> NodePlaybook:
    book = sink_hands_each_partition_to_the_application()
    book << Demanded(3) >> [Ask(3)]
    book << Arrived("o", 3, end=True) >> [Hand(out(3, end=True))]
    assert book.node.state is NodeState.ENDED
    return book


def sink_ends_at_the_limit() -> NodePlaybook:
    book = sink(limit=1)
    book << Demanded(0) >> [Ask(0)]
    book << Arrived("o", 0, "p0") >> [Hand(out(0, "p0"))]
    book << Demanded(1) >> [Hand(out(1, end=True))]
    book << Demanded(1) >> "duplicate"
    return book


def operator_is_light_before_its_first_demand() -> NodePlaybook:
    book = operator()
    book << ToLeave() >> []
    book << Demanded(0) >> [Lighten(0)]
    book << Stayed() >> [Ask(0)]
    return book


def operator_calls_its_demands_back() -> NodePlaybook:
    book = operator_gathers_runs_and_dispatches()
    book << ToLeave(0, recall=True) >> [Lighten(1)]
    book << Arrived("a", 1, "a1") >> "duplicate"  # it is demanded again by whoever goes on
    return book


def operator_is_light_when_its_output_has_gone() -> NodePlaybook:
    book = operator()
    book << Demanded(0) >> [Ask(0)]
    book << Arrived("a", 0, "a0") >> []
    book << ToLeave() >> []  # it has an input in hand
    book << Arrived("b", 0, "b0") >> [RunCode(0, ("a0", "b0"))]
    book << Finished(0, "ab0") >> [Dispatch(out(0, "ab0")), Lighten(1)]
    assert book.node.window.last == out(0, "ab0")
    return book


def a_light_operator_goes_on() -> NodePlaybook:
    book = operator_is_light_when_its_output_has_gone()
    book << Demanded(1) >> []  # taken notice of
    assert book.node.window.last is None
    book << Stayed() >> [Ask(1)]
    book << Stayed() >> []
    book << Arrived("a", 1, "a1") >> []
    book << Arrived("b", 1, "b1") >> [RunCode(1, ("a1", "b1"))]
    book << Finished(1, "ab1") >> [Dispatch(out(1, "ab1")), Ask(2)]
    return book


def an_operator_is_replaced_before_it_began() -> NodePlaybook:
    book = operator()
    book << Replaced(-1) >> []
    book << Demanded(0) >> []  # of its old consumer, which does not know yet
    return book


def an_operator_is_replaced() -> NodePlaybook:
    book = operator()
    book << Demanded(0) >> [Ask(0)]
    book << Arrived("a", 0) >> []
    book << Arrived("b", 0) >> [RunCode(0, (None, None))]
    book << Finished(0, "ab0") >> [Dispatch(out(0, "ab0")), Ask(1)]
    book << Replaced(0) >> []
    book << Arrived("a", 1) >> "duplicate"
    book << TransferOver(0, arrived=False) >> []
    book << Demanded(0) >> [Dispatch(out(0, "ab0"), again=True)]  # it is kept
    return book


def nobody_wants_what_it_has_not_begun() -> NodePlaybook:
    book = operator()
    book << Skipped(LAST) >> [Renounce(("a", "b"))]
    return book


def nobody_wants_what_it_gathers() -> NodePlaybook:
    book = operator_gathers_runs_and_dispatches()
    book << Arrived("a", 1) >> []
    book << Skipped(LAST) >> [Renounce(("a", "b"))]
    book << Skipped(LAST) >> []  # the first was lost
    book << Arrived("b", 1) >> "duplicate"
    assert book.node.window.last is None
    return book


def nobody_wants_what_it_makes() -> NodePlaybook:
    book = source()
    book << Demanded(0) >> [RunCode(0, ())]
    book << Skipped(LAST) >> []
    book << Finished(0, "p0") >> "late"
    return book


def nobody_wants_what_it_holds() -> NodePlaybook:
    book = source()
    book << Demanded(0) >> [RunCode(0, ())]
    book << Finished(0, "p0") >> [Dispatch(out(0, "p0")), RunCode(1, ())]
    book << Finished(1, "p1") >> []
    book << Skipped(LAST) >> []
    return book


def who_leaves_waits_for_the_slower_consumer() -> NodePlaybook:
    book = ahead(2)
    book << ToLeave(1, recall=True) >> []
    book << Arrived("a", 2) >> []  # it may stay
    book << Demanded(0, by="y") >> [Dispatch(out(0, "o0"), consumer="y")]
    book << Demanded(1, by="y") >> [Dispatch(out(1, "o1"), consumer="y"), Lighten(2)]
    assert book.node.window.last == out(1, "o1")
    return book


def who_was_to_leave_goes_on_with_consumers_that_lag_behind() -> NodePlaybook:
    book = ahead(2)
    book << ToLeave(1, recall=True) >> []
    book << Stayed() >> [Ask(2)]
    return book


WALKS: dict[tuple[NodeState, NodeEvent], Callable[[], NodePlaybook]] = {
    (NodeState.IDLE, NodeEvent.DEMANDED): source_runs_when_demanded_and_prefetches_one,
    (NodeState.GATHERING, NodeEvent.GATHERED): operator_gathers_runs_and_dispatches,
    (NodeState.GATHERING, NodeEvent.DELIVERED): sink_hands_each_partition_to_the_application,
    (NodeState.GATHERING, NodeEvent.FINISHED): operator_passes_the_end_on_without_running,
    (NodeState.RUNNING, NodeEvent.FINISHED): demand_while_running_dispatches_when_finished,
    (NodeState.HOLDING, NodeEvent.DISPATCHED): operator_holds_until_demanded,
    (NodeState.HOLDING, NodeEvent.EXHAUSTED): source_ends_its_stream,
    (NodeState.IDLE, NodeEvent.EXHAUSTED): sink_ends_at_the_limit,
    (NodeState.IDLE, NodeEvent.FROZEN): operator_is_light_before_its_first_demand,
    (NodeState.GATHERING, NodeEvent.FROZEN): operator_calls_its_demands_back,
    (NodeState.HOLDING, NodeEvent.FROZEN): operator_is_light_when_its_output_has_gone,
    (NodeState.LIGHT, NodeEvent.THAWED): a_light_operator_goes_on,
    (NodeState.GATHERING, NodeEvent.RECALLED): who_leaves_waits_for_the_slower_consumer,
    (NodeState.DRAINING, NodeEvent.FROZEN): who_leaves_waits_for_the_slower_consumer,
    (NodeState.DRAINING, NodeEvent.THAWED): who_was_to_leave_goes_on_with_consumers_that_lag_behind,
    (NodeState.IDLE, NodeEvent.REPLACED): an_operator_is_replaced_before_it_began,
    (NodeState.GATHERING, NodeEvent.REPLACED): an_operator_is_replaced,
    (NodeState.IDLE, NodeEvent.RENOUNCED): nobody_wants_what_it_has_not_begun,
    (NodeState.GATHERING, NodeEvent.RENOUNCED): nobody_wants_what_it_gathers,
    (NodeState.RUNNING, NodeEvent.RENOUNCED): nobody_wants_what_it_makes,
    (NodeState.HOLDING, NodeEvent.RENOUNCED): nobody_wants_what_it_holds,
}


@pytest.mark.parametrize("entry", TRANSITIONS, ids=lambda entry: f"{entry[0]}-{entry[1]}")
def test_every_transition_of_the_table_occurs_in_a_conversation(entry: tuple[NodeState, NodeEvent]) -> None:
    assert entry in WALKS, "a transition nobody tests; add a conversation that uses it"
    assert entry in WALKS[entry]().node.used


@pytest.mark.parametrize(
    ("phase", "trigger"), [(p, t) for p in NodeState for t in NodeEvent if (p, t) not in TRANSITIONS]
)
def test_a_transition_outside_the_table_is_a_defect(phase: NodeState, trigger: NodeEvent) -> None:
    node = source().node
    node.state = phase
    with pytest.raises(InvalidTransition, match=re.escape(f"<node s {phase} at 0, demanded -1>: {trigger}")):
        node.to(trigger)
    assert node.state is phase


@pytest.mark.parametrize(
    ("ends", "said"),
    [((True, True), True), ((True, ("x",)), ("x",)), ((("x", "y"), False), ("x", "y", "b")), ((False, True), ("a",))],
)
def test_the_end_of_a_stream_names_the_inputs_that_had_more_partitions(ends: tuple[m.End, m.End], said: m.End) -> None:
    book = operator()
    book << Demanded(0) >> [Ask(0)]
    book << Arrived("a", 0, end=ends[0]) >> []
    left = tuple(name for name, end in zip("ab", ends, strict=True) if not end)
    renounced: list[Action] = [Renounce(left)] if left else []
    book << Arrived("b", 0, end=ends[1]) >> [Dispatch(out(0, end=said)), *renounced]


def test_the_end_at_the_sink_is_handed_once() -> None:
    book = sink_hands_the_end()
    book << Arrived("o", 3, end=True) >> "duplicate"
    book << Arrived("o", 5, "more") >> "ahead"


def test_a_sink_that_starts_at_the_end_hands_the_end_over_once_despite_repeated_demands() -> None:
    book = sink(limit=4)
    book.node.index = 4
    book.node.window.consumers[""] = ConsumerState.of(4)  # as in a generation that begins where all has ended
    book << Demanded(4) >> [Hand(out(4, end=True))]
    book << Demanded(4) >> "duplicate"
    book << Demanded(4, again=True) >> "duplicate"


@pytest.mark.parametrize("depth", [1, 2])
def test_an_operator_that_continues_without_a_log_behaves_normally_after_the_first_demand(depth: int) -> None:
    node = Node("o", "operator", ("s",))
    last, older = out(1, "p1"), [out(0, "p0")] if depth == 2 else []
    window = SendWindow(unacked=[*older, last], depth=depth)
    core = NodeCore(node, None, window, 2, NodeState.GATHERING, ReceiveWindow(asked={"s"}))
    after = core.going_on(node, {"p": None})
    assert after.on_demand(2 - depth, consumer="p")[0] == "taken"
    if depth == 1:
        after.on_demand(2, consumer="p")
    assert not after.window.unheard
    after.turn(5, "new")
    after.validate()


def test_the_remaining_consumer_is_sent_all_outputs_within_the_credit() -> None:
    outputs = [out(index, f"p{index}") for index in range(4)]
    window = SendWindow({"o": ConsumerState(0)}, outputs.copy(), depth=2)  # the other one, which was ahead, has left
    book = NodePlaybook(NodeCore(Node("s", "source", ()), None, window, 4, NodeState.ENDED))
    book << Demanded(1, by="o") >> [Dispatch(output, consumer="o") for output in outputs[1:3]]
    book << Demanded(2, by="o") >> [Dispatch(outputs[3], consumer="o")]
    book << Demanded(3, by="o") >> []
    assert window.unacked == outputs[3:]


def test_an_operator_leaves_only_after_the_requested_partition() -> None:
    book = operator()
    book << ToLeave(1, recall=True) >> []
    book << Demanded(0) >> [Ask(0)]
    book << Arrived("a", 0) >> []
    book << Arrived("b", 0) >> [RunCode(0, (None, None))]
    book << Finished(0, "ab0") >> [Dispatch(out(0, "ab0")), Ask(1)]
    book << Demanded(1) >> []
    book << Arrived("a", 1) >> []
    book << Arrived("b", 1) >> [RunCode(1, (None, None))]
    book << Finished(1, "ab1") >> [Dispatch(out(1, "ab1")), Lighten(2)]


def test_a_recalled_operator_that_stays_still_has_the_received_input() -> None:
    book = operator()
    book << Demanded(0) >> [Ask(0)]
    book << Arrived("a", 0, "a0") >> []
    book << ToLeave(recall=True) >> [Lighten(0)]
    assert book.node.received.inputs == {}
    book << Stayed() >> [Ask(0)]
    book << Arrived("a", 0, "a0") >> "duplicate"
    book << Arrived("b", 0, "b0") >> [RunCode(0, ("a0", "b0"))]


def test_an_operator_that_has_ended_does_not_become_light() -> None:
    book = operator_passes_the_end_on_without_running()
    book << ToLeave(recall=True) >> []
    book << Stayed() >> []
    assert book.node.state is NodeState.ENDED


def test_an_arrived_operator_demands_inputs_from_the_partition_where_the_old_host_stopped() -> None:
    book = NodePlaybook(NodeCore.come(Node("o", "operator", ("a", "b"), CODE), None, 7, {"": ConsumerState(7)}))
    book << Stayed() >> [Ask(7)]
    book << Demanded(7) >> "duplicate"
    book << Arrived("a", 7) >> []
    book << Arrived("b", 7) >> [RunCode(7, (None, None))]
    book << Finished(7, "ab7") >> [Dispatch(out(7, "ab7")), Ask(8)]


def test_a_suspended_source_holds_demanded_outputs_until_the_source_resumes() -> None:
    book = source()
    book << Demanded(0) >> [RunCode(0, ())]
    book << Finished(0, "p0") >> [Dispatch(out(0, "p0")), RunCode(1, ())]
    book << Suspended() >> []
    assert book.node.suspend() == 0  # the last it has dispatched
    book << Finished(1, "p1") >> []
    book << Demanded(0) >> [Dispatch(out(0, "p0"), again=True)]  # nothing new
    book << Demanded(1) >> []
    book << Resumed() >> [Dispatch(out(1, "p1")), RunCode(2, ())]
    book << Suspended() >> []
    book << Resumed() >> []  # nothing is demanded


def test_an_ended_source_is_not_run_again() -> None:
    book = source_ends_its_stream()
    book << Demanded(0) >> [Dispatch(out(0, end=True), again=True)]
    book << Finished(1, "late") >> "late"


# --- what changes nothing ---------------------------------------------------------------------------


def test_late_repeated_and_early_messages_change_nothing() -> None:
    book = operator()
    book << Demanded(1) >> "ahead"
    book << Arrived("a", 0, "unasked") >> "duplicate"
    book << Finished(0, "not running") >> "late"
    book << Demanded(0) >> [Ask(0)]
    book << Demanded(0) >> "duplicate"
    book << Demanded(-1) >> "late"
    book << Arrived("a", 1, "a1") >> "ahead"
    book << Arrived("stranger", 0, "x") >> "duplicate"
    book << Arrived("a", 0, "a0") >> []
    book << Arrived("a", 0, "a0 again") >> "duplicate"
    book << Arrived("b", 0, "b0") >> [RunCode(0, ("a0", "b0"))]
    book << Arrived("b", 0, "b0 again") >> "duplicate"
    book << Finished(1, "of another index") >> "late"
    book << Finished(0, "x") >> [Dispatch(out(0, "x")), Ask(1)]
    book << Finished(0, "x again") >> "late"
    book << Demanded(-1) >> "late"  # nor is it answered with the output that is retained


# --- retained, sending, again -----------------------------------------------------------------------


def test_a_retained_output_is_sent_again_only_when_no_transfer_is_under_way() -> None:
    book = operator_gathers_runs_and_dispatches()
    under_way(book, 0)  # the host core began a transfer
    book << Demanded(0) >> "duplicate"
    book << TransferOver(7) >> []
    book << Demanded(0) >> "duplicate"
    book << TransferOver(0, arrived=False) >> []
    book << Demanded(0) >> [Dispatch(out(0, "ab0"), again=True)]


def test_the_first_repeated_demand_after_an_arrived_transfer_is_ignored() -> None:
    book = operator_gathers_runs_and_dispatches()
    under_way(book, 0)
    book << Demanded(0, again=True) >> "duplicate"
    book << TransferOver(0) >> []
    book << Demanded(0, again=True) >> "duplicate"
    book << Demanded(0, again=True) >> [Dispatch(out(0, "ab0"), again=True)]  # so it did not get there after all
    under_way(book, 0)
    book << TransferOver(0) >> []
    book << Demanded(0, again=True) >> "duplicate"  # once for every transfer
    book << Demanded(0, again=True) >> [Dispatch(out(0, "ab0"), again=True)]


def test_a_first_demand_is_answered_though_the_transfer_has_arrived() -> None:
    book = operator_gathers_runs_and_dispatches()  # its consumer has moved, and demands for the first time
    under_way(book, 0)
    book << TransferOver(0) >> []
    book << Demanded(0) >> [Dispatch(out(0, "ab0"), again=True)]


def test_every_repeated_demand_is_answered_after_a_transfer_that_may_have_failed() -> None:
    book = operator_gathers_runs_and_dispatches()
    for _ in range(2):
        under_way(book, 0)
        book << TransferOver(0, arrived=False) >> []
        book << Demanded(0, again=True) >> [Dispatch(out(0, "ab0"), again=True)]
    under_way(book, 0)
    book << TransferOver(0) >> []  # this one has arrived,
    book << TransferOver(0, arrived=False) >> []  # and another, later one has not
    book << Demanded(0, again=True) >> [Dispatch(out(0, "ab0"), again=True)]


def test_an_arrived_transfer_does_not_affect_repeated_demands_for_the_next_partition() -> None:
    book = source(limit=3)
    book << Demanded(0) >> [RunCode(0, ())]
    book << Finished(0, "p0") >> [Dispatch(out(0, "p0")), RunCode(1, ())]
    under_way(book, 0)
    book << TransferOver(0) >> []
    book << Finished(1, "p1") >> []
    book << Demanded(1) >> [Dispatch(out(1, "p1")), RunCode(2, ())]
    book << Demanded(1, again=True) >> [Dispatch(out(1, "p1"), again=True)]


def test_the_next_demand_releases_the_retained_output() -> None:
    book = operator_gathers_runs_and_dispatches()
    under_way(book, 0)
    book << Demanded(1) >> []
    assert book.node.window.last is None
    assert not book.node.window.consumers[""].sent
    book << Demanded(0) >> "late"
    book << TransferOver(0) >> []


def test_the_last_partition_of_a_limited_run_stays_retained_after_the_end() -> None:
    book = source(limit=2)
    book << Demanded(0) >> [RunCode(0, ())]
    book << Finished(0, "p0") >> [Dispatch(out(0, "p0")), RunCode(1, ())]
    book << Finished(1, "p1") >> []
    book << Demanded(1) >> [Dispatch(out(1, "p1"))]
    assert book.node.state is NodeState.ENDED
    book << Demanded(1) >> [Dispatch(out(1, "p1"), again=True)]
    book << Demanded(3) >> "ahead"


@given(
    kind=st.sampled_from([source, operator, sink]),
    limit=st.none() | st.integers(1, 3),
    depth=st.integers(1, 3),
    steps=st.lists(
        st.one_of(
            st.builds(Demanded, st.integers(-1, 5), st.booleans()),
            st.builds(Arrived, st.sampled_from(["a", "b", "o", "x"]), st.integers(-1, 5), end=st.booleans()),
            st.builds(Finished, st.integers(-1, 5), end=st.booleans()),
            st.builds(TransferOver, st.integers(-1, 5), arrived=st.booleans()),
            st.builds(ToLeave, st.integers(-1, 5), recall=st.booleans()),
            st.builds(Stayed),
            st.builds(Suspended),
            st.builds(Resumed),
        ),
        max_size=40,
    ),
)
def test_stimuli_in_random_order_keep_the_invariants(
    kind: Callable[[int | None], NodePlaybook], limit: int | None, depth: int, steps: list[Stimulus]
) -> None:
    book = deep(kind(limit), depth)
    handed: list[int] = []
    first_dispatches: list[int] = []
    for step in steps:
        if (isinstance(step, ToLeave) and kind is not operator) or (isinstance(step, Suspended) and kind is not source):
            continue  # only operators leave, and only sources are suspended
        before = state_of(book.node)
        book << step  # validates
        if book.verdict != "taken":
            assert book.actions == []
            assert state_of(book.node) == before
        handed += [action.output.index for action in book.actions if isinstance(action, Hand)]
        sends = [action for action in book.actions if isinstance(action, Dispatch)]
        for action in sends:
            under_way(book, action.output.index)
        first_dispatches += [action.output.index for action in sends if not action.again]
    assert handed == list(range(len(handed)))
    assert first_dispatches == list(range(len(first_dispatches)))


# --- between two trees ------------------------------------------------------------------------------


def test_a_replaced_operator_ends_with_the_last_partition_of_the_old_tree() -> None:
    book = operator(limit=9)
    book << Demanded(0) >> [Ask(0)]
    book << Replaced(1) >> []
    for index, after in ((0, [Ask(1)]), (1, [])):
        book << Arrived("a", index) >> []
        book << Arrived("b", index) >> [RunCode(index, (None, None))]
        book << Finished(index, "ab") >> [Dispatch(out(index, "ab")), *after]
        book << Demanded(index + 1) >> []
    assert book.node.state is NodeState.ENDED


def test_a_source_turns_to_the_new_consumer_that_demanded_before_the_change_over() -> None:
    book = source()
    book << Demanded(0) >> [RunCode(0, ())]
    book << ToTurn(0) >> []
    book << Demanded(2, by="new") >> "ahead"
    book << Demanded(1, by="new") >> []  # it waits since the commit
    book << Demanded(1, by="new") >> "duplicate"
    book << Finished(0, "s0") >> [Dispatch(out(0, "s0")), Turned(), RunCode(1, ())]
    left = book.node.turned()
    assert left is not None
    assert left.last == out(0, "s0")
    book << Demanded(0) >> "late"  # whoever keeps it answers that
    book << Finished(1, "s1") >> [Dispatch(out(1, "s1"), consumer="new"), RunCode(2, ())]


def test_a_demand_of_the_old_consumer_for_the_new_tree_does_not_count() -> None:
    book = source()
    book << Demanded(0) >> [RunCode(0, ())]
    book << Finished(0, "s0") >> [Dispatch(out(0, "s0")), RunCode(1, ())]
    book << Suspended() >> []
    book << Demanded(1) >> []
    book << Finished(1, "s1") >> []
    book << ToTurn(0) >> [Turned()]
    book << TurnedTo() >> []
    book << Resumed() >> []
    book << Demanded(1) >> "late"
    book << Demanded(1, by="new") >> [Dispatch(out(1, "s1"), consumer="new"), RunCode(2, ())]


def test_an_ended_node_has_only_the_new_consumer_once_the_old_tree_is_gone() -> None:
    book = source()
    book << Demanded(0) >> [RunCode(0, ())]
    book << ToTurn(3) >> []
    book << Finished(0, end=True) >> [Dispatch(out(0, end=True))]
    assert book.node.retire() == []
    assert (book.node.window.consumers.keys(), book.node.window.unacked, book.node.turns) == ({"new"}, [], None)
    book << Demanded(4, by="new") >> [Dispatch(out(4, end=True), consumer="new")]


def test_a_demand_of_the_new_consumer_does_not_change_the_state_of_the_old_consumer() -> None:
    book = source()
    book << Demanded(0) >> [RunCode(0, ())]
    book << Finished(0, "s0") >> [Dispatch(out(0, "s0")), RunCode(1, ())]
    under_way(book, 0)
    book << TransferOver(0) >> []
    book << ToTurn(1) >> []
    book << Demanded(2, by="new") >> []
    assert not book.node.window.consumers[""].is_due(0)


def test_a_node_gathers_from_the_new_inputs_after_the_change_over() -> None:
    book = operator()
    book << Demanded(0) >> [Ask(0)]
    book << Rewired(0, "c", "d") >> []
    book << Arrived("a", 0) >> []
    book << Arrived("b", 0, "b0") >> [RunCode(0, (None, "b0"))]
    book << Finished(0, "ab0") >> [Dispatch(out(0, "ab0")), Ask(1)]
    book << Arrived("a", 1) >> "duplicate"
    book << Arrived("d", 1, "d1") >> []
    book << Arrived("c", 1, "c1") >> [RunCode(1, ("c1", "d1"))]


def test_a_node_that_waits_for_old_inputs_demands_the_new_inputs_on_rewiring() -> None:
    book = sink()
    book << Demanded(0) >> [Ask(0)]
    book << Arrived("o", 0, "o0") >> [Hand(out(0, "o0"))]
    book << Demanded(1) >> [Ask(1)]
    book << Rewired(0, "p") >> [Ask(1)]
    book << Arrived("o", 1, "o1") >> "duplicate"
    book << Arrived("p", 1, "p1") >> [Hand(out(1, "p1"))]


def test_a_new_node_gathers_without_demand_unless_the_run_is_over() -> None:
    node = Node("o", "operator", ("a", "b"), CODE)
    fresh = NodeCore.begun(node, None, 5, {"t": 5})
    assert fresh.begin() == [Ask(5)]
    fresh.validate()
    late = NodeCore.begun(node, 5, 5, {"t": 5})
    assert late.begin() == []
    late.validate()
