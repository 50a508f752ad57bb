"""Hosts of a latency matrix with their coordinates, and runs of shares on links with these latencies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec
import numpy as np

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.scenarios.hosts import HostSpec
from thalweg.emulation.scenarios.timeline import Timeline
from thalweg.emulation.traces.latencies import Floats
from thalweg.experiments.papers.pietzuch2006.coordinates.embedding import matrix
from thalweg.experiments.papers.pietzuch2006.running.job import Ran, Share
from thalweg.experiments.papers.pietzuch2006.running.virtual import virtually
from thalweg.experiments.run_config import CLIENT
from thalweg.middleware.errors import CapabilityError, UsageError, nearest
from thalweg.middleware.network.coordinates import Coordinates, embedded
from thalweg.middleware.network.view import Link, links_between
from thalweg.middleware.planning.usage.mapping import Mapper

ROUNDS = 600  # of measurements, one per host and round
LINK_BPS = 5e6  # ample for the queries
TESTBEDS, KERNELS = ("netns", "sim"), ("host", "uml")


class Space(msgspec.Struct, frozen=True):
    """One-way latencies, and the hosts' coordinates: the paper's (``plain``), and ours with heights (``high``)."""

    latency_s: Floats
    plain: Coordinates
    high: Coordinates
    mapper: Mapper


@lru_cache(maxsize=2)
def space(pool: str) -> Space:
    """Return the space of a matrix by name, without hosts that lack a measurement. Computed once per process."""
    round_trip_s = matrix(pool)
    round_trip_s = np.where(np.isnan(round_trip_s), round_trip_s.T, round_trip_s)
    lacks = np.isnan(round_trip_s) & ~np.eye(len(round_trip_s), dtype=bool)
    hosts = np.arange(len(round_trip_s))
    while lacks[np.ix_(hosts, hosts)].any():
        hosts = np.delete(hosts, int(lacks[np.ix_(hosts, hosts)].sum(axis=1).argmax()))
    latency_s = np.nan_to_num((round_trip_s + round_trip_s.T)[np.ix_(hosts, hosts)] / 4)
    plain, high = (
        embedded(latency_s, np.random.default_rng((1, heights)), rounds=ROUNDS, heights=heights)
        for heights in (False, True)
    )
    return Space(latency_s, plain, high, Mapper(plain.places))


def name_of(host: int) -> str:
    return f"n{host}"


def network_of(latency_s: Mapping[Link, float], time_scale: float) -> Timeline:
    """Return links with these latencies and ample rates. The last host is the client. A link without a given latency
    has no delay.
    """
    names = sorted({host for link in latency_s for host in link} - {CLIENT})
    hosts = {name: HostSpec(name) for name in (*names, CLIENT)}
    shapes = {link: LinkShape(LINK_BPS, latency_s.get(link, 0.0)) for link in links_between([*names, CLIENT])}
    return Timeline(hosts=hosts, links=shapes, traces={}, time_scale=time_scale)


def run_shares(
    shares: tuple[Share, ...],
    network: Timeline,
    partitions: int,
    *,
    testbed: str,
    kernel: str = "host",
    delays: bool = False,
) -> Ran:
    """Run shares on a testbed. Raise UsageError for an unknown testbed, CapabilityError if the machine lacks a part.

    ``delays``: links must have the latencies, because hosts measure them.
    """
    for field, value, known in (("testbed", testbed, TESTBEDS), ("kernel", kernel, KERNELS)):
        if value not in known:
            raise UsageError(f"{field} is {value!r}; {nearest(value, known)}")
    if testbed == "sim":
        return virtually(shares, network, partitions)
    from thalweg.experiments.papers.pietzuch2006.running.testbed import emulated  # virtual time does without it

    try:
        return emulated(shares, network, partitions, kernel=kernel, delays=delays)
    except CapabilityError as error:
        raise CapabilityError(f"{error}; --testbed sim needs none of it") from None
