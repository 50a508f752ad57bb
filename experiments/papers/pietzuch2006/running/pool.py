"""Hosts of a latency matrix with the coordinates that they find, and shares on links with these latencies."""

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

ROUNDS = 600  # of measurements, one a host each
LINK_BPS = 5e6  # which carries what is sent
TESTBEDS, KERNELS = ("netns", "sim"), ("host", "uml")


class Space(msgspec.Struct, frozen=True):
    """The latencies one way, and the coordinates that hosts found: the paper's, and ours with heights."""

    latency_s: Floats
    plain: Coordinates
    high: Coordinates
    mapper: Mapper


@lru_cache(maxsize=2)
def space(pool: str) -> Space:
    """Of a matrix by its name, without hosts that lack a measurement; made once a process."""
    round_trip_s = matrix(pool)
    round_trip_s = np.where(np.isnan(round_trip_s), round_trip_s.T, round_trip_s)
    lacks = np.isnan(round_trip_s) & ~np.eye(len(round_trip_s), dtype=bool)
    kept = np.arange(len(round_trip_s))
    while lacks[np.ix_(kept, kept)].any():
        kept = np.delete(kept, int(lacks[np.ix_(kept, kept)].sum(axis=1).argmax()))
    latency_s = np.nan_to_num((round_trip_s + round_trip_s.T)[np.ix_(kept, kept)] / 4)
    plain, high = (
        embedded(latency_s, np.random.default_rng((1, heights)), rounds=ROUNDS, heights=heights)
        for heights in (False, True)
    )
    return Space(latency_s, plain, high, Mapper(plain.places))


def name_of(host: int) -> str:
    return f"n{host}"


def network_of(latency_s: Mapping[Link, float], time_scale: float) -> Timeline:
    """Links with these latencies that carry whatever is sent; where none is given for the client, the last host, it is
    beside all."""
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
    """On that testbed; UsageError for one that there is not, CapabilityError where the machine lacks what it needs.

    ``delays``: links must have the latencies, as hosts are to measure them.
    """
    for what, given, known in (("testbed", testbed, TESTBEDS), ("kernel", kernel, KERNELS)):
        if given not in known:
            raise UsageError(f"{what} is {given!r}; {nearest(given, known)}")
    if testbed == "sim":
        return virtually(shares, network, partitions)
    from thalweg.experiments.papers.pietzuch2006.running.testbed import emulated  # which virtual time does without

    try:
        return emulated(shares, network, partitions, kernel=kernel, delays=delays)
    except CapabilityError as error:
        raise CapabilityError(f"{error}; --testbed sim needs none of it") from None
