"""A stream over several trees in virtual time: in order, once each, faster where links are independent."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
import pytest

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual import faulty
from thalweg.emulation.virtual.config import Striped, WorldConfig
from thalweg.emulation.virtual.faults import Crash, Cut, Fault, FaultPlan, Outage, Slow, Stop, Storm
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.emulation.virtual.links import LinkRate, ShapedLink
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.middleware.core.host import HostCore
from thalweg.middleware.dataflow import Code, Dataflow, Node, Reorderable
from thalweg.middleware.network.view import Link, links_between
from thalweg.middleware.planning.registry import Driver, RandomMoves, RandomReshapes
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.stripes import WINDOW
from thalweg.middleware.shell.node_code import Made, NodeCode

RESHAPES = int(os.environ.get("THALWEG_STRIPES", "16"))
PLANS = int(os.environ.get("THALWEG_STRIPES_PLANS", "8"))
HOSTS = ("h1", "h2", "h3", "h4", "client")
CODE = Code("composite")
SIZE = 10_000


class Says(NodeCode):
    """Code whose value says its index, and how many sources went into it."""

    reorderable = True

    def __init__(self, length: float = math.inf) -> None:
        self.length = length

    def make(self, index: int, inputs: tuple[Any, ...]) -> Made:
        if index >= self.length:
            return Made(None, 0, 0.0, True)
        assert all(each[0] == index for each in inputs), (index, inputs)
        return Made((index, sum(each[1] for each in inputs) or 1), SIZE, 0.0)


def relay(via: str) -> tuple[Dataflow, dict[str, str]]:
    """Two sources on h1 and h2, combined on ``via``."""
    sources = [Node(name, "source", (), CODE, host) for name, host in (("s1", "h1"), ("s2", "h2"))]
    flow = Dataflow((*sources, Node("o", "operator", ("s1", "s2"), CODE), Node("t", "sink", ("o",), None, "client")))
    return flow, {"s1": "h1", "s2": "h2", "o": via, "t": "client"}


def wide(seed: int) -> tuple[Dataflow, dict[str, str]]:
    """Four sources on four hosts, combined by two operators."""
    sources = [Node(f"s{i}", "source", (), CODE, HOSTS[i]) for i in range(4)]
    left, right = ("s0", "s1"), ("s2", "s3")
    nodes = (*sources, Node("o", "operator", left, CODE), Node("p", "operator", ("o", *right), CODE))
    where = {"o": HOSTS[seed % 4], "p": HOSTS[(seed + 1) % 4], "t": "client"}
    return Dataflow((*nodes, Node("t", "sink", ("p",), None, "client"))), {s.name: s.pinned for s in sources} | where


class OneStripe:
    """A stripe of a world, as what moves operators at random has it."""

    def __init__(self, world: FaultyWorld, number: int) -> None:
        self._world, self._number = world, number

    @property
    def tree(self) -> tuple[Dataflow, dict[str, str]]:
        return self._world.trees[self._number]

    def move(self, placement: Mapping[str, str]) -> None:
        self._world.move(placement, self._number)

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str]) -> None:
        self._world.reshape(dataflow, placement, self._number)


class Ran:
    """A stream over these trees; what was delivered, and when."""

    def __init__(
        self,
        *trees: tuple[Dataflow, dict[str, str]],
        partitions: int | None = 40,
        window: int = 0,
        slow: Mapping[Link, float | BandwidthTrace] = {},
        delay_s: float = 0.0,
        plan: FaultPlan | None = None,
        length: float = math.inf,
        moves: Driver | None = None,
        failover: m.Failover | None = None,
    ) -> None:
        rates = {link: slow.get(link, 1e5) for link in links_between(HOSTS)}
        links: dict[Link, LinkRate] = {
            link: BandwidthTrace.constant(" ".join(link), each) if isinstance(each, float) else each
            for link, each in rates.items()
        }
        if delay_s:
            shapes = [(0.0, LinkShape(1.0, delay_s))]
            links = {link: ShapedLink(each, shapes, " ".join(link)) for link, each in links.items()}
        config = WorldConfig("independent", startup_s=0.0, validate=True)
        self.records: list[tuple[str, float, e.Record]] = []
        self.indices: list[int] = []
        self.seconds: list[float] = []
        self.most = 0
        self.world = world = FaultyWorld(
            HOSTS, links, lambda _: Says(length), plan or FaultPlan(1, ()), config,
            on_record=lambda *given: self.records.append(given),
        )  # fmt: skip
        world.failover = failover

        def delivered(command: e.Deliver, now: float) -> None:
            assert command.value == (command.index, len(trees[0][0].sources))
            self.indices.append(command.index)
            self.seconds.append(now)
            stream = world.hosts["client"].core._stripes.led["run"]
            self.most = max(self.most, len(stream.held))
            for mover in self.movers:
                mover.on_delivered()

        self.movers: list[RandomMover] = []
        if moves is not None:
            stripes = [OneStripe(world, number) for number in range(len(trees))]
            options = [msgspec.structs.replace(moves, seed=number) for number in range(len(trees))]
            self.movers = [RandomMover(o, stripe, HOSTS, (CODE,)) for o, stripe in zip(options, stripes, strict=True)]
        world.on_delivered = delivered
        striped, free = Striped(trees, window=window), Reorderable((CODE,), ())
        world.run_stripes(striped, partitions, reorderable=free)
        for name, host in world.hosts.items():
            if host.gone_s == math.inf:
                assert not host.core.runs, name
                assert not host.code, name
        assert not world.hosts["client"].core._stripes.led

    @property
    def period_s(self) -> float:
        return (self.seconds[-1] - self.seconds[0]) / (len(self.seconds) - 1)

    def carried(self) -> list[dict[str, Any]]:
        return [each.fields["detail"] | {"index": each.fields["index"]} for _, _, each in self.records
                if each.kind == "carried"]  # fmt: skip


def test_two_trees_carry_twice_as_much() -> None:
    one, two = Ran(relay("h3")), Ran(relay("h3"), relay("h4"))
    assert one.indices == two.indices == list(range(40))
    assert two.period_s < 0.55 * one.period_s
    shares = [each["stripe"] for each in two.carried()]
    assert 18 <= sum(shares) <= 22


def test_hosts_are_asked_whether_they_are_there_as_often_as_with_one_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    handle = HostCore.handle

    def counted(core: HostCore, event: e.Event, now: float) -> list[e.Command]:
        commands = handle(core, event, now)
        sent = [each for each in commands if isinstance(each, e.Send)]
        asked.extend(each.to for each in sent if isinstance(each.message, m.Ping | m.Pings | m.Pong))
        return commands

    monkeypatch.setattr(HostCore, "handle", counted)
    a_second = []
    for trees in (1, 4, 8):
        asked.clear()
        ran = Ran(*[relay("h3")] * trees, partitions=100)
        a_second.append(len(asked) / ran.seconds[-1])
    assert max(a_second) < 1.1 * a_second[0], a_second


def test_a_slow_tree_gets_few() -> None:
    slow = {Link("h4", "client"): 1e4}
    ran = Ran(relay("h3"), relay("h4"), slow=slow, partitions=110)
    assert ran.indices == list(range(110))
    shares = [each["stripe"] for each in ran.carried()]
    assert 5 <= sum(shares) <= 15
    one = Ran(relay("h3"), partitions=110)
    settled = 60  # until then it is found out how slow the other tree is
    assert ran.seconds[-1] - ran.seconds[settled] < 0.95 * (one.seconds[-1] - one.seconds[settled])


@pytest.mark.parametrize("window", [1, 2, 3, 8])
def test_the_window_bounds_what_waits(window: int) -> None:
    ran = Ran(relay("h3"), relay("h4"), relay("h1"), window=window, slow={Link("h3", "client"): 2e4})
    assert ran.indices == list(range(40))
    assert ran.most <= window


def test_a_stream_ends_where_its_sources_do() -> None:
    ran = Ran(relay("h3"), relay("h4"), relay("h1"), partitions=None, length=17)
    assert ran.indices == list(range(17))
    assert ran.world.failed is None


STORM = Storm(drop=0.05, duplicate=0.05, delay=0.1, unconfirmed=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_in_order_once_each_whatever_is_lost(seed: int) -> None:
    ran = Ran(wide(0), wide(1), wide(2), wide(3), plan=FaultPlan(seed, (STORM,)), partitions=60)
    assert ran.indices == list(range(60))
    assert ran.most <= WINDOW * 4
    assert len({each["stripe"] for each in ran.carried()}) == 4


def test_trees_change_one_at_a_time_while_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """``THALWEG_STRIPES=500``: as many times."""
    each, partitions = RESHAPES // 4, 10 * RESHAPES
    monkeypatch.setattr(faulty, "MANY_EVENTS", 100 * partitions)
    moves = RandomReshapes(reshapes=each, moves=each // 4)
    ran = Ran(wide(0), wide(1), wide(2), wide(3), moves=moves, partitions=partitions)
    assert ran.indices == list(range(partitions))
    assert ran.world.reshapings >= 4 * each
    assert ran.most <= WINDOW * 4


def test_moves_under_a_storm() -> None:
    ran = Ran(wide(0), wide(1), moves=RandomMoves(20), plan=FaultPlan(3, (STORM,)), partitions=300)
    assert ran.indices == list(range(300))
    assert ran.world.relocations >= 40


def test_the_others_carry_what_a_lost_tree_had() -> None:
    ran = Ran(relay("h3"), relay("h4"), plan=FaultPlan(0, (Crash("h4", 10.0),)), partitions=100)
    assert ran.world.failed is None
    assert ran.indices == list(range(100))
    late = [each["stripe"] for each in ran.carried()][-40:]
    assert set(late) == {0}


def test_a_stalled_tree_s_partitions_are_asked_of_another() -> None:
    cut = Cut(("h4",), 10.0, 12.0)  # shorter than a host may be silent
    ran = Ran(relay("h3"), relay("h4"), plan=FaultPlan(0, (cut,)), partitions=100)
    assert ran.indices == list(range(100))
    gaps = [later - earlier for earlier, later in itertools.pairwise(ran.seconds)]
    assert max(gaps) < 9.0
    assert not all(each["kept"] for each in ran.carried())


def test_the_stream_does_not_wait_for_a_tree_that_becomes_slow() -> None:
    """One link of one of three trees falls to a fortieth for good: what that tree was given comes over the others."""
    fallen = BandwidthTrace("falls", (0.0, 10.0, 1000.0), (1e5, 2.5e3, 2.5e3))
    ran = Ran(relay("h3"), relay("h4"), relay("h1"), slow={Link("h4", "client"): fallen}, partitions=150, window=6)
    assert ran.indices == list(range(150))
    gaps = [later - earlier for earlier, later in itertools.pairwise(ran.seconds)]
    assert max(gaps) < 10.0  # a partition takes 32 s over that link, 0.8 s over another
    assert any(record.kind == "asked ahead" for _, _, record in ran.records)
    two = Ran(relay("h3"), relay("h1"), partitions=150)
    assert ran.seconds[-1] < 1.2 * two.seconds[-1]


def test_a_host_that_a_source_needs_is_the_end() -> None:
    ran = Ran(relay("h3"), relay("h4"), plan=FaultPlan(0, (Crash("h1", 10.0),)), partitions=100)
    assert ran.world.failed is not None
    assert "'h1'" in ran.world.failed
    assert "silent" in ran.world.failed


def test_the_same_tree_several_times_fills_links_of_long_delays() -> None:
    """10,000 bytes at 0.1 Mbit/s take 0.8 s; a partition's way and its demand's 1.6 s more."""
    alone = Ran(relay("h3"), delay_s=0.8)
    assert alone.period_s > 2.3
    filled = Ran(*[relay("h3")] * 4, delay_s=0.8)
    assert filled.indices == list(range(40))
    assert filled.seconds[-1] - filled.seconds[10] < 1.05 * 29 * 0.8, "within 5 % of what the links carry"


def test_a_stripe_that_outlives_its_hosts_begins_anew_and_carries_on() -> None:
    crash = Crash("h4", 20.0, restart_after_s=5.0)
    plan = FaultPlan(0, (crash,), lasting=True)
    ran = Ran(relay("h3"), relay("h4"), plan=plan, failover=m.Failover(), partitions=150)
    assert ran.world.failed is None
    assert ran.indices == list(range(150))
    assert {each["stripe"] for each in ran.carried()[-20:]} == {0, 1}


def drawn(seed: int, *, lasting: bool) -> FaultPlan:
    """Some faults that a run is to outlive, of hosts with sources too where it is ``lasting``."""
    dice = Random(f"stripes {seed}")
    hosts = HOSTS[:4]
    faults: list[Fault] = [Storm(0.1 * dice.random(), 0.1 * dice.random(), 0.2 * dice.random(), 0.1 * dice.random())]
    for _ in range(dice.randint(1, 4)):
        at_s, for_s, host = dice.uniform(1, 60), dice.uniform(0.5, 10), dice.choice(hosts)
        one = dice.randrange(4)
        if one == 0:
            faults.append(Cut((host,), at_s, for_s))
        elif one == 1:
            faults.append(Outage(*dice.sample(HOSTS, 2), at_s, for_s))
        elif one == 2:
            faults.append(Stop(host, at_s, for_s))
        else:
            faults.append(Slow(host, dice.uniform(1, 20), at_s, for_s))
    if lasting:
        faults.append(Crash(dice.choice(hosts), dice.uniform(5, 50), dice.uniform(0.5, 10)))
    return FaultPlan(seed, tuple(faults), lasting=lasting)


@pytest.mark.parametrize("lasting", [False, True], ids=["plain", "lasting"])
@pytest.mark.parametrize("seed", range(PLANS))
def test_whatever_goes_wrong_all_come_once_in_order_or_the_stream_says_why(seed: int, lasting: bool) -> None:
    """``THALWEG_STRIPES_PLANS=1000``: as many."""
    moves = RandomReshapes(reshapes=3, moves=3)
    failover = m.Failover() if lasting else None
    ran = Ran(*map(wide, range(4)), plan=drawn(seed, lasting=lasting), moves=moves, partitions=60, failover=failover)
    assert ran.indices == list(range(len(ran.indices)))
    assert ran.most <= WINDOW * 4
    assert not ran.world.stalled
    assert ran.world.failed or len(ran.indices) == 60
    if ran.world.failed is not None:
        assert "silent" in ran.world.failed or "went away" in ran.world.failed or "restarted" in ran.world.failed
