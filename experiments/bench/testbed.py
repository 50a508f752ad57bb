"""``bench testbed``: what it takes to bring an emulated network and its host processes up, and what they idle at."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import psutil

from thalweg.emulation.testbed import LinkShape, open_testbed
from thalweg.experiments.bench.rounds import Progress, silent
from thalweg.middleware.cluster import LocalCluster
from thalweg.middleware.errors import CapabilityError, UsageError

RATE_BPS = 16e6  # of every link; what it is does not matter here


def time_network(hosts: int) -> dict[str, Any]:
    """Seconds to bring up ``hosts`` namespaces with every directed pair shaped, and to take them down.

    Raises CapabilityError where the machine cannot.
    """
    names = [f"h{i + 1}" for i in range(hosts)]
    links = {(a, b): LinkShape(rate_bps=RATE_BPS) for a, b in itertools.permutations(names, 2)}
    testbed = open_testbed("netns", names)
    begun = time.perf_counter()
    try:
        testbed.up()
        up_s = time.perf_counter() - begun
        testbed.shape(links)
        shaped_s = time.perf_counter() - begun
    finally:
        ending = time.perf_counter()
        testbed.down()
        down_s = time.perf_counter() - ending
    return {
        "hosts": hosts,
        "links": len(links),
        "up_s": round(up_s, 3),
        "shape_s": round(shaped_s - up_s, 3),
        "down_s": round(down_s, 3),
        "total_s": round(shaped_s + down_s, 3),
    }


def time_hosts(hosts: int, idle_s: float) -> dict[str, Any]:
    """Seconds until ``hosts`` host processes listen, and what one of them takes while it idles for ``idle_s``."""
    begun = time.perf_counter()
    with LocalCluster(hosts) as cluster:
        ready_s = time.perf_counter() - begun
        processes = [psutil.Process(pid) for pid in cluster.pids.values()]
        before = [sum(process.cpu_times()[:2]) for process in processes]
        began = time.monotonic()
        time.sleep(idle_s)  # what is measured is doing nothing for so long
        took = time.monotonic() - began
        shares = [(sum(p.cpu_times()[:2]) - cpu) / took for p, cpu in zip(processes, before, strict=True)]
        memory = [process.memory_info().rss for process in processes]
    return {
        "hosts": hosts,
        "ready_s": round(ready_s, 3),
        "idle_memory_bytes": int(statistics.median(memory)),
        "idle_cpu_share": round(statistics.fmean(shares), 5),
        "idle_s": idle_s,
    }


def bench_testbed(
    *, networks: Sequence[int] = (9, 33), hosts: int = 9, idle_s: float = 5.0, progress: Progress = silent
) -> dict[str, Any]:
    """Time networks and hosts; the object that ``thalweg bench testbed --json`` prints.

    Args:
        networks: numbers of hosts of the emulated networks.
        hosts: number of host processes on loopback.
        idle_s: how long they are watched doing nothing; memory is the median, the share of a core the mean.

    Where the machine has no namespaces, ``networks`` is null and ``reason`` says why.
    """
    if hosts < 1 or idle_s <= 0 or any(count < 2 for count in networks):
        raise UsageError("bench testbed needs networks of at least 2 hosts, at least 1 host process, and idle time")
    answer: dict[str, Any] = {"bench": "testbed"}
    try:
        rows = []
        for count in networks:
            progress(f"a network of {count} hosts")
            rows.append(time_network(count))
        answer["networks"] = rows
    except CapabilityError as error:
        answer |= {"networks": None, "reason": str(error)}
    progress(f"{hosts} host processes")
    answer["processes"] = time_hosts(hosts, idle_s)
    return answer
