"""cost-space: the placement of least network usage, the bytes in transit, by the latencies between hosts.

Usage is the sum over edges of what flows times the latency (Pietzuch et al., equation 1); as every node makes one
partition an index, what flows is a partition's bytes. Bandwidth is not asked for: this is for links that carry what is
sent, where latency, and what others have left to send, is what a placement costs.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import ClassVar

import msgspec
import numpy as np

from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.planning.usage.search import descended, optimal
from thalweg.middleware.planning.usage.streams import Query, Stream
from thalweg.middleware.protocol.adaptation import GlobalMoves, Need

PERIOD_S = 60.0
SAVING = 0.05  # the least of its usage that a change saves: the paper's minimum migration threshold
LEAST_S = 1e-3  # latencies below are alike: what a machine is late with says nothing of the network
LEAST_BYTES = 1.0


class CostSpace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every operator where the network usage is least, again every ``period_s`` seconds (None: once).

    Of a dataflow that is a tree, with any number of sinks, it is the optimum; of others what no single operator
    improves, from the present placement and from each host alone. ``saving``: a change is made where it saves so large
    a share of the usage. The cost model does not matter to it.
    """

    needs: ClassVar[Collection[Need]] = ("latency", "work")

    period_s: float | None = PERIOD_S
    saving: float = SAVING

    def __post_init__(self) -> None:
        _ = self.adaptation  # which checks both

    @property
    def adaptation(self) -> GlobalMoves | None:
        """How operators move while data flows; None: they do not."""
        made = GlobalMoves(PERIOD_S if self.period_s is None else self.period_s, gain=self.saving)
        return None if self.period_s is None else made

    def plan(self, task: Task, model: CostModel) -> Plan:
        problem, hosts = Problem(task), task.hosts
        task.view.require_latency(combinations(hosts, 2))
        latency_s = np.array(task.view.latencies_s(hosts))
        latency_s = np.where(np.eye(len(hosts), dtype=bool), 0.0, np.maximum(latency_s, LEAST_S))
        query = query_of(problem)
        present = None if task.current is None else problem.where(task.current).tolist()
        before = problem.at_sink().tolist() if present is None else present
        alone = ([host] * query.nodes for host in range(len(hosts)))
        chosen = optimal(query, latency_s) if query.tree else descended(query, latency_s, [before, *alone])
        found, was = (query.usage(where, latency_s) for where in (chosen, before))
        if present is not None and not found < was:
            chosen, found = present, was
        return Plan(
            placement={name: hosts[host] for name, host in zip(problem.names, chosen, strict=True)},
            dataflow=task.dataflow,
            cost_s=found,
            initial_cost_s=was,
            evaluated=len(hosts) * len(query.operators),
        )


def query_of(problem: Problem) -> Query:
    """A compiled task as a query: its edges with the bytes of a partition, and the hosts of what cannot move."""
    task, names = problem.task, problem.names
    sizes, taken = task.hints.output_bytes, task.hints.input_bytes
    streams = []
    for one, other in zip(problem.producer.tolist(), problem.consumer.tolist(), strict=True):
        measured = taken.get(names[other], {}).get(names[one], sizes[names[one]])
        streams.append(Stream(one, other, max(measured, LEAST_BYTES)))
    held = problem.at_sink()
    pinned = {node: int(held[node]) for node, movable in enumerate(problem.movable) if not movable}
    return Query(tuple(streams), pinned)
