"""Choice of a network, or of a route over relays, for every edge of a placed dataflow.

The cheapest that keeps the wanted rate is chosen. If none keeps the rate, the fastest is chosen.

Rules:

R1. All edges of one directed pair of hosts go over the same network, and their bytes go one after the other.
R2. The period of a graph is the time of its slowest node or link for one partition (``costs.period``, where every link
    has a capacity of its own). A node receives its inputs at the same time, then computes, then sends. The wanted
    period is that of the task's rate (``wanted_hz``). Without such a rate, the wanted period is the longer of two: the
    period over the fastest networks, plus ``SLACK``, and the period of the slowest source's rate.
R3. Every link begins with its fastest network. The link that can save most is handled first. It changes to the cheapest
    network with which the nodes at both ends keep the wanted period.
R4. Estimates vary, so a link leaves its present network for two reasons alone. A different network saves more than
    ``GAIN`` of the price, or the present network misses the period by more than ``TOLERANCE``.
R5. Before a run, the agreed rate of a link counts if no rate was measured. While the run goes on, only measured rates
    count.
R6. The hours of a rented link are paid whether it is used or not, so its price here is the price of the bytes alone.
    The decision to rent belongs to an earlier step (``tariffs``: the bytes an hour from which a port pays).
R7. A route over relays (``routes``) may take the place of a network. Routes may share a link with other routes, or with
    bytes that go straight over the link. The link has to keep the period for the sum of the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.dataflow import Dataflow, Placement
from thalweg.middleware.network.networks import Network, links_of
from thalweg.middleware.network.tariffs import HOUR_S
from thalweg.middleware.network.view import NET, Link, LinkEstimate, LinksNeeded, Pair
from thalweg.middleware.planning.problem.hints import Hints
from thalweg.middleware.planning.problem.loads import LinkLoads
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.routes import Over, Route, over_of, reachable, relayed, route_of
from thalweg.middleware.planning.problem.task import Task

SLACK = 0.05
TOLERANCE = 0.15
GAIN = 0.05
FREE = Network()

Choice = dict[Pair, tuple[Over, ...]]  # networks and routes of a directed pair, the chosen one first


class _Option(NamedTuple):
    """Network or route for one directed pair: rate in bit/s, and dollars an hour at the wanted rate."""

    via: Over
    rate_bps: float
    price: float


class _Edges(NamedTuple):
    """Edges of a placed dataflow that go between hosts, by directed pair, with the bytes of a partition."""

    nodes: dict[Pair, dict[str, None]]  # nodes at either end of the link
    size_bytes: dict[Pair, float]
    into: dict[str, list[tuple[Pair, float]]]  # by node
    out_of: dict[str, list[tuple[Pair, float]]]
    alone_s: dict[str, float]  # seconds of a node's computation


def with_all_networks(task: Task) -> Task:
    """Return the task with the rate of the fastest known network on every link between two hosts.

    Routes over relays do not count. Planners assume that links do not share capacity, and routes share links (R7).
    """
    best: dict[Link, LinkEstimate] = {}
    agreed = {link: LinkEstimate(rate_bps, 0) for link, rate_bps in links_of(task.networks).items()}
    for link, known in {**agreed, **task.view.estimates}.items():
        if link.via != NET and link.via in task.networks and task.networks[link.via].joins(*link.hosts):
            shared = best.get(Link(*link.hosts)) or task.view.estimates.get(Link(*link.hosts))
            if shared is None or known.rate_bps > shared.rate_bps:
                best[Link(*link.hosts)] = known
    return task.but(view=task.view.with_estimates(best)) if best else task


def choose(task: Task, dataflow: Dataflow, placement: Placement, hints: Hints | None = None) -> Choice:
    """Return networks and routes for every directed pair of hosts between which this placement sends.

    The chosen one is the first entry of a pair. The others follow, the fastest first. Raises LinksNeeded with the links
    that are not measured.
    """
    edges, loads = _edges(task, dataflow, placement, hints or task.hints), LinkLoads(task.networks)
    rates = _rates(task, edges, {*task.hosts, *placement.values()}, loads)
    first = _first(rates, edges, loads)
    at = {pair: rates[pair][over] for pair, over in first.items()}
    period_s = max([loads.all_s, *(_cycle_s(edges, node, at) for node in edges.alone_s)])
    wanted_s = _wanted_s(task, dataflow, period_s)
    options = _options(rates, edges, loads, HOUR_S / wanted_s if 0 < wanted_s < math.inf else 0.0)
    now = {pair: over_of(task.routes.get(Link(*pair), (Link(*pair),))) for pair in rates}
    if task.current is None:
        now = dict.fromkeys(rates, "")
    chosen = {
        pair: next(option for option in alternatives if option.via == first[pair])
        for pair, alternatives in options.items()
    }

    def saves(pair: Pair) -> float:
        return chosen[pair].price - min(option.price for option in options[pair])

    for pair in sorted(chosen, key=lambda pair: (-saves(pair), pair)):  # R3: the link that can save most is first

        def preferred(option: _Option, now: Over = now[pair]) -> tuple[float, bool, float]:
            # R4: the present network stays, unless a cheaper one saves more than ``GAIN``
            return option.price * (1 - GAIN * (option.via == now)), option.via != now, -option.rate_bps

        size_bytes = edges.size_bytes[pair]
        loads.put(pair, chosen[pair].via, -size_bytes)
        for option in sorted(options[pair], key=preferred):
            room_s = wanted_s * (1 + TOLERANCE) if option.via == now[pair] else wanted_s
            takes_s = loads.time_s(loads.links(pair, option.via), size_bytes)
            if option is chosen[pair] or (
                takes_s <= room_s and _keeps(edges, pair, {**at, pair: option.rate_bps}, room_s)
            ):
                chosen[pair], at[pair] = option, option.rate_bps
                break
        loads.put(pair, chosen[pair].via, size_bytes)
    return {
        pair: (first.via, *(option.via for option in _fastest(options[pair]) if option != first))
        for pair, first in chosen.items()
    }


def _fastest(options: list[_Option]) -> list[_Option]:
    return sorted(options, key=lambda option: -option.rate_bps)


def _options(
    rates: Mapping[Pair, Mapping[Over, float]], edges: _Edges, loads: LinkLoads, hourly: float
) -> dict[Pair, list[_Option]]:
    """Return the networks and routes of each pair of hosts with rates and prices. ``hourly``: partitions an hour."""
    return {
        pair: [
            # R6: a rented link's hours are paid anyway, so the price is that of the bytes
            _Option(over, bps, loads.price_of(loads.links(pair, over), edges.size_bytes[pair] * hourly))
            for over, bps in known.items()
        ]
        for pair, known in rates.items()
    }


def _first(rates: Mapping[Pair, Mapping[Over, float]], edges: _Edges, loads: LinkLoads) -> dict[Pair, Over]:
    """Return the fastest network or route of every pair, and add the bytes of the pair to ``loads`` (R3, R7).

    Pairs with more bytes are handled first. A later pair counts the bytes that earlier pairs have put on shared links.
    """
    first: dict[Pair, Over] = {}
    for pair in sorted(rates, key=lambda pair: -edges.size_bytes[pair]):
        size_bytes, known = edges.size_bytes[pair], rates[pair]

        times = [(loads.time_s(loads.links(pair, over), size_bytes), -bps, over) for over, bps in known.items()]
        first[pair] = min(times, key=lambda entry: entry[:2])[2]
        loads.put(pair, first[pair], size_bytes)
    return first


def in_order(choice: Choice, routes: Mapping[Link, Route]) -> Choice:
    """Return the choice with the network or route from ``routes`` as the first entry of every pair."""
    first = {pair: over_of(routes.get(Link(*pair), (Link(*pair),))) for pair in choice}
    return {pair: (first[pair], *(via for via in over if via != first[pair])) for pair, over in choice.items()}


def choice_of(task: Task, plan: Plan) -> Choice:
    """Return the choice that a plan's routes make, for every pair of hosts between which the plan sends."""
    pairs = _edges(task, plan.dataflow, plan.placement, plan.hints or task.hints).size_bytes
    return {pair: (over_of(plan.routes.get(Link(*pair), (Link(*pair),))),) for pair in sorted(pairs)}


def routes_of(choice: Choice) -> dict[Link, Route]:
    """Return the routes for a plan: a route for every link whose chosen network is not the shared network."""
    return {Link(*pair): route_of(pair, over[0]) for pair, over in choice.items() if over[0] != NET}


def cost_of(
    task: Task, dataflow: Dataflow, placement: Placement, choice: Choice, hints: Hints | None = None
) -> tuple[float, float]:
    """Return the cost of a placement over the chosen networks: seconds and dollars for one partition.

    The seconds are those of the slowest node or link. The dollars are the price of the bytes.
    """
    edges, loads = _edges(task, dataflow, placement, hints or task.hints), LinkLoads(task.networks)
    rates = _rates(task, edges, {*task.hosts, *placement.values()}, loads)
    at = dict[Pair, float]()
    for pair, (first, *_) in choice.items():
        at[pair] = rates[pair][first]
        loads.put(pair, first, edges.size_bytes[pair])
    return max([loads.all_s, *(_cycle_s(edges, node, at) for node in edges.alone_s)]), loads.price


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
            if pair[1] not in sent:  # consumers on one host share one transfer
                edges.size_bytes[pair] = edges.size_bytes.get(pair, 0.0) + size
                edges.out_of.setdefault(name, []).append((pair, size))
            sent.add(pair[1])
            edges.into.setdefault(consumer, []).append((pair, size))
    return edges


def _rates(task: Task, edges: _Edges, hosts: Collection[str], loads: LinkLoads) -> dict[Pair, dict[Over, float]]:
    """Return the rate in bit/s of every network and route over relays, for each pair of hosts that edges join.

    Relays are among ``hosts``. Raises LinksNeeded with the links whose rate is unknown.
    """
    agreed, known, needed = links_of(task.networks), task.view.estimates, set()
    reached = reachable(task.view, hosts)
    over_relays = relayed(task.networks, reached, task.hops, edges.size_bytes, task.shunned)
    over: dict[Pair, list[Over]] = {}
    for pair in edges.size_bytes:
        networks = {NET: None, **dict.fromkeys(task.networks)}
        over[pair] = [via for via in networks if task.networks.get(via, FREE).joins(*pair)]
        over[pair] += over_relays.get(pair, ())
        for link in (link for via in over[pair] for link in loads.links(pair, via)):
            estimate = known.get(link)
            if estimate is not None:
                loads.links_bps[link] = estimate.rate_bps
            elif link in agreed and task.current is None:
                # R5: before a run the agreed rate stands in for a measurement
                loads.links_bps[link] = agreed[link]
            else:
                needed.add(link)
    if needed:
        raise LinksNeeded(needed)
    return {pair: {via: loads.rate_bps(pair, via) for via in some} for pair, some in over.items()}


def _wanted_s(task: Task, dataflow: Dataflow, period_s: float) -> float:
    """Return the period that links and nodes have to keep (R2). ``period_s``: the period over the fastest networks."""
    if task.wanted_hz is not None:
        return 1 / task.wanted_hz
    rates_hz = [node.rate for node in dataflow.nodes if node.rate]
    return max([period_s * (1 + SLACK), *(1 / rate_hz for rate_hz in rates_hz)])


def _keeps(edges: _Edges, pair: Pair, at: Mapping[Pair, float], period_s: float) -> bool:
    """Return whether the nodes at both ends of a link keep the period."""
    return all(_cycle_s(edges, node, at) <= period_s for node in edges.nodes[pair])


def _cycle_s(edges: _Edges, node: str, at: Mapping[Pair, float]) -> float:
    """Return the time of one partition at a node, with these rates of the links (R2)."""
    ways = edges.into.get(node, ()), edges.out_of.get(node, ())
    times = [max((size * 8 / at[pair] if at[pair] else math.inf for pair, size in way), default=0.0) for way in ways]
    return plain_sum(times) + edges.alone_s[node]
