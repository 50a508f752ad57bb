"""Texts that describe shapes of links, for tables, answers and reports."""

from __future__ import annotations

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.links.units import format_rate


def shape_text(shape: LinkShape) -> str:
    """Return a shape as ``2.00 Mbit/s, 20 ms ± 2, 1.00% lost, queue 100 ms``, without figures that the link lacks."""
    if shape.cut:
        return rate_text(shape)
    delay = delay_text(shape.delay_s, shape.jitter_s)
    lost = f"{loss_text(shape)} lost" if shape.loss else ""
    queue = "" if shape.queue is None else f"queue {shape.queue}"
    mtu = "" if shape.mtu is None else f"MTU {shape.mtu}"
    return ", ".join(filter(None, (rate_text(shape), delay, lost, queue, mtu)))


def rate_text(shape: LinkShape) -> str:
    """Return the rate as ``2.00 Mbit/s``, with the least rate for a slower link, or else ``cut`` or ``no rate``."""
    if not shape.passes or not shape.rated:
        return "no rate" if shape.passes else "cut"
    asked = format_rate(shape.rate_bps)
    return asked if shape.set_bps == shape.rate_bps else f"{asked} (set to {format_rate(shape.set_bps)}, the least)"


def loss_text(shape: LinkShape) -> str:
    """Return the loss as ``1.00%``, or ``1.00% in bursts of 5``. Return an empty text for no loss."""
    in_bursts = f" in bursts of {shape.loss_burst:.3g}" if shape.loss_burst else ""
    return f"{shape.loss:.2%}{in_bursts}" if shape.loss else ""


def delay_text(delay_s: float, jitter_s: float) -> str:
    """Return a delay and its jitter as ``20 ms ± 2``. Return an empty text for no delay."""
    if not delay_s and not jitter_s:
        return ""
    return f"{delay_s * 1e3:g} ms" + (f" ± {jitter_s * 1e3:g}" if jitter_s else "")
