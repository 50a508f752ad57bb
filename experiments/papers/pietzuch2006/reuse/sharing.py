"""Trial of queries that share operators, or do not, while data flows (Pietzuch et al., 2006, section 4.2.2).

Hosts are from a latency matrix. Two producers are near each other. Four consumers are near each other and far from the
producers: the paper's are in Europe and on the West Coast of the US. Each consumer has a query, which joins the
producers' tuples and keeps a quarter. Queries begin one after the other. Without reuse, each query has an operator of
its own at the best place for the query. With reuse, a query may join earlier queries. A second operator then passes the
output on to several consumers, from a place nearer to the consumers. Queries are placed by coordinates that the hosts
found among themselves.

Reported usage is measured: the rates on a testbed or in virtual time, times the latencies of the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
import numpy as np

from thalweg.emulation.traces.latencies import Floats
from thalweg.experiments.papers.pietzuch2006.running.job import Share
from thalweg.experiments.papers.pietzuch2006.running.pool import Space, name_of, network_of, run_shares, space
from thalweg.experiments.run_config import CLIENT
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning.usage.relaxation import at_rest
from thalweg.middleware.planning.usage.search import by_coordinates
from thalweg.middleware.planning.usage.streams import Query, QueryStream

CONSUMERS = 4
PERCENT, RATE_HZ, WORDS = 25, 1.0, 10  # share of tuples kept; partitions a second of a producer, of 8 KB
PRODUCER_BYTES = 8_000.0 * RATE_HZ
NEAR, FAR = 0.05, 0.75  # shares of the hosts: the near ones, and those that are not far
PARTITIONS = 60
TIME_SCALE = 20.0  # emulated seconds a second, on a testbed
JOIN, PASS = 2, 3  # nodes of a query; lower numbers are producers, higher numbers consumers


class Sharing(Trial, frozen=True, kw_only=True):
    """Draw of ends (``pool_seed``, ``configuration``) on the matrix ``pool``, and the placement. ``reach_s``: the
    distance in the cost space from relaxation's place within which an operator is reused.
    """

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.papers.pietzuch2006.reuse.sharing:share"

    pool: str = "planetlab490_median"
    placement: str = "relaxation"
    reuse: bool = True
    testbed: Literal["netns", "sim"] = "netns"
    kernel: Literal["host", "uml"] = "host"
    reach_s: float = 0.02


class Shared(Outcome, frozen=True, kw_only=True):
    """Results of the four queries. ``usage_bytes``: in transit, as measured. ``planned_bytes``: as expected.
    ``carried_bytes``: as the kernel counted on the links. ``operators``: the number of joins of all queries.
    ``sharing``: the number of queries on the most shared join. ``delay_s``: the mean over consumers of the longer way
    from a producer. ``equal``: whether every consumer got the results of a single machine.
    """

    usage_bytes: float | None = None
    planned_bytes: float | None = None
    carried_bytes: float | None = None
    delay_s: float | None = None
    operators: int = 0
    sharing: int = 0
    relocations: int = 0
    equal: bool = False


Sharing.outcome = Shared


def draw_ends(latency_s: Floats, random: np.random.Generator) -> tuple[list[int], list[int]]:
    """Return two near producers, and consumers near to one another and far from the producers. Raise UsageError for too
    few hosts.
    """
    hosts = len(latency_s)
    near = max(CONSUMERS + 2, round(NEAR * hosts))
    if hosts < 4 * near:
        raise UsageError(f"the matrix has {hosts} hosts with all latencies; {4 * near} are needed")
    first = int(random.integers(hosts))
    order = np.argsort(latency_s[first], kind="stable")
    order = order[order != first]
    second = int(random.choice(order[:near]))
    away = int(random.choice(order[round(FAR * hosts) :]))
    beside = np.argsort(latency_s[away], kind="stable")
    beside = beside[~np.isin(beside, (away, first, second))][:near]
    return [first, second], [away, *random.choice(beside, CONSUMERS - 1, replace=False).tolist()]


# --- placements -------------------------------------------------------------------------------------


class Group(msgspec.Struct):
    """Queries that share operators: the hosts of the consumers, of the join and of the operator that passes on.
    ``place``: of the join in the cost space, if known.
    """

    consumers: list[int]
    join: int
    passes: int
    place: Floats | None = None


def query_of(producers: Sequence[int], consumers: Sequence[int]) -> Query:
    """Return the common query of consumers on these hosts. A single consumer needs no operator that passes on."""
    out = 2 * PRODUCER_BYTES * PERCENT / 100
    streams = [QueryStream(0, JOIN, PRODUCER_BYTES), QueryStream(1, JOIN, PRODUCER_BYTES)]
    last = JOIN if len(consumers) == 1 else PASS
    if last == PASS:
        streams.append(QueryStream(JOIN, PASS, out))
    pinned = dict(enumerate(producers)) | {last + 1 + number: host for number, host in enumerate(consumers)}
    return Query((*streams, *(QueryStream(last, node, out) for node in pinned if node > last)), pinned).check()


def usage(producers: Sequence[int], consumers: Sequence[int], group: Group, latency_s: Floats) -> float:
    """Return the bytes in transit of a group on its hosts, with these latencies."""
    query = query_of(producers, consumers)
    hosts = [query.pinned.get(node, group.join if node == JOIN else group.passes) for node in range(query.nodes)]
    return query.usage(hosts, latency_s)


class _Relaxation:
    """The paper's placement by springs and the nearest host. An operator within reach of the wanted place is reused."""

    def __init__(self, at: Space, trial: Sharing) -> None:
        self._at, self._reach_s = at, trial.reach_s

    def place(self, producers: Sequence[int], consumers: Sequence[int]) -> Group:
        query = query_of(producers, consumers)
        places = at_rest(query, {node: self._at.plain.places[host] for node, host in query.pinned.items()})
        hosts = {node: self._at.mapper.host(place) for node, place in places.items()}
        return Group([], hosts[JOIN], hosts.get(PASS, hosts[JOIN]), places[JOIN])

    def joins(self, groups: Sequence[Group], alone: Group, producers: Sequence[int], consumer: int) -> Group | None:
        def away_s(group: Group) -> float:
            assert alone.place is not None
            return float(np.sqrt(((self._at.plain.places[group.join] - alone.place) ** 2).sum()))

        nearest = min(groups, key=away_s, default=None)
        return nearest if nearest is not None and away_s(nearest) <= self._reach_s else None


class _CostSpace:
    """Our placement by the least usage. A query is shared if the estimate is less than with an operator of its own."""

    def __init__(self, at: Space, trial: Sharing) -> None:
        self._at = at

    def place(self, producers: Sequence[int], consumers: Sequence[int]) -> Group:
        query, latency_s = query_of(producers, consumers), self._at.latency_s
        hosts = by_coordinates(query, self._at.high, lambda ones, others: latency_s[np.ix_(ones, others)])
        return Group([], hosts[JOIN], hosts[PASS] if len(consumers) > 1 else hosts[JOIN])

    def joins(self, groups: Sequence[Group], alone: Group, producers: Sequence[int], consumer: int) -> Group | None:
        def more(group: Group) -> float:
            both = self.place(producers, [*group.consumers, consumer])
            with_it = usage(producers, [*group.consumers, consumer], both, self._at.latency_s)
            return with_it - usage(producers, group.consumers, group, self._at.latency_s)

        cheapest = min(groups, key=more, default=None)
        own = usage(producers, [consumer], alone, self._at.latency_s)
        return cheapest if cheapest is not None and more(cheapest) < own else None


PLACEMENTS: dict[str, type[_Relaxation | _CostSpace]] = {"relaxation": _Relaxation, "cost-space": _CostSpace}


def grouped(trial: Sharing, at: Space, producers: Sequence[int], consumers: Sequence[int]) -> list[Group]:
    """Return the groups of consumers that share, with hosts. The consumers come one after the other."""
    placing = PLACEMENTS[trial.placement](at, trial)
    groups: list[Group] = []
    for consumer in consumers:
        group = placing.place(producers, [consumer])
        shared = placing.joins(groups, group, producers, consumer) if trial.reuse else None
        together = [consumer] if shared is None else [*shared.consumers, consumer]
        if shared is not None:
            groups.remove(shared)
            group = placing.place(producers, together)
        groups.append(msgspec.structs.replace(group, consumers=together))
    return groups


# --- while data flows -------------------------------------------------------------------------------


def flow(producers: Sequence[int], number: int, consumer: int, *, reuse: bool) -> Dataflow:
    """Return the query of one consumer. With ``reuse`` the query has the operator that passes on."""
    graph = Dataflow()
    tuples = [Code("thalweg.operators.tuples:Tuples", {"producer": at, "words": WORDS}) for at in range(len(producers))]
    sources = [
        graph.source(code, at=name_of(host), name=f"producer{at}", rate=RATE_HZ)
        for at, (host, code) in enumerate(zip(producers, tuples, strict=True))
    ]
    last = graph.operator(Code("thalweg.operators.tuples:SelectJoin", {"percent": PERCENT}), *sources, name="join")
    if reuse:
        last = graph.operator(Code("thalweg.operators.tuples:Pass"), last, name="passes")
    code = Code("thalweg.operators.tuples:Consume", {"number": number})
    graph.sink(f"seen{number}", graph.operator(code, last, at=name_of(consumer), name=f"consumer{number}"), at=CLIENT)
    return graph.validate()


def shares_of(
    trial: Sharing, at: Space, producers: Sequence[int], consumers: Sequence[int], groups: Sequence[Group]
) -> tuple[Share, ...]:
    """Return the runs, one for each group. The group's first query begins on the hosts for it alone. The later queries
    join, and then the operators move to the group's hosts.
    """
    placing, shares = PLACEMENTS[trial.placement](at, trial), []
    for group in groups:
        numbers = [consumers.index(host) for host in group.consumers]
        first = placing.place(producers, group.consumers[:1])
        begun = {"join": name_of(first.join), "passes": name_of(first.join)}
        ended = {"join": name_of(group.join), "passes": name_of(group.passes)}
        queries = [flow(producers, number, consumers[number], reuse=trial.reuse) for number in numbers]
        shares.append(
            Share(
                f"query{numbers[0]}",
                tuple(queries),
                {name: host for name, host in begun.items() if name in queries[0].by_name},
                {name: host for name, host in ended.items() if len(numbers) > 1 and host != begun[name]},
            )
        )
    return tuple(shares)


def share(trial: Sharing) -> Shared:
    """Place the four queries and run them. Raise UsageError for an unknown placement."""
    if trial.placement not in PLACEMENTS:
        raise UsageError(f"{trial.placement!r} is no placement of this study; {nearest(trial.placement, PLACEMENTS)}")
    at = space(trial.pool)
    producers, consumers = draw_ends(at.latency_s, np.random.default_rng((trial.pool_seed, trial.configuration)))
    groups = grouped(trial, at, producers, consumers)
    shares = shares_of(trial, at, producers, consumers, groups)
    hosts = {*producers, *consumers, *(host for group in groups for host in (group.join, group.passes))}
    hosts |= {int(host[1:]) for run in shares for host in run.placement.values()}
    latency_s = {Link(name_of(a), name_of(b)): float(at.latency_s[a, b]) for a in hosts for b in hosts if a != b}
    network = network_of(latency_s, 1.0 if trial.testbed == "sim" else TIME_SCALE)
    ran = run_shares(shares, network, PARTITIONS, testbed=trial.testbed, kernel=trial.kernel)
    measured, between = ran.usage(latency_s)
    own = at.latency_s
    ways = [
        max(own[host, group.join] for host in producers) + own[group.join, group.passes] + own[group.passes, consumer]
        for group in groups
        for consumer in group.consumers
    ]
    return Shared(
        usage_bytes=measured,
        planned_bytes=sum(usage(producers, group.consumers, group, own) for group in groups),
        carried_bytes=ran.carried(latency_s, between, network.time_scale),
        delay_s=float(np.mean(ways)),
        operators=len(groups),
        sharing=max(len(group.consumers) for group in groups),
        relocations=ran.relocations(),
        equal=ran.equal(),
    )
