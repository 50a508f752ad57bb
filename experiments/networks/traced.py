"""Emulated network of a run with a trace on every link, and the check whether the machine can carry it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from thalweg.emulation.links.units import format_rate
from thalweg.emulation.scenarios.delays import read_delays
from thalweg.emulation.scenarios.timeline import Timeline
from thalweg.emulation.traces.pool import assign_traces, read_pool
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.uml.files import inside_uml
from thalweg.experiments.networks.described import Network, described
from thalweg.experiments.run_config import PLANNED, RunConfig, is_scenario_file
from thalweg.middleware.errors import UsageError

# Rate that a core can shape, send, receive and combine at once, with a reserve. Above this rate the emulator is
# measured, and not the link. Nine hosts of this runtime moved 128 KB partitions at several times this rate on loopback.
CARRY_BPS_PER_CORE = 400e6
# The same inside a User-Mode Linux kernel, which has one processor. Five hosts kept the pace of their links up to
# 56 Mbit/s in total, and fell 17 % behind at 84 Mbit/s (docs/explanation/kernels.md).
UML_CARRY_BPS = 50e6
EASY = 0.5  # share of the carried rate that a default time scale takes at most
MOST_TIME_SCALE = 60


def build_network(config: RunConfig, hosts: Sequence[str], edges: int) -> Network:
    """Return the network of a run: from its scenario file, or with a drawn trace for every directed pair of ``hosts``.

    ``edges``: number of links that the dataflow can keep busy at once. Raises TraceError, and UsageError for rates that
    the machine cannot carry.
    """
    if is_scenario_file(config.scenario):
        network = described(config)
        if config.workload != PLANNED:  # a plan says itself what goes over links
            check_carried(network.mean_bps, edges, config.time_scale)
        return network
    pool = _pool(config)
    check_carried(_mean_bps(pool), edges, config.time_scale)
    timeline = Timeline.of_traces(assign_traces(pool, hosts, config.seed), config.time_scale)
    if config.latency is None:
        return Network(timeline)
    delays_s, sites = read_delays(config.latency, hosts, config.seed)
    notes = [f"round trips of {Path(config.latency).stem}"]
    if sites:
        notes = [f"{notes[0]}: {', '.join(f'{host} is at {site}' for host, site in sites.items())}"]
    return Network(timeline.delayed(delays_s), notes)


def check_carried(mean_bps: float, edges: int, time_scale: float) -> None:
    """Raise UsageError if the machine cannot carry ``edges`` busy links of a mean (emulated) rate."""
    busy_bps, limit_bps = mean_bps * edges, carried_bps()
    if busy_bps * time_scale <= limit_bps:
        return
    where = "a User-Mode Linux kernel" if inside_uml() else "this machine"
    most = limit_bps / busy_bps
    raise UsageError(
        f"{edges} busy links of {format_rate(mean_bps)} at --time-scale"
        f" {time_scale:g} are {format_rate(busy_bps * time_scale)} of real traffic; {where} carries"
        f" about {format_rate(limit_bps)}: lower --link-mean, or --time-scale to at most"
        f" {math.floor(most) if most >= 1 else f'{most:.2g}'}"
    )


def carried_bps() -> float:
    """Return the real traffic that the machine, or the kernel of the process, shapes and combines at once."""
    return UML_CARRY_BPS if inside_uml() else CARRY_BPS_PER_CORE * (os.cpu_count() or 1)


def easy_time_scale(config: RunConfig, edges: int) -> float:
    """Return the largest whole time scale, from 1 to 60, at which ``edges`` busy links take half of ``carried_bps``."""
    busy_bps = _mean_bps(_pool(config)) * edges
    return float(min(MOST_TIME_SCALE, max(1, math.floor(EASY * carried_bps() / busy_bps))))


def _pool(config: RunConfig) -> list[BandwidthTrace]:
    """Return the traces that links are drawn from."""
    folder = None if config.traces is None else Path(config.traces)
    return read_pool(folder, config.seed, config.link_mean_bps)


def _mean_bps(pool: Sequence[BandwidthTrace]) -> float:
    return fmean(trace.mean_bps for trace in pool)
