"""Queries that share operators, or do not (Pietzuch et al., 2006, section 4.2.2), while data flows.

Hosts are those of a latency matrix. Two producers are near each other, and four consumers near each other and far from
these: the paper's are in Europe and on the West Coast of the US. Each consumer has a query: the producers' tuples are
joined, and a quarter is kept. Queries come one after the other. Without reuse each has an operator of its own, where it
is best for that query. With reuse one may take part in what others have: a second operator of theirs, which passes on
what comes, has it go to several consumers from a place nearer to these. Every query is placed by coordinates that hosts
found among themselves.

What is reported is measured: rates as they flowed on a testbed, or in virtual time, times the latencies of the matrix.
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
PERCENT, RATE_HZ, WORDS = 25, 1.0, 10  # kept of the tuples; partitions a second of a producer, of 8 KB
PRODUCER_BYTES = 8_000.0 * RATE_HZ
NEAR, FAR = 0.05, 0.75  # of the hosts: how many the nearest are, and how many are nearer than what is far
PARTITIONS = 60
TIME_SCALE = 20.0  # emulated seconds a second, on a testbed
JOIN, PASS = 2, 3  # nodes of a query; those before are the producers, those behind the consumers


class Sharing(Trial, frozen=True, kw_only=True):
    """A draw of ends (``pool_seed``, ``configuration``) on the matrix ``pool``; ``reach_s``: how far in the cost space
    an operator may be from the place that relaxation wants to be reused."""

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.papers.pietzuch2006.reuse.sharing:share"

    pool: str = "planetlab490_median"
    placement: str = "relaxation"
    reuse: bool = True
    testbed: Literal["netns", "sim"] = "netns"
    kernel: Literal["host", "uml"] = "host"
    reach_s: float = 0.02


class Shared(Outcome, frozen=True, kw_only=True):
    """``usage_bytes``: in transit, by what flowed; ``planned_bytes``: by what was expected; ``carried_bytes``: by what
    the kernel counted on the links. ``operators``: that join, of all queries; ``sharing``: queries that share the one
    that most do. ``delay_s``: the mean way from a producer to a consumer, the longer one. ``equal``: whether every
    consumer got what a single machine makes."""

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
    """Two producers that are near each other, and consumers that are near each other and far from these. Raises
    UsageError for too few hosts."""
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
    """Queries that share operators: the numbers of their consumers, the hosts of the join and of what passes on, and
    the place of the join in the cost space, where it has one."""

    consumers: list[int]
    join: int
    passes: int
    place: Floats | None = None


def query_of(producers: Sequence[int], consumers: Sequence[int]) -> Query:
    """What the consumers on these hosts share; of one alone nothing passes on."""
    out = 2 * PRODUCER_BYTES * PERCENT / 100
    streams = [QueryStream(0, JOIN, PRODUCER_BYTES), QueryStream(1, JOIN, PRODUCER_BYTES)]
    last = JOIN if len(consumers) == 1 else PASS
    if last == PASS:
        streams.append(QueryStream(JOIN, PASS, out))
    pinned = dict(enumerate(producers)) | {last + 1 + number: host for number, host in enumerate(consumers)}
    return Query((*streams, *(QueryStream(last, node, out) for node in pinned if node > last)), pinned).check()


def usage(producers: Sequence[int], consumers: Sequence[int], group: Group, latency_s: Floats) -> float:
    """Of the bytes in transit of a group on its hosts, with these latencies."""
    query = query_of(producers, consumers)
    hosts = [query.pinned.get(node, group.join if node == JOIN else group.passes) for node in range(query.nodes)]
    return query.usage(hosts, latency_s)


class _Relaxation:
    """The paper's: springs, and the nearest host; an operator is reused that is within reach of the place wanted."""

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

        found = min(groups, key=away_s, default=None)
        return found if found is not None and away_s(found) <= self._reach_s else None


class _CostSpace:
    """Ours: the least usage, and shared wherever that is estimated to be less than an operator more."""

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

        found = min(groups, key=more, default=None)
        own = usage(producers, [consumer], alone, self._at.latency_s)
        return found if found is not None and more(found) < own else None


PLACEMENTS: dict[str, type[_Relaxation | _CostSpace]] = {"relaxation": _Relaxation, "cost-space": _CostSpace}


def grouped(trial: Sharing, at: Space, producers: Sequence[int], consumers: Sequence[int]) -> list[Group]:
    """Who shares with whom, and where: the consumers one after the other."""
    placing = PLACEMENTS[trial.placement](at, trial)
    groups: list[Group] = []
    for consumer in consumers:
        found = placing.place(producers, [consumer])
        shared = placing.joins(groups, found, producers, consumer) if trial.reuse else None
        together = [consumer] if shared is None else [*shared.consumers, consumer]
        if shared is not None:
            groups.remove(shared)
            found = placing.place(producers, together)
        groups.append(msgspec.structs.replace(found, consumers=together))
    return groups


# --- while data flows -------------------------------------------------------------------------------


def flow(producers: Sequence[int], number: int, consumer: int, *, reuse: bool) -> Dataflow:
    """The query of one consumer; where queries may share, with what passes on."""
    graph = Dataflow()
    tuples = [Code("thalweg.operators.tuples:Tuples", {"producer": at, "words": WORDS}) for at in range(len(producers))]
    taken = [
        graph.source(code, at=name_of(host), name=f"producer{at}", rate=RATE_HZ)
        for at, (host, code) in enumerate(zip(producers, tuples, strict=True))
    ]
    made = graph.operator(Code("thalweg.operators.tuples:SelectJoin", {"percent": PERCENT}), *taken, name="join")
    if reuse:
        made = graph.operator(Code("thalweg.operators.tuples:Pass"), made, name="passes")
    code = Code("thalweg.operators.tuples:Consume", {"number": number})
    graph.sink(f"seen{number}", graph.operator(code, made, at=name_of(consumer), name=f"consumer{number}"), at=CLIENT)
    return graph.validate()


def shares_of(
    trial: Sharing, at: Space, producers: Sequence[int], consumers: Sequence[int], groups: Sequence[Group]
) -> tuple[Share, ...]:
    """The runs: of each group the first query, placed for itself, to which others come, and then where all are."""
    placing, made = PLACEMENTS[trial.placement](at, trial), []
    for group in groups:
        numbers = [consumers.index(host) for host in group.consumers]
        first = placing.place(producers, group.consumers[:1])
        begun = {"join": name_of(first.join), "passes": name_of(first.join)}
        ended = {"join": name_of(group.join), "passes": name_of(group.passes)}
        queries = [flow(producers, number, consumers[number], reuse=trial.reuse) for number in numbers]
        made.append(
            Share(
                f"query{numbers[0]}",
                tuple(queries),
                {name: host for name, host in begun.items() if name in queries[0].by_name},
                {name: host for name, host in ended.items() if len(numbers) > 1 and host != begun[name]},
            )
        )
    return tuple(made)


def share(trial: Sharing) -> Shared:
    """Place the four queries and run them; UsageError for a placement that is none."""
    if trial.placement not in PLACEMENTS:
        raise UsageError(f"{trial.placement!r} is no placement of this study; {nearest(trial.placement, PLACEMENTS)}")
    at = space(trial.pool)
    producers, consumers = draw_ends(at.latency_s, np.random.default_rng((trial.pool_seed, trial.configuration)))
    groups = grouped(trial, at, producers, consumers)
    shares = shares_of(trial, at, producers, consumers, groups)
    hosts = {*producers, *consumers, *(host for one in groups for host in (one.join, one.passes))}
    hosts |= {int(host[1:]) for one in shares for host in one.placement.values()}
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
