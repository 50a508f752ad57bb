"""Costs of hosts and links in the virtual network, by the model of their interfaces, for runs and sweeps.

Source: Ranganathan et al. (1998), section 4, for ``single``. Measurements on network namespaces for ``independent``,
and therefore for ``shared``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from thalweg.emulation.links.shape import FRAME_BYTES, PACKET_BYTES
from thalweg.emulation.scenarios.timeline import Timeline
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.links import TIME_OUT_S, LinkRate, ShapedLink
from thalweg.middleware.network.view import Link
from thalweg.middleware.protocol.limits import CoreConfig, MonitorConfig

Interface = Literal["single", "independent", "shared"]
AnyLink = TypeVar("AnyLink", bound=LinkRate)

CORE_SCALE = 120.0
"""Under ``single`` the cores' limits are at least those of hosts whose clocks run so fast (demands are repeated after a
minute, a host is given up after half an hour): on the paper's links an image takes minutes, and whoever sends or
receives one hears nothing. Under ``independent`` it holds for the giving up alone: traces have links of some bit/s, on
which a message of a few hundred bytes takes longer than a host may be silent. A testbed sets none below
``RATE_FLOOR_BPS`` on the wall; to have such traces it needs that time scale, which makes its limits as long."""

# --- costs of a testbed's links besides a partition's bytes, to predict runs on the testbed

HEADER_BYTES = 52  # of a packet: IPv4, TCP and its time stamps
PACKET_PAYLOAD_BYTES = 1500 - HEADER_BYTES
TAKE_UP_S = 1e-3
"""On the wall, from a message's last byte until its host acts on it. Measured on netns, nine hosts on two cores, under
download-all: a link that all wait for rests 1.2 to 2.4 ms between two partitions (medians of seven runs), in which the
client takes up a partition, and a source the demand that follows."""


class Framed(msgspec.Struct, frozen=True):
    """Link whose rate counts IP bytes, as on a testbed: a message also pays for its headers."""

    rates: LinkRate
    header_bytes: int = HEADER_BYTES

    def rate_at(self, t_s: float) -> float:
        """Return the rate in bit/s at ``t_s``, headers included."""
        return self.rates.rate_at(t_s)

    def until_s(self, t_s: float) -> float:
        return self.rates.until_s(t_s)

    def bits_between(self, start_s: float, stop_s: float) -> float:
        """Return the bits between two times, headers included."""
        return self.rates.bits_between(start_s, stop_s)

    def transfer_time_s(self, size_bytes: float, start_s: float) -> float:
        """Return the seconds for a message of ``size_bytes`` that starts at ``start_s``."""
        packets = math.ceil(size_bytes / PACKET_PAYLOAD_BYTES)
        return self.rates.transfer_time_s(size_bytes + packets * self.header_bytes, start_s)


STEADY_BPS = 1_000.0  # least rate: a link that is down at the start is not closed for good


class Steady(msgspec.Struct, frozen=True):
    """Link with the constant rate of a given moment."""

    rate_bps: float

    @classmethod
    def of(cls, rates: LinkRate, at_s: float = 0.0) -> Steady:
        """Return the link with its rate at ``at_s``, at least ``STEADY_BPS``."""
        return cls(max(rates.rate_at(at_s), STEADY_BPS))

    def later(self, by_s: float) -> Steady:
        """Return the link itself, as a steady link does not change."""
        return self

    def rate_at(self, t_s: float) -> float:
        return self.rate_bps

    def until_s(self, t_s: float) -> float:
        """Return infinity: the rate stays for ever."""
        return math.inf

    def transfer_time_s(self, size_bytes: float, start_s: float) -> float:
        """Return the seconds for ``size_bytes`` at any start."""
        return size_bytes * 8 / self.rate_bps

    def bits_between(self, start_s: float, stop_s: float) -> float:
        """Return the bits that the link can carry between two times."""
        return (stop_s - start_s) * self.rate_bps


def dilation(interface: str, time_scale: float) -> float:
    """Return the speed of the hosts' clocks relative to a wall clock, for a model of interfaces."""
    return max(time_scale, CORE_SCALE) if interface == "single" else time_scale


def world_config(
    interface: Interface,
    startup_s: float,
    *,
    time_scale: float = 1.0,
    forecaster: str | None = None,
    max_age_s: float | None = None,
    patience: float | None = None,
    limits: Sequence[str] = (),
) -> WorldConfig:
    """Return the configuration of the virtual world for a model of interfaces.

    ``forecaster``, ``max_age_s``: options of the monitor, if given. ``patience``, and ``limits`` as ``NAME=VALUE``:
    options of the cores, if given.
    """
    single = interface == "single"
    options: dict[str, Any] = {"forecaster": forecaster, "max_age_s": max_age_s}
    monitor = MonitorConfig(
        probe_train=not single, **{name: value for name, value in options.items() if value is not None}
    )
    if patience is None:
        patience = 1.0 if single else max(1.0, CORE_SCALE / time_scale)
    core = CoreConfig(monitor=monitor, patience=patience).limited(limits)
    core = core.dilated(dilation(interface, time_scale))
    take_up_s = 0.0 if single else TAKE_UP_S * time_scale
    return WorldConfig(interface, startup_s, take_up_s, core=core)


def carrying(
    links: Mapping[Link, AnyLink],
    interface: str,
    timeline: Timeline | None = None,
    *,
    begun: bool = True,
    seed: int = 0,
) -> Mapping[Link, LinkRate]:
    """Return the links with the costs of messages: bytes alone in the paper's model, else headers too.

    ``timeline``: delays and losses of the links. Before it has ``begun``, they are as at its start.
    """
    carried: Mapping[Link, LinkRate] = links
    if interface != "single":
        header = HEADER_BYTES + (FRAME_BYTES - PACKET_BYTES if timeline is not None and timeline.layer == 2 else 0)
        carried = {link: Framed(rates, header) for link, rates in links.items()}
    if timeline is None:
        return carried
    return {
        link: ShapedLink(
            carried[link],
            timeline.shapes(link)[: None if begun else 1],
            " ".join((str(seed), *link)),
            TIME_OUT_S * timeline.time_scale,
            timeline.time_scale,
        )
        for link in timeline.links
    }
