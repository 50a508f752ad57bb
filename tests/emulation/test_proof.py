"""The rounds in which links are proven, and how measurements are judged."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation import netem
from thalweg.emulation.proof import DATAGRAM_BYTES, Pace, datagram_bytes, link_rounds, steady, tournament
from thalweg.emulation.proof_delay import binomial_interval, delay_holds, passage
from thalweg.emulation.shaping import Shape
from thalweg.emulation.testbed import LinkProof, failures


@given(st.integers(2, 40))
def test_in_a_tournament_everybody_meets_everybody_once(players: int) -> None:
    names = [str(i) for i in range(players)]
    rounds = tournament(names)
    assert len(rounds) == players - 1 + players % 2
    for pairs in rounds:
        assert len({name for pair in pairs for name in pair}) == 2 * len(pairs)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, met)) == sorted(sorted(pair) for pair in combinations(names, 2))


HOSTS = st.integers(0, 8).map(lambda i: f"h{i}")
LINKS = st.tuples(HOSTS, HOSTS).filter(lambda link: link[0] != link[1])


@given(st.dictionaries(LINKS, st.floats(1e5, 3e8)), st.floats(1e6, 1e9))
def test_groups_hold_every_link_once_and_share_no_end(rates: dict[tuple[str, str], float], together: float) -> None:
    groups = link_rounds(rates, together)
    assert sorted(link for group in groups for link in group) == sorted(rates)
    for group in groups:
        assert len({source for source, _ in group}) == len({target for _, target in group}) == len(group)
        assert len(group) == 1 or sum(rates[link] for link in group) <= together


@given(st.floats(64e3, 1e9), st.floats(0.1, 1))
def test_slow_links_get_small_datagrams(rate_bps: float, seconds: float) -> None:
    size = datagram_bytes(rate_bps, seconds)
    assert DATAGRAM_BYTES[0] <= size <= DATAGRAM_BYTES[1]


def token_bucket(count: int, packet_ns: int, burst_ns: int, still: Callable[[int], int]) -> list[int]:
    """When packets of an always full link pass; ``still`` says until when the machine sleeps at a time."""
    times, tokens_ns, now_ns = list[int](), burst_ns, 0
    for _ in range(count):
        if tokens_ns < 0:
            woken_ns = still(now_ns - tokens_ns)
            tokens_ns = min(burst_ns, tokens_ns + woken_ns - now_ns)
            now_ns = woken_ns
        times.append(now_ns)
        tokens_ns -= packet_ns
    return times


PACE = Pace(400_000, 1_000_000, 3)


@given(st.integers(0, 1000), st.floats(0.1, 1.5), st.floats(0.0, 0.3))
def test_a_machine_that_stalls_takes_nothing_from_what_a_link_is_seen_to_deliver(
    seed: int, factor: float, stalled: float
) -> None:
    """``factor``: what the link really delivers; whatever is wrong with it is found all the same."""

    def still(at_ns: int) -> int:
        """In every 20 ms the machine sleeps for up to twice ``stalled`` of it, at the end."""
        at, length_ns = divmod(at_ns, 20_000_000)
        begin_ns = 20_000_000 - round(sleeps.setdefault(at, random.uniform(0, 2 * stalled)) * 20_000_000)
        return at_ns if length_ns < begin_ns else (at + 1) * 20_000_000

    random, sleeps = Random(seed), dict[int, float]()
    packet_ns = round(PACE.packet_ns / factor)
    times = token_bucket(1000, packet_ns, PACE.burst_ns, still)
    steps, full_ns, stalled_ns = steady(times, PACE)
    delivered = steps * PACE.packet_ns / full_ns
    slept = 1 - len(times) * packet_ns / times[-1]
    if packet_ns + 100_000 < PACE.pause_ns(1000):
        assert delivered == pytest.approx(factor, rel=0.02)
        if 0.9 < factor < 1.1:
            assert stalled_ns / (times[-1] - times[0]) == pytest.approx(max(slept, 0.0), abs=0.1 * stalled + 0.01)
    else:  # as slow as that, and it is the link
        assert delivered < 0.6


def test_timers_that_are_always_late_are_not_the_machines_rare_stalls() -> None:
    times = token_bucket(1000, PACE.packet_ns, PACE.burst_ns, lambda at_ns: -(-at_ns // 4_000_000) * 4_000_000)
    steps, full_ns, stalled_ns = steady(times, PACE)
    assert (steps * PACE.packet_ns / full_ns, stalled_ns) == (pytest.approx(0.3, rel=0.02), 0)


def test_lost_packets_and_jitter_are_no_stalls() -> None:
    times = [at for at in range(0, 400_000_000, 400_000) if Random(at).random() > 0.3]
    assert PACE._replace(loss=0.3).pause_ns(len(times)) > max(b - a for a, b in pairwise(times)) > PACE.pause_ns(1000)
    steps, full_ns, stalled_ns = steady(times, PACE._replace(loss=0.3))
    assert (stalled_ns, steps * PACE.packet_ns / full_ns) == (0, pytest.approx(0.7, abs=0.05))
    assert PACE._replace(spread_ns=7_000_000).pause_ns(1000) == PACE.pause_ns(1000) + 7_000_000


def test_too_few_packets_say_nothing() -> None:
    assert steady([], PACE) == steady([1, 2, 3, 4, 5, 6, 7], PACE) == (0, 0, 0)


@given(st.integers(0, 300), st.floats(0, 1), st.floats(0, 1))
def test_the_binomial_interval_is_exact(trials: int, one: float, other: float) -> None:
    low, high = sorted((one, other))

    def tail(probability: float, counts: range) -> float:
        return sum(math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in counts)

    least, most = binomial_interval(trials, low, high)
    assert 0 <= least <= trials
    assert 0 <= most <= trials
    near = 1e-9  # sums of this many terms
    assert tail(low, range(least)) <= 0.005 + near
    assert tail(low, range(least + 1)) > 0.005 - near
    assert tail(high, range(most + 1, trials + 1)) <= 0.005 + near
    assert tail(high, range(most, trials + 1)) > 0.005 - near


@pytest.mark.parametrize("reorder", [0.0, 0.1])
@pytest.mark.parametrize("distribution", netem.DISTRIBUTIONS)
def test_delay_jitter_and_loss_are_found_again(distribution: str, reorder: float) -> None:
    random = Random(1)
    shape = Shape(1e6, 0.05, 0.004, 0.03, distribution, reorder=reorder)
    table = netem.table(distribution)

    def delay_s() -> float:
        return 0.0 if random.random() < reorder else 0.05 + 0.004 * random.choice(table) / netem.TABLE_SCALE

    sent = 4000
    delays = {i: delay_s() for i in range(sent) if random.random() >= 0.03}
    found = passage(shape, sent, delays, len(delays) + 7)
    assert found.delay_low_s <= found.delay_s <= found.delay_high_s
    assert found.delay_s == pytest.approx(0.05, abs=0.001)
    assert found.delay_ok
    assert (found.lost, found.duplicates) == (sent - len(delays), 7)
    assert (found.jitter_s is None) == bool(reorder)
    assert found.jitter_s is None or found.jitter_s == pytest.approx(0.004, rel=0.15)


def test_a_lost_train_proves_nothing_right() -> None:
    found = passage(Shape(1e6, 0.05, loss=0.1), 100, {}, 0)
    assert not found.delay_ok
    assert not found.loss_ok


def test_corruption_and_copies_count_into_what_may_be_lost() -> None:
    corrupted = passage(Shape(1e6, corrupt=0.1), 1000, {}, 0)
    assert corrupted.lost_low == 0
    assert corrupted.lost_high == binomial_interval(1000, 0.1)[1]
    doubled = passage(Shape(1e6, loss=0.1, duplicate=0.5), 1000, {}, 0)
    assert (doubled.lost_low, doubled.lost_high) == binomial_interval(1000, 0.05)


@pytest.mark.parametrize(
    ("asked_s", "low_s", "high_s", "holds"),
    [
        (0.01, 0.0119, 0.0121, True),  # 2 ms more
        (0.01, 0.0121, 0.0122, False),
        (0.1, 0.1099, 0.1105, True),  # 10 % more
        (0.1, 0.111, 0.112, False),
        (0.1, 0.0985, 0.0995, False),  # less than asked
        (0.1, 0.0985, 0.1005, True),  # not known so exactly
    ],
)
def test_what_a_delay_may_be(asked_s: float, low_s: float, high_s: float, holds: bool) -> None:
    assert delay_holds(asked_s, low_s, high_s) == holds


def test_failures_say_what_is_off() -> None:
    right = LinkProof("a", "b", 1e6, 1.04e6, 0.04, 0.3, 9000, "udp", 0.05, 0.051, 0.05, 0.052, sent=100, lost_high=3)
    assert failures([right]) == []
    slow = msgspec.structs.replace(right, delivered_bps=9e5, error=-0.1)
    late = msgspec.structs.replace(right, delivered_delay_s=0.06, delay_low_s=0.059, delay_high_s=0.061)
    lossy = msgspec.structs.replace(right, lost=7)
    leaky = msgspec.structs.replace(right, asked_bps=0.0, delivered_bps=1e4, error=math.inf)
    assert failures([right, slow]) == ["link a → b delivers 0.9 instead of 1 Mbit/s (-10.0%)"]
    assert failures([late]) == ["link a → b delays by 60 instead of 50 ms"]
    assert failures([lossy]) == ["link a → b loses 7 of 100 packets, 0 to 3 of which the 0 asked would explain"]
    assert failures([leaky]) == ["link a → b delivers 0.01 Mbit/s though it is cut"]
