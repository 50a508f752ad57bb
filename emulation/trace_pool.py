"""Pools of traces: scaled together by one constant, and assigned to the links of a complete graph."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from statistics import fmean

from thalweg.emulation.traces import BandwidthTrace
from thalweg.middleware.errors import TraceError, UsageError


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


def assign_traces(
    pool: Sequence[BandwidthTrace], hosts: Sequence[str], seed: int
) -> dict[tuple[str, str], BandwidthTrace]:
    """A trace for every directed pair of ``hosts``, drawn uniformly from the pool, starting anywhere in it.

    Both draws of a link depend on ``seed`` and the names of its two hosts alone, so that adding a host leaves
    the other links as they are. Source: Ranganathan et al. (1998), section 4 (network configurations).
    """
    _check_pool(pool)
    if len(set(hosts)) != len(hosts):
        twice = next(host for host in hosts if list(hosts).count(host) > 1)
        raise UsageError(f"host {twice!r} is named twice; give every host its own name")
    links: dict[tuple[str, str], BandwidthTrace] = {}
    for source in hosts:
        for target in hosts:
            if source != target:
                draw, start = _two_draws(seed, source, target)
                trace = pool[draw * len(pool) >> 64]
                links[source, target] = trace.offset(start / 2**64 * trace.duration_s)
    return links


def _two_draws(seed: int, source: str, target: str) -> tuple[int, int]:
    """Two uniform 64-bit numbers; a hash, so that they hold for every version of every library."""
    digest = hashlib.sha256(json.dumps([seed, source, target]).encode()).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")


def _check_pool(pool: Sequence[BandwidthTrace]) -> None:
    if not pool:
        raise TraceError("the pool holds no traces; load some or generate them")
