"""Choice of an operator's host by a host that knows only the neighbourhood (Ranganathan et al., section 2.3).

Rules:

R1. Candidates are the operator's host, its producers' hosts, its consumers' hosts, and *k* further hosts at random.
R2. The candidate with the lowest local cost is chosen. In a tie the operator stays.
R3. Unknown links that influence the decision are requested first. The decision is open until they are known.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from thalweg.middleware.arithmetic import plain_sum, power
from thalweg.middleware.network.view import Link, Pair
from thalweg.middleware.protocol.adaptation import LocalMoves, migration_s, worth_moving

EXPECTED_PERIOD_SHAPE = 4.0  # shape of the variation of links; the default of planning.expected_period


def candidates(
    options: LocalMoves,
    node: str,
    epoch: int,
    producers_hosts: Sequence[str],
    consumers_hosts: Sequence[str],
    current: str,
    all_hosts: Iterable[str],
) -> list[str]:
    """Return the candidate hosts of an operator in the order of R1, without duplicates.

    The ``k`` further hosts are drawn uniformly from ``all_hosts``, whose order does not matter. The draw differs for
    each operator, epoch and seed, and is the same on every host.
    """
    near = dict.fromkeys([current, *producers_hosts, *consumers_hosts])

    def rank(host: str) -> bytes:
        return hashlib.blake2b(repr((options.seed, node, epoch, host)).encode(), digest_size=16).digest()

    far = sorted(set(all_hosts) - near.keys(), key=rank) if options.k else []
    return [*near, *far[: options.k]]


class Decision(msgspec.Struct, frozen=True):
    """Decision about an operator's host. As long as ``needs`` names links, the decision is open, and ``move`` is False.

    ``costs``: seconds on each candidate with a known cost. ``current_s`` (infinite if unknown) and ``best_s`` are two
    of these costs. ``why``: the reason for the move or the stay, for the record.
    """

    best: str
    current_s: float
    best_s: float
    costs: dict[str, float]
    needs: frozenset[Link]
    move: bool
    why: str


class Neighbourhood(msgspec.Struct, frozen=True):
    """Inputs and outputs of an operator with their links, and the costs of computing and moving.

    ``inputs``: host of each producer and bytes of its partition. ``outputs``: each consumer's host and bytes.
    ``rates_bps``: rates of known links, in bit/s (0: unusable). ``compute_s``: seconds of computing on a host of factor
    1. ``state_bytes``: size of the state, which a move carries. ``startup_s``: start-up cost of a message between two
    hosts. ``cores``: computations that a host runs at once. ``host_compute_factor``: as in planning.CostParameters.
    """

    inputs: Sequence[tuple[str, float]]
    outputs: Sequence[tuple[str, float]]
    rates_bps: Mapping[Pair, float]
    compute_s: float = 0.0
    state_bytes: float = 0.0
    startup_s: float = 0.0
    host_compute_factor: Mapping[str, float] = {}
    cores: int = 1


def links_between(
    hosts: Iterable[str], inputs: Sequence[tuple[str, float]], outputs: Sequence[tuple[str, float]]
) -> set[Pair]:
    """Return the links on which the costs of an operator on ``hosts`` depend.

    ``inputs``, ``outputs``: hosts and bytes of the operator's producers and consumers.
    """
    sources, targets = {source for source, _ in inputs}, {target for target, _ in outputs}
    arriving = {(source, host) for host in hosts for source in sources}
    leaving = {(host, target) for host in hosts for target in targets}
    return {(source, target) for source, target in arriving | leaving if source != target}


def decide(options: LocalMoves, candidates: Sequence[str], current: str, near: Neighbourhood) -> Decision:
    """Choose the host of an operator among ``candidates`` by the local cost. ``current``: its present host.

    If unknown links may change the decision, ``needs`` of the result has them. These are links of the current host, and
    links of candidates that may still be better than the best known host. In this comparison, unknown links count as
    infinitely fast (branch and bound). With hysteresis, the link that would carry the state is needed last. Call again
    when the links are known, or have an assumed rate.
    """
    bounds: dict[str, float] = {}
    unknown: dict[str, frozenset[Link]] = {}
    for host in dict.fromkeys([current, *candidates]):
        bounds[host], unknown[host] = _bound_s(options, host, near)
    costs = {host: cost_s for host, cost_s in bounds.items() if not unknown[host]}
    current_s = costs.get(current, math.inf)
    best = min(costs, key=costs.__getitem__, default=current)  # R2: the current host, then the order, wins a tie
    best_s = costs.get(best, math.inf)
    order = {host: i for i, host in enumerate(bounds)}  # of two hosts with the same cost, the earlier wins
    better = [host for host, bound_s in bounds.items() if (bound_s, order[host]) < (best_s, order[best])]
    open_links = unknown[current].union(*[unknown[host] for host in better])

    def answer(move: bool, why: str, needs: frozenset[Link] = frozenset()) -> Decision:
        return Decision(best, current_s, best_s, costs, needs, move, why)

    if open_links:  # R3: these links may change the decision, so they are measured first
        return answer(False, f"{len(open_links)} links are unknown", open_links)
    if not best_s < current_s:
        return answer(False, f"no better of {len(costs)} hosts")
    moving_s = 0.0
    if options.hysteresis > 0 and near.state_bytes > 0:
        carrying_bps = near.rates_bps.get((current, best))
        if carrying_bps is None:
            return answer(False, "the link that would carry the state is unknown", frozenset({Link(current, best)}))
        moving_s = migration_s(near.state_bytes, carrying_bps)
    if not worth_moving(current_s, best_s, options.period_s, moving_s, options.hysteresis):
        return answer(False, f"{best} is better but does not repay {moving_s:.3g} s of moving")
    now = f"{current_s:.3g} s" if math.isfinite(current_s) else "a link that cannot be used"
    return answer(True, f"{best_s:.3g} s instead of {now}")


def _bound_s(options: LocalMoves, host: str, near: Neighbourhood) -> tuple[float, frozenset[Link]]:
    """Return the local cost on ``host`` with unknown links as infinitely fast, and the unknown links."""
    unknown: set[Link] = set()
    compute_s = near.compute_s * near.host_compute_factor.get(host, 1.0)

    def transfer_s(source: str, target: str, size_bytes: float) -> float:
        if source == target:
            return 0.0
        rate_bps = near.rates_bps.get((source, target))
        if rate_bps is None:
            unknown.add(Link(source, target))
            return near.startup_s
        return near.startup_s + size_bytes * 8 / rate_bps if rate_bps > 0 else math.inf

    arriving = [(source, transfer_s(source, host, size_bytes)) for source, size_bytes in near.inputs]
    leaving = [(target, transfer_s(host, target, size_bytes)) for target, size_bytes in near.outputs]
    if options.cost in ("critical-path", "serialised-critical-path"):
        together = max if options.cost == "critical-path" else sum
        arrived_s = together([0.0, *(seconds for _, seconds in arriving)])
        return arrived_s + compute_s + together([0.0, *(seconds for _, seconds in leaving)]), frozenset(unknown)
    links: dict[tuple[str, str], float] = {}
    ways = [((source, host), seconds) for source, seconds in arriving]
    for way, seconds in ways + [((host, target), seconds) for target, seconds in leaving]:
        links[way] = links.get(way, 0.0) + seconds
    loads = [*links.values(), compute_s / near.cores]
    largest_s = max(loads)
    if options.cost == "period" or largest_s == 0 or math.isinf(largest_s):
        return largest_s, frozenset(unknown)
    powers = plain_sum(power(load / largest_s, EXPECTED_PERIOD_SHAPE) for load in loads)
    return largest_s * power(powers, 1 / EXPECTED_PERIOD_SHAPE), frozenset(unknown)
