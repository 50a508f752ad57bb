"""Predictions of a rehearsal, compared with the deliveries of the same trees by the real core on constant links."""

from __future__ import annotations

import math
from array import array
from typing import Literal

import msgspec
import numpy as np
import pytest

from tests.middleware.planning.test_shape_search import random_parent
from thalweg.emulation.virtual.world import World
from thalweg.experiments.simulation.links import Steady, carrying
from thalweg.experiments.simulation.run import run_ahead, sized_code
from thalweg.experiments.sweeps.simulation import Simulation, prepare
from thalweg.middleware.network.view import LinkEstimate, NetworkView, links_between
from thalweg.middleware.planning import Plan, ProbedPlan, Strategy, Thalweg
from thalweg.middleware.planning.mixtures.pipelines import pipeline_of
from thalweg.middleware.planning.mixtures.rehearsal import Rehearsal
from thalweg.middleware.planning.planners.frame import Frame
from thalweg.middleware.planning.shapes.host_tree import freedom, shaped
from thalweg.middleware.planning.shapes.knowledge import Knowledge

SERVERS, TREES = (3, 5, 8), (1, 2, 4, 8)


def both(seed: int, interface: Literal["single", "independent"]) -> tuple[float, float]:
    """Return the time of the last of the partitions by the core and by the rehearsal, for random trees."""
    chance = np.random.default_rng(seed)
    servers, trees = int(chance.choice(SERVERS)), int(chance.choice(TREES))
    images = 30 + 10 * trees
    setting = prepare(
        Simulation(servers=servers, images=images, interface=interface, image_deviation=0.0, placement="thalweg")
    )
    work = setting.work
    links = {link: Steady(float(chance.lognormal(12, 0.8))) for link in links_between(work.hosts)}
    view = NetworkView({link: LinkEstimate(steady.rate_bps) for link, steady in links.items()})
    planner, task = Thalweg(interface=interface), work.task(view)
    free = freedom(task)
    assert free is not None
    frame = Frame(free, task, planner.goes_by(work.model), 2.0)
    loads = frame.loads(Knowledge(frame.names, view, None).transfers(frame.costs))
    parents = [random_parent(chance, loads.count) for _ in range(trees)]
    plans = []
    for parent in parents:
        reshaped, placement = shaped(task, free, frame.tree(parent), "pairs")
        plans.append(Plan(placement, reshaped.dataflow, share=1 / trees, hints=reshaped.hints))
    plan = ProbedPlan(
        msgspec.structs.replace(plans[0], beside=tuple(plans[1:])), view, frozenset(), frozenset(), 0, complete=True
    )
    arrivals = array("d")
    world = World(
        work.hosts,
        carrying(links, interface, None, seed=0),
        sized_code(work.allow, setting.config.disk_bytes_per_s),
        setting.world,
    )
    world.on_delivered = lambda partition, now: arrivals.append(now)
    run_ahead(work, Strategy(planner), plan, images, world)
    assert world.failed is None
    assert len(arrivals) == images
    pipes = [pipeline_of(loads, parent, "pairs") for parent in parents]
    rehearsed = Rehearsal(pipes, loads.count, interface, setting.config.startup_s).run(images)
    return arrivals[-1], rehearsed[-1]


@pytest.mark.parametrize("interface", ["single", "independent"])
@pytest.mark.parametrize(
    "mixtures", [pytest.param(8, id="eight"), pytest.param(100, id="a-hundred", marks=pytest.mark.long)]
)
def test_a_rehearsal_predicts_the_time_of_the_last_partition(
    mixtures: int, interface: Literal["single", "independent"]
) -> None:
    ratios = []
    for seed in range(mixtures):
        real_s, rehearsed_s = both(seed, interface)
        ratios.append(rehearsed_s / real_s)
    off = [abs(math.log(ratio)) for ratio in ratios]
    assert np.median(off) < 0.06, ratios
    assert np.quantile(off, 0.9) < 0.14, ratios
