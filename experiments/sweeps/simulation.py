"""Simulated run of a sweep: configuration and results."""

from __future__ import annotations

import itertools
import math
import time
from array import array
from collections import OrderedDict
from collections.abc import Mapping
from statistics import fmean, median
from typing import ClassVar, Literal

import msgspec
import numpy as np

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.scenarios.delays import read_delays
from thalweg.emulation.scenarios.timeline import Timeline
from thalweg.emulation.traces.pool import Window
from thalweg.emulation.traces.trace import Rates
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.links import LinkRate
from thalweg.emulation.virtual.world import World
from thalweg.experiments.run_config import CLIENT, RunConfig, host_names
from thalweg.experiments.runs.strategies import cost_model, make_strategies
from thalweg.experiments.runs.workload import build_dataflow
from thalweg.experiments.simulation.links import Interface, Steady, carrying, world_config
from thalweg.experiments.simulation.run import (
    Knows,
    Work,
    bound_s,
    exactly,
    foreseen,
    last_measured,
    plan_ahead,
    run_ahead,
    sized_code,
)
from thalweg.experiments.sweeps.pools import open_pool
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.experiments.sweeps.variants import VARIANTS, Variant
from thalweg.middleware.client.steering.replanning import hints_of_code
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning import CostParameters, ProbedPlan
from thalweg.middleware.planning.registry import Strategy
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.adaptation import GlobalMoves

PLANS_KEPT = 8
SHARED = (  # fields of a simulation with the same name in a run's configuration
    "interface", "servers", "images", "tree", "cost", "period_s", "k", "gate", "hysteresis", "startup_s",
    "disk_bytes_per_s", "pixel_s", "image_bytes", "image_deviation", "allow", "view", "forecaster",
    "latency",
)  # fmt: skip


class Simulation(Trial, frozen=True, kw_only=True):
    """Network configuration, placement and parameters: everything that the result of a simulation depends on.

    ``pool``: source of the links' traces (see ``pools``). ``pool_seed``: seed of the draw of the pool.
    ``configuration``: number of the network drawn from it, with trace and window of every link, and the images' sizes.
    ``interface``: with ``single``, a host sends or receives one message at a time (as in the paper); with
    ``independent``, links do not affect each other. ``view``: planners know measured links, or the true links, also
    while data flows. ``latency``: matrix of the links' delays. ``ahead``: images under way over each edge.
    ``variant``: name in ``variants.VARIANTS``, whose values replace these fields. Options of placements that move
    operators are None if they were not given. Defaults are those of Ranganathan et al. (1998), section 4. Units are
    seconds, bytes and bits per second.
    """

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.sweeps.simulation:simulate"

    placement: str = "one-shot"
    servers: int = 8
    images: int = 180
    tree: str = "binary"
    interface: Interface = "single"
    period_s: float | None = None
    k: int | None = None
    gate: bool | None = None
    hysteresis: float | None = None
    cost: str = "critical-path"
    view: Literal["probe", "truth"] = "probe"
    forecaster: str | None = None
    max_age_s: float | None = None
    latency: str | None = None
    ahead: int = 1
    startup_s: float = 0.05
    disk_bytes_per_s: float = 3e6
    pixel_s: float = 7e-6
    image_bytes: int = 131_072
    image_deviation: float = 0.25
    allow: tuple[str, ...] = ()
    variant: str = ""

    @property
    def kind(self) -> tuple[object, ...]:
        """Key of simulations that take about equally long."""
        return self.placement, self.variant, self.servers, self.images, self.tree, self.period_s

    @property
    def codes(self) -> tuple[str, ...]:
        """Import path of a researcher's own planner, if the placement is one."""
        return (self.placement,) if ":" in self.placement else ()

    @property
    def says(self) -> str:
        """Name of the placement."""
        return self.placement


class Simulated(Outcome, frozen=True, kw_only=True):
    """Results of one simulation. Seconds are virtual. A figure without deliveries is None.

    ``failed``: why partitions are missing, None if all were delivered. ``bound_period_s``: see
    ``simulation.run.bound_s``. ``predicted_s``: cost of the initial placement, as predicted by its planner.
    ``planning_s``: processor time of all ``plans`` while data flowed. ``probing_s``: duration of measurements before
    the run. The run begins at their end, and its seconds count from there. ``wall_s``: duration of the simulation.
    """

    delivered: int = 0
    lost: int = 0
    duplicate: int = 0
    out_of_order: int = 0
    mean_interarrival_s: float | None = None
    median_interarrival_s: float | None = None
    p95_interarrival_s: float | None = None
    first_image_s: float | None = None
    elapsed_s: float | None = None
    bound_period_s: float | None = None
    predicted_s: float | None = None
    relocations: int = 0
    reshapings: int = 0
    plans: int = 0
    planning_s: float = 0.0
    probing_s: float = 0.0
    probe_bytes: int = 0
    bytes_sent: int = 0
    events: int = 0
    wall_s: float = 0.0


Simulation.outcome = Simulated


def simulate(config: Simulation) -> Simulated:
    """Run a simulation in virtual time. The result is the same in every process and at every call.

    Raises UsageError if the simulation cannot be run. Errors during the run are part of the result.
    """
    begun = time.perf_counter()
    setting = prepare(config)
    config, variant = setting.config, setting.variant
    network: Mapping[Link, Window | Steady] = open_pool(config.pool, config.pool_seed).network(
        setting.work.hosts, config.configuration
    )
    if variant is not None and variant.steady:
        network = {link: Steady.of(rates) for link, rates in network.items()}
    strategy = setting.strategies[config.placement]
    delays = _delays(setting)
    before = carrying(network, config.interface, delays, seed=config.configuration)
    plan = _plan(setting, strategy, before, config)
    network = {link: rates.later(plan.took_s) for link, rates in network.items()}  # the measurements are over
    links = carrying(network, config.interface, delays, seed=config.configuration)
    arrivals = array("d")
    counts = {"next": 0, "duplicate": 0, "out_of_order": 0}

    def on_delivered(partition: e.Deliver, now: float) -> None:
        counts["duplicate"] += partition.index < counts["next"]
        counts["out_of_order"] += partition.index != counts["next"]
        counts["next"] = max(counts["next"], partition.index + 1)
        arrivals.append(now)

    code = sized_code(setting.work.allow, config.disk_bytes_per_s)
    world = World(setting.work.hosts, links, code, setting.world)
    world.on_delivered = on_delivered
    run_ahead(setting.work, strategy, plan, config.images, world, knows=_knows(setting, strategy, network, links))
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    delivered = len(arrivals) - counts["duplicate"]
    cores = [host.core for host in world.hosts.values()]
    return Simulated(
        failed=world.failed or world.planner_failed,
        delivered=delivered,
        lost=config.images - delivered,
        duplicate=counts["duplicate"],
        out_of_order=counts["out_of_order"],
        mean_interarrival_s=fmean(gaps) if gaps else None,
        median_interarrival_s=median(gaps) if gaps else None,
        p95_interarrival_s=float(np.percentile(gaps, 95)) if gaps else None,
        first_image_s=arrivals[0] if arrivals else None,
        elapsed_s=arrivals[-1] if arrivals else None,
        bound_period_s=bound_s(setting.work, network, arrivals[-1], config.interface) if arrivals else None,
        predicted_s=plan.result.cost_s if math.isfinite(plan.result.cost_s) else None,
        relocations=world.relocations,
        reshapings=world.reshapings,
        plans=world.plans,
        planning_s=world.planning_s,
        probing_s=plan.took_s,
        probe_bytes=sum(core.links.prober.sent_bytes for core in cores),
        bytes_sent=sum(core.context.sent_bytes for core in cores),
        events=world.events,
        wall_s=time.perf_counter() - begun,
    )


def _delays(setting: Setting) -> Timeline | None:
    """Return the delays of links, if there is a latency matrix."""
    config = setting.config
    if config.latency is None:
        return None
    delays_s, _ = read_delays(config.latency, setting.work.hosts, config.configuration)
    return Timeline(hosts={}, links={link: LinkShape(1.0, delay_s) for link, delay_s in delays_s.items()}, traces={})


def _knows(
    setting: Setting, strategy: Strategy, network: Mapping[Link, Rates], links: Mapping[Link, LinkRate]
) -> Knows | None:
    """Return the view that planners get while data flows. None: measurements."""
    knowledge = "measured" if setting.variant is None else setting.variant.told
    moves = strategy.adaptation
    if knowledge == "last":
        return last_measured(setting.work.hosts)
    if knowledge == "ahead" and isinstance(moves, GlobalMoves):
        return foreseen(network, moves.horizon_s or moves.period_s)
    return exactly(links, setting.config.startup_s) if setting.config.view == "truth" else None


class Setting(msgspec.Struct, frozen=True):
    """Inputs of a simulation besides its links. ``config`` has the values of its variant."""

    config: Simulation
    variant: Variant | None
    work: Work
    strategies: dict[str, Strategy]
    world: WorldConfig


def prepare(config: Simulation) -> Setting:
    """Return the setting that ``config`` describes. Raise UsageError if it cannot be run."""
    variant = None
    if config.variant:
        variant = VARIANTS.get(config.variant)
        if variant is None:
            raise UsageError(f"unknown variant {config.variant!r}; {nearest(config.variant, list(VARIANTS))}")
        config = msgspec.structs.replace(config, placement=variant.placement, **variant.fields)
    run = RunConfig(
        testbed="sim",
        placements=(config.placement,),
        seed=config.configuration,
        **{name: getattr(config, name) for name in SHARED},
    ).check()
    dataflow = build_dataflow(run)
    hosts = (*host_names(config.servers), CLIENT)
    allow = (*DEFAULT_ALLOW, *config.allow)
    costs = CostParameters(startup_s=config.startup_s, disk_bytes_per_s=config.disk_bytes_per_s)
    model = cost_model(config.cost, config.interface)
    work = Work(dataflow, hosts, hints_of_code(dataflow, allow), costs, model, allow, partitions=config.images)
    world = world_config(config.interface, config.startup_s, forecaster=config.forecaster, max_age_s=config.max_age_s)
    world = msgspec.structs.replace(world, ahead=config.ahead)
    strategies = make_strategies(run)
    if variant is not None:
        strategies = {label: variant.strategy(strategy) for label, strategy in strategies.items()}
    return Setting(config, variant, work, strategies, world)


_plans: OrderedDict[tuple[str, str], ProbedPlan] = OrderedDict()  # the latest; placements of a network share plans


def _plan(setting: Setting, strategy: Strategy, links: Mapping[Link, LinkRate], config: Simulation) -> ProbedPlan:
    """Return the initial plan of a placement. Recent plans for the same network and planner are reused."""
    of_network = msgspec.structs.replace(config, placement="", period_s=None, k=None, gate=None, hysteresis=None)
    if setting.variant is None or not setting.variant.steady:
        of_network = msgspec.structs.replace(of_network, variant="")
    initial = strategy.initial
    key = of_network.key, f"{type(initial).__module__}:{initial!r}"
    plan = _plans.get(key)
    if plan is None:
        plan = plan_ahead(setting.work, initial, links, setting.world, truth=config.view == "truth")
        if type(initial).__module__.startswith("thalweg."):  # the repr of such a planner has all of its parameters
            _plans[key] = plan
            if len(_plans) > PLANS_KEPT:
                _plans.popitem(last=False)
    return plan
