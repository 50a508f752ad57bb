"""Scenarios: what befalls the emulated network during a run, at the same time under every placement.

``collapse``: one host's links, in both directions and to all the others, have ``COLLAPSE_FACTOR`` of their trace's
rate for ``COLLAPSE_S``, beginning ``COLLAPSE_AT_S`` after a placement's start (emulated seconds). None falls below
``COLLAPSE_FLOOR`` times the mean rate of all links; those that are slower anyhow stay as they are. The host is the one
to which one-shot gives most operators (of several, the first), never the client: where a placement that stays has most
to lose. Placements are planned before anything flows, on the links as they are at the start of their traces, so the
host is known; every placement that begins with one-shot starts from one plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import ClassVar, Protocol

import msgspec

from thalweg.emulation.links.effects import NEUTRAL, Effect
from thalweg.emulation.links.shape import RATE_FLOOR_BPS
from thalweg.emulation.traces.changed import changed
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.units import format_rate
from thalweg.experiments.runs.config import COLLAPSE_AT_S, COLLAPSE_FACTOR, COLLAPSE_FLOOR, COLLAPSE_S
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link


class Rates(Protocol):
    """A link's rate over time, emulated seconds and bit/s; ``BandwidthTrace`` is one."""

    def rate_at(self, t_s: float, /) -> float: ...

    def bits_between(self, start_s: float, stop_s: float, /) -> float: ...

    def transfer_time_s(self, size_bytes: float, start_s: float, /) -> float: ...


class Collapse(msgspec.Struct, frozen=True):
    """The links of ``host`` have ``factor`` times their rate from ``at_s`` until ``until_s`` (emulated).

    They do not fall below ``floor_bps`` by it; one that is slower anyhow stays.
    """

    name: ClassVar[str] = "collapse"
    host: str
    floor_bps: float
    at_s: float = COLLAPSE_AT_S
    until_s: float = COLLAPSE_AT_S + COLLAPSE_S
    factor: float = COLLAPSE_FACTOR

    def links(self, links: Mapping[Link, object]) -> list[Link]:
        """Those that collapse."""
        return [link for link in links if self.host in link]

    def rates(self, links: Mapping[Link, BandwidthTrace]) -> dict[Link, Rates]:
        """What every link's rate is then, of what it is otherwise."""
        effects = [(self.at_s, Effect(self.factor, self.floor_bps)), (self.until_s, NEUTRAL)]
        rates: dict[Link, Rates] = dict(links)
        for link in self.links(links):
            rates[link] = changed(links[link], effects)
        return rates

    def __str__(self) -> str:
        return (
            f"scenario collapse: from {self.at_s:g} s after each placement's start until {self.until_s:g} s, the links"
            f" of {self.host} have {self.factor:.0%} of their rate (but at least {format_rate(self.floor_bps)})"
        )


def choose_host(placement: Mapping[str, str], hosts: Sequence[str], client: str) -> str:
    """The host that has most operators of one-shot's ``placement`` (operator to host).

    Raises UsageError when they are all at the client.
    """
    operators = Counter(placement.values())
    servers = [host for host in hosts if host != client and operators[host]]
    if not servers:
        raise UsageError(
            "--scenario collapse: one-shot put every operator at the client, so there is no host to collapse;"
            " choose another --seed, or more --servers"
        )
    return max(servers, key=lambda host: operators[host])  # max keeps the first of equals


def collapse_floor_bps(links: Mapping[Link, BandwidthTrace]) -> float:
    """What no link falls below by a collapse, in emulated bit/s."""
    return COLLAPSE_FLOOR * fmean(trace.mean_bps for trace in links.values())


def check_collapse(links: Mapping[Link, BandwidthTrace], time_scale: float) -> None:
    """Raise UsageError when links would collapse to less than a testbed can set, so that they did not collapse."""
    low_bps = collapse_floor_bps(links) * time_scale
    if low_bps < RATE_FLOOR_BPS:
        raise UsageError(
            f"--scenario collapse leaves links of {format_rate(low_bps)} (wall), and a testbed sets none below"
            f" {format_rate(RATE_FLOOR_BPS)}: raise --time-scale or --link-mean"
        )
