"""Trial of a query whose operator is placed on one of nineteen hosts (Pietzuch et al., 2006, section 4.3).

Hosts are drawn from a latency matrix. Three of the hosts are two producers and the consumer. The operator's output is
12 % of its inputs. The operator is placed by coordinates that all hosts of the matrix have found among themselves. The
usage there is compared with the usage on each of the nineteen hosts in turn.

On a testbed the hosts are real processes, and data flows. ``cost-space`` is then the planner of that name, which knows
only the latencies that the nineteen hosts measure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import numpy as np

from thalweg.experiments.papers.pietzuch2006.running.job import Share
from thalweg.experiments.papers.pietzuch2006.running.pool import Space, name_of, network_of, run_shares, space
from thalweg.experiments.run_config import CLIENT
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning.usage.mapping import Mapper
from thalweg.middleware.planning.usage.relaxation import at_rest
from thalweg.middleware.planning.usage.search import by_coordinates
from thalweg.middleware.planning.usage.streams import Query, QueryStream

HOSTS = 19
PERCENT, RATE_HZ, WORDS = 12, 1.0, 10  # "a measured selectivity of 12%"; partitions a second of a producer, of 8 KB
PRODUCER_BYTES = 8_000.0 * RATE_HZ
PARTITIONS = 25
OPERATOR, CONSUMER = 2, 3  # nodes; nodes 0 and 1 are the producers
NOWHERE: Final = "none"


class Choosing(Trial, frozen=True, kw_only=True):
    """Draw of hosts (``pool_seed``, ``configuration``) on the matrix ``pool``, and the placement. ``measured``: the
    number of hosts between which ``cost-space`` asks for latencies. ``testbed``: where data flows, if anywhere.
    """

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.papers.pietzuch2006.choosing.choosing:choose"

    pool: str = "planetlab490_median"
    placement: str = "relaxation"
    testbed: Literal["none", "netns", "sim"] = NOWHERE
    kernel: Literal["host", "uml"] = "host"
    measured: int = 10


class Chosen(Outcome, frozen=True, kw_only=True):
    """Usage of the chosen host. ``usage_bytes``: in transit, on a testbed as measured. ``best_bytes``: on the best
    host. ``rank``: of the chosen host, 1 for the best. ``equal``: on a testbed, whether the results equal those of a
    single machine.
    """

    usage_bytes: float | None = None
    best_bytes: float | None = None
    rank: int = 0
    equal: bool | None = None


Choosing.outcome = Chosen


def _relaxation(query: Query, at: Space, hosts: list[int], trial: Choosing) -> int:
    places = at.plain.places[hosts]
    place = at_rest(query, {node: places[host] for node, host in query.pinned.items()})[OPERATOR]
    return Mapper(places).host(place)


def _estimates(query: Query, at: Space, hosts: list[int], trial: Choosing) -> int:
    return by_coordinates(query, at.high.of(np.array(hosts)))[OPERATOR]


def _cost_space(query: Query, at: Space, hosts: list[int], trial: Choosing) -> int:
    latency_s = at.latency_s[np.ix_(hosts, hosts)]
    known = at.high.of(np.array(hosts))
    return by_coordinates(query, known, lambda a, b: latency_s[np.ix_(a, b)], measured=trial.measured)[OPERATOR]


PLACEMENTS = {"relaxation": _relaxation}
OURS = {"estimates-only": _estimates, "cost-space": _cost_space}


def choose(trial: Choosing) -> Chosen:
    """Place one query, and run it if there is a testbed. Raise UsageError for an unknown placement."""
    known = {**PLACEMENTS, **OURS}
    if trial.placement not in known:
        raise UsageError(f"{trial.placement!r} is no placement of this study; {nearest(trial.placement, known)}")
    at = space(trial.pool)
    if len(at.latency_s) < HOSTS:
        raise UsageError(f"the matrix has {len(at.latency_s)} hosts with all latencies; {HOSTS} are needed")
    random = np.random.default_rng((trial.pool_seed, trial.configuration))
    hosts = random.choice(len(at.latency_s), HOSTS, replace=False).tolist()
    streams = QueryStream(0, OPERATOR, PRODUCER_BYTES), QueryStream(1, OPERATOR, PRODUCER_BYTES)
    out = QueryStream(OPERATOR, CONSUMER, 2 * PRODUCER_BYTES * PERCENT / 100)
    query = Query((*streams, out), {0: 0, 1: 1, CONSUMER: HOSTS - 1}).check()  # numbers among the drawn hosts
    latency_s = at.latency_s[np.ix_(hosts, hosts)]
    usages = [query.usage([0, 1, host, HOSTS - 1], latency_s) for host in range(HOSTS)]
    names = [*map(name_of, hosts[:-1]), CLIENT]
    if trial.testbed == NOWHERE:
        used, chosen, equal = None, known[trial.placement](query, at, hosts, trial), None
    else:
        links = {Link(names[a], names[b]): float(latency_s[a, b]) for a in range(HOSTS) for b in range(HOSTS) if a != b}
        used, chosen, equal = _flowing(trial, names, links, known[trial.placement](query, at, hosts, trial))
    rank = 1 + sum(usage < usages[chosen] * (1 - 1e-9) for usage in usages)
    return Chosen(usage_bytes=usages[chosen] if used is None else used, best_bytes=min(usages), rank=rank, equal=equal)


def _flowing(trial: Choosing, names: list[str], links: Mapping[Link, float], planned: int) -> tuple[float, int, bool]:
    """Run the query. Return the usage, the number of the operator's host, and whether the results are right."""
    graph = Dataflow()
    producers = [
        graph.source(
            Code("thalweg.operators.tuples:Tuples", {"producer": node, "words": WORDS}), at=names[node],
            name=f"producer{node}", rate=RATE_HZ,
        )
        for node in range(OPERATOR)
    ]  # fmt: skip
    select = Code("thalweg.operators.tuples:SelectJoin", {"percent": PERCENT})
    graph.sink("seen", graph.operator(select, *producers, name="operator"), at=CLIENT)
    planner = "cost-space" if trial.placement == "cost-space" and trial.testbed != "sim" else ""
    share = Share("query", (graph.validate(),), {} if planner else {"operator": names[planned]}, planner=planner)
    ran = run_shares(
        (share,),
        network_of(links, 1.0),
        PARTITIONS,
        testbed=trial.testbed,
        kernel=trial.kernel,
        delays=bool(planner),
    )
    used, _ = ran.usage(links)
    return used, names.index(ran.placements["query"]["operator"]), ran.equal()
