"""Benchmark ``bench failover``: the cost of replicas for a tree on loopback, beside the same tree without replicas.

Operators have no state, or a state in which each partition changes one byte or every byte. If it is one byte, operators
report the change (``delta``) or not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.options import FailoverOptions
from benchmarks.rounds import (
    Plan,
    Progress,
    Side,
    alternate,
    median_cpu_ms,
    median_cpu_ratio,
    median_per_s,
    median_ratio,
    silent,
)
from benchmarks.tree import ALLOW, WORKLOAD, ThalwegTree, bench_dataflow, beside_first_input
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.dataflow import Code, Dataflow, complete_binary_tree
from thalweg.middleware.errors import RunError, UsageError
from thalweg.middleware.protocol.messages import Failover

SOURCES = 8


class LastingTree(ThalwegTree):
    """Tree as a run with failover."""

    def __init__(self, client: Client, dataflow: Dataflow, placement: Mapping[str, str], failover: Failover) -> None:
        super().__init__(client, dataflow, placement)
        self._failover = failover

    def stream(self, partitions: int) -> Iterator[Any]:
        run = self._client.run(self._dataflow, self._placement, partitions=partitions, failover=self._failover)
        with run:
            for delivered in run:
                yield delivered.value


def bench_failover(options: FailoverOptions, progress: Progress = silent) -> dict[str, Any]:
    """Compare the sides. Return the object that ``thalweg bench failover --json`` prints.

    An operator is on the host of its first input, and may have a state of ``state_kib``. Rates are medians over the
    rounds, and ratios are medians of the rounds' ratios. ``cpu_ms``: processor time of all processes for a partition.
    Raise UsageError for impossible numbers, and RunError if two sides of a tree deliver different bytes.
    """
    size_bytes, plan = options.size_kib * 1024, Plan(options.partitions, options.warm_up)
    if min(size_bytes, options.state_kib, options.every, options.rounds, options.partitions, options.warm_up) < 1:
        raise UsageError("bench failover needs at least 1 byte, KiB of state, round, partition and warm-up")
    plain = bench_dataflow(SOURCES, size_bytes)
    codes = {node.pinned or "": node.code for node in plain.nodes if node.kind == "source" and node.code is not None}
    flows = {"plain": plain}
    for name, use in (("state", "Ballast"), ("delta", "Told"), ("whole", "Churning")):
        flows[name] = complete_binary_tree(codes, Code(f"{WORKLOAD}:{use}", {"state_bytes": options.state_kib * 1024}))
    failover = Failover(every=options.every, replicas=options.replicas)
    with contextlib.ExitStack() as stack:
        progress("starting the processes")
        cluster = stack.enter_context(LocalCluster(SOURCES, allow=ALLOW, transport=options.transport))
        client = stack.enter_context(Client(cluster, allow=ALLOW))
        sides: dict[str, Side] = {}
        for name, flow in flows.items():
            placed = beside_first_input(flow)
            sides[name] = ThalwegTree(client, flow, placed)
            sides[f"{name}_lasting"] = LastingTree(client, flow, placed, failover)
        played = alternate(sides, dict.fromkeys(sides, plan), options.rounds, progress)
    answer: dict[str, Any] = {"bench": "failover"}
    for name in flows:
        if len({result.digest for side in (name, f"{name}_lasting") for result in played[side]}) > 1:
            raise RunError(f"the tree {name!r} delivered other bytes as a run that outlives its hosts")
        lasting, ends = played[f"{name}_lasting"], played[name]
        answer[name] = {
            "per_s": round(median_per_s(ends), 1),
            "lasting_per_s": round(median_per_s(lasting), 1),
            "ratio": round(median_ratio(lasting, ends), 3),
            "cpu_ms": round(median_cpu_ms(ends), 3),
            "lasting_cpu_ms": round(median_cpu_ms(lasting), 3),
            "cpu_ratio": round(median_cpu_ratio(lasting, ends), 3),
        }
    rest = {"operators": len(plain.operators), "size_bytes": size_bytes, "state_bytes": options.state_kib * 1024}
    more = {"every": options.every, "replicas": options.replicas, "rounds": options.rounds}
    return answer | rest | more | {"transport": options.transport, "partitions": plan.total - options.warm_up}
