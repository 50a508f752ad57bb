"""Pools of traces: scaled together by one constant, assigned to the links of a complete graph, read from any moment."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import TraceError, UsageError

MAX_STEPS, PRECISION = 30, 0.001  # of looking for a pool's constant


class Window(msgspec.Struct, frozen=True):
    """A trace read from ``start_s`` on, in wrap-around: what ``trace.offset(start_s)`` is, without a copy.

    All windows of a trace share its sums, so that simulating many networks of a pool costs neither time nor memory.
    """

    trace: BandwidthTrace
    start_s: float

    @property
    def name(self) -> str:
        return self.trace.name

    @property
    def mean_bps(self) -> float:
        """Time-weighted mean rate over one period."""
        return self.trace.mean_bps

    def rate_at(self, t_s: float) -> float:
        """Rate in bits per second ``t_s`` after the window's start."""
        return self.trace.rate_at(self.start_s + t_s)

    def bits_between(self, start_s: float, stop_s: float) -> float:
        """Bits the link can carry between two times, ``start_s <= stop_s``."""
        return self.trace.bits_between(self.start_s + start_s, self.start_s + stop_s)

    def transfer_time_s(self, size_bytes: float, start_s: float) -> float:
        """Seconds that ``size_bytes`` take when they have the link to themselves from ``start_s`` on."""
        return self.trace.transfer_time_s(size_bytes, self.start_s + start_s)

    def cut(self) -> BandwidthTrace:
        """The same as a trace of its own, which a shaper can replay."""
        return self.trace.offset(self.start_s)


def scale_pool(pool: Sequence[BandwidthTrace], mean_bps: float) -> list[BandwidthTrace]:
    """All traces times one constant, such that the mean of their time-weighted means is ``mean_bps``.

    Relative variation, within and between the traces, stays as it was measured. Raises UsageError for a mean
    that is not above 0, TraceError for a pool without a trace or without a rate above 0.
    """
    if not 0.0 < mean_bps < math.inf:
        raise UsageError(f"cannot scale traces to a mean of {mean_bps} bit/s; give a rate above 0")
    _check_pool(pool)
    present_bps = fmean(trace.mean_bps for trace in pool)
    if present_bps <= 0.0:
        raise TraceError("cannot scale a pool of traces that are all zero everywhere; choose other traces")
    return [trace.scaled(mean_bps / present_bps) for trace in pool]


def fetch_s(links: Sequence[Window], size_bytes: float, rounds: int, startup_s: float = 0.0) -> float:
    """Mean seconds of fetching ``size_bytes`` over every one of ``links`` in turn, one after the other, from time 0 on.

    ``rounds``: how often that is done; ``startup_s``: what each transfer takes besides its bytes.
    """
    now_s = 0.0
    for _ in range(rounds):
        for link in links:
            now_s += startup_s + link.transfer_time_s(size_bytes, now_s + startup_s)
    return now_s / rounds


def scale_pool_to_fetch(
    pool: Sequence[BandwidthTrace],
    target_s: float,
    networks: Sequence[Sequence[Window]],
    size_bytes: float,
    rounds: int,
    startup_s: float = 0.0,
) -> list[BandwidthTrace]:
    """All traces times one constant, such that the mean :func:`fetch_s` of ``networks``, made of them, is ``target_s``.

    Relative variation stays as it was measured. Raises UsageError for a target that start-up costs alone exceed,
    TraceError for a pool without a trace, or one that is zero everywhere.
    """
    _check_pool(pool)
    if not len(networks[0]) * startup_s < target_s < math.inf:
        raise UsageError(f"cannot scale traces to {target_s} s for a partition of each link; give a longer time")
    factor = 1.0
    for _ in range(MAX_STEPS):  # half the bytes over a link are its rate doubled
        took_s = fmean(fetch_s(links, size_bytes / factor, rounds, startup_s) for links in networks)
        factor *= took_s / target_s
        if abs(took_s / target_s - 1) < PRECISION:
            break
    return [trace.scaled(factor) for trace in pool]


def assign_traces(
    pool: Sequence[BandwidthTrace], hosts: Sequence[str], seed: int
) -> dict[tuple[str, str], BandwidthTrace]:
    """A trace for every directed pair of ``hosts``, drawn uniformly from the pool, starting anywhere in it.

    Both draws of a link depend on ``seed`` and the names of its two hosts alone, so that adding a host leaves
    the other links as they are. Source: Ranganathan et al. (1998), section 4 (network configurations).
    """
    _check_pool(pool)
    check_hosts(hosts)
    links: dict[tuple[str, str], BandwidthTrace] = {}
    for source in hosts:
        for target in hosts:
            if source != target:
                draw, start = two_draws(seed, source, target)
                trace = pool[draw * len(pool) >> 64]
                links[source, target] = trace.offset(start / 2**64 * trace.duration_s)
    return links


def two_draws(*key: int | str) -> tuple[int, int]:
    """Two uniform 64-bit numbers; a hash, so that they hold for every version of every library."""
    digest = hashlib.sha256(json.dumps(key).encode()).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise UsageError for a host that is named twice."""
    if len(set(hosts)) != len(hosts):
        twice = next(host for host in hosts if list(hosts).count(host) > 1)
        raise UsageError(f"host {twice!r} is named twice; give every host its own name")


def _check_pool(pool: Sequence[BandwidthTrace]) -> None:
    if not pool:
        raise TraceError("the pool holds no traces; load some or generate them")
