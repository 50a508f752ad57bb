"""Shape asked of a directed link, and the bounds of every shape, from a testbed's user, a file or an event.

No input or output.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from thalweg.emulation.links.units import LEAST_MTU, MOST_MTU, USUAL_QUEUE_S, Discipline, Loss, Mtu, burst_objection

RATE_FLOOR_BPS = 8_000.0
"""Lowest rate above 0 to which a link is set. If the rate rises after a class has sent a full packet at a low rate, the
class stays blocked for the packet's time: 1.5 s at this rate."""
MAX_RATE_BPS = 2e9  # of one link on one core. The proof detects a machine that carries less
MAX_DELAY_S = 60.0
MAX_JITTER_S = (1 << 31) / 1e9  # the kernel cuts more than this (INT_MAX nanoseconds)
Distribution = Literal["uniform", "normal", "pareto", "paretonormal"]
DISTRIBUTIONS: tuple[str, ...] = get_args(Distribution)

PACKET_BYTES = 1500
FRAME_BYTES = PACKET_BYTES + 14
MAX_BURST_BYTES = 1 << 30
BURST_S = 0.001
"""Time of full rate that may pass at once after idling. It is small, so that neither a probe of 16 KB nor the head of a
partition passes unshaped on a time-dilated link. htb's timers are of high resolution and need no more."""
BURST_FLOOR_BYTES = 2 * FRAME_BYTES  # htb needs a frame to send at all
MAX_SEGMENTS = 16  # of TCP in a packet: with 8, a link carries 1 Gbit/s, with 1 only 0.35


class Queue(NamedTuple):
    """Limit of the packets that wait before a link: ``s`` (seconds) of its rate, ``bytes``, or ``packets``.

    A ``discipline`` other than a fifo keeps the queue short by itself, and ``size`` does not count.
    """

    size: float
    unit: Literal["s", "bytes", "packets"] = "s"
    discipline: Discipline = "fifo"

    def dilated(self, time_scale: float) -> Queue:
        return self._replace(size=self.size / time_scale) if self.unit == "s" else self

    def __str__(self) -> str:
        if self.discipline != "fifo":
            return self.discipline
        return f"{self.size * 1e3:g} ms" if self.unit == "s" else f"{self.size:g} {self.unit}"


QUEUE = Queue(USUAL_QUEUE_S)
QUEUE_FLOOR_BYTES = 6 * FRAME_BYTES
"""Least size of a queue in seconds. Below 0.7 Mbit/s a tenth of a second would be too little for TCP. TCP needs three
packets behind a lost packet to detect the loss soon (RFC 5681, section 3.2)."""
MAX_QUEUE_BYTES = 1 << 30


class LinkShape(NamedTuple):
    """Shape asked of a directed link: bits per second, one-way seconds, seconds of jitter, share lost (0 to 1).

    Rates count at the testbed's layer. At rate 0 nothing passes, as if ``cut``. A rate between 0 and ``RATE_FLOOR_BPS``
    is raised to the latter (``set_bps``). A testbed takes rates and times of the wall clock, a scenario has emulated
    rates and times (``dilated``). ``distribution``: of the delay around ``delay_s``, ``jitter_s`` wide: uniform,
    normal, pareto or paretonormal, as in netem. If the jitter is above the time between packets, packets arrive out of
    order. ``loss_burst``: mean number of packets in a burst of losses, 0 if losses are independent (``gilbert``).
    ``duplicate``, ``reorder`` (sent at once instead of after the delay) and ``corrupt`` (one bit flipped): shares of
    packets. ``burst_bytes``: bytes that may pass at once after idling, None for the default. ``cut``: nothing passes,
    and packets that wait or are under way are lost. ``queue``: limit of waiting packets, None for ``QUEUE``. ``mtu``:
    longest packet that passes, None for the MTU of the interfaces.
    """

    rate_bps: float
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    distribution: str = "uniform"
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    burst_bytes: int | None = None
    cut: bool = False
    queue: Queue | None = None
    loss_burst: float = 0.0
    mtu: Mtu | None = None

    @property
    def passes(self) -> bool:
        """Return whether the link lets packets pass."""
        return self.rate_bps > 0 and not self.cut

    @property
    def set_bps(self) -> float:
        """Return the rate to which the link is really set, at least ``RATE_FLOOR_BPS``."""
        return floored(self.rate_bps)

    def settled(self) -> LinkShape:
        """Return the shape with the rate to which the link is really set."""
        return self._replace(rate_bps=self.set_bps) if self.rate_bps > 0 else self

    @property
    def needs_netem(self) -> bool:
        """Return whether the shape needs a kernel with netem."""
        return bool(self.delay_s or self.jitter_s or self.loss or self.duplicate or self.reorder or self.corrupt)

    @property
    def gilbert(self) -> tuple[float, float]:
        """Return the chances that a burst of losses begins after a packet that passed, and ends after a lost packet.

        Source: Gilbert, Capacity of a Burst-Noise Channel (1960), with all packets of a burst lost.
        """
        if not self.loss_burst:
            return self.loss, 1 - self.loss
        ends = 1 / self.loss_burst
        return self.loss * ends / (1 - self.loss), ends

    @property
    def path_mtu(self) -> Mtu | None:
        """Return the MTU, or None if it is not less than the MTU of the interfaces."""
        return None if self.mtu is None or self.mtu.bytes >= MOST_MTU else self.mtu

    @property
    def rated(self) -> bool:
        """Return whether the rate that the link must deliver is known: a rate was set, or the link is cut."""
        return self.cut or self.rate_bps != UNRATED_BPS

    @property
    def burst(self) -> int:
        """Return the bytes that may pass at once after the link was idle."""
        return burst_bytes(self.set_bps) if self.burst_bytes is None else self.burst_bytes

    @property
    def queue_bytes(self) -> int:
        """Return the limit of the queue in bytes. For a limit in packets, every packet counts as full."""
        size, unit, _ = self.queue or QUEUE
        if unit == "s":
            return max(QUEUE_FLOOR_BYTES, math.ceil(self.set_bps / 8 * size))
        return math.ceil(size) * (FRAME_BYTES if unit == "packets" else 1)

    @property
    def segments(self) -> int:
        """Return the number of TCP segments that may pass as one packet, a power of two.

        The packet takes no longer than the burst. The number is 1 with netem, an MTU, or a queue managed or in packets.
        """
        queue = self.queue or QUEUE
        if self.needs_netem or self.path_mtu or queue.unit == "packets" or queue.discipline != "fifo":
            return 1
        worth = min(self.burst, self.queue_bytes / 2, self.set_bps / 8 * BURST_S) / PACKET_BYTES
        return 1 << int(math.log2(min(max(1.0, worth), MAX_SEGMENTS)))

    def rates_only(self) -> LinkShape:
        """Return the shape without the figures that need netem."""
        return LinkShape(self.rate_bps, burst_bytes=self.burst_bytes, cut=self.cut, queue=self.queue, mtu=self.mtu)

    def dilated(self, time_scale: float) -> LinkShape:
        """Return the shape for a clock ``time_scale`` times as fast. This multiplies the rate and divides delays."""
        return self._replace(
            rate_bps=self.rate_bps * time_scale,
            delay_s=self.delay_s / time_scale,
            jitter_s=self.jitter_s / time_scale,
            queue=None if self.queue is None else self.queue.dilated(time_scale),
        )

    def objection(self) -> str:
        """Return why no link can have this shape (in wall time), and what to do. The text is empty if links can."""
        if not 0 <= self.rate_bps <= MAX_RATE_BPS:
            return f"{outside(self.rate_bps)}; lower the rates (--link-mean) or the time scale"
        for name, seconds in (("delay_s", self.delay_s), ("jitter_s", self.jitter_s)):
            if not 0 <= seconds <= MAX_DELAY_S:
                return f"{name} is {seconds:g}; it must lie between 0 and {MAX_DELAY_S:g} seconds"
        if self.jitter_s >= MAX_JITTER_S:
            return f"jitter_s is {self.jitter_s:g}; netem has less than {MAX_JITTER_S:.3g} seconds"
        if self.distribution not in DISTRIBUTIONS:
            return f"there is no distribution {self.distribution!r}; there are {', '.join(DISTRIBUTIONS)}"
        for name in SHARES:
            share = getattr(self, name)
            if not 0 <= share < 1:
                return f"{name} is {share:g}; it is a share, at least 0 and below 1"
        if self.loss_burst and (wrong := burst_objection(self.loss, self.loss_burst)):
            return wrong
        if self.reorder and not self.delay_s:
            return "packets are reordered by being sent before their delay; give the link a delay_s"
        if self.burst_bytes is not None and not FRAME_BYTES <= self.burst_bytes <= MAX_BURST_BYTES:
            least = f"{FRAME_BYTES} (a frame)"
            return f"burst_bytes is {self.burst_bytes}; it must lie between {least} and {MAX_BURST_BYTES}"
        if self.mtu and not LEAST_MTU <= self.mtu.bytes <= MOST_MTU:
            return f"mtu is {self.mtu}; it must lie between {LEAST_MTU} and {MOST_MTU} bytes"
        if self.queue and not (0 < self.queue.size < math.inf and FRAME_BYTES <= self.queue_bytes <= MAX_QUEUE_BYTES):
            least = f"{FRAME_BYTES} bytes (a frame)"
            return f"queue is {self.queue}; it must lie between {least} and {MAX_QUEUE_BYTES} bytes"
        return ""


UNRATED_BPS = math.nextafter(MAX_RATE_BPS, 0.0)
"""Rate of a link whose rate was never set: practically unlimited, and a figure that no user would write."""
SHARES = ("loss", "duplicate", "reorder", "corrupt")  # shares of packets


class ShapeFigures(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Selected fields of a link's shape, with the names of ``LinkShape``."""

    rate_bps: float | msgspec.UnsetType = msgspec.UNSET
    delay_s: float | msgspec.UnsetType = msgspec.UNSET
    jitter_s: float | msgspec.UnsetType = msgspec.UNSET
    loss: float | msgspec.UnsetType = msgspec.UNSET
    loss_burst: float | msgspec.UnsetType = msgspec.UNSET
    cut: bool | msgspec.UnsetType = msgspec.UNSET
    queue: Queue | msgspec.UnsetType = msgspec.UNSET
    mtu: Mtu | msgspec.UnsetType = msgspec.UNSET

    def set(self) -> dict[str, Any]:
        """Return the fields that have been set, by name."""
        fields = msgspec.structs.asdict(self)
        return {name: value for name, value in fields.items() if value is not msgspec.UNSET}


def loss_figures(loss: Loss) -> dict[str, float]:
    """Return the fields of a link's shape that describe these losses."""
    return {"loss": loss.share, "loss_burst": loss.burst}


def outside(rate_bps: float) -> str:
    """Return the message that a rate, in wall time, cannot be emulated."""
    return f"{rate_bps / 1e6:g} Mbit/s of wall time is outside what can be emulated (0 to {MAX_RATE_BPS / 1e6:g})"


def floored(rate_bps: float) -> float:
    """Return the rate to which a link is really set if ``rate_bps`` is asked. At 0 the link is cut besides."""
    return max(rate_bps, RATE_FLOOR_BPS)


def burst_bytes(rate_bps: float) -> int:
    """Return the default number of bytes that may pass at once after a link of this rate was idle."""
    return max(BURST_FLOOR_BYTES, math.ceil(rate_bps / 8 * BURST_S))
