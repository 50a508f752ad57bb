"""Emulated network of a run: its links over time, from traces or as a scenario file describes the links.

The run's client is the host ``client`` of the file, or else the first host. The remaining hosts serve images, in the
file's order, as ``h1``, ``h2``, …
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from thalweg.emulation.links.effects import LinkChange
from thalweg.emulation.scenarios.file import Scenario, read_scenario
from thalweg.emulation.scenarios.timeline import Timeline, compile_timeline
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.experiments.run_config import CLIENT, RunConfig, host_names
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.network.view import NET, Link


def roles(scenario: Scenario, path: str) -> dict[str, str]:
    """Return the run's host for every host of the file. Raise UsageError if no host can serve images."""
    names = list(scenario.hosts)
    if len(names) < 2:
        raise UsageError(f"{path} has {len(names)} host; a run needs a client and at least one server")
    client = CLIENT if CLIENT in names else names[0]
    servers = [name for name in names if name != client]
    return {client: CLIENT, **dict(zip(servers, host_names(len(servers)), strict=True))}


def read(file: Path, *, time_scale: float | None = None, seed: int | None = None, no_delay: bool = False) -> Scenario:
    """Return the scenario of a file. With ``no_delay`` only rates and cuts are kept."""
    scenario = read_scenario(file, time_scale=time_scale, seed=seed)
    return scenario.rates_only() if no_delay else scenario


class Network:
    """Links between the hosts of a run over time, and ``notes`` on them for the record."""

    def __init__(self, timeline: Timeline, notes: Sequence[str] = ()) -> None:
        self.timeline, self.notes = timeline, tuple(notes)

    @cached_property
    def traces(self) -> dict[Link, BandwidthTrace]:
        """Rate of every link without events, in emulated bit/s."""
        return {link: self.timeline.trace(link) for link in self.timeline.links}

    @property
    def mean_bps(self) -> float:
        """Mean rate of the links, emulated."""
        return fmean(trace.mean_bps for trace in self.traces.values())

    def befallen(self, changes: Sequence[LinkChange]) -> Network:
        """Return the network with ``changes`` instead of the events of its links."""
        return Network(msgspec.structs.replace(self.timeline, changes=changes), self.notes)


def described(config: RunConfig) -> Network:
    """Return the network of ``config``, whose scenario is a file. Raise UsageError for an unusable file."""
    assert config.scenario is not None
    scenario = read(Path(config.scenario), time_scale=config.time_scale, no_delay=config.no_delay)
    names = roles(scenario, scenario.name)
    texts = [
        f"{role} is {name}" + (f" ({site})" if (site := scenario.hosts[name].site) not in (None, name) else "")
        for name, role in names.items()
        if role != name or scenario.hosts[name].site
    ]
    notes = [f"scenario {scenario.name}: {', '.join(texts)}"] if texts else []
    timeline = compile_timeline(scenario).renamed(names)
    if config.networks:
        for via in config.networks:
            if via not in (NET, *timeline.further):
                raise UsageError(f"--network: {config.scenario} has no network {via!r};"
                                 f" {nearest(via, (NET, *timeline.further))}")  # fmt: skip
        timeline = timeline.over(config.networks)
    return Network(timeline, [*notes, *scenario.notes])


def adopt_file(given: dict[str, Any], path: str) -> None:
    """Set servers and time scale of a run's options from a scenario file.

    Raises UsageError if the options contradict the file.
    """
    scenario = read_scenario(path, time_scale=given.get("time_scale"))
    servers = len(roles(scenario, path)) - 1
    if given.get("servers", servers) != servers:
        raise UsageError(
            f"--servers is {given['servers']}, and {path} has {servers} hosts besides the client; leave one out"
        )
    if "link_mean_bps" in given:
        raise UsageError(f"--link-mean scales traces that a run draws; {path} sets the links itself (link_mean)")
    given.pop("traces", None)
    if scenario.missing != "wait":
        given.setdefault("missing", scenario.missing)
    given |= {"servers": servers, "time_scale": scenario.time_scale, "scenario": str(Path(path))}
