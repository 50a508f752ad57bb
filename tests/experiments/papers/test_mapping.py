"""Mapping by messages, reservations, and the allocation of links: conversations, and plans of faults."""

from __future__ import annotations

import heapq
import itertools
import math
import os
import random

import msgspec
import pytest

from thalweg.experiments.papers.asaduzzaman2010.mapping.agent import Agent, agents
from thalweg.experiments.papers.asaduzzaman2010.mapping.messages import (
    CONTROL,
    DEDICATED,
    PUBLIC,
    Ack,
    FinishedMap,
    Map,
    Message,
    Renew,
    ReservationProbe,
    Rollback,
    TaskOutcome,
    Transmit,
)
from thalweg.experiments.papers.asaduzzaman2010.mapping.reallocation import OutgoingFlow, reallocate
from thalweg.experiments.papers.asaduzzaman2010.mapping.rules import Rules
from thalweg.experiments.papers.asaduzzaman2010.mapping.task import (
    HOST_LIMIT,
    SINK,
    Dedicated,
    MappingTask,
    Platform,
    Server,
)
from thalweg.middleware.errors import UsageError

PLANS = int(os.environ.get("THALWEG_MAPPING_PLANS", "60"))
NO_WAIT = Rules(ordered=False)


def task(*services: int, source: int = 0, sink: int = 2, rate: float = 1.0, **more: float) -> MappingTask:
    count = len(services)
    return MappingTask(7, source, sink, services, (1.0,) * count, (rate,) * (count + 1), **more)


def line(*services: set[int], rate: float = 10.0, capacity: float = 10.0, uplink: float = 0.0) -> Platform:
    """Return hosts in a row, each with these services and a link to the next host."""
    links = tuple(Dedicated(at, at + 1, rate) for at in range(len(services) - 1))
    return Platform(tuple(Server(capacity, frozenset(service_set), uplink, uplink) for service_set in services), links)


class Talk:
    """Hosts that receive messages in the order of sending. ``said`` has all messages with sender and receiver."""

    def __init__(self, platform: Platform, rules: Rules = NO_WAIT) -> None:
        self.hosts = agents(platform, rules)
        self.said: list[tuple[int, int, Message]] = []
        self._waiting: list[tuple[int, int, Message]] = []

    def post(self, sender: int, sends: list[Transmit]) -> None:
        for send in sends:
            self.said.append((sender, send.to, send.message))
            self._waiting.append((sender, send.to, send.message))

    def settle(self, now: float = 0.0, kinds: type[Message] | None = None) -> None:
        for _ in range(100_000):
            if not self._waiting:
                return
            _, to, message = self._waiting.pop(0)
            self.post(to, self.hosts[to].handle(message, now))
        raise AssertionError("it does not end")

    def mapped(self, one: MappingTask) -> list[TaskOutcome]:
        self.post(one.sink, self.hosts[one.sink].begin(one, 0.0))
        self.settle()
        return [note for host in self.hosts for note in host.notes]

    def maps(self) -> list[tuple[int, int, Map]]:
        return [(sender, to, one) for sender, to, one in self.said if isinstance(one, Map)]


def found(notes: list[TaskOutcome]) -> FinishedMap | None:
    return next((note.found for note in notes if note.state == "running"), None)


def legs(one: FinishedMap | None) -> list[tuple[int, int, str]]:
    """Return for each leg its host, its number of components and the network over which it sends."""
    assert one is not None
    return [(leg.host, leg.placed - leg.first, leg.via) for leg in one.legs]


def test_a_task_is_mapped_reserved_and_released() -> None:
    talk = Talk(line({1}, set(), {2}))
    notes = talk.mapped(task(1, 2))
    assert [note.state for note in notes] == ["running", "mapped", "admitted"]
    assert legs(found(notes)) == [(0, 1, DEDICATED), (1, 0, DEDICATED), (2, 1, CONTROL)]
    assert [host.resources.used for host in talk.hosts] == [1, 0, 1]
    assert talk.hosts[0].resources.free_bps[1] == talk.hosts[1].resources.free_bps[2] == 9
    talk.post(0, talk.hosts[0].end(7, 1.0))
    talk.settle()
    assert all(not host.resources.held and not host.resources.used for host in talk.hosts)
    assert talk.hosts[0].resources.free_bps[1] == 10


def test_the_end_of_mapping_is_detected_by_answers() -> None:
    """Every map is answered once, by number.

    The sender that made a host busy gets the last answer, which is final.
    """
    talk = Talk(line({1}, {1, 2}, {2}, {3}))
    talk.mapped(task(1, 2, 3, sink=3))
    asked = {(sender, to, message.number) for sender, to, message in talk.maps()}
    answers = [(to, sender, message.number) for sender, to, message in talk.said if isinstance(message, Ack)]
    assert len(asked) == len(talk.maps()) == len(answers)
    assert asked == set(answers)
    finals = [sender for sender, _, message in talk.said if isinstance(message, Ack) and message.final]
    assert {0, 1, 2} <= set(finals)
    last = max(at for at, (_, _, message) in enumerate(talk.said) if isinstance(message, Ack))
    assert talk.said[last][:2] == (0, 3)  # the source answers the sink
    assert not talk.hosts[3].manager.tasks


def test_the_specification_is_sent_once_to_a_busy_neighbour() -> None:
    talk = Talk(line({1, 2}, {1, 2, 3}, {3}))
    talk.mapped(task(1, 2, 3))
    before: dict[tuple[int, int], bool] = {}
    for sender, to, message in talk.said:
        if isinstance(message, Map):
            assert (message.spec is not None) != before.get((sender, to), False)
            before[sender, to] = True
        elif isinstance(message, Ack) and message.final:
            before[to, sender] = False


def test_a_map_without_a_known_specification_gets_a_final_answer() -> None:
    host = agents(line({1}, {2}), NO_WAIT)[1]
    (send,) = host.handle(Map(7, 0, 4, DEDICATED, None, None), 0.0)
    assert send == Transmit(0, DEDICATED, 0.0, Ack(7, 1, 4, DEDICATED, True))


def test_a_message_that_arrives_twice_counts_once() -> None:
    host = agents(line({1}, {2}, {3}), NO_WAIT)[1]
    first = Map(7, 0, 1, DEDICATED, None, task(2, 3))
    assert len(host.handle(first, 0.0)) > 0
    assert host.handle(first, 0.0) == []
    assert host.handle(Ack(7, 2, 99, DEDICATED, False), 0.0) == []


def test_every_component_needs_a_host_with_the_service() -> None:
    """Host 1 has the first and the third service, not the second: no map has all three there."""
    assert found(Talk(line(set(), {1, 3}, set())).mapped(task(1, 2, 3))) is None
    mapped = legs(found(Talk(line(set(), {1, 2, 3}, set())).mapped(task(1, 2, 3))))
    assert mapped == [(0, 0, DEDICATED), (1, 3, DEDICATED), (2, 0, CONTROL)]


def test_all_components_of_a_map_on_a_host_fit_within_the_capacity() -> None:
    """The first platforms have no room for all components that a map would place on a host."""
    assert found(Talk(line({1, 2, 3}, set(), set(), capacity=2)).mapped(task(1, 2, 3))) is None
    assert found(Talk(line({1, 3}, {2}, set(), capacity=1)).mapped(task(1, 2, 3))) is None
    assert found(Talk(line({1, 3}, {2}, set(), capacity=2)).mapped(task(1, 2, 3))) is not None


def test_a_host_without_capacity_refuses_even_the_smallest_need() -> None:
    """An agent may get tasks that are not checked."""
    little = msgspec.structs.replace(task(1), needs=(1e-12,))
    assert found(Talk(line(set(), {1}, set(), capacity=0)).mapped(little)) is None
    assert found(Talk(line(set(), {1}, set(), capacity=1e-11)).mapped(little)) is not None


@pytest.mark.parametrize(("rate", "fits"), [(1.9, False), (2.0, True)])
def test_two_edges_on_a_link_need_the_sum_of_both_rates(rate: float, fits: bool) -> None:
    """The data goes from host 0 to 1, back to 0, and through 1 once more."""
    notes = Talk(line({2}, {1}, set(), rate=rate)).mapped(task(1, 2))
    assert (found(notes) is not None) == fits


@pytest.mark.parametrize(("budget", "fits"), [(1.0, False), (2.0, True)])
def test_an_edge_goes_through_as_many_hosts_as_the_budget_pays_for(budget: float, fits: bool) -> None:
    notes = Talk(line({1}, set(), set(), {2})).mapped(task(1, 2, sink=3, budget=budget))
    assert (found(notes) is not None) == fits


def test_the_public_network_leads_from_a_placed_component_to_a_host_of_the_next_service() -> None:
    apart = msgspec.structs.replace(line({1}, {2}, set(), {3}, uplink=1.0), links=())
    talk = Talk(apart)
    mapped = legs(found(talk.mapped(task(1, 2))))
    assert mapped == [(0, 1, PUBLIC), (1, 1, PUBLIC), (2, 0, CONTROL)]
    assert not [to for _, to, _ in talk.maps() if to == 3]
    assert talk.hosts[0].resources.uplink_bps == 0  # and the next task finds no uplink
    second = msgspec.structs.replace(task(1, 2), number=8)
    talk.post(2, talk.hosts[2].begin(second, 1.0))
    talk.settle()
    assert [note.state for note in talk.hosts[2].notes][-1] == "rejected"
    assert found(Talk(apart).mapped(task(2, 1))) is None  # nothing was placed at the source
    alone = msgspec.structs.replace(apart.servers[2], uplink_bps=0.0, downlink_bps=0.0)
    apart = msgspec.structs.replace(apart, servers=(*apart.servers[:2], alone, apart.servers[3]))
    assert found(Talk(apart).mapped(task(1, 2))) is None  # the sink is not on it


def test_the_cost_decides_between_networks_and_hosts() -> None:
    """Two dedicated links over host 1 join the ends, and the public network too. Both ends have the services."""
    links = (Dedicated(0, 1, 9.0), Dedicated(1, 2, 9.0))
    hosts = tuple(Server(10.0, frozenset(services), 9.0, 9.0) for services in ({1}, set[int](), {2}))
    both = Platform(hosts, links)
    assert [leg[2] for leg in legs(found(Talk(both).mapped(task(1, 2))))][:1] == [DEDICATED]
    short = Platform(hosts, links[:1])
    assert [leg[2] for leg in legs(found(Talk(short).mapped(task(1, 2))))][:1] == [PUBLIC]
    many = Platform(tuple(Server(10.0, frozenset({1, 2})) for _ in range(4)), (*links, Dedicated(0, 2, 9.0)))
    papers = msgspec.structs.replace(NO_WAIT, cost="balanced")
    assert len(legs(found(Talk(many).mapped(task(1, 2))))) == 2  # fewer hops
    assert len(legs(found(Talk(many, papers).mapped(task(1, 2))))) > 2  # less load, more hops


def test_stronger_pruning_sends_fewer_maps() -> None:
    """Exact pruning sends most maps, then annealed, then least-cost. A single random neighbour gets fewest."""
    ring = Platform(
        tuple(Server(4.0, frozenset(range(4))) for _ in range(6)),
        tuple(
            Dedicated(a, b, 9.0, cost=1.0 + (a * b) % 3) for a, b in itertools.combinations(range(6), 2) if b - a < 3
        ),
    )
    sent = {}
    for pruning in ("exact", "annealed", "least-cost", "random-neighbor"):
        rules = msgspec.structs.replace(NO_WAIT, cost="links", pruning=pruning, limit=300)
        talk = Talk(ring, rules)
        talk.mapped(task(0, 1, sink=5, budget=1.0))
        sent[pruning] = len(talk.maps())
    assert sent["exact"] > sent["annealed"] >= sent["least-cost"] > sent["random-neighbor"]


def test_a_failed_reservation_is_rolled_back_and_the_next_map_is_tried() -> None:
    """Host 1 or 3 can run the component. While the probe is under way, host 1 becomes full."""
    links = tuple(Dedicated(a, b, 9.0, cost=a + b) for a, b in ((0, 1), (1, 2), (0, 3), (3, 2)))
    hosts = tuple(Server(1.0, frozenset(item)) for item in (set[int](), {1}, set[int](), {1}))
    talk = Talk(Platform(hosts, links), msgspec.structs.replace(NO_WAIT, cost="links"))
    assert talk.hosts[1].resources.take((99, 0), 0, 1.0, (), 1e9, None)
    talk.hosts[1].resources.used = 0.0  # hosts believed it free while they mapped
    talk.post(2, talk.hosts[2].begin(task(1), 0.0))
    while not any(isinstance(item, ReservationProbe) for _, _, item in talk.said):
        _, to, message = talk._waiting.pop(0)
        talk.post(to, talk.hosts[to].handle(message, 0.0))
    talk.hosts[1].resources.used = 1.0
    talk.settle()
    notes = [note for host in talk.hosts for note in host.notes]
    assert any(isinstance(item, Rollback) for _, _, item in talk.said)
    assert [leg[0] for leg in legs(found(notes))] == [0, 3, 2]
    assert [key for host in talk.hosts for key in host.resources.held if key == (7, 0)] == []


def test_leases_time_out_and_a_renewal_reserves_again() -> None:
    talk = Talk(line({1}, {2}, set()))
    talk.mapped(task(1, 2))
    lease_s = NO_WAIT.lease_s
    talk.hosts[1].resources.release((7, 0))
    talk.post(0, talk.hosts[0].tick(lease_s / 3))  # renews
    talk.settle(lease_s / 3)
    assert talk.hosts[1].resources.used == 1
    talk.hosts[1].tick(lease_s * 1.4)  # was not renewed since
    assert talk.hosts[1].resources.used == 0
    talk.post(0, talk.hosts[0].tick(lease_s * 1.5))  # nor has the source been answered
    talk.settle(lease_s * 1.5)
    assert talk.hosts[0].notes[-1].state == "ended"
    assert not any(host.resources.held for host in talk.hosts)
    late = next(message for _, _, message in talk.said if isinstance(message, Renew))
    talk.post(0, talk.hosts[1].handle(late, 100.0))
    talk.settle(100.0)
    assert not talk.hosts[0].resources.held  # late renewals bring nothing back


def test_a_host_lost_between_mapping_and_reservation_leaves_nothing_reserved() -> None:
    """The sink's probe gets no answer. Without another map the sink gives up and releases its reservation."""
    talk = Talk(line({1}, set(), {2}))
    talk.post(2, talk.hosts[2].begin(task(1, 2), 0.0))
    while not any(note.state == "mapped" for note in talk.hosts[2].notes):
        _, to, message = talk._waiting.pop(0)
        talk.post(to, talk.hosts[to].handle(message, 0.0))
    talk._waiting = [(sender, to, pending) for sender, to, pending in talk._waiting if to != 1]  # it has gone
    talk.settle()
    assert talk.hosts[2].resources.used == 1
    talk.post(2, talk.hosts[2].tick(NO_WAIT.probe_s))
    assert [note.state for note in talk.hosts[2].notes] == ["mapped", "rejected"]
    assert not talk.hosts[2].resources.held
    assert not talk.hosts[0].resources.held


def test_a_cut_link_ends_the_task_that_uses_the_link() -> None:
    talk = Talk(line({1}, {2}, set()))
    talk.mapped(task(1, 2))
    talk.post(1, talk.hosts[1].cut(2))
    talk.settle(1.0)
    assert talk.hosts[0].notes[-1].state == "ended"
    assert not any(host.resources.held for host in talk.hosts)


def test_the_priority_of_a_flow_decides_about_the_direct_link() -> None:
    """The priority is the price times the rate needed in the next period.

    A flow that may be relayed searches for a route.
    """
    flows = [
        OutgoingFlow(1, 5, 1.0, 0.0, "direct", 2),
        OutgoingFlow(2, 5, 1.0, 60.0, "public", 0),
        OutgoingFlow(3, 5, 1.0, 30.0, "public", 2),
        OutgoingFlow(4, 6, 1.0, 0.0, "relayed", 1),
        OutgoingFlow(5, 6, 1.0, 99.0, "public", 0),
    ]
    assert reallocate(flows, {5: 1.0}, 60.0) == {1: "search", 2: "direct", 3: "search", 4: "relayed", 5: "public"}
    paid = [*flows[:2], msgspec.structs.replace(flows[2], price=2.0)]
    assert reallocate(paid, {5: 2.0}, 60.0) == {1: "search", 2: "direct", 3: "direct"}
    calm = [msgspec.structs.replace(flow, behind_bits=0.0) for flow in flows[:2]]
    assert reallocate(calm[::-1], {5: 1.0}, 60.0) == {1: "direct", 2: "public"}  # who is on it stays


def test_the_services_of_hosts_spread_by_gossip() -> None:
    """Hosts know only their neighbours at first. Changes, and the services of a restarted host, spread too."""
    platform = line({1}, {2}, {3}, {4}, uplink=1.0)
    talk = Talk(platform)
    talk.hosts = agents(platform, NO_WAIT, strangers=True)

    def gossip(*seconds: int) -> None:
        for second in seconds:
            for host in talk.hosts:
                talk.post(host.host, host.tick(second * NO_WAIT.gossip_s))
            talk.settle()

    assert talk.hosts[0].directory.having(4) == ()
    gossip(*range(1, 7))
    assert [host.directory.having(4) for host in talk.hosts] == [(3,)] * 4
    assert talk.hosts[2].directory.having(SINK) == (0, 1, 2, 3)
    talk.hosts[3].directory.serve(frozenset({1}))
    gossip(*range(7, 13))
    assert [host.directory.having(4) for host in talk.hosts] == [()] * 4
    assert [host.directory.having(1) for host in talk.hosts] == [(0, 3)] * 4
    talk.hosts[3] = agents(platform, NO_WAIT, strangers=True)[3]  # it has service 4 again, and no memory
    gossip(*range(13, 25))
    assert [host.directory.having(4) for host in talk.hosts] == [(3,)] * 4
    sent = len(talk.said)
    gossip(25)
    assert len(talk.said) == sent + 4  # what is known is not answered


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sink": 0}, "task 7 has its source and its sink on host 0"),
        ({"budget": 0.5}, "the budget of task 7, 0.5 a byte, is below one hop's, 1"),
        ({"budget": math.inf}, "task 7 has budget inf, forwarding 1; give finite prices"),
        ({"services": (9, 9)}, "task 7 needs service 9, which no host has"),
        ({"sink": 9}, "task 7 names host 9; there are 0 to 2"),
        ({"needs": (1.0, -1.0)}, "task 7 has a need of -1; it must be above 0"),
        ({"rates_bps": (1.0,)}, "task 7 needs a component or more, a need for each component, and one rate more"),
    ],
)
def test_invalid_tasks_are_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        line({1}, {2}, set()).check(msgspec.structs.replace(task(1, 2), **given))


@pytest.mark.parametrize("prices", [(math.inf, 1.0), (1e300, 1e-300)])
def test_no_budget_pays_for_more_hosts_than_the_limit(prices: tuple[float, float]) -> None:
    """An agent may get tasks that are not checked."""
    budget, forwarding = prices
    assert msgspec.structs.replace(task(1, 2), budget=budget, forwarding=forwarding).most_empty == HOST_LIMIT
    notes = Talk(line({1}, set(), {2})).mapped(task(1, 2, budget=budget))
    assert found(notes) is not None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lease_s": 0.0}, "lease_s of mapping is 0; it must be above 0"),
        ({"neighbours": 0}, "neighbours of mapping is 0"),
        ({"extend": 1.5}, "extend of mapping is 1.5; it is a chance"),
        ({"cost": "frugl"}, "cost of mapping is 'frugl'; .*frugal"),
        ({"pruning": "none"}, "pruning of mapping is 'none'"),
    ],
)
def test_invalid_rules_are_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        agents(line({1}, {2}), msgspec.structs.replace(NO_WAIT, **given))


@pytest.mark.parametrize(
    ("links", "says"),
    [
        ((Dedicated(0, 1, 0.0),), "the dedicated link 0 - 1 has the rate 0; say how many bits"),
        ((Dedicated(0, 1, 1.0), Dedicated(1, 0, 2.0)), "the dedicated link 1 - 0 is there twice"),
        ((Dedicated(0, 7, 1.0),), "the dedicated link 0 - 7 does not join two hosts of 0 to 2"),
        ((Dedicated(1, 1, 1.0),), "the dedicated link 1 - 1 does not join"),
    ],
)
def test_invalid_platforms_are_refused(links: tuple[Dedicated, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        agents(msgspec.structs.replace(line({1}, {2}, set()), links=links), NO_WAIT)


# --- plans of faults --------------------------------------------------------------------------------

HARSH = Rules(patience_s=5.0, lease_s=6.0, probe_s=2.0, attempts=4, gossip_s=1.0)
COMING_S, FAULTS_S, OVER_S = 15.0, 40.0, 60.0
END_S = OVER_S + 3 * HARSH.lease_s + 2 * HARSH.patience_s + HARSH.attempts * HARSH.probe_s


class Storm:
    """Small platform with seeded faults: messages are lost, doubled and late, hosts leave, and links are cut."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)
        draw = self.random
        count = draw.randint(4, 9)
        services = [frozenset(draw.sample(range(5), draw.randint(1, 3))) for _ in range(count)]
        links = [Dedicated(draw.randrange(at), at, draw.uniform(1, 4), 0.01) for at in range(1, count)]
        servers = tuple(Server(draw.randint(1, 4), one, draw.choice((0.0, 1.5)), 2.0) for one in services)
        self.platform = Platform(servers, tuple(links))
        self.hosts = agents(self.platform, HARSH, seed, strangers=True)
        self.whole = [dict(host.resources.free_bps) for host in self.hosts]
        self.loss, self.doubled, self.late = (draw.choice((0.0, 0.02, 0.3)) for _ in range(3))
        self.gone: set[int] = set()
        self.cut: set[tuple[int, int]] = set()
        self.now, self.number = 0.0, itertools.count()
        self.queue: list[tuple[float, int, object]] = []
        self.mapped: list[int] = []
        self.rejected: set[int] = set()
        self.ever_gone: set[int] = set()
        tasks = [self.task(number) for number in range(draw.randint(1, 6))]
        self.tasks = {one.number: one for one in tasks}
        for one in tasks:
            self.put(draw.uniform(0, COMING_S), one)
            self.put(OVER_S, ("end", one))
        for _ in range(draw.choice((0, 1, 2))):
            self.put(draw.uniform(0, FAULTS_S), ("gone", draw.randrange(count), draw.choice((None, 3.0))))
        if draw.random() < 0.5:
            link = draw.choice(links)
            self.put(draw.uniform(0, FAULTS_S), ("cut", link.one, link.other))
        for _ in range(draw.choice((0, 1, 2))):
            changed = frozenset(draw.sample(range(5), draw.randint(1, 3)))
            self.put(draw.uniform(0, FAULTS_S), ("serve", draw.randrange(count), changed))
        for second in range(int(END_S)):
            self.put(second + 0.5, "tick")

    def task(self, number: int) -> MappingTask:
        source, sink = self.random.sample(range(len(self.hosts)), 2)
        services = tuple(self.random.choices(range(5), k=self.random.randint(1, 4)))
        rates = tuple(self.random.uniform(0.3, 1.5) for _ in range(len(services) + 1))
        return MappingTask(number, source, sink, services, (1.0,) * len(services), rates)

    def put(self, at_s: float, what: object) -> None:
        heapq.heappush(self.queue, (at_s, next(self.number), what))

    def post(self, sender: int, sends: list[Transmit]) -> None:
        harm = self.now < FAULTS_S
        for send in sends:
            pair = min(sender, send.to), max(sender, send.to)
            if (harm and self.random.random() < self.loss) or (send.via == DEDICATED and pair in self.cut):
                continue
            for _ in range(2 if harm and self.random.random() < self.doubled else 1):
                late_s = self.random.uniform(0, 4.0) if harm and self.random.random() < self.late else 0.0
                delay_s = send.wait_s + late_s + self.random.uniform(0.005, 0.05)
                self.put(self.now + delay_s, (send.to, send.message))

    def run(self) -> None:
        while self.queue:
            self.now, _, what = heapq.heappop(self.queue)
            match what:
                case "tick":
                    for host in self.living():
                        self.post(host.host, host.tick(self.now))
                    self.look()
                case MappingTask():
                    if what.sink not in self.gone:
                        self.post(what.sink, self.hosts[what.sink].begin(what, self.now))
                case ("end", MappingTask() as one):
                    if one.source not in self.gone:
                        self.post(one.source, self.hosts[one.source].end(one.number, self.now))
                case ("gone", int(host), back_s):
                    self.gone.add(host)
                    self.ever_gone.add(host)
                    if back_s is not None:
                        self.put(self.now + back_s, ("back", host))
                case ("serve", int(host), frozenset() as services):
                    self.hosts[host].directory.serve(services)
                case ("back", int(host)):
                    self.gone.discard(host)
                    self.hosts[host] = agents(self.platform, HARSH, self.seed, strangers=True)[host]
                    for one, other in self.cut:
                        if host in (one, other):
                            self.hosts[host].cut(one + other - host)
                case ("cut", int(one), int(other)):
                    self.cut.add((min(one, other), max(one, other)))
                    for host, to in ((one, other), (other, one)):
                        if host not in self.gone:
                            self.post(host, self.hosts[host].cut(to))
                case (int(to), message):
                    if to not in self.gone:
                        self.post(to, self.hosts[to].handle(message, self.now))
            for host in self.living():
                self.mapped += [note.task for note in host.notes if note.state == "mapped"]
                self.rejected |= {note.task for note in host.notes if note.state == "rejected"}
                host.notes.clear()

    def living(self) -> list[Agent]:
        return [host for host in self.hosts if host.host not in self.gone]

    def look(self) -> None:
        """Assert that no host holds more than its capacity, or longer than a lease."""
        for host in self.living():
            resources = host.resources
            assert resources.used <= resources.capacity + 1e-6
            assert min(resources.free_bps.values(), default=0.0) >= -1e-6
            assert resources.uplink_bps >= -1e-6
            assert all(held.until_s <= self.now + HARSH.lease_s for held in resources.held.values())
        if FAULTS_S + 2 * HARSH.lease_s + 5 < self.now < OVER_S:  # all that was lost has been noticed
            self.whole_or_nothing()

    def whole_or_nothing(self) -> None:
        """Assert that exactly the hosts on the route of a running task hold its reservations."""
        running = {
            (number, one.legs): {leg.host for leg in one.legs}
            for host in self.living()
            for number, one in host.reservations.running.items()
        }
        needed = {(number, host) for (number, _), hosts in running.items() for host in hosts}
        held = {(key[0], host.host) for host in self.living() for key in host.resources.held}
        assert needed == held
        assert not self.rejected & {number for number, _ in running}


@pytest.mark.parametrize("seed", range(PLANS))
def test_nothing_stays_reserved_after_random_faults(seed: int) -> None:
    """Mapping ends, nothing is held beyond its lease, and no task is half admitted.

    ``THALWEG_MAPPING_PLANS=1000`` runs more plans.
    """
    storm = Storm(seed)
    storm.run()
    sinks = [number for number, item in storm.tasks.items() if item.sink not in storm.ever_gone]
    assert sorted(set(storm.mapped) & set(sinks)) == sinks
    assert all(storm.mapped.count(number) == 1 for number in sinks)
    living = {host.host: host.directory.services for host in storm.living()}
    for host in storm.living():
        known = {item.host: item.services for item in host.directory.entries if item.host in living}
        assert known == {number: living[number] for number in known}
        assert len(known) == len(living) or storm.gone  # who alone was between two of them
        assert not host.resources.held
        assert host.resources.used == 0
        assert not host.manager.tasks
        assert not host.reservations.running
        uncut = {
            to: rate
            for to, rate in storm.whole[host.host].items()
            if (min(host.host, to), max(host.host, to)) not in storm.cut
        }
        assert host.resources.free_bps == pytest.approx(uncut)
        assert host.resources.uplink_bps == pytest.approx(storm.platform.servers[host.host].uplink_bps)
