"""Effects of events on links: changes of the rate that a link's trace or shape gives, and replaced figures.

No input or output.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from thalweg.emulation.links.shape import SHARES, LinkShape, Queue
from thalweg.emulation.links.units import Mtu
from thalweg.middleware.network.view import Link


class Effect(NamedTuple):
    """Change of a link from some moment on, until the next effect replaces it.

    The link has the rate ``rate_bps`` (None: the rate of its trace or shape), times ``factor``. The factor lowers a
    rate not below ``floor_bps``, and a rate that is lower anyhow stays. ``cut``: nothing passes. The remaining fields
    replace a figure of the link's shape, unless None. Bits per second, seconds, shares. Emulated or wall time, as the
    holder says.
    """

    factor: float = 1.0
    floor_bps: float = 0.0
    rate_bps: float | None = None
    cut: bool = False
    delay_s: float | None = None
    jitter_s: float | None = None
    loss: float | None = None
    distribution: str | None = None
    duplicate: float | None = None
    reorder: float | None = None
    corrupt: float | None = None
    burst_bytes: int | None = None
    queue: Queue | None = None
    loss_burst: float | None = None
    mtu: Mtu | None = None

    def rate(self, rate_bps: float) -> float:
        """Return the rate that a link with ``rate_bps`` has under this effect. A cut does not count here."""
        base_bps = rate_bps if self.rate_bps is None else self.rate_bps
        return max(base_bps * self.factor, min(base_bps, self.floor_bps))

    def shape(self, base: LinkShape, rate_bps: float) -> LinkShape:
        """Return the link's shape under this effect. Without the effect, the shape is ``base`` at ``rate_bps``."""
        if self == NEUTRAL:
            return base._replace(rate_bps=rate_bps)
        replaced = {name: value for name in REPLACED if (value := getattr(self, name)) is not None}
        return base._replace(rate_bps=self.rate(rate_bps), cut=base.cut or self.cut, **replaced)

    @property
    def needs_netem(self) -> bool:
        return self.shape(LinkShape(1.0), 1.0).needs_netem

    def objection(self) -> str:
        """Return why no link can have this effect, with the allowed values. The text is empty if links can."""
        if not 0 < self.factor < math.inf:
            return f"the factor of a link's rate is {self.factor:g}; it must be above 0"
        for name in ("floor_bps", "rate_bps", "delay_s", "jitter_s", "burst_bytes", "loss_burst"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                return f"a changed link's {name} is {value:g}; it must be at least 0"
        for name in SHARES:
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                return f"a changed link's {name} is {value:g}; it is a share, at least 0 and below 1"
        return ""

    def rates_only(self) -> Effect:
        """Return the effect without the figures that need netem."""
        return Effect(
            self.factor,
            self.floor_bps,
            self.rate_bps,
            self.cut,
            burst_bytes=self.burst_bytes,
            queue=self.queue,
            mtu=self.mtu,
        )

    def dilated(self, time_scale: float) -> Effect:
        """Return the effect for a clock ``time_scale`` times as fast. This multiplies rates and divides delays."""
        if self == NEUTRAL:
            return self
        return self._replace(
            floor_bps=self.floor_bps * time_scale,
            rate_bps=None if self.rate_bps is None else self.rate_bps * time_scale,
            delay_s=None if self.delay_s is None else self.delay_s / time_scale,
            jitter_s=None if self.jitter_s is None else self.jitter_s / time_scale,
            queue=None if self.queue is None else self.queue.dilated(time_scale),
        )


REPLACED = (
    "delay_s", "jitter_s", "loss", "loss_burst", "distribution", "duplicate", "reorder", "corrupt", "burst_bytes",
    "queue", "mtu",
)  # fmt: skip
NEUTRAL = Effect()


class LinkChange(msgspec.Struct, frozen=True, gc=False):  # a replay may have half a million
    """Start of an effect on a link, ``at_s`` after a replay's start, until the next change. Emulated s and bit/s."""

    at_s: float
    link: Link
    effect: Effect


class CarrierChange(msgspec.Struct, frozen=True):
    """Loss or return (``up``) of a host's carrier in a network, ``at_s`` after a replay's start. Emulated seconds."""

    at_s: float
    host: str
    via: str
    up: bool
