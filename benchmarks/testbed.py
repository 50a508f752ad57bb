"""Benchmark ``bench testbed``: time to start an emulated network and its host processes, and their use when idle."""

from __future__ import annotations

import re
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import psutil

from benchmarks.options import TestbedOptions
from benchmarks.rounds import Progress, silent
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.testbeds.open import open_testbed
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.errors import CapabilityError, UsageError
from thalweg.middleware.network.view import links_between
from thalweg.middleware.platform.python import find_program

RATE_BPS = 16e6  # of every link; any rate would do
REPLAY_HOSTS = 9  # largest network whose replay is watched


def time_network(hosts: int, backend: str = "netns", replay_s: float = 0.0) -> dict[str, Any]:
    """Return the seconds to bring up ``hosts`` with every directed pair shaped, to change all links, and to take them
    down.

    With ``replay_s``, also return the share of a core for a replay. The replay changes every link each second, and is
    watched for ``replay_s``. Raise CapabilityError if the machine has no such testbed.
    """
    names = [f"h{i + 1}" for i in range(hosts)]
    links = {link: LinkShape(rate_bps=RATE_BPS) for link in links_between(names)}
    testbed = open_testbed(backend, names)
    replay_share = None
    begun = time.perf_counter()
    try:
        testbed.up()
        up_s = time.perf_counter() - begun
        testbed.shape(links)
        shaped_s = time.perf_counter() - begun
        changed = {link: LinkShape(rate_bps=RATE_BPS / 2) for link in links}
        changing = time.perf_counter()
        testbed.shape(changed)
        change_s = time.perf_counter() - changing
        if replay_s > 0:
            replay_share = _replay_share(testbed, replay_s)
    finally:
        ending = time.perf_counter()
        testbed.down()
        down_s = time.perf_counter() - ending
    return {
        "backend": backend,
        "hosts": hosts,
        "links": len(links),
        "up_s": round(up_s, 3),
        "shape_s": round(shaped_s - up_s, 3),
        "change_s": round(change_s, 4),
        "down_s": round(down_s, 3),
        "total_s": round(shaped_s + down_s, 3),
        "replay_share": None if replay_share is None else round(replay_share, 4),
    }


def _replay_share(testbed: Testbed, seconds: float) -> float:
    """Return the share of a core that the supervisor uses while it changes every link once a second."""
    links = list(testbed.shapes)
    traces = {}
    for number, link in enumerate(links):  # not all at once: every change wakes the supervisor
        times_s = [0.0, *(i + number / len(links) for i in range(1, int(seconds) + 2))]
        rates_bps = [RATE_BPS * (1 + i % 2) for i in range(len(times_s))]
        traces[link] = BandwidthTrace(" → ".join(link), np.array(times_s), np.array(rates_bps))
    replay = testbed.replay(traces)
    before = testbed.status()["cpu_s"]
    began = replay.start()
    time.sleep(seconds)  # the measured interval
    after = testbed.status()["cpu_s"]
    took = time.monotonic() - began
    replay.stop()
    return float(after - before) / took


def time_mininet(hosts: int) -> dict[str, Any] | None:
    """Return the figures of Mininet, which shapes one link for each host.

    None: Mininet is not installed or does not run.

    Source: mininet.org, ``mn --link tc``. Its own figure of seconds is for up and down together.
    """
    tool = find_program("mn")
    if tool is None:
        return None
    command = [tool, "--topo", f"single,{hosts}", "--switch", "lxbr", "--controller", "none", "--link", "tc,bw=16"]
    mininet = subprocess.run([*command, "--test", "none"], capture_output=True, text=True, timeout=120)
    seconds = re.search(r"completed in ([\d.]+) seconds", mininet.stdout + mininet.stderr)
    if mininet.returncode != 0 or seconds is None:
        return None
    return {"backend": "mininet", "hosts": hosts, "links": hosts, "total_s": float(seconds.group(1))}


def time_hosts(hosts: int, idle_s: float) -> dict[str, Any]:
    """Return the seconds until ``hosts`` host processes listen, and the use of an idle host during ``idle_s``."""
    begun = time.perf_counter()
    with LocalCluster(hosts) as cluster:
        ready_s = time.perf_counter() - begun
        processes = [psutil.Process(pid) for pid in cluster.pids.values()]
        before = [sum(process.cpu_times()[:2]) for process in processes]
        began = time.monotonic()
        time.sleep(idle_s)  # the measured interval of idleness
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


def _others(networks: Sequence[int], progress: Progress) -> Iterator[dict[str, Any]]:
    """Yield rows of containers, if there are an engine and our image, and of Mininet, if it is installed."""
    for count in networks:
        progress(f"{count} containers")
        with suppress(CapabilityError):
            yield time_network(count, "docker")
        progress(f"Mininet, {count} hosts")
        if (row := time_mininet(count)) is not None:
            yield row


def bench_testbed(options: TestbedOptions, progress: Progress = silent) -> dict[str, Any]:
    """Time networks and hosts. Return the object that ``thalweg bench testbed --json`` prints.

    For idle hosts, memory is the median, and the share of a core the mean. On a machine without namespaces,
    ``networks`` is null and ``reason`` says why. ``others``: figures of containers and of Mininet, if installed.
    """
    networks, hosts, idle_s = options.networks, options.hosts, options.idle_s
    if hosts < 1 or idle_s <= 0 or any(count < 2 for count in networks):
        raise UsageError("bench testbed needs networks of at least 2 hosts, at least 1 host process, and idle time")
    answer: dict[str, Any] = {"bench": "testbed"}
    try:
        rows = []
        for count in networks:
            progress(f"a network of {count} hosts")
            rows.append(time_network(count, replay_s=idle_s if count <= REPLAY_HOSTS else 0.0))
        answer["networks"] = rows
    except CapabilityError as error:
        answer |= {"networks": None, "reason": str(error)}
    answer["others"] = list(_others(networks, progress))
    progress(f"{hosts} host processes")
    answer["processes"] = time_hosts(hosts, idle_s)
    return answer
