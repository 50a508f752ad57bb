"""Benchmark ``bench graph``: a graph with fan-out and two sinks on loopback, beside a tree of as many nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.options import GraphOptions
from benchmarks.rounds import Plan, Progress, Side, alternate, median_per_s, median_ratio, silent
from benchmarks.tree import (
    ALLOW,
    WORKLOAD,
    ThalwegTree,
    bench_dataflow,
    beside_first_input,
    check_digests,
)
from benchmarks.workload import digest_of, expected_digest
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import RunError, UsageError

NODES = 15  # nodes of each dataflow, without sinks
TREE_SOURCES, GRAPH_SOURCES, SOME_SOURCES = 8, 5, 4  # the last: sources below sink ``some``


def bench_graph_dataflow(size_bytes: int) -> Dataflow:
    """Return a graph of maxima of five sources, with two sinks.

    An output has up to three consumers, on one host and on several.
    """
    graph, code = Dataflow(), Code(f"{WORKLOAD}:Maximum")
    s = [
        graph.source(Code(f"{WORKLOAD}:FixedSource", {"site": i, "size_bytes": size_bytes}), at=f"h{i + 1}")
        for i in range(GRAPH_SOURCES)
    ]
    pairs = [graph.operator(code, a, b) for a, b in ((s[0], s[1]), (s[0], s[1]), (s[2], s[3]), (s[2], s[3]))]
    last = graph.operator(code, s[4], s[3])
    some = graph.operator(code, pairs[1], pairs[3])
    every = graph.operator(code, graph.operator(code, pairs[0], pairs[2]), graph.operator(code, last, pairs[2]))
    graph.sink("all", graph.operator(code, every, some))
    graph.sink("some", some)
    return graph.validate()


class ThalwegGraph(ThalwegTree):
    """Side of the graph, whose rounds are those of sink ``all``.

    The partitions of sink ``some`` are checked before the next round begins, off the clock.
    """

    some: Sequence[Any] = ()

    def stream(self, partitions: int) -> Iterator[Any]:
        self.check()
        self.some = some = []
        with self._client.run(self._dataflow, self._placement, partitions=partitions) as run:
            for delivered in run:
                if delivered.sink == "all":
                    yield delivered.value
                else:
                    some.append(delivered.value)

    def check(self) -> None:
        """Raise RunError if sink ``some`` got other bytes than a single process computes."""
        if self.some and digest_of(self.some) != expected_digest(SOME_SOURCES, self.some[0].size, len(self.some)):
            raise RunError("sink 'some' of the graph was given other bytes than a single process computes")


def bench_graph(options: GraphOptions, progress: Progress = silent) -> dict[str, Any]:
    """Compare graph and tree. Return the object that ``thalweg bench graph --json`` prints.

    Each operator is on the host of its first input. Rates count nodes that finish a partition, in a second. Rates are
    medians over the rounds, and ``ratio`` is the median of the rounds' ratios. Raise UsageError for impossible numbers,
    and RunError if a sink's digest is wrong.
    """
    size_bytes, plan = options.size_kib * 1024, Plan(options.partitions, options.warm_up)
    if min(size_bytes, options.rounds, options.partitions, options.warm_up) < 1:
        raise UsageError("bench graph needs at least 1 byte, round, partition and warm-up")
    flows = {"tree": bench_dataflow(TREE_SOURCES, size_bytes), "graph": bench_graph_dataflow(size_bytes)}
    placed = {name: beside_first_input(flow) for name, flow in flows.items()}
    with contextlib.ExitStack() as stack:
        progress("starting the processes")
        cluster = stack.enter_context(LocalCluster(TREE_SOURCES, allow=ALLOW, transport=options.transport))
        client = stack.enter_context(Client(cluster, allow=ALLOW))
        graph = ThalwegGraph(client, flows["graph"], placed["graph"])
        sides: dict[str, Side] = {"tree": ThalwegTree(client, flows["tree"], placed["tree"]), "graph": graph}
        played = alternate(sides, dict.fromkeys(sides, plan), options.rounds, progress)
    graph.check()
    check_digests({"tree": played["tree"]}, {"tree": plan}, TREE_SOURCES, size_bytes)
    check_digests({"graph": played["graph"]}, {"graph": plan}, GRAPH_SOURCES, size_bytes)
    answer: dict[str, Any] = {"bench": "graph", "ratio": round(median_ratio(played["graph"], played["tree"]), 3)}
    for name, flow in flows.items():
        hosts = placed[name] | {node.name: node.pinned or "client" for node in flow.nodes if node.kind != "operator"}
        sent = [(hosts[producer], hosts[consumer]) for producer, consumer in flow.edges]
        answer[name] = {
            "nodes_per_s": round(median_per_s(played[name]) * NODES, 1),
            "edges": len(sent),
            "edges_between_hosts": sum(a != b for a, b in sent),
        }
    rest = {"nodes": NODES, "size_bytes": size_bytes, "rounds": options.rounds, "transport": options.transport}
    return answer | rest | {"partitions": plan.total - options.warm_up}
