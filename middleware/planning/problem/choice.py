"""Over which network each edge of a placed dataflow goes, or over which relays: of those that keep the wanted rate the
cheapest, otherwise the fastest.

Rules:

R1. Edges between the same two hosts go over the same network, and their bytes one after the other.
R2. A graph is as slow as its slowest node or link (``costs.period``, with a link's capacity its own): a node takes its
    inputs at the same time, computes, and sends. That is the *period*, for which the wanted rate leaves room: the
    task's, otherwise that of the sources, at most what the fastest networks allow, less ``SLACK``.
R3. From the fastest networks on, the link that can save most first, each gets the cheapest with which the nodes at its
    ends keep the period.
R4. Estimates vary: what a link goes over now stays, unless another saves more than ``GAIN`` of its price, or it misses
    the period by more than ``TOLERANCE``.
R5. Before a run the agreed rate of a link counts where none was measured; while the run goes on, measured rates alone.
R6. A rented link's hours are paid, used or not: its price here is that of the bytes alone. Whether to rent is asked
    before, by who rents (``tariffs``: from how many bytes an hour on a port pays).
R7. Instead of a network it may be a route over relays (``routes``). Routes may share a link with each other, or with
    what goes straight over it: it has to keep the period for all of them.
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

Choice = dict[Pair, tuple[Over, ...]]  # between two hosts: over what, the first choice first


class _Option(NamedTuple):
    """A network for a link, or a route: bit/s, and dollars an hour at the wanted rate."""

    via: Over
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
    """The same task with links that carry what the fastest network between their hosts does, as far as is known.

    Routes over relays do not count: planners take links for each other's own, and routes share theirs (R7).
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
    """The networks between all hosts that this placement has send to each other, in order.

    Raises LinksNeeded with the links that nobody has measured.
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
            # R4: the present network stays, unless another saves more than ``GAIN``
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
    """Return the networks between each two hosts, each with its rate and price. ``hourly``: partitions an hour."""
    return {
        pair: [
            # R6: a rented link's hours are paid anyway, so its price is that of the bytes
            _Option(over, bps, loads.price_of(loads.links(pair, over), edges.size_bytes[pair] * hourly))
            for over, bps in known.items()
        ]
        for pair, known in rates.items()
    }


def _first(rates: Mapping[Pair, Mapping[Over, float]], edges: _Edges, loads: LinkLoads) -> dict[Pair, Over]:
    """R3, R7: the fastest of each, beside those before it, the largest first; the links get their loads."""
    first: dict[Pair, Over] = {}
    for pair in sorted(rates, key=lambda pair: -edges.size_bytes[pair]):
        size_bytes, known = edges.size_bytes[pair], rates[pair]

        times = [(loads.time_s(loads.links(pair, over), size_bytes), -bps, over) for over, bps in known.items()]
        first[pair] = min(times, key=lambda entry: entry[:2])[2]
        loads.put(pair, first[pair], size_bytes)
    return first


def in_order(choice: Choice, routes: Mapping[Link, Route]) -> Choice:
    """The same choice but for what comes first, as these routes say."""
    first = {pair: over_of(routes.get(Link(*pair), (Link(*pair),))) for pair in choice}
    return {pair: (first[pair], *(via for via in over if via != first[pair])) for pair, over in choice.items()}


def choice_of(task: Task, plan: Plan) -> Choice:
    """What a plan's routes say, between all hosts that it has send to each other."""
    pairs = _edges(task, plan.dataflow, plan.placement, plan.hints or task.hints).size_bytes
    return {pair: (over_of(plan.routes.get(Link(*pair), (Link(*pair),))),) for pair in sorted(pairs)}


def routes_of(choice: Choice) -> dict[Link, Route]:
    """The links of a plan that go over another network than the shared one, or over relays."""
    return {Link(*pair): route_of(pair, over[0]) for pair, over in choice.items() if over[0] != NET}


def cost_of(
    task: Task, dataflow: Dataflow, placement: Placement, choice: Choice, hints: Hints | None = None
) -> tuple[float, float]:
    """Seconds that a partition takes the slowest node or link over these networks, and dollars that its bytes cost."""
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
            if pair[1] not in sent:  # consumers on one host are sent one
                edges.size_bytes[pair] = edges.size_bytes.get(pair, 0.0) + size
                edges.out_of.setdefault(name, []).append((pair, size))
            sent.add(pair[1])
            edges.into.setdefault(consumer, []).append((pair, size))
    return edges


def _rates(task: Task, edges: _Edges, hosts: Collection[str], loads: LinkLoads) -> dict[Pair, dict[Over, float]]:
    """What the networks, and routes over relays among these hosts, carry between those that edges join."""
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
    """R2: the period that is to be kept."""
    if task.wanted_hz is not None:
        return 1 / task.wanted_hz
    rates_hz = [node.rate for node in dataflow.nodes if node.rate]
    return max([period_s * (1 + SLACK), *(1 / rate_hz for rate_hz in rates_hz)])


def _keeps(edges: _Edges, pair: Pair, at: Mapping[Pair, float], period_s: float) -> bool:
    """Whether the nodes at the ends of a link keep the period."""
    return all(_cycle_s(edges, node, at) <= period_s for node in edges.nodes[pair])


def _cycle_s(edges: _Edges, node: str, at: Mapping[Pair, float]) -> float:
    """R2: what one partition takes a node, at these rates."""
    ways = edges.into.get(node, ()), edges.out_of.get(node, ())
    times = [max((size * 8 / at[pair] if at[pair] else math.inf for pair, size in way), default=0.0) for way in ways]
    return plain_sum(times) + edges.alone_s[node]
