"""Benchmark of the virtual shell: the time of a run, beside the same model in SimPy, and the memory of a run.

Each figure of a placement is a median over networks. The networks are configurations of the pool, one for each round,
the same for all placements:

- *plan*: planning before the run by its probes, from nothing. ``local`` and ``global`` begin with the plan of
  ``one-shot``, so a sweep pays for it once.
- *run*: simulation of a run that has its plan, as for every placement of a network except the first in a sweep. The
  pool is open and the sizes of the images are known. The time includes drawing the network and building the tree.
- *SimPy*: the same network, tree, placement and sizes by ``peers_simpy``. Only placements that stay have it.

Memory is measured in a separate process for every number of images, from before the run to its peak.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import msgspec
import psutil

from benchmarks import peers_simpy
from benchmarks.options import SimOptions
from benchmarks.rounds import Progress, silent
from thalweg.experiments.simulation.run import plan_ahead, sized_code
from thalweg.experiments.sweeps import simulation
from thalweg.experiments.sweeps.pools import open_pool
from thalweg.experiments.sweeps.simulation import Simulated, Simulation, simulate
from thalweg.middleware.client.cluster import host_environment
from thalweg.middleware.errors import RunError, UsageError
from thalweg.middleware.platform.processes import peak_bytes
from thalweg.middleware.platform.python import module_command

STAYING = ("download-all", "one-shot")
SIMPY_KEYS = ("simpy_s", "simpy_interarrival_s", "ratio", "interarrival_ratio")
Figures = dict[str, float | None]


def bench_sim(options: SimOptions, progress: Progress = silent) -> dict[str, Any]:
    """Time simulations of every placement. Return the object that ``thalweg bench sim --json`` prints.

    There is a row for each placement and number of servers. Figures are medians over networks. ``ratio`` is the median
    of our time divided by SimPy's (null without SimPy). Raise UsageError for numbers that make no run, and RunError if
    a run fails.
    """
    servers, placements, images, rounds = options.servers, options.placements, options.images, options.rounds
    memory = options.memory
    if not servers or not placements or min(servers) < 1 or images < 2 or rounds < 1 or (memory and min(memory) < 1):
        raise UsageError(
            "bench sim needs at least 1 server, 1 placement, 2 images, 1 round, and 1 image to measure memory with"
        )
    beside = options.others and peers_simpy.installed()
    timed: dict[tuple[int, str], list[Figures]] = {}
    simulate(Simulation(servers=min(servers), images=2))  # fills caches of the process
    for count in dict.fromkeys(servers):
        for number in range(rounds):
            for placement in dict.fromkeys(placements):
                progress(f"{count} servers, network {number + 1} of {rounds}: {placement}")
                config = Simulation(servers=count, images=images, placement=placement, configuration=number)
                timed.setdefault((count, placement), []).append(_play(config, beside=beside and placement in STAYING))
    used = []
    for images_of_run in dict.fromkeys(memory):
        progress(f"memory of {images_of_run} images")
        used.append(run_memory(Simulation(servers=servers[0], images=images_of_run)))
    return {
        "bench": "sim",
        "rows": [
            {"servers": count, "placement": placement, **_medians(rounds_of_row)}
            for (count, placement), rounds_of_row in timed.items()
        ],
        "memory": used,
        "images": images,
        "rounds": rounds,
        "simpy": peers_simpy.version() if beside else None,
    }


def _play(config: Simulation, *, beside: bool) -> Figures:
    """Return the figures of one round: our plan, our run, and SimPy's run of the same.

    Inter-arrival times are virtual.
    """
    setting = simulation.prepare(config)
    links = open_pool(config.pool, config.pool_seed).network(setting.work.hosts, config.configuration)
    initial = setting.strategies[config.placement].initial
    _checked(simulate(config))  # keeps the plan and the sizes
    plan_s, _, plan = _time(lambda: plan_ahead(setting.work, initial, links, setting.world))
    run_s, cpu_s, result = _time(lambda: simulate(config))
    assert result.mean_interarrival_s is not None  # a run that has not failed has two images
    assert result.elapsed_s is not None
    simpy = dict.fromkeys(SIMPY_KEYS)
    if beside:
        code, placed = sized_code(setting.work.allow, config.disk_bytes_per_s), plan.result.placement
        then = {link: rates.later(result.probing_s) for link, rates in links.items()}  # as in our run: probing is over
        peer = partial(peers_simpy.arrivals, setting.work.dataflow, placed, config.images, then, code)
        peer_s, _, arrivals = _time(partial(peer, config.startup_s))
        mean_s = (arrivals[-1] - arrivals[0]) / (len(arrivals) - 1)
        figures = peer_s, mean_s, run_s / peer_s, result.mean_interarrival_s / mean_s
        simpy = dict(zip(SIMPY_KEYS, figures, strict=True))
    return {
        "plan_s": plan_s,
        "run_s": run_s,
        "run_cpu_s": cpu_s,
        "events": result.events,
        "events_per_s": result.events / run_s,
        "virtual_s_per_s": result.elapsed_s / run_s,
        "mean_interarrival_s": result.mean_interarrival_s,
        **simpy,
    }


def _medians(rounds: Sequence[Figures]) -> Figures:
    """Return the medians over rounds. A figure is present in every round or in none."""
    columns = {key: [known for figures in rounds if (known := figures[key]) is not None] for key in rounds[0]}
    return {key: median(column) if column else None for key, column in columns.items()}


def _time(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Call a function. Return the seconds by the clock and of the processor, and the function's result.

    Garbage of earlier calls is collected first.
    """
    gc.collect()
    begun, cpu = time.perf_counter(), time.process_time()
    result = call()
    return time.perf_counter() - begun, time.process_time() - cpu, result


def _checked(result: Simulated) -> Simulated:
    if result.failed is not None:
        raise RunError(f"a simulation of the benchmark failed: {result.failed}")
    return result


# --- memory -------------------------------------------------------------------------------------------


def run_memory(config: Simulation) -> dict[str, Any]:
    """Return the memory of a separate process before a simulation and at its peak, in bytes, after a short simulation.

    Raise RunError if the process fails.
    """
    process = subprocess.run(
        module_command("benchmarks.sim", msgspec.json.encode(config).decode()),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=host_environment(),
        check=False,
    )
    if process.returncode:
        lines = process.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {process.returncode}"]
        raise RunError(f"the process of which memory is measured failed: {lines[-1]}")
    memory: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return {"images": config.images, "servers": config.servers, **memory}


def _memory_of(config: Simulation) -> dict[str, int]:
    _checked(simulate(msgspec.structs.replace(config, images=2)))  # opens the pool, and fills caches
    gc.collect()
    before = psutil.Process().memory_info().rss
    _checked(simulate(config))
    peak = max(before, peak_bytes())
    return {"before_bytes": before, "peak_bytes": peak, "grown_bytes": peak - before}


if __name__ == "__main__":
    print(json.dumps(_memory_of(msgspec.json.decode(sys.argv[1], type=Simulation))))
