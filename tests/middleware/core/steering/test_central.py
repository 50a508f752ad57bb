"""Decisions about moves at the client: planning beside the flow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from adversary import CLIENT
from playbook import ANY, Playbook, got, measured
from run_ids import R, alarm, fired, run_of

from thalweg.middleware.core.barrier.proposer import Proposer
from thalweg.middleware.network.view import Latency, Link, LinkEstimate
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import Adaptation, GlobalMoves
from thalweg.middleware.protocol.limits import CoreConfig

Book = Callable[..., Playbook]
CONFIG = CoreConfig(retry_s=0.5, probe_s=4.0)
NOW = {"s": "h1", "o": "h2", "t": CLIENT}


def plans(book: Playbook) -> list[dict[str, Any]]:
    return [record.fields["detail"] for record in book.only(e.Record) if record.kind == "plan"]


@pytest.fixture
def client(make_book: Book, install: m.Install) -> Callable[[Adaptation], Playbook]:
    """A client whose run is ready."""

    def make(adaptation: Adaptation) -> Playbook:
        book = make_book(CLIENT, CONFIG)
        book << e.RunRequested(install, adaptation) >> ANY
        book << got("h1", m.Installed(R, "h1")) >> []
        book << got("h2", m.Installed(R, "h2")) >> ANY
        return book

    return make


def delivered(book: Playbook, index: int) -> None:
    """Deliver one more partition to the application."""
    book << e.NextRequested(R) >> ANY
    book << got("h2", m.Partition(R, "o", "t", index), b"x", 1) >> ANY


def flowing(book: Playbook, until_s: float, apart_s: float = 0.1) -> Playbook:
    """Deliver ten partitions ``apart_s`` seconds apart until ``until_s``. The application does not request another."""
    for index in range(10):
        book.at(until_s - (9 - index) * apart_s)
        delivered(book, index)
    return book


# --- global -----------------------------------------------------------------------------------------


def test_a_planner_is_asked_again_once_a_needed_latency_is_known_or_unavailable(
    client: Callable[[Adaptation], Playbook],
) -> None:
    book, far, near = client(GlobalMoves(period_s=60.0)), Link("h2", "h1"), Link("client", "h1")
    book.at(60.0) << fired("plan r") >> ANY
    book << e.PlanReady(R, latencies=frozenset({far, near})) >> ANY
    (request,), (echo,) = book.sent("h2"), book.sent("h1")
    assert isinstance(request, m.ProbeRequest) and [peer.name for peer in request.targets] == ["h1"]
    for later_s in (0.3, 0.7, 0.9):
        book.at(60.0 + later_s) << got("h1", m.Echo(R, echo.number, back=True)) >> ANY
        (echo,) = book.sent("h1") or (None,)
    assert book.only(e.RequestPlan) == []  # one is still waited for
    book.at(64.0) << fired("plan r") >> ANY
    assert [type(message) for message in book.sent("h2")] == [m.ProbeRequest]  # once more
    book.at(68.0) << fired("plan r") >> ANY
    (plan,) = book.only(e.RequestPlan)
    assert plan.latencies.keys() == {near, far} and plan.latencies[far] == Latency(math.inf, 0)
    assert plan.latencies[near].latency_s == pytest.approx(0.1)  # of round trips of 0.3, 0.4 and 0.2 s
    book << e.PlanReady(R, NOW, worth=False) >> ANY
    book.at(120.0) << fired("plan r") >> ANY  # another look
    book << e.PlanReady(R, latencies=frozenset({far})) >> ANY
    book.at(121.0) << got("h2", m.ProbeResult(R, latency=m.LinkLatency("h2", "h1", 5000, 0, 3, 0))) >> ANY
    (plan,) = book.only(e.RequestPlan)
    assert plan.latencies[far] == Latency(0.005, 3, 0.0, 121.0)


def test_the_client_plans_once_a_period_and_proposes_the_planned_placement(
    client: Callable[[Adaptation], Playbook],
) -> None:
    book = client(GlobalMoves(period_s=60.0))
    assert book.only(e.SetTimer) == [alarm("plan r", 60.0)]
    book.at(60.0) << fired("plan r") >> [e.RequestPlan(R, NOW, {}, {})]
    planned = e.PlanReady(R, {**NOW, "o": "h3"}, detail={"predicted_s": 1.0})
    book.at(61.0) << planned >> ANY
    assert {type(message) for message in book.sent()} == {m.Propose}
    assert alarm("plan r", 120.0) in book.commands  # a period after the last began
    (plan,) = plans(book)
    assert (plan["decision"], plan["predicted_s"], plan["probed"]) == ("propose", 1.0, 0)
    # while the proposal is under way it does not plan, and as soon as it is over it does
    book.at(120.0) << fired("plan r") >> []
    hosts = sorted(book.core.runs[R].directory.hosts - {CLIENT})
    for host in hosts:
        book << got(host, m.Vote(R, 1, host, -1, "it cannot")) >> ANY
    for host in hosts[:-1]:
        book << got(host, m.Done(R, 1, host)) >> ANY
        assert book.only(e.RequestPlan) == []
    book << got(hosts[-1], m.Done(R, 1, hosts[-1])) >> ANY
    assert book.only(e.RequestPlan) == [e.RequestPlan(R, NOW, {}, {})]


@pytest.mark.parametrize(
    ("planned", "dropped"),
    [
        (e.PlanReady(R, NOW), "nothing would change"),
        (e.PlanReady(R, {**NOW, "o": "h3"}, worth=False), "it is not worth its moves"),
        (e.PlanReady(R, None), "nothing would change"),
        (e.PlanReady(R, {"stranger": "h3"}), "nothing would change"),
    ],
    ids=["as it is", "not worth it", "no placement", "an unknown node"],
)
def test_a_plan_that_changes_nothing_is_not_proposed(
    client: Callable[[Adaptation], Playbook], planned: e.PlanReady, dropped: str
) -> None:
    book = client(GlobalMoves(period_s=60.0))
    book.at(60.0) << fired("plan r") >> ANY
    book << planned >> [alarm("plan r", 120.0)]
    (plan,) = plans(book)
    assert (plan["decision"], plan.get("dropped")) == ("stay", dropped)
    book << planned >> []  # an answer nobody waits for
    assert plans(book) == []


def test_planning_ends_after_the_maximum_number_of_plans(client: Callable[[Adaptation], Playbook]) -> None:
    book = client(GlobalMoves(period_s=60.0, looks=2))
    book.at(60.0) << fired("plan r") >> ANY
    book << e.PlanReady(R, NOW) >> [alarm("plan r", 120.0)]
    book.at(120.0) << fired("plan r") >> ANY
    book << e.PlanReady(R, NOW) >> []


def test_needed_links_are_probed_and_the_planner_is_asked_again(
    client: Callable[[Adaptation], Playbook],
) -> None:
    book = flowing(client(GlobalMoves(period_s=60.0)), 60.0)
    book << fired("plan r") >> ANY
    book << e.PlanReady(R, needs=frozenset({("h1", "h2"), ("h1", "h3")})) >> ANY
    (request,) = book.sent("h1")
    assert [target.name for target in request.targets] == ["h2", "h3"]
    assert book.only(e.SetTimer) == [alarm("plan r", 64.0)]
    book.at(62.0) << got("h1", measured("h1", "h2", 1000)) >> ANY
    assert book.only(e.RequestPlan) == []
    assert book.only(e.SetTimer) == [alarm("plan r", 66.0)]  # as long as there is news, the others may follow
    book << got("h1", measured("h1", "h3", 2000)) >> ANY
    (plan,) = book.only(e.RequestPlan)
    assert {link: estimate.rate_bps for link, estimate in plan.view.items()} == {
        ("h1", "h2"): 1000.0,
        ("h1", "h3"): 2000.0,
    }
    book << e.PlanReady(R, NOW) >> ANY
    (record,) = plans(book)
    assert (record["probed"], record["rounds"], record["links"]["h1>h3"]) == (2, 1, [2000.0, 1, 0.0, 0.0])


def test_a_link_that_is_not_measured_in_time_counts_as_slow(client: Callable[[Adaptation], Playbook]) -> None:
    book = flowing(client(GlobalMoves(period_s=60.0)), 60.0)
    book << fired("plan r") >> ANY
    book << e.PlanReady(R, needs=frozenset({("h1", "h2"), ("h1", "h3")})) >> ANY
    book.at(62.0) << got("h1", measured("h1", "h2", 1000)) >> ANY
    book.at(66.0) << fired("plan r") >> ANY  # the request may have been lost
    assert [(send.to, [peer.name for peer in send.message.targets]) for send in book.only(e.Send)] == [("h1", ["h3"])]
    assert book.only(e.SetTimer) == [alarm("plan r", 70.0)]
    known = LinkEstimate(1000.0, count=1, measured_at_s=62.0)
    slow = LinkEstimate(m.PROBE_BYTES * 8 / 10.0, count=0)  # waited for since 60 s
    plan = e.RequestPlan(R, NOW, {("h1", "h2"): known, ("h1", "h3"): slow}, {})
    book.at(70.0) << fired("plan r") >> [plan]
    book << e.PlanReady(R, NOW) >> [alarm("plan r", 120.0)]


@pytest.mark.parametrize(("probe_s", "period_s", "patience_s"), [(4.0, 10.0, 2.5), (4.0, 600.0, 4.0)])
def test_the_wait_for_probes_is_a_share_of_the_period_or_the_configured_limit(
    client: Callable[[Adaptation], Playbook], probe_s: float, period_s: float, patience_s: float
) -> None:
    assert probe_s == CONFIG.probe_s
    book = flowing(client(GlobalMoves(period_s)), period_s)
    book << fired("plan r") >> ANY
    book << e.PlanReady(R, needs=frozenset({("h1", "h2")})) >> ANY
    assert book.only(e.SetTimer) == [alarm("plan r", period_s + patience_s)]


@pytest.mark.parametrize(
    ("options", "apart_s", "patience_s"),
    [
        (GlobalMoves(600.0), 20.0, 40.0),
        (GlobalMoves(600.0), 500.0, 300.0),  # asked twice, that is the period
        (GlobalMoves(60.0, horizon_s=300.0), 50.0, 100.0),
        (GlobalMoves(60.0, horizon_s=300.0), 500.0, 150.0),
    ],
)
def test_slow_partitions_lengthen_the_wait_for_probes(
    client: Callable[[Adaptation], Playbook], options: GlobalMoves, apart_s: float, patience_s: float
) -> None:
    book = flowing(client(options), 6000.0, apart_s)
    book << fired("plan r") >> ANY
    book << e.PlanReady(R, needs=frozenset({("h1", "h2")})) >> ANY
    assert book.only(e.SetTimer) == [alarm("plan r", 6000.0 + patience_s)]


def test_the_wait_for_probes_is_twice_the_time_without_a_partition(
    client: Callable[[Adaptation], Playbook],
) -> None:
    book = client(GlobalMoves(60.0, horizon_s=300.0))
    book.at(60.0) << fired("plan r") >> ANY
    book << e.PlanReady(R, needs=frozenset({("h1", "h2")})) >> ANY
    assert book.only(e.SetTimer) == [alarm("plan r", 180.0)]


def test_an_unmeasured_link_counts_as_slow_until_the_horizon_or_a_measurement(
    client: Callable[[Adaptation], Playbook],
) -> None:
    book = flowing(client(GlobalMoves(60.0, horizon_s=300.0)), 60.0)
    asked = frozenset({("h1", "h2"), ("h1", "h3")})
    book << fired("plan r") >> ANY
    book << e.PlanReady(R, needs=asked) >> ANY
    for now in (64.0, 68.0):
        book.at(now) << fired("plan r") >> ANY
    slow_bps = m.PROBE_BYTES * 8 / 8.0  # waited for since 60 s

    def told() -> dict[tuple[str, str], float]:
        (plan,) = book.only(e.RequestPlan)
        assert plan.past is not None and not asked & plan.past.samples.keys() - {("h1", "h2")}
        return {link: estimate.rate_bps for link, estimate in plan.view.items()}

    assert told() == dict.fromkeys(asked, slow_bps)
    book << e.PlanReady(R, NOW) >> ANY
    book.at(120.0) << fired("plan r") >> ANY
    assert told() == dict.fromkeys(asked, slow_bps)
    book << e.PlanReady(R, NOW) >> ANY
    book.at(130.0) << got("h1", measured("h1", "h2", 1000)) >> ANY  # it had to wait
    book.at(180.0) << fired("plan r") >> ANY
    assert told() == {("h1", "h3"): slow_bps}
    book << e.PlanReady(R, NOW) >> ANY
    book.at(369.0) << fired("plan r") >> ANY
    assert told() == {}


def test_a_lost_host_is_neither_probed_nor_chosen(client: Callable[[Adaptation], Playbook]) -> None:
    book = client(GlobalMoves(period_s=60.0))
    book << e.PeerLost(R, "h3") >> ANY
    book.at(60.0) << fired("plan r") >> ANY
    unusable = {("h1", "h3"): LinkEstimate(0.0, count=0)}
    book << e.PlanReady(R, needs=frozenset({("h1", "h3")})) >> [e.RequestPlan(R, NOW, unusable, {})]
    book << e.PlanReady(R, needs=frozenset({("h3", "client"), ("h1", "h2")})) >> ANY
    (request,) = [message for message in book.sent() if isinstance(message, m.ProbeRequest)]
    assert [target.name for target in request.targets] == ["h2"]
    book << got("h1", measured("h1", "h2", 1000)) >> ANY
    (plan,) = book.only(e.RequestPlan)
    assert {link: decision.rate_bps for link, decision in plan.view.items()} == {
        ("h1", "h3"): 0.0,
        ("h3", "client"): 0.0,
        ("h1", "h2"): 1000.0,
    }
    book << e.PlanReady(R, {**NOW, "o": "h3"}) >> [alarm("plan r", 120.0)]
    assert book.core.runs[R].parts.get(Proposer).proposal is None
    assert [decision["decision"] for decision in plans(book)] == ["stay"]


@pytest.mark.parametrize("news", [False, True], ids=["the answer comes late", "somebody else has told"])
def test_a_link_measured_during_the_wait_does_not_count_as_slow(
    client: Callable[[Adaptation], Playbook], news: bool
) -> None:
    book = flowing(client(GlobalMoves(60.0, horizon_s=300.0)), 60.0)
    book << fired("plan r") >> ANY
    book << e.PlanReady(R, needs=frozenset({("h1", "h2")})) >> ANY
    if news:
        book.core.links.monitor.handle_estimates([m.Estimate("h1", "h2", 1000, 0, 1, 0)], 62.0, "h2")
    for now in (64.0, 68.0):
        book.at(now) << fired("plan r") >> ANY
    (plan,) = book.only(e.RequestPlan)
    assert (plan.view == {}) is news
    book << e.PlanReady(R, NOW) >> ANY
    if not news:
        late = m.Estimate("h1", "h2", 1000, 0, 1, 1500)  # of 67.5 s
        book.at(69.0) << got("h1", m.ProbeResult(R, late)) >> ANY
    book.at(120.0) << fired("plan r") >> ANY
    (plan,) = book.only(e.RequestPlan)
    assert plan.view == {}
    assert plan.past is not None and ("h1", "h2") in plan.past.samples


def test_the_wait_for_links_of_a_lost_host_ends(client: Callable[[Adaptation], Playbook]) -> None:
    book = flowing(client(GlobalMoves(60.0, horizon_s=300.0)), 6000.0, 50.0)
    book << fired("plan r") >> ANY
    book << e.PlanReady(R, needs=frozenset({("h1", "h2"), ("h1", "h3")})) >> ANY
    book.at(6001.0) << e.PeerLost(R, "h3") >> ANY
    assert book.only(e.RequestPlan) == []  # the other one may still be measured
    book.at(6002.0) << got("h1", measured("h1", "h2", 1000)) >> ANY
    (plan,) = book.only(e.RequestPlan)
    assert plan.view["h1", "h3"].rate_bps == 0.0
    book << e.PlanReady(R, needs=frozenset({("h2", "client")})) >> ANY
    book << e.PeerLost(R, "h2") >> ANY  # which holds o
    assert book.only(e.RequestPlan) == []
    again = flowing(client(GlobalMoves(60.0, horizon_s=300.0)), 6000.0, 50.0)
    again << fired("plan r") >> ANY
    again << e.PlanReady(R, needs=frozenset({("h1", "h3")})) >> ANY
    again.at(6001.0) << e.PeerLost(R, "h3") >> ANY
    (plan,) = again.only(e.RequestPlan)
    assert plan.view["h1", "h3"].rate_bps == 0.0
    rented = Link("h1", "h3", "fast")
    again << e.PlanReady(R, needs=frozenset({rented})) >> ANY
    (plan,) = again.only(e.RequestPlan)
    assert plan.view[rented].rate_bps == 0.0


def test_a_run_that_is_over_plans_no_more(client: Callable[[Adaptation], Playbook]) -> None:
    book = client(GlobalMoves(period_s=60.0))
    book.at(60.0) << fired("plan r") >> ANY
    book << e.RunAbandoned(R) >> ANY
    book << e.PlanReady(R, {**NOW, "o": "h3"}) >> []
    book << fired("plan r") >> []


# --- links that begin anew --------------------------------------------------------------------------


@pytest.mark.parametrize("afresh", [False, True])
def test_a_run_with_reset_links_ignores_estimates_from_before_the_run(
    make_book: Book, install: m.Install, afresh: bool
) -> None:
    book = make_book(CLIENT, CONFIG)
    monitor = book.core.links.monitor
    monitor.handle_estimates([m.Estimate("h2", CLIENT, 50_000, 0, 1, 0)], 95.0, "h2")
    changed = msgspec.structs.replace(install, afresh=afresh)
    known = ((("h1", "h2"), LinkEstimate(1e5, 2, 0.0, 80.0)),)
    book.at(100.0) << e.RunRequested(changed, GlobalMoves(60.0, horizon_s=300.0), known=known) >> ANY
    at_s = {link: [sample.at_s for sample in series] for link, series in monitor.histories[R].samples().items()}
    assert at_s == ({("h1", "h2"): [100.0]} if afresh else {("h1", "h2"): [80.0], ("h2", CLIENT): [95.0]})
    late = m.Estimate("h3", CLIENT, 50_000, 0, 1, 20_000)  # measured before the run, heard of in it
    monitor.handle_estimates([late, m.Estimate("h1", CLIENT, 60_000, 0, 1, 1_000)], 110.0, "h1")
    samples = monitor.histories[R].samples()
    assert samples["h1", CLIENT][-1].at_s == 109.0
    assert (("h3", CLIENT) in samples) is not afresh


def test_a_host_forgets_earlier_measurements_when_links_are_reset(make_book: Book, install: m.Install) -> None:
    book = make_book("h2", CONFIG)
    book.core.links.monitor.measured(("h2", CLIENT), 100_000, 1.0, 5.0, "passive")
    book << got(CLIENT, install) >> ANY
    assert book.core.links.monitor.latest(("h2", CLIENT)) is not None
    book << got(CLIENT, msgspec.structs.replace(install, run=run_of("other"), afresh=True)) >> ANY
    assert book.core.links.monitor.latest(("h2", CLIENT)) is None
