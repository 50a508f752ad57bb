"""Scenario ``collapse``: the links of one host slow down during a run, at the same time in every placement.

R1. The links of the host, in both directions, have ``COLLAPSE_FACTOR`` of their trace's rate for ``COLLAPSE_S``. The
    collapse begins ``COLLAPSE_AT_S`` after a placement's start (emulated seconds), or at the requested time.
R2. No link falls below ``COLLAPSE_FLOOR`` times the mean rate of all links. Slower links keep their rate.
R3. The host is the host with most operators in the one-shot placement, of several the first, and never the client. A
    placement that stays has most to lose there. Placements are planned before data flows, on the links at the start of
    their traces, so the host is known. Every placement that begins with one-shot starts from one plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar

import msgspec

from thalweg.emulation.links.effects import NEUTRAL, Effect, LinkChange
from thalweg.emulation.links.shape import RATE_FLOOR_BPS
from thalweg.emulation.links.units import format_rate
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.experiments.run_config import COLLAPSE_FACTOR, COLLAPSE_FLOOR
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link


class Collapse(msgspec.Struct, frozen=True):
    """Drop of the links of ``host`` to ``factor`` times their rate, from ``at_s`` until ``until_s`` (emulated).

    The rate does not fall below ``floor_bps``. A link that is slower anyhow stays as it is.
    """

    name: ClassVar[str] = "collapse"
    host: str
    floor_bps: float
    at_s: float
    until_s: float
    factor: float = COLLAPSE_FACTOR

    def changes(self, links: Iterable[Link]) -> list[LinkChange]:
        """Return the changes of the links of the host that are among ``links``."""
        # R1, R2: for a limited time, and not below the floor
        spans = (self.at_s, Effect(self.factor, self.floor_bps)), (self.until_s, NEUTRAL)
        mine = [link for link in links if self.host in link[:2]]
        return [LinkChange(at_s, link, effect) for at_s, effect in spans for link in mine]

    def record(self) -> dict[str, Any]:
        """Return the fields of the collapse in the record of a placement."""
        return {"value": self.factor, "detail": {"scenario": self.name, **msgspec.to_builtins(self)}}

    def missed(self, label: str) -> str:
        """Return the note on a placement that ended before the collapse, without a record of it."""
        return f"{label} had ended before the collapse; ask for more --images"

    def __str__(self) -> str:
        return (
            f"scenario collapse: from {self.at_s:g} s after each placement's start until {self.until_s:g} s, the links"
            f" of {self.host} have {self.factor:.0%} of their rate (but at least {format_rate(self.floor_bps)})"
        )


def choose_host(placement: Mapping[str, str], hosts: Sequence[str], client: str) -> str:
    """Return the host that has most operators of one-shot's ``placement`` (operator to host).

    Raises UsageError if all operators are at the client.
    """
    operators = Counter(placement.values())
    servers = [host for host in hosts if host != client and operators[host]]
    if not servers:
        raise UsageError(
            "--scenario collapse: one-shot put every operator at the client, so there is no host to collapse;"
            " choose another --seed, or more --servers"
        )
    return max(servers, key=lambda host: operators[host])  # R3: max keeps the first of equals


def collapse_floor_bps(links: Mapping[Link, BandwidthTrace]) -> float:
    """Return the rate below which no link falls by a collapse (R2), in emulated bit/s."""
    return COLLAPSE_FLOOR * fmean(trace.mean_bps for trace in links.values())


def check_collapse(links: Mapping[Link, BandwidthTrace], time_scale: float) -> None:
    """Raise UsageError if links would collapse to less than a testbed can set, and so would not collapse."""
    low_bps = collapse_floor_bps(links) * time_scale
    if low_bps < RATE_FLOOR_BPS:
        raise UsageError(
            f"--scenario collapse leaves links of {format_rate(low_bps)} (wall), and a testbed sets none below"
            f" {format_rate(RATE_FLOOR_BPS)}: raise --time-scale or --link-mean"
        )
