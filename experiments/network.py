"""The emulated network of a run: which trace is on which link, and whether this machine can carry it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from thalweg.emulation.rates import format_rate
from thalweg.emulation.trace_files import load_pool
from thalweg.emulation.trace_generator import TraceModel, generate_pool
from thalweg.emulation.trace_pool import assign_traces, scale_pool
from thalweg.emulation.traces import BandwidthTrace
from thalweg.experiments.config import RunConfig
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network_view import Link

GENERATED_TRACES = 64
GENERATED_S = 6 * 3600.0
# What a core can shape, send, receive and combine at once with room to spare; above it the emulator, not the link, is
# measured. Nine hosts of this runtime moved 128 KB partitions at several times this rate on loopback.
CARRY_BPS_PER_CORE = 400e6


def build_links(config: RunConfig, hosts: Sequence[str], edges: int) -> dict[Link, BandwidthTrace]:
    """A trace for every directed pair of ``hosts``, in emulated bit/s.

    ``edges``: how many links the dataflow can keep busy at once. Raises TraceError, and UsageError for rates that
    this machine cannot carry.
    """
    if config.traces is not None:
        pool = load_pool(Path(config.traces))
    else:
        pool = generate_pool(TraceModel(), GENERATED_TRACES, config.seed, GENERATED_S)
    if config.link_mean_bps is not None:
        pool = scale_pool(pool, config.link_mean_bps)
    busy_bps = fmean(trace.mean_bps for trace in pool) * config.time_scale * edges
    limit_bps = CARRY_BPS_PER_CORE * (os.cpu_count() or 1)
    if busy_bps > limit_bps:
        raise UsageError(
            f"{edges} busy links of {format_rate(busy_bps / edges / config.time_scale)} at --time-scale"
            f" {config.time_scale:g} are {format_rate(busy_bps)} of real traffic; this machine carries about"
            f" {format_rate(limit_bps)}: lower --link-mean or --time-scale"
        )
    return assign_traces(pool, hosts, config.seed)
