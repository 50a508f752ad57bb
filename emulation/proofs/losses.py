"""Losses of a train of numbered packets against the losses asked: the number of packets, and the length of bursts.

Independent losses have the binomial distribution. Losses in bursts are those of a Gilbert model. The number of lost
packets has the exact distribution of this chain. Each lost packet is the last packet of its burst with the same chance.
All intervals are of 99 %.

Source: Gilbert, Capacity of a Burst-Noise Channel (1960).
"""

from __future__ import annotations

import math
from collections.abc import Container
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from thalweg.emulation.links.shape import LinkShape

CONFIDENCE = 0.99
TAIL = (1 - CONFIDENCE) / 2


class Losses(NamedTuple):
    """Lost packets of a train, and the least and greatest number that the losses asked explain in 99 % of cases.

    ``bursts`` counts the bursts that ended within the train, with their interval. ``asked_burst`` is the mean length
    asked. All four are 0 if bursts were not measured: no bursts were asked, or corrupted packets and copies hide
    bursts.
    """

    lost: int
    low: int
    high: int
    asked_burst: float = 0.0
    bursts: int = 0
    bursts_low: int = 0
    bursts_high: int = 0


def measured(shape: LinkShape, sent: int, arrived: Container[int]) -> Losses:
    """Return the losses of packets 0 to ``sent`` - 1 over a link of this shape. ``arrived``: the packets that came."""
    lost = [number not in arrived for number in range(sent)]
    share = shape.loss * (1 - shape.duplicate)  # netem draws both at once: a copy makes up for a loss
    with_corrupted = 1 - (1 - share) * (1 - shape.corrupt)  # most corrupted packets fail a checksum
    if not shape.loss_burst:
        return Losses(sum(lost), *binomial_interval(sent, share, with_corrupted))
    begins, ends = shape.gilbert
    low, high = chain_interval(sent, begins, ends)
    if shape.duplicate or shape.corrupt:
        low = 0 if shape.duplicate else low
        return Losses(sum(lost), low, min(sent, high + binomial_interval(sent, shape.corrupt)[1]))
    followed = sum(lost[:-1])
    bursts = sum(now and not after for now, after in pairwise(lost))
    return Losses(sum(lost), low, high, shape.loss_burst, bursts, *binomial_interval(followed, ends))


def binomial_interval(trials: int, low: float, high: float | None = None) -> tuple[int, int]:
    """Return the least and greatest number of successes that are no surprise (``CONFIDENCE``).

    Each tail has at most half of the remaining probability. ``low``, ``high``: bounds of the probability of a success,
    or the probability alone.
    """
    return _lower(trials, low), trials - _lower(trials, 1 - (low if high is None else high))


def _lower(trials: int, probability: float) -> int:
    """Return the greatest k such that fewer than k successes have a probability of at most ``TAIL``."""
    if probability <= 0:
        return 0
    if probability >= 1:
        return trials
    success, failure, total = math.log(probability), math.log1p(-probability), 0.0
    for k in range(trials + 1):
        choices = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        total += math.exp(choices + k * success + (trials - k) * failure)
        if total > TAIL:
            return k
    return trials


@lru_cache(maxsize=256)
def chain_interval(trials: int, begins: float, ends: float) -> tuple[int, int]:
    """Return the interval of losses among consecutive packets, by a Gilbert model that has run for long.

    ``begins``: chance that a packet is lost after a packet that passed. ``ends``: chance that a packet passes after a
    lost packet.
    """
    import numpy as np  # imported only for links with bursts

    bad_share = begins / (begins + ends)
    good, bad = np.zeros(trials + 1), np.zeros(trials + 1)  # chances of k losses so far, and of the next state
    good[0], bad[0] = 1 - bad_share, bad_share
    for _ in range(trials):
        after_loss = np.concatenate(([0.0], bad[:-1]))
        good, bad = good * (1 - begins) + after_loss * ends, good * begins + after_loss * (1 - ends)
    below = np.cumsum(good + bad)
    return int(np.searchsorted(below, TAIL, side="right")), int(np.searchsorted(below, 1 - TAIL))
