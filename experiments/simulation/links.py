"""What hosts and links of the virtual network take, by the model of their interfaces; the same for runs and sweeps.

Source: Ranganathan et al. (1998), section 4, for ``single``; measurements on network namespaces for ``independent``,
and so for ``shared``.
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

# --- what links of a testbed cost besides a partition's bytes, so that its runs can be told beforehand

HEADER_BYTES = 52  # of a packet: IPv4, TCP and its time stamps
PACKET_PAYLOAD_BYTES = 1500 - HEADER_BYTES
TAKE_UP_S = 1e-3
"""On the wall, from a message's last byte until its host acts on it. Measured on netns, nine hosts on two cores, under
download-all: a link that all wait for rests 1.2 to 2.4 ms between two partitions (medians of seven runs), in which the
client takes up a partition, and a source the demand that follows."""


class Framed(msgspec.Struct, frozen=True):
    """A link whose rate counts IP bytes, as a testbed's does: what it takes for a message has headers."""

    rates: LinkRate
    header_bytes: int = HEADER_BYTES

    def rate_at(self, t_s: float) -> float:
        """Rate in bit/s at ``t_s``, headers and all."""
        return self.rates.rate_at(t_s)

    def until_s(self, t_s: float) -> float:
        return self.rates.until_s(t_s)

    def bits_between(self, start_s: float, stop_s: float) -> float:
        """Bits between two times, headers and all."""
        return self.rates.bits_between(start_s, stop_s)

    def transfer_time_s(self, size_bytes: float, start_s: float) -> float:
        """Seconds that a message of ``size_bytes`` takes from ``start_s`` on."""
        packets = math.ceil(size_bytes / PACKET_PAYLOAD_BYTES)
        return self.rates.transfer_time_s(size_bytes + packets * self.header_bytes, start_s)


STEADY_BPS = 1_000.0  # at least: a link that rests as a run begins is not closed for good


class Steady(msgspec.Struct, frozen=True):
    """A link that stays as it is at one moment."""

    rate_bps: float

    @classmethod
    def of(cls, rates: LinkRate, at_s: float = 0.0) -> Steady:
        """The link as it is at ``at_s``, but for ``STEADY_BPS``."""
        return cls(max(rates.rate_at(at_s), STEADY_BPS))

    def later(self, by_s: float) -> Steady:
        """What it is later on: the same."""
        return self

    def rate_at(self, t_s: float) -> float:
        return self.rate_bps

    def until_s(self, t_s: float) -> float:
        """It stays for ever."""
        return math.inf

    def transfer_time_s(self, size_bytes: float, start_s: float) -> float:
        """Seconds that ``size_bytes`` take, whenever they start."""
        return size_bytes * 8 / self.rate_bps

    def bits_between(self, start_s: float, stop_s: float) -> float:
        """Bits the link can carry between two times."""
        return (stop_s - start_s) * self.rate_bps


def dilation(interface: str, time_scale: float) -> float:
    """How many times as fast as a wall clock the hosts' clocks are in that model of links."""
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
    """How the world works under that model; ``forecaster`` and ``max_age_s`` are the monitor's, where given.

    ``patience``, and ``limits`` as ``NAME=VALUE``: the cores' own, where given.
    """
    single = interface == "single"
    given: dict[str, Any] = {"forecaster": forecaster, "max_age_s": max_age_s}
    monitor = MonitorConfig(probe_train=not single, **{name: one for name, one in given.items() if one is not None})
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
    """What messages take on these links: in the paper's model their bytes alone, elsewhere their headers too.

    ``timeline``: says their delays and losses; before it has ``begun`` they are as at its start.
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
