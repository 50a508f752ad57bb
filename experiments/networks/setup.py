"""What ``testbed up`` and ``verify`` bring up: hosts and links, from options or from a scenario file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from thalweg.emulation.containers.limits import CPUS, MEMORY_BYTES
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.scenarios.file import HostSpec, Scenario, read_scenario
from thalweg.emulation.testbeds.open import open_testbed
from thalweg.emulation.testbeds.shaped import ShapedTestbed
from thalweg.emulation.units import parse_rate
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import links_between

DETACHABLE = ("netns", "docker")


class Setup(msgspec.Struct, frozen=True):
    """Hosts by name, what rates count, how many links are shaped, and what a testbed that is up is to be told."""

    hosts: tuple[HostSpec, ...]
    layer: int
    links: int
    prepare: Callable[[ShapedTestbed], None]

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.hosts]


class ContainerLimits(msgspec.Struct, frozen=True):
    """Of docker alone: the image, what a host may use where a scenario does not say it, and whether it runs nothing."""

    image: str | None = None
    cpus: float = CPUS
    memory_mib: int = MEMORY_BYTES >> 20
    idle: bool = False


def host_names(count: int) -> list[str]:
    """``client``, then ``h1``, ``h2``, …"""
    if count < 1:
        raise UsageError(f"--hosts is {count}; a testbed needs at least one host")
    return ["client", *(f"h{i}" for i in range(1, count))]


def read(file: Path, *, time_scale: float | None = None, seed: int | None = None, no_delay: bool = False) -> Scenario:
    """A scenario file; with ``no_delay`` only its rates and cuts."""
    scenario = read_scenario(file, time_scale=time_scale, seed=seed)
    return scenario.rates_only() if no_delay else scenario


def described(scenario: Scenario, *, begin: bool = True) -> Setup:
    """What a scenario file describes; traces and events begin at once, unless it is only wanted as it is at first."""
    from thalweg.emulation.scenarios.timeline import apply, compile_timeline

    def prepare(testbed: ShapedTestbed) -> None:
        replay = apply(compile_timeline(scenario), testbed, sample_interval_s=None)
        if replay is not None and begin:
            replay.start()

    return Setup(tuple(scenario.hosts.values()), scenario.layer, len(scenario.links), prepare)


def constant(names: list[str], rate: str, shape: LinkShape, layer: int) -> Setup:
    """One rate on every link; ``shape`` says the rest."""
    links = dict.fromkeys(links_between(names), shape._replace(rate_bps=parse_rate(rate)))
    return Setup(_hosts(names), layer, len(links), lambda testbed: testbed.shape(links))


def traced(
    names: list[str],
    folder: Path,
    shape: LinkShape,
    layer: int,
    *,
    time_scale: float,
    link_mean: str | None,
    seed: int,
) -> Setup:
    """A trace of ``folder`` on every link, replayed at once; ``shape`` says the rest."""
    from thalweg.emulation.traces.files import load_pool
    from thalweg.emulation.traces.pool import assign_traces, scale_pool

    pool = load_pool(folder)
    traces = assign_traces(pool if link_mean is None else scale_pool(pool, parse_rate(link_mean)), names, seed)

    def prepare(testbed: ShapedTestbed) -> None:
        first = {link: trace.rate_at(0.0) * time_scale for link, trace in traces.items()}
        testbed.shape({link: shape._replace(rate_bps=bps) for link, bps in first.items()})
        testbed.replay(traces, time_scale, sample_interval_s=None).start()

    return Setup(_hosts(names), layer, len(traces), prepare)


def unshaped(names: list[str], layer: int) -> Setup:
    """Hosts alone."""
    return Setup(_hosts(names), layer, 0, lambda _: None)


def _hosts(names: list[str]) -> tuple[HostSpec, ...]:
    return tuple(map(HostSpec, names))


def make_testbed(setup: Setup, backend: str, subnet: str, limits: ContainerLimits) -> ShapedTestbed:
    """The testbed, not yet up. UsageError for a backend that has no links."""
    if backend not in DETACHABLE:
        raise UsageError(f"testbed {backend!r} has no links and cannot be kept up; there are {', '.join(DETACHABLE)}")
    options: dict[str, Any] = {"subnet": subnet, "layer": setup.layer}
    if backend == "docker":
        memory_bytes = limits.memory_mib << 20
        options |= {
            "image": limits.image,
            "cpus": {host.name: host.cpus or limits.cpus for host in setup.hosts},
            "memory_bytes": {host.name: host.memory_bytes or memory_bytes for host in setup.hosts},
            "serve": not limits.idle,
        }
    testbed = open_testbed(backend, setup.names, **options)
    assert isinstance(testbed, ShapedTestbed)
    return testbed
