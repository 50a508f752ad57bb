"""Faults in the virtual WAN: the faults of a plan happen, and no others."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest
from flows import chain
from msgspec import UNSET
from run_ids import fired, run_of

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.faults import (
    BulkOutage,
    Crash,
    Cut,
    Delay,
    Drop,
    Duplicate,
    Fault,
    FaultPlan,
    Hostility,
    LargeOutage,
    Late,
    Outage,
    Slow,
    Stop,
    Storm,
    Unconfirmed,
    draw_gray,
    draw_plan,
)
from thalweg.emulation.virtual.faulty import LOST_IN_A_ROW, STUCK_S, FaultyWorld
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.middleware.core.measuring.silence import Suspicions
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import NET, Link
from thalweg.middleware.planning.registry import RandomMoves
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig, MonitorConfig
from thalweg.middleware.shell.node_code import NodeCode, NodeResult

HOSTS = ("h1", "h2", "h3", "client")
PLACEMENT = {"s": "h1", "o": "h2", "t": "client"}
DATAFLOW = chain(Code("s"), Code("o"), client="client")
MEGABIT = BandwidthTrace.constant("1 Mbit/s", 1e6)
LIMITS = CoreConfig(ping_s=1.0, liveness_s=10.0, lease_s=20.0)
COUNT, BYTES, COMPUTE_S = 12, 25_000, 0.1
STORM = Storm(0.2, 0.3, 0.3, 0.3, 0.5)


class Adding(NodeCode):
    """Code whose value has the index, the number of earlier values, and the inputs."""

    def __init__(self) -> None:
        self.made = 0

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        self.made += 1
        return NodeResult((index, self.made - 1, *inputs), BYTES, COMPUTE_S)

    def snapshot(self) -> bytes:
        return str(self.made).encode().ljust(BYTES)

    def restore(self, state: bytes) -> None:
        self.made = int(state)


class Seen(FaultyWorld):
    """World that keeps its deliveries with their times, and the events of every host."""

    def __init__(
        self,
        *faults: Fault,
        seed: int = 0,
        placement: dict[str, str] | None = None,
        ways: tuple[m.RoutePreference, ...] = (),
        limits: CoreConfig = LIMITS,
        control_bytes: int | None = None,
    ) -> None:
        config = WorldConfig("independent", 0.01, core=limits, validate=True, control_bytes=control_bytes)
        links = dict.fromkeys(itertools.permutations(HOSTS, 2), MEGABIT)
        further = {link.via for way in ways for route in way.links for link in route} - {NET}
        links |= {Link(*link, via): MEGABIT for link in list(links) for via in sorted(further)}
        plan = FaultPlan(seed, faults)
        super().__init__(HOSTS, links, lambda node: Adding(), plan, config, digest=True)
        self.values: list[Any] = []
        self.times_s: list[float] = []
        self.told: list[tuple[float, str, e.Event]] = []
        self.on_delivered = self._take
        self.at_placement = placement or PLACEMENT
        self.ways = ways

    def _take(self, partition: e.Deliver, now: float) -> None:
        self.values.append(partition.value)
        self.times_s.append(now)

    def _handle(self, host: Any, event: e.Event) -> None:
        if self.hosts[host.name] is host and host.name not in self.down:
            self.told.append((self.now, host.name, event))
        super()._handle(host, event)

    def go(self, moves: RandomMoves | None = None) -> Seen:
        if moves is not None:
            self.driver = RandomMover(moves, self, HOSTS).on_delivered
        self.run(DATAFLOW, self.at_placement, COUNT)
        return self

    def received(self, host: str, kind: type[m.Message]) -> list[Any]:
        messages = [event.message for name, event in self.heard() if name == host]
        return [message for message in messages if isinstance(message, kind)]

    def heard(self, from_s: float = 0.0, until_s: float = math.inf) -> list[tuple[str, e.MessageReceived]]:
        """Return the messages that arrived in a span of time, with their receivers."""
        came = [(name, event) for at_s, name, event in self.told if from_s <= at_s < until_s]
        return [(name, event) for name, event in came if isinstance(event, e.MessageReceived)]

    def all_delivered(self) -> bool:
        return self.failed is None and self.values == [(i, i, (i, i)) for i in range(COUNT)]


@pytest.fixture(scope="module")
def calm() -> Seen:
    return Seen().go()


# --- plans --------------------------------------------------------------------------------------------


def test_a_seed_draws_the_same_plan_every_time_and_a_plan_survives_json() -> None:
    kinds, for_good = set(), 0
    for seed in range(200):
        plan = draw_plan(seed, HOSTS, 30.0)
        assert plan == draw_plan(seed, HOSTS, 30.0)
        assert msgspec.json.decode(msgspec.json.encode(plan), type=FaultPlan) == plan
        assert plan.hosts() <= set(HOSTS)
        kinds |= {type(fault) for fault in plan.faults}
        for fault in plan.faults:
            if isinstance(fault, Outage) and fault.for_s is None:
                for_good += 1
            assert not isinstance(fault, Outage | Cut) or 0 < (fault.for_s or 1) < 100
    assert 0 < for_good < 30
    assert kinds == {Storm, Outage, Cut, Crash, Stop, Slow, Duplicate, Late, Hostility}


def test_drawn_plans_have_early_crashes_and_late_copies_of_the_install_message() -> None:
    drawn = (draw_plan(seed, HOSTS, 30.0) for seed in range(600))
    plans = [plan.faults for plan in drawn if not plan.lasting]  # in which there are other crashes
    crashes = [fault for faults in plans for fault in faults if isinstance(fault, Crash)]
    early = [
        fault for fault in crashes if fault.at_s <= 0.51 and fault.restart_after_s and fault.restart_after_s <= 1.0
    ]
    assert len(crashes) / 8 < len(early) < len(crashes) / 2
    copies = [fault for faults in plans for fault in faults if isinstance(fault, Duplicate)]
    assert {(copy.source, copy.message, copy.number) for copy in copies} == {("client", "Install", 1)}
    assert len(copies) > len(crashes) / 10


def test_a_plan_that_names_an_unknown_host_is_refused() -> None:
    with pytest.raises(UsageError, match=re.escape("names host 'h9'; the hosts are h1, h2, h3, client")):
        Seen(Cut(("h1", "h9"), 0.0, 1.0))


@pytest.mark.parametrize(
    "fault", ['{"type":"drop","source":"h1","target":"h2","message":"Ping","number":0}', '{"type":"rain"}']
)
def test_a_plan_with_an_invalid_fault_is_refused(fault: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f'{{"seed":1,"faults":[{fault}]}}', type=FaultPlan)


# --- messages -----------------------------------------------------------------------------------------


def test_a_run_without_faults_delivers_all_partitions_and_leaves_no_state(calm: Seen) -> None:
    assert calm.all_delivered()
    assert calm.done == []
    assert not calm.stalled
    assert all(host.core.runs == {} for host in calm.hosts.values())


def test_a_drop_loses_the_named_message_and_no_other_message(calm: Seen) -> None:
    drop = Drop("h1", "h2", "Partition", 3)
    world = Seen(drop).go()
    assert world.all_delivered()
    assert world.done == [drop]
    failed = [(at_s, event) for at_s, _, event in world.told if isinstance(event, e.TransferFailed)]
    (at_s, event), sent_s = failed[0], calm.times_s[1]
    assert isinstance(event.message, m.Partition)
    assert (len(failed), event.message.index) == (1, 2)
    assert sent_s < at_s - STUCK_S < sent_s + 1.0


def test_a_message_may_come_twice_or_late_or_without_being_confirmed(calm: Seen) -> None:
    third = "h1", "h2", "Partition", 3
    faults = Duplicate(*third, 0.05), Delay(*third, 3.0), Unconfirmed(*third)
    twice, late, unsure = (Seen(fault).go() for fault in faults)
    for world in (twice, late, unsure):
        assert world.all_delivered()
    assert [part.index for part in twice.received("h2", m.Partition)].count(2) == 2
    assert late.times_s[1] == calm.times_s[1]
    assert late.times_s[2] == pytest.approx(calm.times_s[2] + 3.0, abs=0.3)
    assert [type(event) for *_, event in unsure.told].count(e.TransferFailed) == 1
    assert unsure.times_s[2] == calm.times_s[2]


def test_the_faults_of_a_storm_can_be_repeated_message_by_message() -> None:
    world = Seen(STORM, seed=3).go(RandomMoves(100, 3))
    again = Seen(*world.done, seed=3).go(RandomMoves(100, 3))
    assert world.all_delivered()
    assert {type(fault) for fault in world.done} == {Drop, Duplicate, Delay, Unconfirmed}
    assert again.log_digest == world.log_digest
    assert Seen(STORM, seed=4).go(RandomMoves(100, 3)).log_digest != world.log_digest


def test_the_simulation_lasts_until_every_late_message_has_come() -> None:
    world = Seen(Late(0.3, 0.05, 60.0), seed=3).go()
    assert world.all_delivered()
    after_s = [fault.after_s for fault in world.done if isinstance(fault, Duplicate)]
    assert 50.0 < max(after_s) <= 60.0
    assert world.now > max(world.times_s) + 50.0
    assert Seen(*world.done, seed=3).go().log_digest == world.log_digest
    stormy = Seen(STORM, Late(1e-9), seed=3).go()  # which takes nothing from the storm's chance
    assert Seen(STORM, seed=3).go().done == stormy.done


def test_a_storm_never_loses_more_than_a_few_messages_in_a_row() -> None:
    world = Seen(Storm(drop=0.9), seed=1).go()
    kind = "client", "h1", "Install"  # all that goes there before the host is given up
    lost = {fault.number for fault in world.done if (fault.source, fault.target, fault.message) == kind}
    spells = [len(list(spell)) for is_lost, spell in itertools.groupby(range(1, 7), lost.__contains__) if is_lost]
    assert max(spells) == LOST_IN_A_ROW


def test_messages_of_a_hostile_host_reach_all_hosts_and_change_nothing(calm: Seen) -> None:
    world = Seen(Hostility("stranger", 0.0, 20.0, 0.02)).go()
    assert world.all_delivered()
    assert world.times_s == pytest.approx(calm.times_s, abs=0.1)
    assert {host for host, event in world.heard() if event.sender == "stranger"} == set(HOSTS)
    assert len([event for _, event in world.heard() if event.sender == "stranger"]) > 900


# --- links --------------------------------------------------------------------------------------------


def test_an_outage_has_a_single_direction(calm: Seen) -> None:
    from_s, for_s = calm.times_s[3], 4.0
    world = Seen(Outage("h2", "client", from_s, for_s)).go()
    assert world.all_delivered()
    ways = {(event.sender, name) for name, event in world.heard(from_s, from_s + for_s)}
    assert ("h2", "client") not in ways
    assert ("client", "h2") in ways


def test_a_bulk_outage_loses_partitions_in_one_direction_and_lets_control_messages_pass(calm: Seen) -> None:
    from_s, for_s = calm.times_s[3], 4.0
    world = Seen(BulkOutage("h1", "h2", from_s, for_s)).go()
    assert world.all_delivered()
    came = [event for name, event in world.heard(from_s + 0.1, from_s + for_s) if (event.sender, name) == ("h1", "h2")]
    assert {type(event.message) for event in came} <= {m.Ping}  # a source asks its consumer nothing else
    asked = [event for name, event in world.heard(from_s, from_s + for_s) if (event.sender, name) == ("h2", "h1")]
    assert {type(event.message) for event in asked} <= {m.Demand, m.Pong}
    both = Seen(BulkOutage("h2", "client", from_s, for_s), BulkOutage("client", "h2", from_s, for_s)).go()
    assert both.all_delivered()
    came = [event for name, event in both.heard(from_s, from_s + for_s) if {event.sender, name} == {"h2", "client"}]
    assert {type(event.message) for event in came} >= {m.Demand, m.Ping, m.Pong}
    assert not [event for event in came if isinstance(event.message, m.Partition)]


def test_a_large_outage_loses_messages_above_the_asked_size(calm: Seen) -> None:
    from_s, for_s = calm.times_s[3], 4.0
    at_limit = Seen(LargeOutage("h1", "h2", from_s, for_s, above_bytes=BYTES)).go()
    assert at_limit.times_s == calm.times_s
    below = Seen(LargeOutage("h1", "h2", from_s, for_s, above_bytes=BYTES - 1)).go()
    assert below.all_delivered()
    assert below.times_s[-1] > calm.times_s[-1] + for_s / 2
    small = Seen(LargeOutage("client", "h2", 0.0, 2.0, above_bytes=0)).go()  # control messages have a size, too
    assert small.all_delivered()
    assert not [event for name, event in small.heard(0.0, 2.0) if (event.sender, name) == ("client", "h2")]


@pytest.mark.parametrize("kind", [BulkOutage, LargeOutage])
def test_a_bulk_or_large_outage_in_a_network_leaves_the_other_network_usable(
    kind: type[BulkOutage | LargeOutage],
) -> None:
    world = Seen(kind("h2", "client", 2.0, via="fast"), ways=WAYS).go()
    assert world.all_delivered()
    over = [via for name, via in carried(world) if name == "client"]
    assert over[0] == "fast" and over[-1] == NET


def test_gray_faults_are_drawn_for_single_links_and_for_all_links_to_or_from_a_host() -> None:
    drawn = [draw_gray(seed, HOSTS, 25.0, ("fast",)) for seed in range(300)]
    assert drawn == [draw_gray(seed, HOSTS, 25.0, ("fast",)) for seed in range(300)]
    faults = [fault for some in drawn for fault in some]
    assert 0.5 < len([some for some in drawn if some]) / 300 < 0.7
    assert {type(fault) for fault in faults} == {BulkOutage, LargeOutage, Outage}
    assert {fault.via for fault in faults} == {"", "fast"}
    alike = Counter((type(fault), fault.at_s, fault.until_s, fault.via, number)
                    for number, some in enumerate(drawn) for fault in some)  # fmt: skip
    assert {*alike.values()} == {1, 2, len(HOSTS) - 1}
    assert min(fault.until_s - fault.at_s for fault in faults) < 1.0
    assert max(fault.until_s - fault.at_s for fault in faults) > 80.0


def test_a_cut_separates_two_groups_of_hosts_in_both_directions(calm: Seen) -> None:
    from_s, for_s = calm.times_s[3], 4.0
    world = Seen(Cut(("h1", "h3"), from_s, for_s)).go()
    assert world.all_delivered()
    over = [{name, event.sender} for name, event in world.heard(from_s, from_s + for_s)]
    assert {"h2", "client"} in over
    assert all(len(pair & {"h1", "h3"}) != 1 for pair in over)


def test_a_host_that_is_cut_off_for_too_long_ends_the_run(calm: Seen) -> None:
    world = Seen(Cut(("h2",), calm.times_s[3], 30.0)).go()
    assert world.failed == "host 'h2', which holds o, has been silent for 10 s"
    assert world.values == calm.values[: len(world.values)]
    assert all(host.core.runs == {} for host in world.hosts.values())


# --- hosts --------------------------------------------------------------------------------------------


def test_a_crashed_host_loses_the_run_and_reports_the_loss_after_a_restart(calm: Seen) -> None:
    at_s = calm.times_s[3] + 0.01
    gone, back = Seen(Crash("h2", at_s)).go(), Seen(Crash("h2", at_s, 2.0)).go()
    assert gone.failed == "host 'h2', which holds o, has been silent for 10 s"
    assert back.failed == "host 'h2', which holds o, no longer knows the run; was its process restarted?"
    assert gone.fallen == back.fallen == {"h2": {"o"}}
    assert gone.at_failure["o"] == back.at_failure["o"] == ("h2", "h2")
    assert (gone.back_s, back.back_s) == ({}, {"h2": at_s + 2.0})
    assert not [event for told_s, name, event in gone.told if name == "h2" and told_s > at_s]
    assert not [event for told_s, name, event in back.told if name == "h2" and at_s < told_s < at_s + 2.0]
    assert m.Pong(run_of("run"), known=False) in back.received("client", m.Pong)


def test_the_run_goes_on_without_a_host_that_holds_nothing(calm: Seen) -> None:
    assert Seen(Crash("h3", calm.times_s[3])).go().all_delivered()
    assert Seen(Crash("h3", calm.times_s[3], 0.5)).go().all_delivered()


def test_a_crash_loses_the_messages_that_a_host_has_still_to_send(calm: Seen) -> None:
    """Two partitions wait for one link. The first partition has left the host when the host crashes."""
    world = Seen(Crash("h1", 1.0))
    source = world.hosts["h1"]
    parts = [m.Partition(run_of("run"), "s", "o", index) for index in (7, 8)]
    for part in parts:
        world._schedule(
            0.95, lambda part: world._send(source, e.Send(run_of("run"), "h2", part, b"", BYTES, True)), part
        )
    world.go()
    late = [part.index for part in world.received("h2", m.Partition) if part.index > 6]
    assert late == [7]


def test_all_hosts_drop_the_run_of_a_client_that_is_gone(calm: Seen) -> None:
    world = Seen(Crash("client", calm.times_s[3] + 0.01, 1.0)).go()
    assert world.values == calm.values[:4]
    assert world.failed is None
    assert not world.stalled
    assert all(host.core.runs == {} and not host.code for host in world.hosts.values())


def test_a_slow_host_computes_longer_until_the_fault_ends(calm: Seen) -> None:
    world = Seen(Slow("h2", 10.0, calm.times_s[3], 5.0), Slow("h2", 2.0, calm.times_s[3], 5.0)).go()
    assert world.all_delivered()
    assert world.times_s[5] - world.times_s[4] > 10 * COMPUTE_S
    assert world.times_s[-1] - world.times_s[-2] == pytest.approx(calm.times_s[-1] - calm.times_s[-2])


# --- what must never be -------------------------------------------------------------------------------


def test_a_node_on_two_hosts_is_found() -> None:
    world = Seen()

    def copy(_: object) -> None:
        run = world.hosts["h3"].core.runs[run_of("run")]
        run.flow.nodes["o"] = world.hosts["h2"].core.runs[run_of("run")].flow.nodes["o"]
        run.directory.locations["o"] = m.Location("o", "h3", 2)
        world._tell((world.hosts["h3"], fired("retry")))

    world._schedule(1.0, copy, None)
    with pytest.raises(AssertionError, match="o is on hosts h3 and h2"):
        world.go()


@pytest.mark.parametrize(("source", "target"), [("h1", "h2"), ("h2", "h1")])
def test_a_link_that_is_cut_for_good_ends_the_run_with_the_names_of_both_hosts(source: str, target: str) -> None:
    world = Seen(Outage(source, target, 0.5)).go()
    assert not world.stalled
    assert world.failed is not None
    assert {source, target} == set(re.findall(r"host '(h\d)'", world.failed))
    assert world.now < 0.5 + LIMITS.liveness_s + LIMITS.lease_s + 15.0


def test_a_run_that_does_not_end_is_reported_as_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Suspicions, "on_waiting", lambda *_, **__: None)
    world = Seen(Outage("h2", "h1", 0.5)).go()
    assert world.stalled
    assert world.failed is None


def no_bulk(*links: tuple[str, str], until_s: float = 1e9, **more: Any) -> Seen:
    """Return a world in which these links lose bulk from second 1 on and carry control messages."""
    return Seen(*[BulkOutage(*link, 1.0, until_s - 1.0) for link in links], **more)


@pytest.mark.parametrize(("source", "target", "node"), [("h1", "h2", "s"), ("h2", "client", "o")])
def test_a_route_that_carries_no_bulk_ends_the_run_with_the_direction(source: str, target: str, node: str) -> None:
    world = no_bulk((source, target)).go()
    assert world.failed is not None
    assert world.failed.startswith(f"node {node!r} on host {source!r}: nothing has got through to host {target!r} for")
    assert world.failed_s is not None
    assert world.failed_s < 1.0 + 20.0


@pytest.mark.parametrize("links", [[("h1", "h2")], [("h1", "h2"), ("h3", "h2")], [("h2", "client")], [("h2", "h1")]])
def test_a_run_with_failover_continues_despite_a_route_that_carries_no_bulk(links: list[tuple[str, str]]) -> None:
    world = no_bulk(*links)
    world.failover = m.Failover(every=4)
    world.go()
    assert [index for index, *_ in world.values] == [*range(COUNT)]
    assert max(later_s - before_s for before_s, later_s in itertools.pairwise(world.times_s)) < 22.0


@pytest.mark.parametrize("for_s", [5.0, 9.0])
def test_a_route_that_carries_bulk_again_in_time_does_not_end_the_run(for_s: float) -> None:
    assert no_bulk(("h1", "h2"), until_s=1.0 + for_s).go().all_delivered()


# --- two networks ---------------------------------------------------------------------------------------

WAYS = (m.RoutePreference("h1", "h2", ("fast", "net")), m.RoutePreference("h2", "client", ("fast", "net")))


def carried(world: Seen) -> list[tuple[str, str]]:
    """Return the receiver and the network of every partition."""
    came = [(name, event) for name, event in world.heard() if isinstance(event.message, m.Partition)]
    return [(name, NET if event.via is UNSET else event.via) for name, event in came if not event.message.end]


def test_partitions_take_the_network_that_the_client_prefers() -> None:
    world = Seen(ways=WAYS).go()
    assert world.all_delivered()
    over = [via for _, via in carried(world)]
    assert over[:1] == [NET] or "fast" in over[:4]  # until the client's word was heard
    assert set(over[6:]) == {"fast"}


def test_a_link_that_dies_under_a_partition_is_left_for_the_other_network() -> None:
    world = Seen(Outage("h2", "client", 2.0, via="fast"), ways=WAYS).go()
    assert world.all_delivered()
    over = [via for name, via in carried(world) if name == "client"]
    assert over[0] == "fast" and over[-1] == NET and set(over) == {"fast", NET}
    assert {via for name, via in carried(world)[6:] if name == "h2"} == {"fast"}


def test_a_recovered_link_is_used_again() -> None:
    limits = msgspec.structs.replace(LIMITS, monitor=MonitorConfig(max_age_s=1.5))
    world = Seen(Outage("h2", "client", 1.0, 1.0, via="fast"), ways=WAYS, limits=limits).go()
    assert world.all_delivered()
    over = [via for name, via in carried(world) if name == "client"]
    assert over[-1] == "fast" and NET in over[1:-1]


@pytest.mark.parametrize("seed", [*range(20), 76, 92])
def test_partitions_stay_complete_and_in_order_under_outages_of_either_network(seed: int) -> None:
    dice = Random(seed)
    faults: list[Fault] = [STORM] if seed % 4 == 0 else []
    for _ in range(dice.randint(1, 4)):
        link, via = dice.choice((("h1", "h2"), ("h2", "client"), ("client", "h2"))), dice.choice((NET, "fast"))
        lasts_s = dice.uniform(0.3, 2.4) if via == NET else None if dice.random() < 0.3 else dice.uniform(0.5, 8.0)
        faults.append(Outage(*link, dice.uniform(0.1, 6.0), lasts_s, via))
    over = [("fast", NET), (NET, "fast")]
    ways = tuple(m.RoutePreference(*link, dice.choice(over)) for link in (("h1", "h2"), ("h2", "client")))
    moves = RandomMoves(3, seed) if seed % 3 == 0 else None
    world = Seen(*faults, seed=seed, ways=ways).go(moves)
    assert world.all_delivered(), (faults, ways, world.failed)


# --- relays ---------------------------------------------------------------------------------------------

BY_H3 = m.LinkEnd("h3", "fast"), m.LinkEnd("h2", "fast")
TO_CLIENT = m.LinkEnd("h3", "fast"), m.LinkEnd("h1", "fast"), m.LinkEnd("client", "fast")
RELAYED = (m.RoutePreference("h1", "h2", (BY_H3, "net")), m.RoutePreference("h2", "client", (TO_CLIENT, "net")))


def passed_on(world: Seen, from_s: float = 0.0, until_s: float = math.inf) -> list[str]:
    """Return the relays that were notified of the arrival of messages that they had passed on."""
    return [name for at_s, name, event in world.told if isinstance(event, e.Relayed) and from_s <= at_s < until_s]


def test_relays_pass_partitions_on_along_the_route_that_the_client_prefers() -> None:
    world = Seen(ways=RELAYED).go()
    assert world.all_delivered()
    count = Counter(passed_on(world))
    assert count["h3"] >= 2 * (COUNT - 6) and count["h1"] >= COUNT - 6 and count.keys() == {"h1", "h3"}
    came = [event.sender for name, event in world.heard() if type(event.message) is m.Partition and name == "client"]
    assert {*came} == {"h2"}  # whoever passed it on


@pytest.mark.parametrize("at", range(3))
def test_a_relayed_route_is_left_when_a_link_dies_under_a_partition(at: int) -> None:
    links = RELAYED[1].links[0]
    world = Seen(Outage(*links[at].hosts, 2.0, via="fast"), ways=RELAYED).go()
    assert world.all_delivered()
    sent = [event for name, event in world.heard() if name == "client" and type(event.message) is m.Partition]
    assert {event.sender for event in sent} == {"h2"}
    assert "h1" in passed_on(world, until_s=2.0) and passed_on(world, from_s=10.0).count("h1") == 0


@pytest.mark.parametrize("back_s", [None, 1.0, 4.0])
def test_a_run_survives_the_crash_of_a_relay(back_s: float | None) -> None:
    ways = (m.RoutePreference("h1", "h2", (BY_H3, "net")),)
    world = Seen(Crash("h3", 2.0, back_s), ways=ways).go()
    assert world.all_delivered(), (world.failed, world.stalled)


@pytest.mark.parametrize("seed", [*range(20), 596])
def test_partitions_stay_complete_and_in_order_under_outages_of_relayed_routes(seed: int) -> None:
    dice = Random(f"{seed} relays")
    faults: list[Fault] = [STORM] if seed % 4 == 0 else []
    links = [link for way in RELAYED for link in way.links[0]]
    for _ in range(dice.randint(1, 4)):
        link, via = dice.choice(links).hosts, dice.choice((NET, "fast", "fast"))
        lasts_s = dice.uniform(0.3, 2.4) if via == NET else None if dice.random() < 0.3 else dice.uniform(0.5, 8.0)
        faults.append(Outage(*link, dice.uniform(0.1, 6.0), lasts_s, via))
    over = [(way.over[0], NET, "fast") for way in RELAYED]
    ways = tuple(
        m.RoutePreference(way.source, way.target, tuple(dice.sample(routes, 3)))
        for way, routes in zip(RELAYED, over, strict=True)
    )
    moves = RandomMoves(3, seed) if seed % 3 == 0 else None
    world = Seen(*faults, seed=seed, ways=ways).go(moves)
    assert world.all_delivered(), (faults, ways, world.failed)


def test_faults_distinguish_only_bulk_and_control_if_control_messages_have_a_fixed_size() -> None:
    """The faults of a storm name the messages ``bulk`` or ``control``. A plan with these faults repeats the storm."""
    seen = Seen(STORM, control_bytes=200).go(RandomMoves(5, 1))
    assert {fault.message for fault in seen.done} == {"bulk", "control"} and seen.all_delivered()
    again = Seen(*seen.done, control_bytes=200).go(RandomMoves(5, 1))
    assert (again.done, again.times_s) == (seen.done, seen.times_s)
