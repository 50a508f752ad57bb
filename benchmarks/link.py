"""Benchmark ``bench link``: one hop on loopback, from a source in another process, beside a bare DEALER and ROUTER."""

from __future__ import annotations

import contextlib
from typing import Any

from benchmarks.options import LinkOptions
from benchmarks.raw import raw_link
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
from benchmarks.tree import ALLOW, ThalwegTree, bench_dataflow, check_digests
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.errors import UsageError


def bench_link(options: LinkOptions, progress: Progress = silent) -> dict[str, Any]:
    """Compare one hop for each partition size. Return the object that ``thalweg bench link --json`` prints.

    Rates are medians over the rounds. ``ratio`` is the median of the rounds' ratios. ``cpu_ms`` is the processor time
    of both processes for a partition. Raise UsageError for numbers below 1, and RunError if a side's digest is wrong.
    """
    rounds, sizes_bytes = options.rounds, [kib * 1024 for kib in options.sizes_kib]
    if rounds < 1 or not sizes_bytes or min(sizes_bytes) < 1:
        raise UsageError("bench link needs at least one round, and sizes of at least 1 byte")
    rows: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        progress("starting the processes")
        cluster = stack.enter_context(LocalCluster(1, allow=ALLOW, transport=options.transport))
        client = stack.enter_context(Client(cluster, allow=ALLOW))
        for size_bytes in sizes_bytes:
            plan = Plan(max(12, options.round_bytes // size_bytes), 4)
            with raw_link(size_bytes, options.transport) as raw:
                sides: dict[str, Side] = {"thalweg": ThalwegTree(client, bench_dataflow(1, size_bytes), {}), "raw": raw}
                plans = dict.fromkeys(sides, plan)
                played = alternate(sides, plans, rounds, _of_size(progress, size_bytes))
            check_digests(played, plans, 1, size_bytes)
            rows.append(
                {
                    "size_bytes": size_bytes,
                    "thalweg_mb_per_s": round(median_per_s(played["thalweg"]) * size_bytes / 1e6, 1),
                    "raw_mb_per_s": round(median_per_s(played["raw"]) * size_bytes / 1e6, 1),
                    "ratio": round(median_ratio(played["thalweg"], played["raw"]), 3),
                    "cpu_ms": {name: round(median_cpu_ms(played[name]), 3) for name in sides},
                    "cpu_ratio": round(median_cpu_ratio(played["thalweg"], played["raw"]), 3),
                }
            )
    return {"bench": "link", "sizes": rows, "rounds": rounds, "transport": options.transport}


def _of_size(progress: Progress, size_bytes: int) -> Progress:
    return lambda step: progress(f"{size_bytes} bytes, {step}")
