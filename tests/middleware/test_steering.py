"""What decides on moves: the client's planning beside the flow, the random mover, and operators' own decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from adversary import CLIENT
from playbook import ANY, Playbook

from thalweg.middleware import events as e
from thalweg.middleware import messages as m
from thalweg.middleware.adaptation import Adaptation, GlobalMoves, LocalMoves, RandomMoves
from thalweg.middleware.network_view import LinkEstimate
from thalweg.middleware.run_state import CoreConfig

Make = Callable[..., m.Install]
Book = Callable[..., Playbook]
CONFIG = CoreConfig(retry_s=0.5, probe_s=4.0)
NOW = {"s": "h1", "o": "h2", "t": CLIENT}


def got(sender: str, message: m.Message, payload: object = None, size_bytes: int = 0) -> e.MessageReceived:
    return e.MessageReceived(sender, message, payload, size_bytes)


def measured(source: str, target: str, rate_bps: int, count: int = 1) -> m.ProbeResult:
    return m.ProbeResult("r", m.Estimate(source, target, rate_bps, 0, count, 0))


def details(book: Playbook, kind: str) -> list[dict[str, Any]]:
    return [each.fields["detail"] for each in book.only(e.Record) if each.kind == kind]


@pytest.fixture
def install(make_install: Make) -> m.Install:
    """``s`` on h1 -> ``o`` on h2 -> ``t`` on the client; h3 holds nothing."""
    plain = make_install()
    return msgspec.structs.replace(plain, peers=(*plain.peers, m.Peer("h3", "tcp://h3:1", "tcp://h3:2")))


@pytest.fixture
def client(make_book: Book, install: m.Install) -> Callable[[Adaptation], Playbook]:
    """A client whose run is ready."""

    def make(adaptation: Adaptation) -> Playbook:
        book = make_book(CLIENT, CONFIG)
        book << e.RunRequested(install, adaptation) >> ANY
        book << got("h1", m.Installed("r", "h1")) >> []
        book << got("h2", m.Installed("r", "h2")) >> ANY
        return book

    return make


# --- global -----------------------------------------------------------------------------------------


def test_the_client_plans_once_a_period_and_proposes_what_came_out(client: Callable[[Adaptation], Playbook]) -> None:
    book = client(GlobalMoves(period_s=60.0))
    assert book.only(e.SetTimer) == [e.SetTimer("plan r", 60.0)]
    book.at(60.0) << e.TimerFired("plan r") >> [e.Plan("r", NOW, {}, {})]
    planned = e.Planned("r", {**NOW, "o": "h3"}, detail={"predicted_s": 1.0})
    book.at(61.0) << planned >> ANY
    assert {type(message) for message in book.sent()} == {m.Propose}
    assert e.SetTimer("plan r", 120.0) in book.commands  # a period after the last began
    (plan,) = details(book, "plan")
    assert (plan["decision"], plan["predicted_s"], plan["probed"]) == ("propose", 1.0, 0)
    # while the proposal is under way it does not plan, and as soon as it is over it does
    book.at(120.0) << e.TimerFired("plan r") >> []
    hosts = sorted(book.core.runs["r"].hosts - {CLIENT})
    for host in hosts:
        book << got(host, m.Vote("r", 1, host, -1, "it cannot")) >> ANY
    for host in hosts[:-1]:
        book << got(host, m.Done("r", 1, host)) >> ANY
        assert book.only(e.Plan) == []
    book << got(hosts[-1], m.Done("r", 1, hosts[-1])) >> ANY
    assert book.only(e.Plan) == [e.Plan("r", NOW, {}, {})]


@pytest.mark.parametrize(
    "planned",
    [
        e.Planned("r", NOW),
        e.Planned("r", {**NOW, "o": "h3"}, worth=False),
        e.Planned("r", None),
        e.Planned("r", {"stranger": "h3"}),
    ],
    ids=["as it is", "not worth it", "no placement", "an unknown node"],
)
def test_a_plan_that_changes_nothing_is_recorded_and_not_proposed(
    client: Callable[[Adaptation], Playbook], planned: e.Planned
) -> None:
    book = client(GlobalMoves(period_s=60.0))
    book.at(60.0) << e.TimerFired("plan r") >> ANY
    book << planned >> [e.SetTimer("plan r", 120.0)]
    book << planned >> []  # an answer nobody waits for


def test_links_that_the_planner_needs_are_probed_and_it_is_asked_again(
    client: Callable[[Adaptation], Playbook],
) -> None:
    book = client(GlobalMoves(period_s=60.0))
    book.at(60.0) << e.TimerFired("plan r") >> ANY
    book << e.Planned("r", needs=frozenset({("h1", "h2"), ("h1", "h3")})) >> ANY
    (request,) = book.sent("h1")
    assert [target.name for target in request.targets] == ["h2", "h3"]
    assert book.only(e.SetTimer) == [e.SetTimer("plan r", 64.0)]
    book.at(62.0) << got("h1", measured("h1", "h2", 1000)) >> ANY
    assert book.only(e.Plan) == []
    assert book.only(e.SetTimer) == [e.SetTimer("plan r", 66.0)]  # as long as there is news, the others may follow
    book << got("h1", measured("h1", "h3", 2000)) >> ANY
    (plan,) = book.only(e.Plan)
    assert {link: each.rate_bps for link, each in plan.view.items()} == {("h1", "h2"): 1000.0, ("h1", "h3"): 2000.0}
    book << e.Planned("r", NOW) >> ANY
    (record,) = details(book, "plan")
    assert (record["probed"], record["rounds"], record["links"]["h1>h3"]) == (2, 1, [2000.0, 1, 0.0, 0.0])


def test_a_link_that_nobody_can_measure_in_time_is_taken_for_slow(client: Callable[[Adaptation], Playbook]) -> None:
    book = client(GlobalMoves(period_s=60.0))
    book.at(60.0) << e.TimerFired("plan r") >> ANY
    book << e.Planned("r", needs=frozenset({("h1", "h2"), ("h1", "h3")})) >> ANY
    book.at(62.0) << got("h1", measured("h1", "h2", 1000)) >> ANY
    book.at(66.0) << e.TimerFired("plan r") >> ANY  # the request may have been lost
    assert [(each.to, [peer.name for peer in each.message.targets]) for each in book.only(e.Send)] == [("h1", ["h3"])]
    assert book.only(e.SetTimer) == [e.SetTimer("plan r", 70.0)]
    known = LinkEstimate(1000.0, count=1, measured_at_s=62.0)
    slow = LinkEstimate(m.PROBE_BYTES * 8 / 10.0, count=0)  # waited for since 60 s
    plan = e.Plan("r", NOW, {("h1", "h2"): known, ("h1", "h3"): slow}, {})
    book.at(70.0) << e.TimerFired("plan r") >> [plan]
    book << e.Planned("r", NOW) >> [e.SetTimer("plan r", 120.0)]


@pytest.mark.parametrize(("probe_s", "period_s", "patience_s"), [(4.0, 10.0, 2.5), (4.0, 600.0, 4.0)])
def test_links_are_waited_for_a_share_of_the_period_or_as_long_as_the_host_is_told_to(
    client: Callable[[Adaptation], Playbook], probe_s: float, period_s: float, patience_s: float
) -> None:
    assert probe_s == CONFIG.probe_s
    book = client(GlobalMoves(period_s))
    book.at(period_s) << e.TimerFired("plan r") >> ANY
    book << e.Planned("r", needs=frozenset({("h1", "h2")})) >> ANY
    assert book.only(e.SetTimer) == [e.SetTimer("plan r", period_s + patience_s)]


def test_a_host_that_was_lost_is_neither_probed_nor_moved_to(client: Callable[[Adaptation], Playbook]) -> None:
    book = client(GlobalMoves(period_s=60.0))
    book << e.PeerLost("r", "h3") >> ANY
    book.at(60.0) << e.TimerFired("plan r") >> ANY
    unusable = {("h1", "h3"): LinkEstimate(0.0, count=0)}
    book << e.Planned("r", needs=frozenset({("h1", "h3")})) >> [e.Plan("r", NOW, unusable, {})]
    book << e.Planned("r", needs=frozenset({("h3", "client"), ("h1", "h2")})) >> ANY
    (request,) = [message for message in book.sent() if isinstance(message, m.ProbeRequest)]
    assert [target.name for target in request.targets] == ["h2"]
    book << got("h1", measured("h1", "h2", 1000)) >> ANY
    (plan,) = book.only(e.Plan)
    assert {link: each.rate_bps for link, each in plan.view.items()} == {
        ("h1", "h3"): 0.0,
        ("h3", "client"): 0.0,
        ("h1", "h2"): 1000.0,
    }
    book << e.Planned("r", {**NOW, "o": "h3"}) >> [e.SetTimer("plan r", 120.0)]
    assert book.core.runs["r"].proposer.change is None
    assert [each["decision"] for each in details(book, "plan")] == ["stay"]


def test_a_run_that_is_over_plans_no_more(client: Callable[[Adaptation], Playbook]) -> None:
    book = client(GlobalMoves(period_s=60.0))
    book.at(60.0) << e.TimerFired("plan r") >> ANY
    book << e.RunAbandoned("r") >> ANY
    book << e.Planned("r", {**NOW, "o": "h3"}) >> []
    book << e.TimerFired("plan r") >> []


# --- at random --------------------------------------------------------------------------------------


def delivered(book: Playbook, index: int) -> None:
    """The application gets one more partition."""
    book << e.NextRequested("r") >> ANY
    book << got("h2", m.Partition("r", "o", "t", index), b"x", 1) >> ANY


def test_the_random_mover_takes_both_protocols_in_turn(client: Callable[[Adaptation], Playbook]) -> None:
    book = client(RandomMoves(moves=2, seed=4))  # whose first target is h1
    delivered(book, 0)
    (propose, *_) = {message for message in book.sent() if isinstance(message, m.Propose)}
    (move,) = propose.moves
    assert (move.node, move.source) == ("o", "h2")
    assert move.target == "h1"
    delivered(book, 1)
    assert book.sent() == []  # there is only one operator, and it is on its way
    moved = m.Location("o", move.target, 2)
    book << got("h2", m.Relocated("r", "o", True, moved)) >> [e.Placed("r", "o", move.target)]
    book << e.NextRequested("r") >> ANY
    book << got(move.target, m.Partition("r", "o", "t", 2), b"x", 1) >> ANY
    orders = [each for each in book.only(e.Send) if isinstance(each.message, m.Relocate)]
    assert [(each.to, each.message.version) for each in orders] == [("h1", 2)]
    again = m.Location("o", "h2", 3)
    book << got(move.target, m.Relocated("r", "o", True, again)) >> ANY
    delivered(book, 3)
    assert book.sent() == []  # two moves were asked for


def test_the_same_seed_moves_the_same(client: Callable[[Adaptation], Playbook]) -> None:
    targets = []
    for seed in (1, 1, 2, 3, 4, 5):
        book = client(RandomMoves(seed=seed))
        delivered(book, 0)
        (propose, *_) = {message for message in book.sent() if isinstance(message, m.Propose)}
        targets.append(propose.moves[0].target)
    assert targets[0] == targets[1]
    assert len(set(targets)) > 1


# --- local ------------------------------------------------------------------------------------------


def test_an_operator_decides_at_the_end_of_its_epoch_and_asks_for_what_it_does_not_know(
    make_book: Book, install: m.Install
) -> None:
    book = make_book("h2", CONFIG)
    book << got(CLIENT, msgspec.structs.replace(install, moves=LocalMoves(period_s=10.0))) >> ANY
    assert e.SetTimer("epoch r o", 10.0) in book.commands
    book.at(1.0) << got(CLIENT, m.Demand("r", "o", "t", 0, 0, 1, True, True)) >> ANY
    book << got("h1", m.Partition("r", "s", "o", 0), bytes(100_000), 100_000) >> ANY
    book << e.OperatorFinished("r", "o", 0, bytes(50_000), 50_000, duration_s=0.1) >> ANY
    book.at(10.0) << e.TimerFired("epoch r o") >> ANY
    assert e.SetTimer("epoch r o", 20.0) in book.commands
    assert e.SetTimer("decide r o", 12.5) in book.commands  # a quarter of the period
    (request,) = book.sent("h1")  # what h2 measures itself goes to no one
    assert isinstance(request, m.ProbeRequest)
    for now, source, target in ((10.25, "h1", "h2"), (10.5, "h2", "h1"), (10.75, "h1", CLIENT)):
        book.at(now) << got(source, measured(source, target, 8_000_000)) >> ANY
        waits = [e.SetTimer("decide r o", now + 2.5)] if source == "h1" else []  # h2 -> h1 is none that it waits for
        assert [each for each in book.only(e.SetTimer) if each.key == "decide r o"] == waits
    book << got(CLIENT, measured("h2", CLIENT, 8_000)) >> ANY
    assert m.Offer("r", "o", 1) in book.sent()  # all is known; from here its output goes over the slow link
    (epoch,) = details(book, "epoch")
    assert (epoch["decision"], epoch["sends"], epoch["critical"]) == ("move", 0, True)
    assert epoch["candidates"][epoch["best"]] < epoch["candidates"]["h2"]
    assert set(epoch["links"]) >= {"h1>h2", "h1>client", "h2>client"}
    book.at(14.0) << e.TimerFired("decide r o") >> []
    book.at(20.0) << e.TimerFired("epoch r o") >> [e.SetTimer("epoch r o", 30.0)]
    assert [each["why"] for each in details(book, "epoch")] == ["a move is under way"]


@pytest.fixture
def deciding(make_book: Book, install: m.Install) -> Playbook:
    """The host of ``o`` at the end of its epoch; 100 kB have come from h1 at 1.6 Mbit/s, 50 kB gone to the client."""
    book = make_book("h2", CONFIG)
    book << got(CLIENT, msgspec.structs.replace(install, moves=LocalMoves(period_s=100.0))) >> ANY
    book.at(1.0) << got(CLIENT, m.Demand("r", "o", "t", 0, 0, 1, True, True)) >> ANY
    into = m.News(estimates=(m.Estimate("h1", "h2", 1_600_000, 0, 1, 0),))
    book << got("h1", m.Partition("r", "s", "o", 0, news=into), bytes(100_000), 100_000) >> ANY
    book << e.OperatorFinished("r", "o", 0, bytes(50_000), 50_000) >> ANY
    book.at(100.0) << e.TimerFired("epoch r o") >> ANY
    assert e.SetTimer("decide r o", 104.0) in book.commands
    return book


def test_links_that_cannot_be_measured_in_time_are_asked_for_again_and_taken_for_slow(deciding: Playbook) -> None:
    book = deciding
    asked = [(each.to, each.message) for each in book.only(e.Send) if isinstance(each.message, m.ProbeRequest)]
    book.at(104.0) << e.TimerFired("decide r o") >> ANY  # the request may have been lost
    again = [(each.to, each.message) for each in book.only(e.Send) if isinstance(each.message, m.ProbeRequest)]
    assert [to for to, _ in again] == ["h1"]
    assert again == asked
    assert e.SetTimer("decide r o", 108.0) in book.commands
    book.at(108.0) << e.TimerFired("decide r o") >> ANY
    (epoch,) = details(book, "epoch")
    assert (epoch["decision"], epoch["best"]) == ("move", "h1")  # one slow link is better than one and another
    slow_s = 50_000 / (m.PROBE_BYTES / 8.0)  # to the client, since 100 s
    assert epoch["candidates"] == pytest.approx({"h2": 0.5 + slow_s, "h1": slow_s, CLIENT: 2 * slow_s})
    assert "h1>h2" not in epoch["links"]  # too old to be told to anybody


def test_of_a_link_in_use_the_last_estimate_counts_however_old(deciding: Playbook) -> None:
    book = deciding
    book.at(101.0) << got("h1", measured("h1", CLIENT, 400_000)) >> ANY  # 2 s; 1 s from h1 directly
    book << got(CLIENT, measured("h2", CLIENT, 800_000)) >> ANY
    for now in (105.0, 109.0):
        assert details(book, "epoch") == []
        book.at(now) << e.TimerFired("decide r o") >> ANY
    (epoch,) = details(book, "epoch")
    assert (epoch["decision"], epoch["best"]) == ("stay", "h2")  # 0.5 s from h1, as 100 s ago, and not 49 s
    assert epoch["candidates"] == pytest.approx({"h2": 1.0, "h1": 1.0, CLIENT: 2.0})


def test_of_a_link_that_is_not_in_use_an_old_estimate_does_not_count(make_book: Book, install: m.Install) -> None:
    book = make_book("h2", CONFIG)
    book << got(CLIENT, msgspec.structs.replace(install, moves=LocalMoves(period_s=100.0))) >> ANY
    book.at(1.0) << got(CLIENT, m.Demand("r", "o", "t", 0, 0, 1, True, True)) >> ANY
    told = m.News(estimates=(m.Estimate("h1", CLIENT, 10**9, 0, 1, 0), m.Estimate("h2", CLIENT, 1_600_000, 0, 1, 0)))
    book << got("h1", m.Partition("r", "s", "o", 0, news=told), bytes(100_000), 100_000) >> ANY
    book << e.OperatorFinished("r", "o", 0, bytes(50_000), 50_000) >> ANY
    book.at(100.0) << e.TimerFired("epoch r o") >> ANY
    for now in (104.0, 108.0):
        book.at(now) << e.TimerFired("decide r o") >> ANY
    (epoch,) = details(book, "epoch")
    slow_s = 50_000 / (m.PROBE_BYTES / 8.0)
    assert epoch["candidates"] == pytest.approx({"h2": 2 * slow_s + 0.25, "h1": slow_s, CLIENT: 2 * slow_s})


def test_an_operator_counts_what_it_takes_to_begin_a_message(make_book: Book, install: m.Install) -> None:
    book = make_book("h2", CONFIG)
    book << got(CLIENT, msgspec.structs.replace(install, moves=LocalMoves(period_s=10.0, startup_s=0.25))) >> ANY
    book.at(1.0) << got(CLIENT, m.Demand("r", "o", "t", 0, 0, 1, True, True)) >> ANY
    book << got("h1", m.Partition("r", "s", "o", 0), bytes(100_000), 100_000) >> ANY
    book << e.OperatorFinished("r", "o", 0, bytes(50_000), 50_000, duration_s=0.5) >> ANY
    book.at(10.0) << e.TimerFired("epoch r o") >> ANY
    for source, target in (("h1", "h2"), ("h2", CLIENT), ("h1", CLIENT)):
        book << got(source, measured(source, target, 800_000)) >> ANY
    (epoch,) = details(book, "epoch")
    assert epoch["candidates"] == pytest.approx({"h2": 2.5, "h1": 1.25, CLIENT: 1.75})


def test_an_operator_does_not_go_to_a_host_that_was_lost_meanwhile(make_book: Book, install: m.Install) -> None:
    book = make_book("h2", CONFIG)
    book << got(CLIENT, msgspec.structs.replace(install, moves=LocalMoves(period_s=10.0, k=1))) >> ANY
    book.at(1.0) << got(CLIENT, m.Demand("r", "o", "t", 0, 0, 1, True, True)) >> ANY
    book << got("h1", m.Partition("r", "s", "o", 0), bytes(100_000), 100_000) >> ANY
    book << e.OperatorFinished("r", "o", 0, bytes(50_000), 50_000) >> ANY
    book.at(10.0) << e.TimerFired("epoch r o") >> ANY
    (request,) = book.sent("h1")
    assert "h3" in {target.name for target in request.targets}
    book << got(CLIENT, m.Lost("r", "h3", ())) >> ANY
    for source, target in (("h1", "h3"), ("h3", CLIENT)):
        book << got(source, measured(source, target, 8_000_000)) >> ANY  # by which h3 would be the best
    for source, target, rate_bps in (("h1", "h2", 80_000), ("h2", CLIENT, 80_000), ("h1", CLIENT, 8_000)):
        book << got(source, measured(source, target, rate_bps)) >> ANY
    (epoch,) = details(book, "epoch")
    assert "h3" not in epoch["candidates"]
    assert epoch["decision"] == "stay"
    book.at(20.0) << e.TimerFired("epoch r o") >> ANY
    probed = [message.targets for message in book.sent() if isinstance(message, m.ProbeRequest)]
    assert "h3" not in {target.name for targets in probed for target in targets}


def test_an_operator_does_not_decide_before_anything_came_or_when_others_decide_for_it(
    make_book: Book, make_install: Make
) -> None:
    book = make_book("h2", CONFIG)
    book << got(CLIENT, make_install()) >> ANY
    assert book.core.runs["r"].books == {}  # operators that others decide for
    book = make_book("h2", CONFIG)
    moves = LocalMoves(period_s=10.0)
    book << got(CLIENT, msgspec.structs.replace(make_install(), moves=moves)) >> ANY
    book.at(10.0) << e.TimerFired("epoch r o") >> [e.SetTimer("epoch r o", 20.0)]
    assert [each["why"] for each in details(book, "epoch")] == ["nothing has come through yet"]
    book << got(CLIENT, m.Remove("r")) >> ANY
    book << e.TimerFired("epoch r o") >> []
    book << e.TimerFired("decide r o") >> []


# --- links that begin anew --------------------------------------------------------------------------


@pytest.mark.parametrize("afresh", [False, True])
def test_a_run_on_links_that_begin_anew_goes_by_what_it_was_told_alone(
    make_book: Book, install: m.Install, afresh: bool
) -> None:
    book = make_book(CLIENT, CONFIG)
    monitor = book.core.monitor
    monitor.heard([m.Estimate("h2", CLIENT, 50_000, 0, 1, 0)], 95.0, "h2")
    given = msgspec.structs.replace(install, afresh=afresh)
    known = ((("h1", "h2"), LinkEstimate(1e5, 2, 0.0, 80.0)),)
    book.at(100.0) << e.RunRequested(given, GlobalMoves(60.0, horizon_s=300.0), known=known) >> ANY
    at_s = {link: [each.at_s for each in some] for link, some in monitor.histories["r"].samples().items()}
    assert at_s == ({("h1", "h2"): [100.0]} if afresh else {("h1", "h2"): [80.0], ("h2", CLIENT): [95.0]})
    late = m.Estimate("h3", CLIENT, 50_000, 0, 1, 20_000)  # measured before the run, heard of in it
    monitor.heard([late, m.Estimate("h1", CLIENT, 60_000, 0, 1, 1_000)], 110.0, "h1")
    heard = monitor.histories["r"].samples()
    assert heard["h1", CLIENT][-1].at_s == 109.0
    assert (("h3", CLIENT) in heard) is not afresh


def test_a_host_forgets_what_it_has_measured_when_links_begin_anew(make_book: Book, install: m.Install) -> None:
    book = make_book("h2", CONFIG)
    book.core.monitor.measured("h2", CLIENT, 100_000, 1.0, 5.0, "passive")
    book << got(CLIENT, install) >> ANY
    assert book.core.monitor.latest("h2", CLIENT) is not None
    book << got(CLIENT, msgspec.structs.replace(install, run="other", afresh=True)) >> ANY
    assert book.core.monitor.latest("h2", CLIENT) is None
