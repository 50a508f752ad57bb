"""The emulated network of a run that a scenario file describes: its hosts in the run's roles, its links, its events.

The run's client is the file's host ``client``, or else its first; the others serve images, in the file's order, as
``h1``, ``h2``, …
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from thalweg.emulation.containers.limits import CPUS, MEMORY_BYTES
from thalweg.emulation.links.shape import RATE_FLOOR_BPS, LinkShape
from thalweg.emulation.scenarios.file import Scenario, read_scenario
from thalweg.emulation.scenarios.timeline import by_link, compile_timeline, constant
from thalweg.emulation.testbeds.replay import Change, ReplayHandle
from thalweg.emulation.testbeds.shaped import ShapedTestbed
from thalweg.emulation.traces.changed import changed
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.experiments.networks.collapse import Rates
from thalweg.experiments.networks.setup import read
from thalweg.experiments.runs.config import RunConfig
from thalweg.experiments.runs.workload import CLIENT, host_names
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link


def described(config: RunConfig) -> DescribedNetwork:
    """The network of ``config``, whose scenario is a file. UsageError for a file that does not do."""
    assert config.scenario is not None
    return DescribedNetwork(read(Path(config.scenario), time_scale=config.time_scale, no_delay=config.no_delay))


def roles(scenario: Scenario, path: str) -> dict[str, str]:
    """The run's host for each of the file's. UsageError when there is none to serve images."""
    names = list(scenario.hosts)
    if len(names) < 2:
        raise UsageError(f"{path} has {len(names)} host; a run needs a client and at least one server")
    client = CLIENT if CLIENT in names else names[0]
    servers = [name for name in names if name != client]
    return {client: CLIENT, **dict(zip(servers, host_names(len(servers)), strict=True))}


class DescribedNetwork:
    """What a run needs of a scenario; hosts are the run's."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.roles = roles(scenario, scenario.name)
        self.time_scale = scenario.time_scale

    def _link(self, link: Link) -> Link:
        return self.roles[link[0]], self.roles[link[1]]

    @cached_property
    def traces(self) -> dict[Link, BandwidthTrace]:
        """Every link's rate without events, in emulated bit/s."""
        return {
            self._link(link): self.scenario.traces.get(link) or constant(link, shape.rate_bps)
            for link, shape in self.scenario.links.items()
        }

    @property
    def mean_bps(self) -> float:
        """Mean rate of the links, emulated."""
        return fmean(trace.mean_bps for trace in self.traces.values())

    @cached_property
    def changes(self) -> list[Change]:
        """What befalls the links."""
        return [msgspec.structs.replace(one, link=self._link(one.link)) for one in compile_timeline(self.scenario)]

    def shapes(self) -> dict[Link, LinkShape]:
        """Every link at the start, as a testbed takes it."""
        return {self._link(link): shape for link, shape in self.scenario.wall_shapes().items()}

    def load(self, bed: ShapedTestbed, sample_interval_s: float) -> ReplayHandle:
        """Load what the links follow and what befalls them; ``shapes`` have been set."""
        replay = bed.replay(self.traces, self.time_scale, sample_interval_s=sample_interval_s)
        if self.changes:
            replay.change(self.changes)
        return replay

    def limits(self) -> dict[str, float | None]:
        """Interfaces with a rate of their own, in wall-clock bit/s."""
        return {self.roles[name]: rate_bps for name, rate_bps in self.scenario.interfaces_bps.items()}

    def rates(self, emulated: Mapping[Link, BandwidthTrace]) -> dict[Link, Rates]:
        """What the links' rates really are, events and all, of what the replay has made of their traces."""
        events = by_link(self.changes)
        floor_bps = RATE_FLOOR_BPS / self.time_scale
        return {link: changed(trace, events.get(link, ()), floor_bps) for link, trace in emulated.items()}

    def testbed_options(self, backend: str) -> dict[str, Any]:
        """What the testbed is to be made with: what rates count, and containers' limits where the file has them."""
        options: dict[str, Any] = {"layer": self.scenario.layer}
        if backend == "docker":
            hosts = {role: self.scenario.hosts[name] for name, role in self.roles.items()}
            options["cpus"] = {role: host.cpus or CPUS for role, host in hosts.items()}
            options["memory_bytes"] = {role: host.memory_bytes or MEMORY_BYTES for role, host in hosts.items()}
        return options

    def notes(self) -> list[str]:
        """Who is who, for the record."""
        pairs = [
            f"{role} is {name}" + (f" ({site})" if (site := self.scenario.hosts[name].site) not in (None, name) else "")
            for name, role in self.roles.items()
            if role != name or self.scenario.hosts[name].site
        ]
        return [f"scenario {self.scenario.name}: {', '.join(pairs)}"] if pairs else []


class TracedNetwork:
    """The network of a run without a file: a trace on every link, rates only."""

    def __init__(self, traces: Mapping[Link, BandwidthTrace], time_scale: float) -> None:
        self.traces, self.time_scale = dict(traces), time_scale

    def shapes(self) -> dict[Link, LinkShape]:
        """Every link at the start, as a testbed takes it."""
        return {link: LinkShape(rate_bps=trace.rate_at(0.0) * self.time_scale) for link, trace in self.traces.items()}

    def load(self, bed: ShapedTestbed, sample_interval_s: float) -> ReplayHandle:
        """Load the traces."""
        return bed.replay(self.traces, self.time_scale, sample_interval_s=sample_interval_s)

    def limits(self) -> dict[str, float | None]:
        """No interface has a rate of its own."""
        return {}

    def testbed_options(self, backend: str) -> dict[str, Any]:
        """Nothing but what a testbed has by itself."""
        return {}

    def rates(self, emulated: Mapping[Link, BandwidthTrace]) -> dict[Link, Rates]:
        """What the links' rates are."""
        return dict(emulated)

    def notes(self) -> list[str]:
        """Nothing to say."""
        return []


Network = DescribedNetwork | TracedNetwork


def adopt_file(options: dict[str, object], path: str, time_scale: float | None, servers: int | None) -> None:
    """Take servers and time scale of a run's options from a scenario file. UsageError where they contradict it."""
    scenario = read_scenario(path, time_scale=time_scale)
    there = len(roles(scenario, path)) - 1
    if servers not in (None, there):
        raise UsageError(f"--servers is {servers}, and {path} has {there} hosts besides the client; leave one out")
    if options["link_mean_bps"] is not None:
        raise UsageError(f"--link-mean scales traces that a run draws; {path} says what the links are (link_mean)")
    options |= {"servers": there, "time_scale": scenario.time_scale, "traces": None, "scenario": str(Path(path))}
