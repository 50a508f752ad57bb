"""Pools of traces: scaled together by one constant, drawn for the links of a complete graph, read from any moment."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean

import msgspec

from thalweg.emulation.traces.files import load_pool
from thalweg.emulation.traces.generator import DEFAULT_S, DEFAULT_TRACES, TraceModel, generate_pool
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import TraceError, UsageError
from thalweg.middleware.network.view import Link, links_between

MAX_STEPS, PRECISION = 30, 0.001  # of looking for a pool's constant


class Window(msgspec.Struct, frozen=True):
    """A trace read from ``start_s`` on, in wrap-around: what ``trace.offset(start_s)`` is, without a copy; ``Rates``.

    All windows of a trace share its sums, so that simulating many networks of a pool costs neither time nor memory.
    """

    trace: BandwidthTrace
    start_s: float

    def rate_at(self, t_s: float) -> float:
        return self.trace.rate_at(self.start_s + t_s)

    def until_s(self, t_s: float) -> float:
        return self.trace.until_s(self.start_s + t_s) - self.start_s

    def bits_between(self, start_s: float, stop_s: float) -> float:
        return self.trace.bits_between(self.start_s + start_s, self.start_s + stop_s)

    def transfer_time_s(self, size_bytes: float, start_s: float) -> float:
        return self.trace.transfer_time_s(size_bytes, self.start_s + start_s)

    def later(self, by_s: float) -> Window:
        """The same trace, read from ``by_s`` later on."""
        return Window(self.trace, self.start_s + by_s)

    def cut(self) -> BandwidthTrace:
        """The same as a trace of its own, which a shaper can replay."""
        return self.trace.offset(self.start_s)


def read_pool(folder: Path | None, seed: int, mean_bps: float | None = None) -> list[BandwidthTrace]:
    """The traces in a folder, or made ones by the seed; scaled to a mean where one is given (``scale_pool``)."""
    pool = generate_pool(TraceModel(), DEFAULT_TRACES, seed, DEFAULT_S) if folder is None else load_pool(folder)
    return pool if mean_bps is None else scale_pool(pool, mean_bps)


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
    """Return the traces, scaled by the one factor that makes the mean ``fetch_s`` of ``networks`` ``target_s``.

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


def assign_traces(pool: Sequence[BandwidthTrace], hosts: Sequence[str], seed: int) -> dict[Link, BandwidthTrace]:
    """A trace for every directed pair of ``hosts``, drawn uniformly from the pool, starting anywhere in it.

    Both draws of a link depend on ``seed`` and the names of its two hosts alone, so that adding a host leaves
    the other links as they are. Source: Ranganathan et al. (1998), section 4 (network configurations).
    """
    _check_pool(pool)
    check_hosts(hosts)
    return {link: draw(pool, seed, *link).cut() for link in links_between(hosts)}


def draw(pool: Sequence[BandwidthTrace], *key: int | str) -> Window:
    """One of the traces, uniformly, from anywhere in it; the same for the same ``key``."""
    number, share = choose(len(pool), *key)
    return Window(pool[number], share * pool[number].duration_s)


def choose(count: int, *key: int | str) -> tuple[int, float]:
    """One of ``count``, uniformly, and a share below 1, both by the key alone."""
    first, second = two_draws(*key)
    return first * count >> 64, second / 2**64


def two_draws(*key: int | str) -> tuple[int, int]:
    """Two uniform 64-bit numbers; a hash, so that they hold for every version of every library."""
    digest = hashlib.sha256(json.dumps(key).encode()).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")


class Pool(msgspec.Struct, frozen=True, eq=False):
    """Traces, and the networks that are drawn from them by number: *configurations*.

    ``noons_s``: for every trace the seconds from its start to its first noon, None where it has no time of day or ends
    before. ``places``: what a host may stand for; ``classes``: for two of these the numbers of the traces that their
    link is drawn from. Without places all links are drawn from the whole pool.
    """

    name: str
    seed: int
    traces: tuple[BandwidthTrace, ...]
    noons_s: tuple[float | None, ...]
    places: tuple[str, ...] = ()
    classes: Callable[[str, str], Sequence[int]] | None = None

    def network(self, hosts: Sequence[str], configuration: int) -> dict[Link, Window]:
        """The link of every directed pair of ``hosts`` in one configuration; both directions of a pair are alike.

        The trace is uniform in the pool, or in the class of the pair's places. It starts at noon where it has a
        time of day (UTC: hosts of one trace may be in several time zones), else anywhere. The draws depend on the
        pool's seed, the configuration's number and the names of the two hosts alone, so that adding a host leaves the
        other links as they are. Raises UsageError.
        """
        check_hosts(hosts)
        check_number("configuration", configuration)
        everything: Sequence[int] = range(len(self.traces))
        places = {host: self.place(host, configuration) for host in hosts} if self.places else {}
        links: dict[Link, Window] = {}
        for one, other in combinations(sorted(hosts), 2):
            members = everything
            if self.classes is not None:
                members = self.classes(places[one], places[other])
            number, share = choose(len(members), self.seed, configuration, one, other)
            trace, noon_s = self.traces[members[number]], self.noons_s[members[number]]
            window = Window(trace, share * trace.duration_s if noon_s is None else noon_s)
            links[Link(one, other)] = links[Link(other, one)] = window
        return links

    def place(self, host: str, configuration: int) -> str:
        """Which of ``places`` a host stands for in one configuration: uniform, and several may be at one."""
        return self.places[choose(len(self.places), self.seed, configuration, host)[0]]


def check_number(what: str, value: int) -> None:
    """Raise UsageError for a number below 0."""
    if value < 0:
        raise UsageError(f"the {what} is {value}; it must not be negative")


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise UsageError for a host that is named twice."""
    if len(set(hosts)) != len(hosts):
        twice = next(host for host in hosts if list(hosts).count(host) > 1)
        raise UsageError(f"host {twice!r} is named twice; give every host its own name")


def _check_pool(pool: Sequence[BandwidthTrace]) -> None:
    if not pool:
        raise TraceError("the pool holds no traces; load some or generate them")
