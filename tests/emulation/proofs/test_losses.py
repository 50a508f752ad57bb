"""Numbers of lost packets and of bursts, compared with the asked losses."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.links import units
from thalweg.emulation.links.shape import LinkShape, loss_figures
from thalweg.emulation.proofs.losses import binomial_interval, chain_interval, measured


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


def train(shape: LinkShape, sent: int, random: Random) -> set[int]:
    """Return the packets that come over a link whose losses are those of netem's ``gemodel``."""
    begins, ends = shape.gilbert
    arrived, bad = set(), random.random() < shape.loss
    for number in range(sent):
        if not bad:
            arrived.add(number)
        bad = random.random() >= ends if bad else random.random() < begins
    return arrived


@given(st.integers(1, 200), st.floats(0.01, 0.99))
def test_the_chain_interval_of_independent_losses_is_the_binomial_interval(trials: int, share: float) -> None:
    assert chain_interval(trials, share, 1 - share) == binomial_interval(trials, share)


@pytest.mark.parametrize(("loss", "burst"), [(0.02, 5.0), (0.2, 2.0), (0.1, 20.0)])
def test_links_pass_with_the_asked_losses_and_fail_with_other_losses(loss: float, burst: float) -> None:
    random = Random(f"{loss} {burst}")
    asked = LinkShape(1e6, loss=loss, loss_burst=burst)
    sent = int(30 * burst / loss)

    def wrong(real: LinkShape, trains: int) -> tuple[float, float]:
        measurements = [measured(asked, sent, train(real, sent, random)) for _ in range(trains)]
        lost = sum(not losses.low <= losses.lost <= losses.high for losses in measurements)
        return lost / trains, sum(
            not losses.bursts_low <= losses.bursts <= losses.bursts_high for losses in measurements
        ) / trains

    assert max(wrong(asked, 60)) <= 0.08  # 1 % each
    independent = LinkShape(1e6, loss=loss)
    assert wrong(independent, 10)[1] == 1.0
    assert wrong(asked._replace(loss_burst=4 * burst), 20)[1] >= 0.6
    assert wrong(asked._replace(loss=min(0.9, 4 * loss)), 10)[0] == 1.0


def test_bursts_have_the_asked_mean_length_and_share() -> None:
    shape, sent = LinkShape(1e6, loss=0.1, loss_burst=4.0), 200_000
    arrived = train(shape, sent, Random(7))
    losses = measured(shape._replace(duplicate=0.0), 2000, {number for number in arrived if number < 2000})
    assert losses.bursts > 0
    lost = [number not in arrived for number in range(sent)]
    bursts = sum(now and not after for now, after in pairwise(lost))
    assert sum(lost) / sent == pytest.approx(0.1, rel=0.05)
    assert sum(lost) / bursts == pytest.approx(4.0, rel=0.05)


def test_a_loss_correlation_holds_between_consecutive_packets() -> None:
    loss = units.loss({"p": "20%", "correlation": "60%"})
    shape, sent = LinkShape(1e6, **loss_figures(loss)), 100_000
    arrived = train(shape, sent, Random(3))
    lost = [float(number not in arrived) for number in range(sent)]
    mean = sum(lost) / sent
    products = sum((a - mean) * (b - mean) for a, b in pairwise(lost))
    assert products / sum((a - mean) ** 2 for a in lost) == pytest.approx(0.6, abs=0.03)


@pytest.mark.parametrize("hidden", [{"corrupt": 0.1}, {"duplicate": 0.3}])
def test_bursts_that_corrupted_packets_or_copies_hide_are_not_judged(hidden: dict[str, float]) -> None:
    shape = LinkShape(1e6, loss=0.1, loss_burst=3.0, **hidden)
    losses = measured(shape, 500, set(range(0, 500, 2)))
    assert (losses.asked_burst, losses.bursts, losses.bursts_low, losses.bursts_high) == (0.0, 0, 0, 0)
    assert losses.high >= chain_interval(500, *shape.gilbert)[1]
