"""Benchmark ``bench tree``: a complete binary tree of maxima on loopback, side by side with alternatives."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import peers_dask, peers_ray
from benchmarks.options import TreeOptions
from benchmarks.raw import raw_tree
from benchmarks.rounds import (
    Plan,
    Progress,
    Round,
    Side,
    alternate,
    median_cpu_ms,
    median_cpu_ratio,
    median_per_s,
    median_ratio,
    silent,
)
from benchmarks.workload import expected_digest
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.dataflow import Code, Dataflow, complete_binary_tree
from thalweg.middleware.errors import RunError, UsageError

ALLOW = ("benchmarks",)
WORKLOAD = "benchmarks.workload"
OTHERS: dict[str, Any] = {"ray": peers_ray, "dask": peers_dask}
OTHERS_ROUNDS = 3


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """Work in an empty folder.

    Ray and Dask start Python processes that import from the working directory.
    """
    with tempfile.TemporaryDirectory(prefix="thalweg-bench-") as empty, contextlib.chdir(empty):
        yield


def bench_dataflow(sources: int, size_bytes: int, client: str = "client") -> Dataflow:
    """Return the tree over hosts ``h1`` and on, with one fixed source on each host."""
    code = {f"h{i + 1}": Code(f"{WORKLOAD}:FixedSource", {"site": i, "size_bytes": size_bytes}) for i in range(sources)}
    return complete_binary_tree(code, Code(f"{WORKLOAD}:Maximum"), client=client)


def beside_first_input(dataflow: Dataflow) -> dict[str, str]:
    """Return a placement of every operator on the host of its first producer."""
    host = {name: dataflow.by_name[name].pinned or "" for name in dataflow.sources}
    for name in dataflow.upward:
        if name not in host and name not in dataflow.sinks:
            host[name] = host[dataflow.by_name[name].inputs[0]]
    return {name: host[name] for name in dataflow.operators}


class ThalwegTree:
    """Side of the tree on a running cluster. The caller closes the cluster."""

    def __init__(self, client: Client, dataflow: Dataflow, placement: Mapping[str, str]) -> None:
        self._client = client
        self._dataflow = dataflow
        self._placement = placement

    def stream(self, partitions: int) -> Iterator[Any]:
        with self._client.run(self._dataflow, self._placement, partitions=partitions) as run:
            for delivered in run:
                yield delivered.value


def check_digests(
    played: Mapping[str, Sequence[Round]], plans: Mapping[str, Plan], sources: int, size_bytes: int
) -> None:
    """Raise RunError with the name of a side that delivered other bytes than a single process computes."""
    for name, rounds in played.items():
        digest = expected_digest(sources, size_bytes, plans[name].total)
        if any(result.digest != digest for result in rounds):
            raise RunError(f"the side {name!r} delivered other bytes than a single process computes")


def bench_tree(options: TreeOptions, progress: Progress = silent) -> dict[str, Any]:
    """Compare the sides. Return the object that ``thalweg bench tree --json`` prints.

    Thalweg's operators are on the hosts of their first inputs (``thalweg_per_s``). The other sides have one process for
    each node, and so has a second side of Thalweg (``thalweg_spread_per_s``). Rates are medians over the rounds.
    ``cpu_ms``: processor time of all processes for a partition. ``ratio`` and ``cpu_ratio`` are medians of the rounds'
    ratios. Ray and Dask have a few rounds after the rest, and are null if not installed. Raise UsageError for numbers
    that make no tree, and RunError if a side's digest is wrong.
    """
    sources, rounds, warm_up, size_bytes = options.sources, options.rounds, options.warm_up, options.size_kib * 1024
    if sources < 2 or min(size_bytes, rounds, options.partitions, warm_up) < 1:
        raise UsageError("bench tree needs at least 2 sources, and at least 1 byte, round, partition and warm-up")
    dataflow = bench_dataflow(sources, size_bytes)
    spread = {name: f"h{sources + 1 + i}" for i, name in enumerate(dataflow.operators)}
    placed = beside_first_input(dataflow)
    plan = Plan(options.partitions, warm_up)
    plans = {
        "thalweg": plan,
        "raw": plan,
        "thalweg_spread": plan,
        "ray": Plan(max(8, options.partitions // 4), warm_up),
        "dask": Plan(max(4, options.partitions // 8), max(4, warm_up // 4)),
    }
    with contextlib.ExitStack() as stack:
        progress("starting the processes")
        hosts = sources + len(dataflow.operators)
        cluster = stack.enter_context(LocalCluster(hosts, allow=ALLOW, transport=options.transport))
        client = stack.enter_context(Client(cluster, allow=ALLOW))
        raw = stack.enter_context(raw_tree(dataflow, size_bytes, options.transport))
        sides: dict[str, Side] = {
            "thalweg": ThalwegTree(client, dataflow, placed),
            "raw": raw,
            "thalweg_spread": ThalwegTree(client, dataflow, spread),
        }
        played = alternate(sides, plans, rounds, progress)
    if options.others:  # afterwards and one by one: their background work would slow other rounds
        for name, peers in OTHERS.items():
            if peers.installed():
                progress(f"starting {name}")
                with _elsewhere(), contextlib.closing(peers.Tree(dataflow, size_bytes)) as tree:
                    played |= alternate({name: tree}, plans, min(rounds, OTHERS_ROUNDS), progress)
    check_digests(played, plans, sources, size_bytes)
    rates = {name: round(median_per_s(results), 1) for name, results in played.items()}
    return {
        "bench": "tree",
        "thalweg_per_s": rates["thalweg"],
        "raw_per_s": rates["raw"],
        "ratio": round(median_ratio(played["thalweg"], played["raw"]), 3),
        "ray_per_s": rates.get("ray"),
        "dask_per_s": rates.get("dask"),
        "thalweg_spread_per_s": rates["thalweg_spread"],
        "spread_ratio": round(median_ratio(played["thalweg_spread"], played["raw"]), 3),
        "cpu_ms": {name: round(median_cpu_ms(played[name]), 3) for name in sides},
        "cpu_ratio": round(median_cpu_ratio(played["thalweg"], played["raw"]), 3),
        "spread_cpu_ratio": round(median_cpu_ratio(played["thalweg_spread"], played["raw"]), 3),
        "sources": sources,
        "operators": len(dataflow.operators),
        "size_bytes": size_bytes,
        "rounds": rounds,
        "transport": options.transport,
        "partitions": plan.total - warm_up,
        "digest": expected_digest(sources, size_bytes, plan.total),
    }
