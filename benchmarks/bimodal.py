"""Benchmark of mapping one task by neighbours' messages, over dedicated links, the public network, and both.

The platform is that of Asaduzzaman and Maheswaran's simulation, with nothing running. So uplinks are free, and maps go
to the most hosts. Seconds are the processor time of all hosts together, reservation included.

A second part times the choice of networks for the edges of a placed tree while data flows, per edge. One tree has as
many hosts, and both networks have its links. In other trees, each pair of 9 and of 32 hosts has a rented link, and
hosts may relay an edge over up to eight links.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.options import BimodalOptions
from benchmarks.rounds import Progress, silent
from thalweg.experiments.papers.asaduzzaman2010.exchange import FOREVER_S, Exchange, undisturbed
from thalweg.experiments.papers.asaduzzaman2010.mapping.rules import Rules
from thalweg.experiments.papers.asaduzzaman2010.platforms import Networks, platform, task
from thalweg.middleware.dataflow import Code, complete_binary_tree
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.tariffs import TARIFFS
from thalweg.middleware.network.view import NET, Link, LinkEstimate, NetworkView
from thalweg.middleware.planning.problem.choice import choose
from thalweg.middleware.planning.problem.hints import Hints
from thalweg.middleware.planning.problem.routes import HOPS
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.protocol.messages import MAX_HOPS

BOUND_S = 0.030  # of a mapping with both networks
EDGE_BOUND_S = 0.001  # of the choice of an edge's network
MESHES = (9, 32)  # hosts
SEED = 2026
KINDS: tuple[Networks, ...] = ("dedicated", "public", "both")
WAYS: Mapping[str, Rules] = {
    "our cost, ordered": undisturbed(Rules()),
    "our cost": undisturbed(Rules(ordered=False)),
    "the paper's cost": undisturbed(Rules(cost="balanced", ordered=False)),
}


def bench_bimodal(options: BimodalOptions, progress: Progress = silent) -> dict[str, Any]:
    """Return medians and 95th percentiles over tasks, in seconds.

    Mappings also have the number of maps sent, and the hops of reserved maps.
    """
    rows = []
    for name, rules in WAYS.items():
        for networks in KINDS:
            progress(f"{name}, {networks}")
            rows.append({"way": name, "networks": networks, **_mapped(options, rules, networks)})
    progress("live choice")
    answer = {"bench": "bimodal", "hosts": options.hosts, "links": options.links, "mappings": rows}
    meshes = [_chosen(options, size - 1, hops) for size in MESHES for hops in (1, HOPS, MAX_HOPS)]
    return {**answer, "choices": [_chosen(options, options.hosts, 1, mesh=False), *meshes]}


def _chosen(options: BimodalOptions, servers: int, hops: int, *, mesh: bool = True) -> dict[str, Any]:
    """Return figures of the choice of networks in trees of ``servers`` sources, with operators and the client anywhere.

    Rates of links in both networks are drawn at random. ``mesh``: all hosts have links, and not only the tree's edges.
    """
    names = [f"h{number + 1}" for number in range(servers)]
    took, edges = [], 0
    for number in range(options.rounds):
        dice = np.random.default_rng((SEED, number))
        flow = complete_binary_tree(dict.fromkeys(names, Code("made-up")), Code("made-up"))
        hosts = (*names, "client")
        at = {node.name: node.pinned or str(dice.choice(hosts)) for node in flow.nodes}
        pairs = {(at[a], at[b]) for a, b in flow.edges if at[a] != at[b]}
        edges = len(pairs)
        joined = itertools.permutations(hosts, 2) if mesh else sorted(pairs)
        rates = {Link(*pair, via): float(dice.uniform(1e6, 1e7)) for pair in joined for via in (NET, "fast")}
        rented = {link.hosts: rate for link, rate in rates.items() if link.via != NET}
        networks = {NET: Network(TARIFFS["public"]), "fast": Network(TARIFFS["dedicated"], rented)}
        view = NetworkView({link: LinkEstimate(rate) for link, rate in rates.items()})
        hints = Hints({node.name: 125_000.0 for node in flow.nodes})
        task = Task((flow,), hosts, view, hints, networks=networks, hops=hops)
        begun = time.process_time()
        choose(task, flow, at)
        took.append((time.process_time() - begun) / edges)
    p95_s = sorted(took)[math.ceil(0.95 * len(took)) - 1]
    figures = {"median_s": median(took), "p95_s": p95_s, "bound_s": EDGE_BOUND_S}
    return {"hosts": servers + 1, "mesh": mesh, "hops": hops, "edges": edges, **figures}


def _mapped(options: BimodalOptions, rules: Rules, networks: Networks) -> dict[str, Any]:
    """Return figures of mapping each task on a platform of its own, without other tasks."""
    took, sent, virtual, hops = [], [], [], []
    for number in range(options.rounds):
        world = platform((SEED, number), options.hosts, options.links, networks)
        exchange = Exchange(world, rules)
        job = task(number, np.random.default_rng((SEED, number)), options.hosts)
        begun = time.process_time()
        exchange.begin(job)
        while notes := exchange.run(FOREVER_S):
            for _, note in notes:
                if note.state == "mapped":
                    virtual.append(exchange.now)
                if note.state == "running" and note.found is not None:
                    hops.append(len(note.found.legs) - 1)
        took.append(time.process_time() - begun)
        sent.append(exchange.sent)
    both = networks == "both" and rules is WAYS["our cost, ordered"]
    return {
        "median_s": median(took),
        "p95_s": sorted(took)[math.ceil(0.95 * len(took)) - 1],
        "messages": fmean(sent),
        "mapped": len(hops),
        "hops": fmean(hops) if hops else None,
        "virtual_s": fmean(virtual),
        "bound_s": BOUND_S if both else None,
    }
