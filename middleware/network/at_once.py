"""Measurement of many links at the same time, without a wait for the slowest.

Links that share no interface do not disturb each other's measurements, so all of them are measured at once. A planner
avoids slow links, and needs no exact figure of one. So the wait ends when most links have answered, and the others have
had twice as long. A link without an answer is slower than most, and counts as the slowest link that answered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from thalweg.middleware.network.view import Link, LinkEstimate

MOST = 0.75  # share of the links whose time decides which answers are late
LATE = 2.0  # times this time


class AtOnce(frozenset[Link]):
    """Links that share no interface."""


def late_from_s(answered_s: Sequence[float], wanted: int) -> float:
    """Return the time from which on answers are late; infinity if the time is still unknown.

    ``answered_s``: ascending times of the answers so far, in seconds after the request. ``wanted``: number of links.
    """
    most = math.ceil(MOST * wanted)
    return LATE * answered_s[most - 1] if len(answered_s) >= most else math.inf


def slowest(estimates: Iterable[LinkEstimate]) -> LinkEstimate:
    """Return the estimate that is assumed for a link without an answer. Its rate is 0 if no link has a rate."""
    rates_bps = [estimate.rate_bps for estimate in estimates if estimate.rate_bps > 0]
    return LinkEstimate(min(rates_bps, default=0.0), count=0)
