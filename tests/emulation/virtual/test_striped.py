"""A stream over several trees in virtual time: once, in order, and faster if links are independent."""

from __future__ import annotations

import itertools
import os
from collections import Counter

import pytest
from striped import STORM, Ran, drawn, relay, topped, wide

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual import faulty
from thalweg.emulation.virtual.faults import Crash, Cut, FaultPlan
from thalweg.middleware.core.host import HostCore
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning.registry import RandomMoves, RandomReshapes
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.stripes import WINDOW

RESHAPES = int(os.environ.get("THALWEG_STRIPES", "16"))
PLANS = int(os.environ.get("THALWEG_STRIPES_PLANS", "2"))


def test_two_trees_carry_twice_as_much() -> None:
    single, two = Ran(relay("h3")), Ran(relay("h3"), relay("h4"))
    assert single.indices == two.indices == list(range(40))
    assert two.period_s < 0.55 * single.period_s
    shares = [partition["stripe"] for partition in two.carried()]
    assert 18 <= sum(shares) <= 22


def test_hosts_are_pinged_no_more_often_with_many_trees_than_with_a_single_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    handle = HostCore.handle

    def counted(core: HostCore, event: e.Event, now: float) -> list[e.Command]:
        commands = handle(core, event, now)
        sent = [command for command in commands if isinstance(command, e.Send)]
        asked.extend(send.to for send in sent if isinstance(send.message, m.Ping | m.Pong))
        return commands

    monkeypatch.setattr(HostCore, "handle", counted)
    a_second = []
    for trees in (1, 4, 8):
        asked.clear()
        ran = Ran(*[relay("h3")] * trees, partitions=100)
        a_second.append(len(asked) / ran.seconds[-1])
    assert max(a_second) < 1.1 * a_second[0], a_second


def test_a_slow_tree_gets_few_partitions() -> None:
    slow = {Link("h4", "client"): 1e4}
    ran = Ran(relay("h3"), relay("h4"), slow=slow, partitions=110)
    assert ran.indices == list(range(110))
    shares = [partition["stripe"] for partition in ran.carried()]
    assert 5 <= sum(shares) <= 15
    single = Ran(relay("h3"), partitions=110)
    settled = 60  # until then it is found out how slow the other tree is
    assert ran.seconds[-1] - ran.seconds[settled] < 0.95 * (single.seconds[-1] - single.seconds[settled])


@pytest.mark.parametrize("window", [1, 2, 3, 8])
def test_the_window_bounds_the_waiting_partitions(window: int) -> None:
    ran = Ran(relay("h3"), relay("h4"), relay("h1"), window=window, slow={Link("h3", "client"): 2e4})
    assert ran.indices == list(range(40))
    assert ran.most <= window


def test_a_striped_stream_ends_where_the_sources_end() -> None:
    ran = Ran(relay("h3"), relay("h4"), relay("h1"), partitions=None, length=17)
    assert ran.indices == list(range(17))
    assert ran.world.failed is None


@pytest.mark.parametrize("seed", range(4))
def test_partitions_come_once_in_order_under_a_storm(seed: int) -> None:
    ran = Ran(wide(0), wide(1), wide(2), wide(3), plan=FaultPlan(seed, (STORM,)), partitions=60)
    assert ran.indices == list(range(60))
    assert ran.most <= WINDOW * 4
    assert len({partition["stripe"] for partition in ran.carried()}) == 4


def test_reshapings_of_all_trees_keep_the_stream_complete_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """``THALWEG_STRIPES=500`` reshapes 500 times."""
    reshapings, partitions = RESHAPES // 4, 10 * RESHAPES
    monkeypatch.setattr(faulty, "MANY_EVENTS", 100 * partitions)
    moves = RandomReshapes(reshapes=reshapings, moves=reshapings // 4)
    ran = Ran(wide(0), wide(1), wide(2), wide(3), moves=moves, partitions=partitions)
    assert ran.indices == list(range(partitions))
    assert ran.world.reshapings >= 4 * reshapings
    assert ran.most <= WINDOW * 4


@pytest.mark.long
def test_moves_under_a_storm_keep_the_stream_complete_and_in_order() -> None:
    ran = Ran(wide(0), wide(1), moves=RandomMoves(20), plan=FaultPlan(3, (STORM,)), partitions=300)
    assert ran.indices == list(range(300))
    assert ran.world.relocations >= 40


def test_the_remaining_tree_carries_the_partitions_of_a_lost_tree() -> None:
    ran = Ran(relay("h3"), relay("h4"), plan=FaultPlan(0, (Crash("h4", 10.0),)), partitions=100)
    assert ran.world.failed is None
    assert ran.indices == list(range(100))
    late = [partition["stripe"] for partition in ran.carried()][-40:]
    assert set(late) == {0}


def test_partitions_of_a_stalled_tree_are_requested_from_the_other_tree() -> None:
    cut = Cut(("h4",), 10.0, 12.0)  # shorter than a host may be silent
    ran = Ran(relay("h3"), relay("h4"), plan=FaultPlan(0, (cut,)), partitions=100)
    assert ran.indices == list(range(100))
    gaps = [later - earlier for earlier, later in itertools.pairwise(ran.seconds)]
    assert max(gaps) < 9.0
    assert not all(partition["kept"] for partition in ran.carried())


def test_the_stream_does_not_wait_for_a_tree_that_becomes_slow() -> None:
    """A link of one of three trees falls to a fortieth for good. The other trees carry the partitions of this tree."""
    fallen = BandwidthTrace("falls", (0.0, 10.0, 1000.0), (1e5, 2.5e3, 2.5e3))
    ran = Ran(relay("h3"), relay("h4"), relay("h1"), slow={Link("h4", "client"): fallen}, partitions=150, window=6)
    assert ran.indices == list(range(150))
    gaps = [later - earlier for earlier, later in itertools.pairwise(ran.seconds)]
    assert max(gaps) < 10.0  # a partition takes 32 s over that link, 0.8 s over another
    assert any(record.kind == "asked ahead" for _, _, record in ran.records)
    two = Ran(relay("h3"), relay("h1"), partitions=150)
    assert ran.seconds[-1] < 1.2 * two.seconds[-1]


def test_the_loss_of_a_source_host_ends_the_stream() -> None:
    ran = Ran(relay("h3"), relay("h4"), plan=FaultPlan(0, (Crash("h1", 10.0),)), partitions=100)
    assert ran.world.failed is not None
    assert "'h1'" in ran.world.failed
    assert "silent" in ran.world.failed


def test_several_copies_of_a_tree_fill_links_with_long_delays() -> None:
    """10,000 bytes at 0.1 Mbit/s take 0.8 s. The delays of the partition and its demand take 1.6 s more."""
    alone = Ran(relay("h3"), delay_s=0.8)
    assert alone.period_s > 2.3
    filled = Ran(*[relay("h3")] * 4, delay_s=0.8)
    assert filled.indices == list(range(40))
    assert filled.seconds[-1] - filled.seconds[10] < 1.05 * 29 * 0.8, "within 5 % of what the links carry"


def test_a_stripe_with_failover_restarts_after_a_crash_and_carries_partitions_again() -> None:
    crash = Crash("h4", 20.0, restart_after_s=5.0)
    plan = FaultPlan(0, (crash,), lasting=True)
    ran = Ran(relay("h3"), relay("h4"), plan=plan, failover=m.Failover(), partitions=150)
    assert ran.world.failed is None
    assert ran.indices == list(range(150))
    assert {partition["stripe"] for partition in ran.carried()[-20:]} == {0, 1}


@pytest.mark.parametrize("lasting", [False, True], ids=["plain", "lasting"])
@pytest.mark.parametrize("seed", range(PLANS))
def test_partitions_come_once_in_order_under_faults_or_the_stream_ends_with_the_cause(seed: int, lasting: bool) -> None:
    """``THALWEG_STRIPES_PLANS=1000`` runs 1000 plans."""
    moves = RandomReshapes(reshapes=3, moves=3)
    failover = m.Failover() if lasting else None
    ran = Ran(*map(wide, range(4)), plan=drawn(seed, lasting=lasting), moves=moves, partitions=60, failover=failover)
    assert ran.indices == list(range(len(ran.indices)))
    assert ran.most <= WINDOW * 4
    assert not ran.world.stalled
    assert ran.world.failed or len(ran.indices) == 60
    if ran.world.failed is not None:
        assert any(why in ran.world.failed for why in ("silent", "went away", "restarted", "is a way cut?"))


# --- operators with state above the trees -----------------------------------------------------------------


@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize("at", ["client", "h4"])
def test_operators_with_state_above_the_trees_get_every_partition_once_in_order(at: str, ahead: int) -> None:
    ran = Ran(*[topped(relay(via), at, more=True) for via in ("h3", "h4")], ahead=ahead)
    assert ran.got == {"t": list(range(40)), "u": list(range(40))}
    assert {partition["stripe"] for partition in ran.carried()} == {0, 1}


def test_two_trees_carry_twice_as_much_to_the_upper_graph() -> None:
    single, two = Ran(relay("h3")), Ran(topped(relay("h3")), topped(relay("h4")))
    assert two.indices == list(range(40))
    assert two.period_s < 0.55 * single.period_s


def test_every_sink_of_the_upper_graph_ends_where_the_sources_end() -> None:
    ran = Ran(*[topped(relay(via), more=True) for via in ("h3", "h4", "h1")], partitions=None, length=17)
    assert ran.got == {"t": list(range(17)), "u": list(range(17))}
    assert ran.world.failed is None


@pytest.mark.parametrize("window", [1, 2, 8])
def test_the_window_bounds_the_partitions_that_wait_for_the_upper_graph(window: int) -> None:
    ran = Ran(*[topped(relay(via)) for via in ("h3", "h4", "h1")], window=window, slow={Link("h3", "client"): 2e4})
    assert ran.indices == list(range(40))
    assert ran.most <= window


def test_trees_change_and_the_upper_graph_moves_while_data_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    reshapings, partitions = RESHAPES // 4, 10 * RESHAPES
    monkeypatch.setattr(faulty, "MANY_EVENTS", 200 * partitions)
    moves = RandomReshapes(reshapes=reshapings, moves=reshapings // 4 + 2)
    ran = Ran(*[topped(wide(number)) for number in range(4)], moves=moves, partitions=partitions)
    assert ran.indices == list(range(partitions))
    assert ran.world.reshapings >= 4 * reshapings
    assert ran.movers[-1].left == 0, "what is above has moved"


def test_the_upper_graph_restarts_elsewhere_after_the_loss_of_a_host() -> None:
    """The trees lose no host, and they make the inputs of the upper graph again."""
    trees = [topped(relay(via), "h4", more=True) for via in ("h3", "h1")]
    plan = FaultPlan(0, (Crash("h4", 20.0),), lasting=True)
    ran = Ran(*trees, plan=plan, failover=m.Failover(every=4), partitions=100)
    assert ran.world.failed is None
    assert ran.got == {"t": list(range(100)), "u": list(range(100))}
    assert ran.world.tree[1]["c"] != "h4"
    carried = Counter(partition["index"] for partition in ran.carried())
    assert sum(carried.values()) > 100 == len(carried), "what was to be had again the trees have made again"


@pytest.mark.parametrize("lasting", [False, True], ids=["plain", "lasting"])
@pytest.mark.parametrize("seed", range(PLANS))
def test_the_upper_graph_gets_partitions_once_in_order_under_faults(seed: int, lasting: bool) -> None:
    """``THALWEG_STRIPES_PLANS=1000`` runs 1000 plans."""
    more = bool(seed % 2)
    moves = RandomMoves(6) if more else RandomReshapes(reshapes=3, moves=3)  # of what feeds one node
    failover = m.Failover(every=4) if lasting else None
    trees = [topped(wide(number), f"h{seed % 4 + 1}", more) for number in range(4)]
    ran = Ran(*trees, plan=drawn(seed, lasting=lasting), moves=moves, partitions=60, failover=failover)
    for came in ran.got.values():
        assert came == list(range(len(came)))
    assert ran.most <= WINDOW * 4
    assert not ran.world.stalled
    assert ran.world.failed or {len(came) for came in ran.got.values()} == {60}
    if ran.world.failed is not None:
        assert any(why in ran.world.failed for why in ("silent", "went away", "restarted", "is a way cut?"))
