"""Scenario files in TOML: an emulated WAN and its events, the same for every testbed.

``read_scenario(path)`` checks everything that needs no testbed. Rates and times are emulated. Every error is one line
with file and line number. ``timeline`` compiles a scenario into the network over time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from thalweg.emulation.kernel.folders import read_private
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.links.units import seconds
from thalweg.emulation.scenarios.events import Event, Wan, read_events
from thalweg.emulation.scenarios.hosts import HostSpec, Limits, read_hosts, within_networks
from thalweg.emulation.scenarios.links import LinkReader
from thalweg.emulation.scenarios.networks import read_networks
from thalweg.emulation.scenarios.toml import AboveZero, Keys, Text, Texts, Written, read_toml
from thalweg.emulation.testbeds.replay import GAP_S
from thalweg.emulation.traces.link import Course
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.dataflow import Missing
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.tariffs import Tariff
from thalweg.middleware.network.view import NET, Link

__all__ = ["Event", "HostSpec", "Scenario", "read_scenario"]

DURATION_S = 86_400.0
"""Default end of flaps and churn without an end, and of traces of delays and losses: a day. With 33 hosts that leave
and return every ten minutes, this gives half a million changes, which a testbed still holds easily."""


class Duration(float, metaclass=Written):
    """Seconds, above 0."""

    @staticmethod
    def read(value: Any) -> float:
        duration_s = seconds(value)
        if duration_s <= 0:
            raise UsageError("a scenario lasts longer than 0 s")
        return duration_s


class Layer(int, metaclass=Written):
    """Layer at which rates are counted: 3 (IP packets) or 2 (Ethernet frames)."""

    @staticmethod
    def read(value: Any) -> int:
        if value not in (2, 3) or not isinstance(value, int):
            raise UsageError(f"{value!r} is neither 3 (rates count IP packets) nor 2 (Ethernet frames)")
        return value


class Folders(tuple[str, ...], metaclass=Written):
    """Folders of which every host has its own."""

    @staticmethod
    def read(value: Any) -> tuple[str, ...]:
        return read_private(Texts.read(value))


class Top(Keys):
    """Keys above the first table, without limits of hosts. Other readers check the tables, which are ``Any`` here."""

    name: Text | None = None
    hosts: Any = None
    networks: Any = None
    links: Any = None
    link: Any = None
    event: Any = None
    time_scale: AboveZero | None = None
    seed: int | None = None
    missing: Missing | None = None
    layer: Layer | None = None
    duration: Duration | None = None
    ipv6: bool | None = None
    control_band: bool | None = None
    private: Folders | None = None


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Emulated WAN as described by a file. Seconds and bit/s are emulated.

    ``hosts``: in the order of the file. ``networks``: tariffs of the networks in the file. ``links``: shapes at the
    start, before any event. They have every directed pair over the network ``net``, and the links of further networks.
    ``traces``: of links whose rate follows a trace. ``courses``: of links whose delay or loss follows a trace.
    ``duration_s``: end of repeated events and courses. ``missing``: behaviour of operators if the host of a source is
    lost. ``ipv6``: hosts of a testbed have IPv6 addresses too. ``control_band``: packets marked for expedited
    forwarding overtake the queue of a link. None: the file does not say. ``private``: folders of which every host of a
    testbed has its own. ``notes``: possible mistakes in the file.
    """

    name: str
    hosts: Mapping[str, HostSpec]
    links: Mapping[Link, LinkShape]
    traces: Mapping[Link, BandwidthTrace]
    networks: Mapping[str, Tariff] = {}
    courses: Mapping[Link, tuple[Course, ...]] = {}
    events: tuple[Event, ...] = ()
    time_scale: float = 1.0
    layer: int = 3
    seed: int = 1
    missing: Missing = "wait"
    duration_s: float = DURATION_S
    ipv6: bool = True
    control_band: bool | None = None
    private: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def needs_netem(self) -> bool:
        """Return whether a link needs, at any time, a kernel with netem."""
        shaped = any(shape.needs_netem for shape in self.links.values())
        courses = {id(course): course for some in self.courses.values() for course in some}.values()
        varied = any(effect.needs_netem for course in courses for effect in course.effects)
        return shaped or varied or any(event.effect.needs_netem for event in self.events)

    def rates_only(self) -> Scenario:
        """Return the scenario without figures that need netem. Rates and cuts stay."""
        plain = {link: shape.rates_only() for link, shape in self.links.items()}
        events = tuple(msgspec.structs.replace(event, effect=event.effect.rates_only()) for event in self.events)
        courses = {link: tuple(course.rates_only() for course in some) for link, some in self.courses.items()}
        return msgspec.structs.replace(self, links=plain, courses=courses, events=events)


def read_scenario(
    path: str | os.PathLike[str], *, time_scale: float | None = None, seed: int | None = None
) -> Scenario:
    """Return the scenario in a file. ``time_scale`` and ``seed`` replace the values in the file.

    Raises UsageError, one line: file and line number, the error, and what to do.
    """
    root = read_toml(path, "a scenario file", Top, Limits)
    top = root.given(root.read(Top))
    networks = read_networks(root)
    hosts = read_hosts(root, [via for via in networks if via != NET])
    chosen = top.get("seed", 1) if seed is None else seed
    duration_s = top.get("duration", DURATION_S)
    reader = LinkReader(root, hosts, chosen, networks)
    links, traces = reader.links()
    if time_scale is not None and not 0 < time_scale < math.inf:
        raise UsageError(f"the time scale is {time_scale:g}; it must be above 0")
    scale = top.get("time_scale", 1.0) if time_scale is None else time_scale
    return Scenario(
        name=top.get("name") or os.path.splitext(os.path.basename(path))[0],
        hosts=within_networks(root, reader.hosts, links),
        links=links,
        traces=traces,
        networks=networks,
        courses=reader.courses(GAP_S * scale),
        events=read_events(root, Wan(hosts, networks, links.keys()), duration_s),
        time_scale=scale,
        layer=top.get("layer", 3),
        seed=chosen,
        missing=top.get("missing", "wait"),
        duration_s=duration_s,
        ipv6=top.get("ipv6", True),
        control_band=top.get("control_band"),
        private=top.get("private", ()),
        notes=tuple(root.remarks()),
    )
