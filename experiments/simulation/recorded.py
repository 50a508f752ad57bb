"""Simulated runs of ``thalweg run --testbed sim``: the placements of a run in virtual time, and their records.

Workload, links, planners, cores and run folder are the same as on a testbed of processes. The records depend on the
configuration alone. Wall times are those of the virtual clock, which starts at 0.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from thalweg.emulation.scenarios.events import Deed
from thalweg.emulation.scenarios.process_events import deeds_of
from thalweg.emulation.scenarios.timeline import Timeline
from thalweg.emulation.traces.trace import BandwidthTrace, Rates
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.links import LinkRate
from thalweg.emulation.virtual.world import World
from thalweg.experiments.command import Tell
from thalweg.experiments.networks.described import Network
from thalweg.experiments.networks.traced import build_network
from thalweg.experiments.records.bills import Bill
from thalweg.experiments.records.records import RunInfo, save_run, write_events
from thalweg.experiments.records.trees import ended_as, operators_at
from thalweg.experiments.run_config import CLIENT, RunConfig, file_name, is_scenario_file
from thalweg.experiments.runs.session import Outcome, Session
from thalweg.experiments.runs.strategies import begins_with_one_shot, cost_model, cost_parameters, placed_detail
from thalweg.experiments.runs.workload import reference_of
from thalweg.experiments.simulation.links import Steady, carrying, dilation, world_config
from thalweg.experiments.simulation.run import (
    Work,
    bound_s,
    depth_ahead,
    exactly,
    plan_ahead,
    real_code,
    run_ahead,
    sized_code,
)
from thalweg.experiments.simulation.virtual_process_events import BefallenWorld
from thalweg.middleware.client.steering.replanning import hints_of_code
from thalweg.middleware.errors import RunError
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.network.networks import networks_of
from thalweg.middleware.network.view import Link, link_of
from thalweg.middleware.planning import OneShot, ProbedPlan
from thalweg.middleware.planning.registry import Strategy
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.absent_sources import all_gaps
from thalweg.middleware.shell.packing import opened
from thalweg.operators import digest, write_image


def execute_as_on_testbeds(config: RunConfig, folder: Path, tell: Tell) -> Outcome:
    """Run as ``execute_virtually``, but with ``view`` truth, planners know the true links only before the run."""
    return execute_virtually(config, folder, tell, truth_lasts=False)


def execute_virtually(config: RunConfig, folder: Path, tell: Tell, *, truth_lasts: bool = True) -> Outcome:
    """Run every placement of ``config`` in turn and leave ``run.toml`` and ``events.parquet`` in ``folder``.

    ``truth_lasts``: with ``view`` truth, planners know the true links also while data flows. Raises UsageError or a
    subclass before the simulation, RunError if a run cannot go on.
    """
    return _Session(config, folder, tell, truth_lasts=truth_lasts).execute()


_encode = msgspec.json.Encoder().encode


class _Session(Session):
    """State of one call of ``execute_virtually``."""

    def __init__(self, config: RunConfig, folder: Path, tell: Tell, *, truth_lasts: bool) -> None:
        self.told_truth = truth_lasts and config.view == "truth"  # while data flows
        super().__init__(config, folder, tell)
        if not self.workload.sized:
            self.config = msgspec.structs.replace(self.config, bytes=True)
        config, dataflow, hosts = self.config, self.dataflow, self.hosts
        allow = (*DEFAULT_ALLOW, *config.allow)
        self.interface = interface = config.interface or "independent"
        costs = cost_parameters(config)
        hints = hints_of_code(dataflow, allow)
        self.work = Work(
            dataflow, hosts, hints, costs, cost_model(config.cost, interface), allow, partitions=config.images
        )
        self.network = network = build_network(config, hosts, 0)
        if network.timeline.further:
            over = networks_of(network.timeline.networks, network.timeline.agreed_bps.items())
            routing = {"wanted_hz": config.wanted_hz, "hops": config.hops}
            self.work = msgspec.structs.replace(self.work, networks=over, **routing)
        self.traces: Mapping[Link, BandwidthTrace] = network.traces
        self.links: Mapping[Link, Rates] = self.traces
        self.timeline: Timeline | None = None  # of links with delays, or of a scenario file
        described = is_scenario_file(config.scenario)
        if described or config.latency is not None:
            self.timeline = network.timeline
        if described:
            self.links = network.timeline.rates()
        world = world_config(
            interface,
            config.startup_s,
            time_scale=config.time_scale,
            forecaster=config.forecaster,
            patience=1.0 if described else None,  # its links are as on a testbed, and so is the patience
            limits=config.limits,
        )
        timeout_s = config.call_timeout_s
        self.world = msgspec.structs.replace(
            world,
            interfaces_bps=network.timeline.interfaces_bps,
            up_bps=network.timeline.up_bps,
            down_bps=network.timeline.down_bps,
            control_band=network.timeline.control_band is not False,  # as on a testbed: on, unless a file says no
            call_timeout_s=None if timeout_s is None else timeout_s * config.time_scale,
            capacities=network.timeline.capacities,
            validate=config.validate,
            ahead=1 if config.depth == "auto" else config.depth,
        )
        self.work = msgspec.structs.replace(self.work, hints=hints.measured({}, network.timeline.capacities))
        # The time that an operator states is of a real machine. A dilated clock makes it longer.
        factor = config.time_scale if config.pixel_s is None else 1.0
        self.code = (real_code if config.bytes else sized_code)(allow, costs.disk_bytes_per_s, factor)
        for node in dataflow.nodes:
            if node.code is not None:
                self.code(node)  # refuse code that cannot be simulated before the start
        suffix = "" if config.bytes else ", sizes only: nothing is composed"
        self.found.notes += [f"virtual time, {interface} links{suffix}", *network.notes]
        self.log: IO[bytes] | None = None  # rows are written at once, as a run may have any number of images
        self.digests: list[str] = []
        self.wall_s: dict[str, float] = {}
        self._shared: ProbedPlan | None = None

    def run(self) -> None:
        config = self.config
        if config.bytes:
            self.reference = reference_of(self.workload.reference(), config, self.tell)
        if config.scenario == "collapse":
            operators = operators_at(self.work.dataflow, self._one_shot().result.placement)
            changes = self.befall(operators, self.traces).changes(self.traces)
            self.links = Network(Timeline.of_traces(self.traces)).befallen(changes).timeline.rates(floor_bps=0.0)
        for label, strategy in self.strategies.items():
            begun = time.perf_counter()
            self._placement(label, strategy)
            self.wall_s[label] = time.perf_counter() - begun

    def _one_shot(self) -> ProbedPlan:
        """Return the common plan of placements that begin with one-shot."""
        if self._shared is None:
            self._shared = self._plan(OneShot())
        return self._shared

    def _plan(self, planner: Any) -> ProbedPlan:
        """Plan with the links as at time 0, where they rest as on a testbed, because every placement begins there."""
        links = self._carrying({link: Steady.of(trace) for link, trace in self.traces.items()}, begun=False)
        return plan_ahead(self.work, planner, links, self.world, truth=self.config.view == "truth")

    def _deep(self, label: str, plan: ProbedPlan) -> WorldConfig:
        """Return the world for a plan. With depth ``auto``, its links determine the partitions under way."""
        if self.config.depth != "auto":
            return self.world
        links = self._carrying({link: Steady.of(trace) for link, trace in self.traces.items()}, begun=False)
        depth = depth_ahead(self.work, plan, links, self.world)
        self.found.notes.append(f"{label}: {depth} under way over each edge (--ahead auto)")
        return msgspec.structs.replace(self.world, ahead=depth)

    def _carrying(self, links: Mapping[Link, Rates], *, begun: bool = True) -> Mapping[Link, LinkRate]:
        """Return the links with the costs of messages, for a world of their own."""
        return carrying(links, self.interface, self.timeline, begun=begun, seed=self.config.seed)

    def _placement(self, label: str, strategy: Strategy) -> None:
        config = self.config
        self.tell(f"{label}: planning", 0, 0)
        shared = begins_with_one_shot(strategy) and self._shared is not None
        plan = self._one_shot() if begins_with_one_shot(strategy) else self._plan(strategy.initial)
        detail = placed_detail(label, plan, shared=shared, truth=config.view == "truth")
        self._row(label, CLIENT, 0.0, "placed", {"detail": detail})
        self.found.placed[label] = operators_at(plan.result.dataflow, plan.result.placement)
        self.found.delivered[label] = 0
        folder = self.folder / "images" / file_name(label)

        def on_delivered(partition: e.Deliver, now: float) -> None:
            fields: dict[str, Any] = {
                "node": partition.sink,
                "index": partition.index,
                "size_bytes": partition.size_bytes,
            }
            if config.missing == "nothing":
                self.pieces[label].add(partition.sink, partition.index, all_gaps(world.tree[0]))
            value = opened(partition.value, (*DEFAULT_ALLOW, *config.allow))
            if config.bytes:
                fields["detail"] = {"digest": digest(value)}
            self._row(label, CLIENT, now, "delivered", fields)
            self.found.delivered[label] += 1
            if config.bytes and config.pictured(partition.index) and isinstance(value, np.ndarray):
                folder.mkdir(parents=True, exist_ok=True)
                write_image(value, folder / f"{partition.index:03}.png")
            self.tell(label, self.found.delivered[label], self.total)

        carried = self._carrying(self.links)
        about: tuple[Any, ...] = self.work.hosts, carried, self.code, self._deep(label, plan)
        deeds = deeds_of(
            config.befalling, config.all_servers, config.time_scale, self.timeline.deeds if self.timeline else ()
        )
        world = World(*about, on_record=self._recorder(label), digest=True)
        if deeds:

            def on_deed(deed: Deed, now: float) -> None:
                self._row(label, deed.host, now, "befallen", {"detail": {"outcome": deed.kind}})

            world = BefallenWorld(*about, deeds=deeds, told=on_deed, on_record=self._recorder(label), digest=True)
            lasting = config.failover({} if self.timeline is None else self.timeline.sites)
            world.failover = lasting.dilated(dilation(self.interface, config.time_scale))
        world.on_delivered = on_delivered
        knows = exactly(self._carrying(self.links), config.startup_s) if self.told_truth else None
        run_ahead(self.work, strategy, plan, config.images, world, label=label, knows=knows)
        self.digests.append(world.log_digest)
        log: dict[str, Any] = {"digest": world.log_digest}
        if (bound := bound_s(self.work, self.links, world.now, self.interface)) is not None:
            log["bound_period_s"] = bound
        self._row(label, CLIENT, world.now, "log", {"value": world.events, "detail": log})
        if self.network.timeline.networks:
            sizes = {Link(*link): float(size) for link, size in world.carried_bytes.items()}
            timeline = self.network.timeline
            bill = Bill.of(timeline.networks, timeline.rented, sizes, world.now)
            detail = {"detail": {"bill": msgspec.to_builtins(bill)}}
            self._row(label, CLIENT, world.now, "bill", {"value": bill.total, **detail})
        if world.planner_failed is not None:
            self.found.notes.append(f"{label} went on as it was placed: {world.planner_failed}")
        if self.collapse is not None:
            self._record_scenario(label, world)
        if strategy.moving is not None:
            ended = ended_as(plan.result.dataflow, *world.tree)
            self.found.ended[label] = ended["placement"]
            if "tree" in ended:
                self.found.trees[label] = ended["tree"]
        if world.failed is not None:
            raise RunError(world.failed)

    def _recorder(self, label: str) -> Callable[[str, float, e.Record], None]:
        def on_record(host: str, now: float, record: e.Record) -> None:
            fields = record.fields
            if record.kind == "estimate":
                detail = fields["detail"]
                rates, since = self.links[link_of(detail)], max(0.0, now - fields["duration_s"])
                detail["truth_bps"] = rates.bits_between(since, now) / (now - since) if now > since else 0.0
            self._row(label, host, now, record.kind, fields)

        return on_record

    def _record_scenario(self, label: str, world: World) -> None:
        collapse = self.collapse
        assert collapse is not None
        if collapse.at_s > world.now:
            self.found.notes.append(collapse.missed(label))
            return
        self._row(label, collapse.host, collapse.at_s, "scenario", collapse.record())

    def _row(self, label: str, host: str, at_s: float, kind: str, fields: Mapping[str, Any]) -> None:
        if self.log is None:
            self.log = (self.folder / "world.jsonl").open("wb")
        row = {"t": at_s, "wall": at_s, "host": host, "placement": label, "kind": kind, **fields}
        self.log.write(_encode(row) + b"\n")

    def save(self) -> RunInfo | None:
        if self.log is None:
            return None
        self.log.close()
        # A run with the same configuration, planners and traces has the same name.
        identity = msgspec.json.encode((self.config, self.digests))
        run_id = f"sim-{self.config.seed}-{hashlib.sha256(identity).hexdigest()[:12]}"
        delays = self.timeline is not None and self.timeline.delays
        info = self.info(run_id, wall_s=self.wall_s, delay_emulated=delays)
        log = Path(self.log.name)
        write_events(self.folder, run_id, [log])
        save_run(self.folder, info)
        log.unlink()
        return info
