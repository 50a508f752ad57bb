"""Rounds in which links are proven, and the judgement of measurements."""

from __future__ import annotations

import math
from itertools import combinations
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.kernel import netem
from thalweg.emulation.links.shape import DISTRIBUTIONS, LinkShape, Queue
from thalweg.emulation.proofs.delay import HEADERS_BYTES, with_passage
from thalweg.emulation.proofs.losses import binomial_interval
from thalweg.emulation.proofs.proof import LinkProof, failures
from thalweg.emulation.proofs.rate import (
    DATAGRAM_BYTES,
    PACKETS_WANTED,
    datagram_bytes,
    link_rounds,
    tournament,
    waiting_s,
)
from thalweg.middleware.network.view import NET, Link


@given(st.integers(2, 40))
def test_every_pair_of_players_meets_once_in_a_tournament(players: int) -> None:
    names = [str(i) for i in range(players)]
    rounds = tournament(names)
    assert len(rounds) == players - 1 + players % 2
    for pairs in rounds:
        assert len({name for pair in pairs for name in pair}) == 2 * len(pairs)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, met)) == sorted(sorted(pair) for pair in combinations(names, 2))
    part = [Link(*ends) for pairs in rounds[1:3] for a, b in pairs for ends in ((a, b), (b, a))]
    assert len(link_rounds(dict.fromkeys(reversed(part), 1.0), 1e9, names)) == len(rounds[1:3])


HOSTS = st.integers(0, 8).map(lambda i: f"h{i}")
LINKS = st.builds(Link, HOSTS, HOSTS, st.sampled_from([NET, "leased"])).filter(lambda one: one.source != one.target)


@given(st.dictionaries(LINKS, st.floats(1e5, 3e8)), st.floats(1e6, 1e9))
def test_every_link_is_in_a_single_round_and_links_of_a_round_share_no_end(
    rates: dict[Link, float], together: float
) -> None:
    groups = link_rounds(rates, together)
    assert sorted(link for group in groups for link in group) == sorted(rates)
    for group in groups:
        assert len({link.source for link in group}) == len({link.target for link in group}) == len(group)
        assert len({link.via for link in group}) == 1
        assert len(group) == 1 or sum(rates[link] for link in group) <= together


@given(st.floats(64e3, 1e9), st.floats(0.1, 1))
def test_datagrams_are_the_largest_within_the_bounds_that_give_enough_packets(rate_bps: float, seconds: float) -> None:
    def packets(size: int) -> float:
        return rate_bps / 8 * seconds / (size + HEADERS_BYTES[3])

    size, (smallest, largest) = datagram_bytes(rate_bps, seconds), DATAGRAM_BYTES
    assert smallest <= size <= largest
    assert size == smallest or packets(size) >= PACKETS_WANTED * 0.999
    assert size == largest or packets(size + 1) < PACKETS_WANTED * 1.001


FILLED = LinkProof("a", "b", 1e6, 1.04e6, 0.04, 0.3, 9000, "udp")


@pytest.mark.parametrize("reorder", [0.0, 0.1])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_delay_jitter_and_loss_of_a_simulated_train_are_measured(distribution: str, reorder: float) -> None:
    random = Random(1)
    shape = LinkShape(1e6, 0.05, 0.004, 0.03, distribution, reorder=reorder)
    table = netem.table(distribution)

    def delay_s() -> float:
        return 0.0 if random.random() < reorder else 0.05 + 0.004 * random.choice(table) / netem.TABLE_SCALE

    sent = 4000
    delays = {i: delay_s() for i in range(sent) if random.random() >= 0.03}
    proof = with_passage(FILLED, shape, sent, delays, len(delays) + 7)
    assert proof.delivered_delay_s is not None
    assert proof.delay_low_s is not None
    assert proof.delay_high_s is not None
    assert proof.delay_low_s <= proof.delivered_delay_s <= proof.delay_high_s
    assert proof.delivered_delay_s == pytest.approx(0.05, abs=0.001)
    assert proof.delay_ok
    assert (proof.lost, proof.duplicates) == (sent - len(delays), 7)
    assert proof.delivered_jitter_s == (None if reorder else pytest.approx(0.004, rel=0.15))


def test_a_train_that_is_lost_as_a_whole_proves_neither_delay_nor_loss() -> None:
    proof = with_passage(FILLED, LinkShape(1e6, 0.05, loss=0.1), 100, {}, 0)
    assert not proof.delay_ok
    assert not proof.loss_ok


def test_corruption_and_copies_count_in_the_bounds_of_losses() -> None:
    corrupted = with_passage(FILLED, LinkShape(1e6, corrupt=0.1), 1000, {}, 0)
    assert corrupted.lost_low == 0
    assert corrupted.lost_high == binomial_interval(1000, 0.1)[1]
    doubled = with_passage(FILLED, LinkShape(1e6, loss=0.1, duplicate=0.5), 1000, {}, 0)
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
def test_a_delay_may_exceed_the_asked_delay_by_2_ms_or_10_percent(
    asked_s: float, low_s: float, high_s: float, holds: bool
) -> None:
    proof = msgspec.structs.replace(FILLED, asked_delay_s=asked_s, delay_low_s=low_s, delay_high_s=high_s)
    assert proof.delay_ok == holds


def test_failures_name_the_link_and_the_wrong_figure() -> None:
    delay = {"asked_delay_s": 0.05, "delivered_delay_s": 0.051, "delay_low_s": 0.05, "delay_high_s": 0.052}
    right = msgspec.structs.replace(FILLED, **delay, sent=100, lost_high=3)
    assert failures([right]) == []
    slow = msgspec.structs.replace(right, delivered_bps=9e5, error=-0.1)
    late = msgspec.structs.replace(right, delivered_delay_s=0.06, delay_low_s=0.059, delay_high_s=0.061)
    lossy = msgspec.structs.replace(right, lost=7)
    leaky = msgspec.structs.replace(right, asked_bps=0.0, delivered_bps=1e4, error=math.inf)
    held_up = msgspec.structs.replace(right, stalled=0.5)
    assert failures([right, slow]) == ["link a → b delivers 0.9 instead of 1 Mbit/s (-10.0%)"]
    assert failures([late]) == ["link a → b delays by 60 instead of 50 ms"]
    assert failures([lossy]) == ["link a → b loses 7 of 100 packets, and a loss of 0, as asked, explains 0 to 3"]
    assert failures([held_up]) == [
        "link a → b is kept waiting by this machine for 50% of the time; make the machine less busy"
    ]
    assert failures([leaky]) == ["link a → b delivers 0.01 Mbit/s though it is cut"]


def test_a_tcp_flow_has_a_separate_error_and_decides_if_the_datagrams_stalled() -> None:
    def proof(asked_bps: float, error: float, tcp_bps: float | None, stalled: float = 0.0) -> LinkProof:
        delivered_bps = asked_bps * (1 + error)
        return LinkProof("a", "b", asked_bps, delivered_bps, error, 1.0, 1, "udp", stalled=stalled, tcp_bps=tcp_bps)

    assert failures([proof(1e5, 0.0, 1.09e5), proof(1e6, 0.0, 0.96e6), proof(1e6, 0.0, None)]) == []
    (line,) = failures([proof(1e6, 0.0, 0.9e6)])
    assert line == "link a → b gives one TCP flow 0.9 instead of 1 Mbit/s (-10.0%)"
    assert failures([proof(1e9, -0.3, 0.98e9, 0.6)]) == []
    assert len(failures([proof(1e9, 0.0, 0.9e9), proof(1e9, -0.3, None, 0.6)])) == 2


@pytest.mark.parametrize(
    ("asked_s", "found_s", "step_s", "holds"),
    [
        (0.1, 0.1, 0.001, True),
        (0.1, 0.107, 0.001, True),  # 5 %, a datagram and a half, and the clocks
        (0.1, 0.108, 0.001, False),
        (0.1, 0.0935, 0.001, True),
        (0.1, 0.092, 0.001, False),
        (0.1, 0.13, 0.02, True),  # few datagrams make up the queue
        (0.1, 0.0, 0.001, False),  # there is none
        (0.1, None, 0.0, True),  # not measured
        (0.0, 0.004, 0.001, True),  # it keeps itself short
    ],
)
def test_a_queue_is_as_long_as_asked_within_a_datagram_and_a_half(
    asked_s: float, found_s: float | None, step_s: float, *, holds: bool
) -> None:
    proof = msgspec.structs.replace(
        FILLED, asked_queue_s=asked_s, delivered_queue_s=found_s, queue_step_s=step_s, delivered_bps=1e6, error=0.0
    )
    assert proof.queue_ok == holds
    lines = [] if holds else [f"link a → b queues for {(found_s or 0) * 1e3:.3g} instead of {asked_s * 1e3:.3g} ms"]
    assert failures([proof]) == lines


@pytest.mark.parametrize(
    ("shape", "queue_s"),
    [
        (LinkShape(4e6), 0.1),
        (LinkShape(8e6), 0.2),  # an interface lets half of the rate pass that the queue is for
        (LinkShape(8e6, queue=Queue(20_000, "bytes")), 0.04),
        (LinkShape(8e6, queue=Queue(25, "packets")), 0.05),
        (LinkShape(8e6, 0.5, queue=Queue(25, "packets")), 0.05),  # what is under way does not wait
    ],
)
def test_a_full_queue_takes_as_long_as_its_bytes_or_packets_at_the_rate(shape: LinkShape, queue_s: float) -> None:
    assert waiting_s(shape, 4e6, 8_000) == pytest.approx(queue_s)
