"""The hand-over of one operator: both state tables, and the messages between the two hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from adversary import BEGINS_S, CLIENT, Scripted, content, missed, reshaped, traced
from playbook import ANY, HandOver, Playbook, got
from run_ids import R, alarm, fired, run_of

from thalweg.middleware.core.context.machine import InvalidTransition
from thalweg.middleware.core.flow.epochs import EpochBook
from thalweg.middleware.core.moving.arrivals import Arrival, Arrivals
from thalweg.middleware.core.moving.departures import Departure, Departures
from thalweg.middleware.core.moving.handover import (
    COMING,
    LEAVING,
    ArrivalEvent,
    ArrivalState,
    DepartureEvent,
    DepartureState,
)
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import LocalMoves
from thalweg.middleware.protocol.limits import CoreConfig

Book = Callable[..., Playbook]
Scene = Callable[[], Scripted]

# --- the tables -------------------------------------------------------------------------------------


def at(step: DepartureState, then: Callable[[Scripted], None] | None = None) -> Scripted:
    """Move ``o`` from h3 to h4 (see ``Scripted``). Call ``then`` when h3 reaches this step."""

    def reached(world: Scripted) -> bool:
        run = world.run_at("h3")
        return (
            run is not None
            and "o" in run.parts.get(Departures).leaving
            and run.parts.get(Departures).leaving["o"].state is step
        )

    return _order(Scripted(reached, then))


def at_stage(stage: ArrivalState, then: Callable[[Scripted], None] | None = None) -> Scripted:
    def reached(world: Scripted) -> bool:
        run = world.run_at("h4")
        return (
            run is not None
            and "o" in run.parts.get(Arrivals).coming
            and run.parts.get(Arrivals).coming["o"].state is stage
        )

    return _order(Scripted(reached, then))


def _order(world: Scripted) -> Scripted:
    return world.at(BEGINS_S, "h3", HandOver("o", "h4"))


def refused(world: Scripted) -> None:
    world.tell("h3", "h4", m.Refuse(R, "o", 1, "on second thoughts"))


def withdrawn(world: Scripted) -> None:
    world.tell("h4", "h3", m.Withdraw(R, "o", 1))


def plain() -> Scripted:
    return at(DepartureState.COMMITTED)


def without(command: type[e.Command], host: str) -> Scene:
    def scene() -> Scripted:
        world = at(DepartureState.OFFERED)
        world.errors[command] = (host, "it cannot")
        return world

    return scene


def no_room() -> Scripted:
    world = at(DepartureState.OFFERED)
    world.limit("h4", max_operators=0)
    return world


def over_before(answered: bool) -> Scene:
    """The stream has twelve partitions. The operator is asked to leave before its last partition."""

    def order(world: Scripted) -> None:
        world.ahead("h3", HandOver("o", "h4", "too late"))

    def scene() -> Scripted:
        world = Scripted(lambda world: len(world.delivered) == 10, order, partitions=12)
        if not answered:
            world.cut.add(("h3", "h4"))
        return world

    return scene


LEAVING_SCENES: dict[tuple[DepartureState, DepartureEvent], tuple[Scene, str]] = {
    (DepartureState.OFFERED, DepartureEvent.ACCEPTED): (plain, ""),
    (DepartureState.OFFERED, DepartureEvent.REFUSED): (no_room, "host 'h4' refuses it: it has room for 0 operators"),
    (DepartureState.OFFERED, DepartureEvent.EXPIRED): (
        lambda: at(DepartureState.OFFERED, lambda world: world.kill("h4")),
        "host 'h4' did not answer in 2 s",
    ),
    (DepartureState.OFFERED, DepartureEvent.LOST): (lambda: at(DepartureState.OFFERED, missed), "host 'h4' went away"),
    (DepartureState.OFFERED, DepartureEvent.ENDED): (over_before(answered=False), "the stream ended first"),
    (DepartureState.AGREED, DepartureEvent.LIGHTENED): (plain, ""),
    (DepartureState.AGREED, DepartureEvent.REFUSED): (
        lambda: at(DepartureState.AGREED, refused),
        "host 'h4' refuses it: on second thoughts",
    ),
    (DepartureState.AGREED, DepartureEvent.LOST): (lambda: at(DepartureState.AGREED, missed), "host 'h4' went away"),
    (DepartureState.AGREED, DepartureEvent.ENDED): (over_before(answered=True), "the stream ended first"),
    (DepartureState.SUSPENDED, DepartureEvent.TAKEN): (plain, ""),
    (DepartureState.SUSPENDED, DepartureEvent.REFUSED): (
        lambda: at(DepartureState.SUSPENDED, refused),
        "host 'h4' refuses it: on second thoughts",
    ),
    (DepartureState.SUSPENDED, DepartureEvent.FAILED): (without(e.TakeState, "h3"), "it cannot"),
    (DepartureState.SUSPENDED, DepartureEvent.LOST): (
        lambda: at(DepartureState.SUSPENDED, missed_late),
        "host 'h4' went away",
    ),
    (DepartureState.SENT, DepartureEvent.RESTORED): (plain, ""),
    (DepartureState.SENT, DepartureEvent.REFUSED): (without(e.RestoreState, "h4"), "host 'h4' refuses it: it cannot"),
    (DepartureState.SENT, DepartureEvent.EXPIRED): (
        lambda: at(DepartureState.SENT, lambda world: world.kill("h4")),
        "host 'h4' did not answer in 2 s",
    ),
    (DepartureState.SENT, DepartureEvent.LOST): (lambda: at(DepartureState.SENT, missed), "host 'h4' went away"),
    (DepartureState.COMMITTED, DepartureEvent.RESUMED): (plain, ""),
    (DepartureState.COMMITTED, DepartureEvent.LOST): (
        lambda: at(DepartureState.COMMITTED, missed),
        "host 'h4' went away",
    ),
}


def missed_late(world: Scripted) -> None:
    """The loss of the target is reported before the state is taken."""
    world.kill("h4")
    world.tell("h3", CLIENT, m.Lost(R, "h4", ()))


COMING_SCENES: dict[tuple[ArrivalState, ArrivalEvent], Scene] = {
    (ArrivalState.PREPARING, ArrivalEvent.OPENED): plain,
    (ArrivalState.PREPARING, ArrivalEvent.FAILED): without(e.OpenNode, "h4"),
    (ArrivalState.PREPARING, ArrivalEvent.WITHDRAWN): lambda: at_stage(ArrivalState.PREPARING, withdrawn),
    (ArrivalState.PREPARED, ArrivalEvent.STATE_CAME): plain,
    (ArrivalState.PREPARED, ArrivalEvent.APPEARED): reshaped,
    (ArrivalState.PREPARED, ArrivalEvent.WITHDRAWN): without(e.TakeState, "h3"),
    (ArrivalState.RESTORING, ArrivalEvent.RESTORED): plain,
    (ArrivalState.RESTORING, ArrivalEvent.FAILED): without(e.RestoreState, "h4"),
    (ArrivalState.RESTORING, ArrivalEvent.WITHDRAWN): lambda: at_stage(ArrivalState.RESTORING, withdrawn),
    (ArrivalState.RESTORED, ArrivalEvent.COMMITTED): plain,
    (ArrivalState.RESTORED, ArrivalEvent.WITHDRAWN): lambda: at_stage(ArrivalState.RESTORED, withdrawn),
}


@pytest.mark.parametrize("entry", LEAVING, ids=lambda entry: f"{entry[0]}-{entry[1]}")
def test_every_transition_of_a_departure_occurs_in_a_scene(entry: tuple[DepartureState, DepartureEvent]) -> None:
    assert entry in LEAVING_SCENES, "a transition nobody tests; add a scene that uses it"
    scene, why = LEAVING_SCENES[entry]
    with traced(Departure) as used:
        world = scene()
        world.run()
    assert entry in used
    assert world.delivered == [content(world.dataflow, "t", i)[3] for i in range(len(world.delivered))]
    lost_with_it = entry == (DepartureState.COMMITTED, DepartureEvent.LOST)
    (settled,) = world.settled
    assert settled["detail"]["why"].startswith(why)
    assert settled["detail"]["outcome"] == ("stayed" if LEAVING[entry] is DepartureState.STAYED else "moved")
    assert world.failed == ("host 'h4', which holds o, went away" if lost_with_it else None)


@pytest.mark.parametrize("entry", COMING, ids=lambda entry: f"{entry[0]}-{entry[1]}")
def test_every_transition_of_an_arrival_occurs_in_a_scene(entry: tuple[ArrivalState, ArrivalEvent]) -> None:
    assert entry in COMING_SCENES, "a transition nobody tests; add a scene that uses it"
    with traced(Arrival) as used:
        world = COMING_SCENES[entry]()
        world.run()
    assert entry in used
    assert world.failed is None
    assert world.delivered == [content(world.dataflow, "t", i)[3] for i in range(len(world.delivered))]


@pytest.mark.parametrize(
    ("step", "sign"), [(a, b) for a in DepartureState for b in DepartureEvent if (a, b) not in LEAVING]
)
def test_a_departure_rejects_every_transition_outside_the_table(step: DepartureState, sign: DepartureEvent) -> None:
    leaving = Departure("o", "h4", 1, "epoch", "a test", 0)
    leaving.state = step
    assert not leaving.can(sign)
    with pytest.raises(InvalidTransition, match=f"^o on its way to h4, {step}: {sign}$"):
        leaving.to(sign)
    assert leaving.state is step


@pytest.mark.parametrize(("stage", "cue"), [(a, b) for a in ArrivalState for b in ArrivalEvent if (a, b) not in COMING])
def test_an_arrival_rejects_every_transition_outside_the_table(stage: ArrivalState, cue: ArrivalEvent) -> None:
    guest = Arrival(Node("o", "operator"), "h3", 1, 0)
    guest.state = stage
    with pytest.raises(InvalidTransition, match=f"^o from h3, {stage}: {cue}$"):
        guest.to(cue)
    assert guest.state is stage


# --- conversations ----------------------------------------------------------------------------------


def demand(producer: str, consumer: str, index: int, version: int, forwards: int = 0) -> m.Demand:
    return m.Demand(R, producer, consumer, index, forwards, version)


def told(message: m.Demand | m.Partition) -> m.Demand | m.Partition:
    """Return the message without its piggybacked news."""
    return msgspec.structs.replace(message, news=None)


def location(host: str, version: int) -> m.Location:
    return m.Location("o", host, version)


DEMANDED = (m.ConsumerDemand("t", 0),)
STATE = m.State(R, "o", 1, 1, 1, 3, "sha", b"one", DEMANDED, "h2")


@pytest.fixture
def old(make_book: Book, install: m.Install) -> Playbook:
    """h2, which has combined partition 0 and holds it. The client has ordered ``o`` to h3."""
    book = make_book("h2", CoreConfig(retry_s=0.5, handoff_s=2.0))
    book << got(CLIENT, install) >> ANY
    book << got(CLIENT, demand("o", "t", 0, 1)) >> ANY
    book << got("h1", m.Partition(R, "s", "o", 0), b"s0", 2) >> [e.RunOperator(R, "o", 0, (b"s0",))]
    offer = e.Send(R, "h3", m.Offer(R, "o", 1))
    book.at(1.0) << HandOver("o", "h3") >> [offer, alarm("move r", 1.5)]
    return book


@pytest.fixture
def sent(old: Playbook) -> Playbook:
    """h2 when the state of ``o`` is on the way."""
    output = e.Send(R, CLIENT, m.Partition(R, "o", "t", 0), b"o0", 2, bulk=True)
    old << got("h3", m.Accept(R, "o", 1)) >> []  # it works on
    old.at(1.2) << e.OperatorFinished(R, "o", 0, b"o0", 2) >> [output, e.TakeState(R, "o", 1)]  # light: no demand
    old.at(1.3) << e.StateTaken(R, "o", 1, b"one", "sha") >> [e.Send(R, "h3", STATE)]
    return old


@pytest.fixture
def new(make_book: Book, install: m.Install) -> Playbook:
    """h3, which has restored ``o`` and waits for the commit."""
    book = make_book("h3")
    book << got(CLIENT, install) >> ANY
    opened = e.OpenNode(R, install.dataflow.by_name["o"])
    book << got("h2", m.Offer(R, "o", 1)) >> [alarm("move r", 8.0), opened]
    book << e.NodeOpened(R, "o") >> [e.Send(R, "h2", m.Accept(R, "o", 1))]
    book << got("h2", STATE) >> [e.RestoreState(R, "o", 1, b"one", "sha", 1)]
    book << e.StateRestored(R, "o", 1) >> [e.Send(R, "h2", m.Restored(R, "o", 1))]
    return book


@pytest.mark.parametrize(
    "wrong",
    [
        {"demanded": ()},
        {"demanded": (m.ConsumerDemand("x", 0),)},
        {"demanded": (m.ConsumerDemand("t", 0), m.ConsumerDemand("t", 0))},
        {"index": 4, "demanded": 3},
    ],
)
def test_a_state_with_wrong_consumers_or_a_partition_past_the_end_is_refused(
    make_book: Book, install: m.Install, wrong: dict[str, Any]
) -> None:
    book = make_book("h3")
    book << got(CLIENT, msgspec.structs.replace(install, partitions=3)) >> ANY
    book << got("h2", m.Offer(R, "o", 1)) >> ANY
    book << e.NodeOpened(R, "o") >> ANY
    book << got("h2", msgspec.structs.replace(STATE, **wrong)) >> ANY
    assert m.Refuse(R, "o", 1, "its state does not fit its consumers, or this run") in book.sent("h2")


def test_the_old_host_announces_the_new_location_and_records_the_move(sent: Playbook) -> None:
    commit = m.Located(R, (location("h3", 2),))
    (
        sent.at(1.4)
        << got("h3", m.Restored(R, "o", 1))
        >> [
            e.CloseNode(R, "o"),
            e.Send(R, "h3", commit),
            e.Send(R, CLIENT, commit),
            e.Send(R, "h1", commit),
        ]
    )
    assert "o" not in sent.core.runs[R].flow.nodes
    sent << got("h3", m.Resumed(R, "o", 1)) >> ANY
    (relocated,) = (record.fields for record in sent.only(e.Record))
    assert (relocated["index"], relocated["size_bytes"], relocated["peer"]) == (1, 3, "h3")
    assert relocated["duration_s"] == pytest.approx(0.2)
    assert relocated["detail"]["ago"] == pytest.approx({"decided": 0.4, "suspended": 0.2, "state_out": 0.1})
    assert sent.sent(CLIENT) == [m.Relocated(R, "o", True, location("h3", 2), "", 3)]
    assert sent.core.runs[R].parts.get(Departures).leaving == {}


def test_the_new_host_confirms_demands_the_next_input_and_runs_the_operator(new: Playbook) -> None:
    commit = got("h2", m.Located(R, (location("h3", 2),)))
    new << commit >> ANY
    assert m.Resumed(R, "o", 1) in new.sent("h2")
    (ask,) = new.sent("h1")
    assert told(ask) == demand("s", "o", 1, 2)
    new << got("h1", m.Partition(R, "s", "o", 1), b"s1", 2) >> [e.RunOperator(R, "o", 1, (b"s1",))]
    new << e.OperatorFinished(R, "o", 1, b"o1", 2) >> []  # held: nobody has demanded it here
    new.at(0.5) << got(CLIENT, demand("o", "t", 1, 1)) >> ANY
    assert [told(part) for part in new.sent(CLIENT)] == [m.Partition(R, "o", "t", 1)]
    assert new.recorded() == ["arrived"]


def test_the_old_host_resends_the_tail_until_the_new_host_reports_the_acknowledgement(sent: Playbook) -> None:
    sent << got("h3", m.Restored(R, "o", 1)) >> ANY
    sent << got(CLIENT, demand("o", "t", 0, 1)) >> []  # its transfer is under way
    sent << e.TransferFailed(CLIENT, m.Partition(R, "o", "t", 0)) >> []
    sent << got(CLIENT, demand("o", "t", 0, 1)) >> ANY
    assert [told(part) for part in sent.sent(CLIENT)] == [m.Partition(R, "o", "t", 0)]
    sent << got("h3", m.ReplayNotNeeded(R, "o", "t", 1)) >> []  # as the new host tells it
    assert sent.core.runs[R].flow.tails.left == {}


def test_the_old_host_is_asked_once_to_drop_the_tail(sent: Playbook, new: Playbook) -> None:
    new << got("h2", m.Located(R, (location("h3", 2),))) >> ANY
    new << got(CLIENT, demand("o", "t", 1, 1)) >> ANY
    (let_go,) = new.sent("h2")
    new << got(CLIENT, demand("o", "t", 1, 1)) >> []
    sent << got("h3", m.Restored(R, "o", 1)) >> ANY
    assert sent.core.runs[R].flow.tails.left
    sent << got("h3", let_go) >> []
    assert not sent.core.runs[R].flow.tails.left


def test_only_messages_of_the_new_host_decide_a_hand_over(sent: Playbook) -> None:
    for word in (m.Restored(R, "o", 1), m.Resumed(R, "o", 1), m.Refuse(R, "o", 1, "no")):
        sent << got("h1", word) >> ANY
        assert sent.only(e.CloseNode) == []
        assert sent.sent("h3") == sent.sent(CLIENT) == []
    sent << got("h3", m.Restored(R, "o", 1)) >> ANY
    assert sent.only(e.CloseNode) == [e.CloseNode(R, "o")]


def test_a_late_message_of_an_earlier_hand_over_does_not_commit_a_later_hand_over(sent: Playbook) -> None:
    sent << got("h3", m.Refuse(R, "o", 1, "not now")) >> ANY
    sent << got("h1", m.Partition(R, "s", "o", 1), b"s1", 2) >> [e.RunOperator(R, "o", 1, (b"s1",))]
    sent << got(CLIENT, demand("o", "t", 1, 1)) >> []
    sent << HandOver("o", "h3") >> ANY
    sent << got("h3", m.Accept(R, "o", 2)) >> []
    sent << e.OperatorFinished(R, "o", 1, b"o1", 2) >> ANY
    sent << e.StateTaken(R, "o", 2, b"two", "sha") >> ANY
    for late in (m.Restored(R, "o", 1), m.Resumed(R, "o", 1), m.Refuse(R, "o", 1, "late")):
        sent << got("h3", late) >> ANY
        assert sent.only(e.CloseNode) == []
    assert "o" in sent.core.runs[R].flow.nodes
    sent << got("h3", m.Restored(R, "o", 2)) >> ANY
    assert sent.only(e.CloseNode) == [e.CloseNode(R, "o")]


def test_a_repeated_demand_from_before_the_arrival_does_not_resend_the_tail(sent: Playbook) -> None:
    sent << got("h3", m.Restored(R, "o", 1)) >> ANY
    again = msgspec.structs.replace(demand("o", "t", 0, 1), again=True)
    sent << got(CLIENT, again) >> []  # its transfer is under way
    sent << e.TransferMeasured(CLIENT, m.Partition(R, "o", "t", 0), 2, 1.0) >> ANY
    sent << got(CLIENT, again) >> []
    sent << got(CLIENT, again) >> ANY
    assert [told(part) for part in sent.sent(CLIENT)] == [m.Partition(R, "o", "t", 0)]
    sent << e.TransferFailed(CLIENT, m.Partition(R, "o", "t", 0)) >> []
    sent << got(CLIENT, again) >> ANY
    assert [told(part) for part in sent.sent(CLIENT)] == [m.Partition(R, "o", "t", 0)]


def test_late_messages_are_answered_with_the_newer_location(sent: Playbook, new: Playbook) -> None:
    restored, commit = got("h3", m.Restored(R, "o", 1)), m.Located(R, (location("h3", 2),))
    sent << restored >> ANY
    sent << restored >> []  # it has been told, and will be again
    sent.at(1.9) << fired("move r") >> [e.Send(R, "h3", commit), alarm("move r", 2.4)]
    sent << got("h3", m.Resumed(R, "o", 1)) >> ANY
    sent << got("h3", m.Resumed(R, "o", 1)) >> []
    sent << restored >> [e.Send(R, "h3", commit)]
    sent << got("h3", m.Accept(R, "o", 1)) >> [e.Send(R, "h3", m.Withdraw(R, "o", 1))]
    sent << got("h3", m.Refuse(R, "o", 1, "late")) >> []
    sent << e.StateTaken(R, "o", 1, b"one", "sha") >> []

    new << got("h2", STATE) >> [e.Send(R, "h2", m.Restored(R, "o", 1))]
    new << got("h2", m.Offer(R, "o", 1)) >> [e.Send(R, "h2", m.Restored(R, "o", 1))]
    new << got("h2", commit) >> ANY
    new << got("h2", commit) >> [e.Send(R, "h2", m.Resumed(R, "o", 1))]  # it did not hear of it
    for late in (m.Offer(R, "o", 1), STATE):
        new << got("h2", late) >> [e.Send(R, "h2", commit)]
    new << got("h2", m.Withdraw(R, "o", 1)) >> []
    new << e.StateRestored(R, "o", 1) >> []
    new << e.NodeOpened(R, "o") >> []
    assert "o" in new.core.runs[R].flow.nodes


def test_an_operator_that_stays_gets_a_new_location_version(old: Playbook) -> None:
    refusal = got("h3", m.Refuse(R, "o", 1, "no room"))
    news = m.Located(R, (location("h2", 2),))
    why = "host 'h3' refuses it: no room"
    (
        old
        << refusal
        >> [
            e.Send(R, "h3", m.Withdraw(R, "o", 1)),
            e.Send(R, "h3", news),
            e.Send(R, CLIENT, news),
            e.Send(R, "h1", news),
            e.Send(R, CLIENT, m.Relocated(R, "o", False, location("h2", 2), why)),
        ]
    )
    old << refusal >> []
    old << got("h3", m.Restored(R, "o", 1)) >> [e.Send(R, "h3", news)]
    old.at(1.2) << e.OperatorFinished(R, "o", 0, b"o0", 2) >> ANY
    assert [told(message) for message in old.sent("h1")] == [demand("s", "o", 1, 2)]  # it goes on


def test_an_offer_is_repeated_and_given_up_in_time(old: Playbook) -> None:
    offer = e.Send(R, "h3", m.Offer(R, "o", 1))
    for now in (1.5, 2.0, 2.5):
        old.at(now) << fired("move r") >> [offer, alarm("move r", now + 0.5)]
    old.at(3.0) << fired("move r") >> ANY
    assert old.sent(CLIENT)[-1].why == "host 'h3' did not answer in 2 s"


def test_a_prepared_host_asks_whether_the_hand_over_continues(
    make_book: Book, install: m.Install, old: Playbook, new: Playbook
) -> None:
    """The message that ``o`` stays was lost. ``old`` is h2, and ``new`` is h3 with the state restored."""
    refusal = got("h3", m.Refuse(R, "o", 1, "on second thoughts"))
    old << refusal >> ANY  # what h2 answers is lost
    (new.at(8.0) << fired("move r") >> [e.Send(R, "h2", m.Restored(R, "o", 1)), alarm("move r", 16.0)])
    stays = m.Located(R, (location("h2", 2),))
    old << got("h3", m.Restored(R, "o", 1)) >> [e.Send(R, "h3", stays)]
    new << got("h2", stays) >> [e.CloseNode(R, "o")]
    new.at(16.0) << fired("move r") >> []

    prepared = make_book("h3")
    prepared << got(CLIENT, install) >> ANY
    prepared << got("h2", m.Offer(R, "o", 1)) >> ANY
    (prepared.at(8.0) << fired("move r") >> [alarm("move r", 16.0)])  # its code is still being loaded
    prepared << e.NodeOpened(R, "o") >> ANY
    accept = m.Accept(R, "o", 1)
    (prepared.at(16.0) << fired("move r") >> [e.Send(R, "h2", accept), alarm("move r", 24.0)])
    old << got("h3", accept) >> [e.Send(R, "h3", m.Withdraw(R, "o", 1))]
    prepared << got("h2", m.Withdraw(R, "o", 1)) >> [e.CloseNode(R, "o")]


def test_a_forgotten_arrival_frees_the_room_when_the_route_works_again() -> None:
    """h4 has room for one operator and keeps it for ``o`` while the route from h3 is cut. Then ``r`` comes."""

    def prepared(world: Scripted) -> bool:
        run = world.run_at("h4")
        return (
            run is not None
            and "o" in run.parts.get(Arrivals).coming
            and run.parts.get(Arrivals).coming["o"].state is ArrivalState.PREPARED
        )

    world = _order(Scripted(prepared, last_s=25.0))
    world.loses = lambda host, send: (host, send.to) == ("h3", "h4") and prepared(world) and world.now < 6.0
    world.limit("h4", max_operators=1)
    world.at(5.0, "h5", HandOver("r", "h4", "too early"))
    world.at(20.0, "h5", HandOver("r", "h4"))
    world.run()
    assert world.failed is None
    assert [(row["node"], row["detail"]["outcome"], row["detail"]["why"]) for row in world.settled] == [
        ("o", "stayed", "host 'h4' did not answer in 2 s"),
        ("r", "stayed", "host 'h4' refuses it: it has room for 1 operators, and 1 are there or on their way"),
        ("r", "moved", ""),
    ]
    assert (world.on("o"), world.on("r")) == ({"h3"}, {"h4"})


def test_a_demand_forwarded_at_the_commit_keeps_the_marks_of_the_consumer(make_book: Book, install: m.Install) -> None:
    """The consumer demands the next partition while the operator's state is on the way."""
    book = make_book("h2")
    book << got(CLIENT, msgspec.structs.replace(install, moves=LocalMoves())) >> ANY
    book << got(CLIENT, m.Demand(R, "o", "t", 0, 0, 1, False, True)) >> ANY
    book << got("h1", m.Partition(R, "s", "o", 0), b"s0", 2) >> ANY
    book << HandOver("o", "h3") >> ANY
    book << got("h3", m.Accept(R, "o", 1)) >> ANY
    book << e.OperatorFinished(R, "o", 0, b"o0", 2) >> ANY
    assert book.only(e.TakeState) == [e.TakeState(R, "o", 1)]
    book << got(CLIENT, m.Demand(R, "o", "t", 1, 0, 1, True, True)) >> []
    book << e.StateTaken(R, "o", 1, b"one", "sha") >> ANY
    (state,) = book.sent("h3")
    (demanded,) = state.demanded
    assert (demanded.book.sends, demanded.book.later) == (1, 1)  # the mark is counted here …
    book << got("h3", m.Restored(R, "o", 1)) >> ANY
    (passed_on,) = [message for message in book.sent("h3") if isinstance(message, m.Demand)]
    assert told(passed_on) == m.Demand(R, "o", "t", 1, 1, 0, True, True)  # … and not taken back there


def test_no_mark_is_invented_while_operators_move() -> None:
    """The sink marks every output of the root ``r`` and is critical. So ``r`` marks outputs of ``o``, which moves."""
    marks: list[tuple[int, bool]] = []
    with pytest.MonkeyPatch.context() as patch:
        on_mark = EpochBook.on_mark

        def listen(book: EpochBook, later: bool, consumer_critical: bool, consumer: str) -> None:
            marks.append((book.last, later and consumer_critical))
            on_mark(book, later, consumer_critical, consumer)

        patch.setattr(EpochBook, "on_mark", listen)
        world = Scripted(partitions=300)
        world.pace_s = 0.001
        world.adaptation = LocalMoves(period_s=1e6)
        for i, (host, target) in enumerate((("h3", "h4"), ("h4", "h6"), ("h6", "h4")), 1):
            world.at(0.5 + i * 0.5, host, HandOver("o", target))
        world.run()
    assert [row["detail"]["outcome"] for row in world.settled] == ["moved"] * 3
    assert len(marks) > 600
    assert [last for last, good in marks if last >= 0 and not good] == []


def test_a_run_closed_during_a_hand_over_records_that_the_operator_stayed(
    old: Playbook, make_book: Book, install: m.Install
) -> None:
    old.at(1.1) << got(CLIENT, m.Remove(R)) >> ANY
    (row,) = [record.fields for record in old.only(e.Record) if record.kind == "relocated"]
    assert (row["node"], row["peer"], row["index"], row["duration_s"]) == ("o", "h3", 0, None)
    assert row["detail"] == {
        "outcome": "stayed",
        "protocol": "epoch",
        "reason": "a test",
        "why": "the run ended before",
        "version": 1,
        "ago": {"decided": pytest.approx(0.1)},
    }


def test_a_run_closed_after_the_commit_records_that_the_operator_moved(sent: Playbook) -> None:
    sent.at(1.4) << got("h3", m.Restored(R, "o", 1)) >> ANY
    sent.at(1.5) << got(CLIENT, m.Remove(R)) >> ANY
    (row,) = [record.fields for record in sent.only(e.Record) if record.kind == "relocated"]
    assert (row["detail"]["outcome"], row["detail"]["why"], row["index"]) == ("moved", "", 1)
    assert (row["size_bytes"], row["duration_s"]) == (3, pytest.approx(0.3))


@pytest.mark.parametrize(
    "step", [step for step in DepartureState if step not in (DepartureState.MOVED, DepartureState.STAYED)]
)
def test_every_hand_over_leaves_a_single_record_at_the_end_of_the_run(step: DepartureState) -> None:
    world = at(step)
    world.last_s = 0.0
    world.run()
    (settled,) = world.settled
    moved = step is DepartureState.COMMITTED  # the application ends a message's time later: no other step is so short
    assert settled["detail"]["outcome"] == ("moved" if moved else "stayed")
    assert settled["detail"]["why"] == ("" if moved else "the run ended before")


@pytest.mark.parametrize(
    ("host", "node", "target", "why"),
    [
        ("h2", "o", "h2", "'o' is on host 'h2' already"),
        ("h2", "o", "h9", "host 'h9' has no part in the run"),
        ("h2", "s", "h3", "'s' is not on host 'h2'"),
        ("h1", "s", "h3", "source 's' is pinned to 'h1'"),
    ],
)
def test_an_impossible_hand_over_is_refused_with_the_reason(
    make_book: Book, install: m.Install, host: str, node: str, target: str, why: str
) -> None:
    book = make_book(host)
    book << got(CLIENT, install) >> ANY
    assert book.core.runs[R].parts.get(Departures).obstacle(node, target) == why
    book << HandOver(node, target) >> []


def test_an_offer_of_a_source_is_refused(make_book: Book, install: m.Install) -> None:
    book = make_book("h3")
    book << got(CLIENT, install) >> ANY
    book << got("h1", m.Offer(R, "s", 1)) >> [e.Send(R, "h1", m.Refuse(R, "s", 1, "'s' is no operator"))]


def test_a_large_state_travels_as_bulk_and_is_not_sent_twice_at_once(old: Playbook) -> None:
    big = bytes(m.INLINE_STATE_BYTES + 1)
    old << got("h3", m.Accept(R, "o", 1)) >> []
    old << e.OperatorFinished(R, "o", 0, b"o0", 2) >> ANY
    old << e.StateTaken(R, "o", 1, big, "sha") >> ANY
    (send,) = old.only(e.Send)
    assert (send.bulk, send.payload, send.size_bytes) == (True, big, len(big))
    assert send.message.inline is None
    old << got("h3", m.Accept(R, "o", 1)) >> []  # under way
    old.at(9.0) << fired("move r") >> [alarm("move r", 9.5)]  # however long it takes
    old << e.TransferFailed("h3", send.message) >> []
    old << got("h3", m.Accept(R, "o", 1)) >> [send]


def test_a_large_state_that_never_arrives_is_given_up_in_time(old: Playbook) -> None:
    """The transfers of the state fail. Control messages get through, and request the state every time."""
    old << got("h3", m.Accept(R, "o", 1)) >> []
    old << e.OperatorFinished(R, "o", 0, b"o0", 2) >> ANY
    old << e.StateTaken(R, "o", 1, bytes(m.INLINE_STATE_BYTES + 1), "sha") >> ANY
    (send,) = old.only(e.Send)
    for now in (1.4, 1.9, 2.4):
        old.at(now) << e.TransferFailed("h3", send.message) >> []
        old.at(now + 0.1) << fired("move r") >> ANY
        assert old.sent() == [m.Offer(R, "o", 1)]
        old << got("h3", m.Accept(R, "o", 1)) >> [send]
    old.at(3.01) << e.TransferFailed("h3", send.message) >> []
    old << fired("move r") >> ANY
    assert m.Withdraw(R, "o", 1) in old.sent("h3")
    assert old.sent(CLIENT)[-1].why == "host 'h3' did not answer in 2 s"
    assert m.Demand in {type(message) for message in old.sent("h1")}  # it goes on


def test_a_large_state_that_has_arrived_gives_the_new_host_time_for_the_restore(old: Playbook) -> None:
    old << got("h3", m.Accept(R, "o", 1)) >> []
    old << e.OperatorFinished(R, "o", 0, b"o0", 2) >> ANY
    old << e.StateTaken(R, "o", 1, bytes(m.INLINE_STATE_BYTES + 1), "sha") >> ANY
    (send,) = old.only(e.Send)
    old.at(9.0) << e.TransferMeasured("h3", send.message, send.size_bytes, 8.0) >> ANY
    (old.at(10.9) << fired("move r") >> [e.Send(R, "h3", m.Offer(R, "o", 1)), alarm("move r", 11.4)])
    old.at(11.4) << fired("move r") >> ANY
    assert old.sent(CLIENT)[-1].why == "host 'h3' did not answer in 2 s"


@pytest.mark.parametrize("inline", [b"one", None], ids=["inline", "bulk"])
def test_a_state_larger_than_the_limit_of_the_new_host_is_refused(
    make_book: Book, install: m.Install, inline: bytes | None
) -> None:
    book = make_book("h3", CoreConfig(max_state_bytes=2))
    book << got(CLIENT, install) >> ANY
    book << got("h2", m.Offer(R, "o", 1)) >> ANY
    book << e.NodeOpened(R, "o") >> ANY
    state = msgspec.structs.replace(STATE, inline=inline)
    why = "its state has 3 bytes; host 'h3' takes up to 2"
    refusal = e.Send(R, "h2", m.Refuse(R, "o", 1, why))
    book << got("h2", state, b"one" if inline is None else None) >> [e.CloseNode(R, "o"), refusal]
    assert book.core.runs[R].parts.get(Arrivals).coming == {}


def test_a_state_is_accepted_only_where_the_operator_is_expected(new: Playbook) -> None:
    assert new.core.wants("h3", STATE)
    assert not new.core.wants("h3", msgspec.structs.replace(STATE, size_bytes=2**40))
    assert not new.core.wants("h3", msgspec.structs.replace(STATE, node="s"))
    assert not new.core.wants("h3", msgspec.structs.replace(STATE, run=run_of("another")))
    stranger = msgspec.structs.replace(STATE, version=7)
    refusal = m.Refuse(R, "o", 7, "it was not offered here")
    new << got("h1", stranger) >> [e.Send(R, "h1", refusal)]


@pytest.mark.parametrize("goes_on", [True, False], ids=["asks on", "asks no more"])
def test_a_cut_route_to_the_host_of_a_demanded_tail_is_reported(new: Playbook, goes_on: bool) -> None:
    """The consumer asks the operator's host, which forwards the demand over the cut route."""
    new.at(10.0) << got("h2", m.Located(R, (location("h3", 2),))) >> ANY
    failed: list[float] = []
    for now in range(10, 130, 2):
        if now % 8 == 2 and (goes_on or now < 24):
            new.at(now) << got(CLIENT, demand("o", "t", 0, 1)) >> ANY
            assert [told(sent) for sent in new.sent("h2") if type(sent) is m.Demand] == [demand("o", "t", 0, 0, 1)]
        new.at(now + 1) << fired("silence") >> ANY
        for sent in new.sent(CLIENT):
            assert isinstance(sent, m.Failed)
            why = "host 'h2', which keeps partition 0 of it, has not answered it for 15 s; is a way cut?"
            assert (sent.node, sent.reason, sent.lost) == ("o", why, "h2")
            failed.append(now)
    assert bool(failed) == goes_on
    assert min(failed, default=41) in range(39, 49)  # after twice 15 s, of which the repetition is late to tell


def test_a_restored_state_counts_only_for_the_hand_over_that_sent_the_state(
    make_book: Book, install: m.Install
) -> None:
    book = make_book("h3")
    book << got(CLIENT, install) >> ANY
    for version in (1, 2):  # the first is withdrawn while the code takes its state over
        book << got("h2", m.Offer(R, "o", version)) >> ANY
        book << e.NodeOpened(R, "o") >> ANY
        book << got("h2", msgspec.structs.replace(STATE, version=version)) >> ANY
        if version == 1:
            book << got("h2", m.Withdraw(R, "o", 1)) >> ANY
            book << got("h2", m.Located(R, (location("h2", 2),))) >> ANY
    book << e.StateRestored(R, "o", 1) >> []
    book << e.StateRestored(R, "o", 2) >> [e.Send(R, "h2", m.Restored(R, "o", 2))]


def test_an_operator_may_return_before_the_confirmation_of_the_first_arrival(
    sent: Playbook, install: m.Install
) -> None:
    sent << got("h3", m.Restored(R, "o", 1)) >> ANY
    sent << got("h3", m.Offer(R, "o", 2)) >> [e.OpenNode(R, install.dataflow.by_name["o"])]
    sent << e.NodeOpened(R, "o") >> ANY
    sent << got("h3", msgspec.structs.replace(STATE, version=2, index=2, tail="h3")) >> ANY
    sent << e.StateRestored(R, "o", 2) >> [e.Send(R, "h3", m.Restored(R, "o", 2))]
    sent << got("h3", m.Located(R, (location("h2", 3),))) >> ANY
    assert m.Relocated(R, "o", True, location("h2", 3), "", 3) in sent.sent(CLIENT)
    assert sent.core.runs[R].parts.get(Departures).leaving == {}
    assert sent.core.runs[R].flow.nodes["o"].index == 2


def test_a_newer_location_confirms_an_earlier_arrival(sent: Playbook) -> None:
    sent << got("h3", m.Restored(R, "o", 1)) >> ANY
    sent << got("h1", m.Demand(R, "s", "o", 9, 0, 7)) >> ANY  # by which it hears that o is on h1 by now
    sent.at(1.9) << fired("move r") >> ANY
    assert sent.sent(CLIENT) == [m.Relocated(R, "o", True, location("h1", 7), "", 3)]


def test_a_consumer_that_has_renounced_does_not_wait_for_a_tail_on_the_old_host(
    make_book: Book, make_install: Callable[..., m.Install]
) -> None:
    """``o`` has come to its consumer ``p``, and has left its last output on h2."""
    code = Code("composite")
    flow = Dataflow(
        (
            Node("s", "source", (), code, "h1"),
            Node("o", "operator", ("s",), code), Node("p", "operator", ("o",), code),
            Node("t", "sink", ("p",), None, CLIENT), Node("u", "sink", ("p",), None, CLIENT),
        )
    ).validate()  # fmt: skip
    book = make_book("h3")
    book << got(CLIENT, make_install({"p": "h3", "u": CLIENT}, dataflow=flow)) >> ANY
    for sink in ("t", "u"):
        book << got(CLIENT, m.Demand(R, "p", sink, 0, version=1)) >> ANY
    book << got("h2", m.Offer(R, "o", 1)) >> ANY
    book << e.NodeOpened(R, "o") >> ANY
    book << got("h2", m.State(R, "o", 1, 1, 1, 3, "sha", b"one", (m.ConsumerDemand("p", 0),), "h2")) >> ANY
    book << e.StateRestored(R, "o", 1) >> ANY
    book << got("h2", m.Located(R, (m.Location("o", "h3", 2),))) >> ANY
    run = book.core.runs[R]
    assert [told(message) for message in book.sent("h2") if isinstance(message, m.Demand)] == [
        demand("o", "p", 0, 0, 1)
    ]
    assert ("p", "o") in run.flow.demands.pending
    for sink in ("t", "u"):
        book << got(CLIENT, m.SkipTo(R, "p", sink, None, version=1)) >> ANY
    assert ("p", "o") not in run.flow.demands.pending
    book.core.validate()
