"""Over which network each edge of a placed dataflow goes: of those that keep the wanted rate the cheapest, otherwise
the fastest.

Rules:

R1. Edges between the same two hosts go over the same network, and their bytes one after the other.
R2. A graph is as slow as its slowest node or link (``costs.period``, with a link's capacity its own): a node takes its
    inputs at the same time, computes, and sends. That is the *period*, for which the wanted rate leaves room: the
    task's, otherwise that of the sources, at most what the fastest networks allow, less ``SLACK``.
R3. From the fastest networks on, the link that can save most first, each gets the cheapest with which the nodes at its
    ends keep the period.
R4. Estimates vary: what a link goes over now stays, unless another saves more than ``GAIN`` of its price, or it misses
    the period by more than ``TOLERANCE``.
R5. What a link was agreed to carry counts before a run; while it goes on, what was measured does.
R6. A rented link's hours are paid, used or not: its price here is that of the bytes alone. Whether to rent is asked
    before, by who rents (``tariffs``: from how many bytes an hour on a port pays).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from thalweg.middleware.dataflow import Dataflow, Placement
from thalweg.middleware.network.networks import Network, links_of
from thalweg.middleware.network.tariffs import HOUR_S
from thalweg.middleware.network.view import NET, Link, LinkEstimate, LinksNeeded, Pair
from thalweg.middleware.planning.problem.hints import Hints
from thalweg.middleware.planning.problem.task import Task

SLACK = 0.05
TOLERANCE = 0.15
GAIN = 0.05
FREE = Network()

Choice = dict[Pair, tuple[str, ...]]  # between two hosts: the networks, the first choice first


class _Option(NamedTuple):
    """A network for a link: bit/s, and dollars an hour at the wanted rate."""

    via: str
    rate_bps: float
    price: float


class _Edges(NamedTuple):
    """The edges of a placed dataflow that go between hosts, by link; bytes of a partition."""

    nodes: dict[Pair, dict[str, None]]  # at either end
    size_bytes: dict[Pair, float]
    into: dict[str, list[tuple[Pair, float]]]  # by node
    out_of: dict[str, list[tuple[Pair, float]]]
    alone_s: dict[str, float]  # what a node takes besides


def with_all_networks(task: Task) -> Task:
    """The same task with links that carry what the fastest network between their hosts does, as far as is known."""
    best: dict[Link, LinkEstimate] = {}
    agreed = {link: LinkEstimate(rate_bps, 0) for link, rate_bps in links_of(task.networks).items()}
    for link, known in {**agreed, **task.view.estimates}.items():
        if link.via != NET and link.via in task.networks and task.networks[link.via].joins(*link.hosts):
            shared = best.get(Link(*link.hosts)) or task.view.estimates.get(Link(*link.hosts))
            if shared is None or known.rate_bps > shared.rate_bps:
                best[Link(*link.hosts)] = known
    return task.but(view=task.view.with_estimates(best)) if best else task


def choose(task: Task, dataflow: Dataflow, placement: Placement, hints: Hints | None = None) -> Choice:
    """The networks between all hosts that this placement has send to each other, in order.

    Raises LinksNeeded with the links that nobody has measured.
    """
    edges = _edges(task, dataflow, placement, hints or task.hints)
    rates = _rates(task, edges)
    at = {pair: max(known.values()) for pair, known in rates.items()}
    period_s = max((_cycle_s(edges, node, at) for node in edges.alone_s), default=0.0)
    period_s = max([period_s, *(edges.size_bytes[pair] * 8 / at[pair] if at[pair] else math.inf for pair in at)])
    wanted_s = _wanted_s(task, dataflow, period_s)
    options = {pair: _options(task, edges.size_bytes[pair], known, wanted_s) for pair, known in rates.items()}
    now = {pair: task.routes[Link(*pair)][0].via if Link(*pair) in task.routes else NET for pair in rates}
    if task.current is None:
        now = dict.fromkeys(rates, "")
    chosen = {pair: max(each, key=lambda option: (option.rate_bps, -option.price)) for pair, each in options.items()}

    def saves(pair: Pair) -> float:
        return chosen[pair].price - min(option.price for option in options[pair])

    for pair in sorted(chosen, key=lambda pair: (-saves(pair), pair)):  # R3

        def preferred(option: _Option, now: str = now[pair]) -> tuple[float, bool, float]:
            return option.price * (1 - GAIN * (option.via == now)), option.via != now, -option.rate_bps  # R4

        for option in sorted(options[pair], key=preferred):
            room_s = wanted_s * (1 + TOLERANCE) if option.via == now[pair] else wanted_s
            if option is chosen[pair] or _keeps(edges, pair, {**at, pair: option.rate_bps}, room_s):
                chosen[pair], at[pair] = option, option.rate_bps
                break
    return {
        pair: (first.via, *(each.via for each in _fastest(options[pair]) if each != first))
        for pair, first in chosen.items()
    }


def _fastest(options: list[_Option]) -> list[_Option]:
    return sorted(options, key=lambda each: -each.rate_bps)


def in_order(choice: Choice, routes: Mapping[Link, tuple[Link, ...]]) -> Choice:
    """The same choice but for what comes first, as these routes say."""
    first = {pair: routes[Link(*pair)][0].via if Link(*pair) in routes else NET for pair in choice}
    return {pair: (first[pair], *(via for via in over if via != first[pair])) for pair, over in choice.items()}


def routes_of(choice: Choice) -> dict[Link, tuple[Link, ...]]:
    """The links of a plan that go over another network than the shared one."""
    return {Link(*pair): (Link(*pair, over[0]),) for pair, over in choice.items() if over[0] != NET}


def _edges(task: Task, dataflow: Dataflow, placement: Placement, hints: Hints) -> _Edges:
    edges = _Edges({}, {}, {}, {}, {})
    for node in dataflow.nodes:
        host = placement[node.name]
        edges.alone_s[node.name] = hints.compute_s.get(node.name, 0.0) * task.costs.compute_factor
        edges.alone_s[node.name] *= task.compute_factor(host)
    for name in dataflow.upward:
        sent: set[str] = set()
        for consumer in dataflow.consumers[name]:
            pair = placement[name], placement[consumer]
            if pair[0] == pair[1]:
                continue
            size = hints.output_bytes[name]
            edges.nodes.setdefault(pair, {}).update({name: None, consumer: None})
            if pair[1] not in sent:  # consumers on one host are sent one
                edges.size_bytes[pair] = edges.size_bytes.get(pair, 0.0) + size
                edges.out_of.setdefault(name, []).append((pair, size))
            sent.add(pair[1])
            edges.into.setdefault(consumer, []).append((pair, size))
    return edges


def _rates(task: Task, edges: _Edges) -> dict[Pair, dict[str, float]]:
    """What the networks carry between those hosts."""
    found: dict[Pair, dict[str, float]] = {}
    needed: list[Link] = []
    agreed = links_of(task.networks)
    for pair in edges.size_bytes:
        found[pair] = {}
        for via in {NET: None, **dict.fromkeys(task.networks)}:
            if not task.networks.get(via, FREE).joins(*pair):
                continue
            link = Link(*pair, via)
            rate_bps = task.view.rate_bps(*pair, via)
            if rate_bps is None and link in agreed and task.current is None:  # R5
                rate_bps = agreed[link]
            if rate_bps is None:
                needed.append(link)
            else:
                found[pair][via] = rate_bps
    if needed:
        raise LinksNeeded(needed)
    return found


def _wanted_s(task: Task, dataflow: Dataflow, period_s: float) -> float:
    """R2: the period that is to be kept."""
    if task.wanted_hz is not None:
        return 1 / task.wanted_hz
    rates_hz = [node.rate for node in dataflow.nodes if node.rate]
    return max([period_s * (1 + SLACK), *(1 / rate_hz for rate_hz in rates_hz)])


def _options(task: Task, size_bytes: float, rates: Mapping[str, float], period_s: float) -> list[_Option]:
    hourly_bytes = size_bytes * HOUR_S / period_s if 0 < period_s < math.inf else 0.0
    found = []
    for via, rate_bps in rates.items():
        network = task.networks.get(via, FREE)
        found.append(_Option(via, rate_bps, network.tariff.carrying(hourly_bytes)))  # R6
    return found


def _keeps(edges: _Edges, pair: Pair, at: Mapping[Pair, float], period_s: float) -> bool:
    """Whether the link, and the nodes at its ends, keep the period."""
    if not at[pair] or edges.size_bytes[pair] * 8 / at[pair] > period_s:
        return False
    return all(_cycle_s(edges, node, at) <= period_s for node in edges.nodes[pair])


def _cycle_s(edges: _Edges, node: str, at: Mapping[Pair, float]) -> float:
    """R2: what one partition takes a node, at these rates."""
    ways = edges.into.get(node, ()), edges.out_of.get(node, ())
    times = [max((size * 8 / at[pair] if at[pair] else math.inf for pair, size in way), default=0.0) for way in ways]
    return sum(times) + edges.alone_s[node]
