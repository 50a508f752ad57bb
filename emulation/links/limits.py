"""What a link can be set to at all, whoever asks: a testbed's user, or an event of a replay.

Standard library only, because the supervisor imports it; no input or output.
"""

from __future__ import annotations

from thalweg.emulation.kernel.htb import FRAME_BYTES, Shape
from thalweg.emulation.kernel.netem import DISTRIBUTIONS, MAX_JITTER_S

MAX_RATE_BPS = 2e9  # one link on one core, offloads off; a machine that carries less is found out by the proof
MAX_BURST_BYTES = 1 << 30
MAX_DELAY_S = 60.0


def objection(shape: Shape) -> str:
    """Why no link can have this shape (in wall time), and what to do; empty if one can."""
    if not 0 <= shape.rate_bps <= MAX_RATE_BPS:
        return (
            f"{shape.rate_bps / 1e6:g} Mbit/s of wall time is outside what can be emulated (0 to"
            f" {MAX_RATE_BPS / 1e6:g}); lower the rates (--link-mean) or the time scale"
        )
    for what, seconds in (("delay_s", shape.delay_s), ("jitter_s", shape.jitter_s)):
        if not 0 <= seconds <= MAX_DELAY_S:
            return f"{what} is {seconds:g}; it must lie between 0 and {MAX_DELAY_S:g} seconds"
    if shape.jitter_s >= MAX_JITTER_S:
        return f"jitter_s is {shape.jitter_s:g}; netem has less than {MAX_JITTER_S:.3g} seconds"
    if shape.distribution not in DISTRIBUTIONS:
        return f"there is no distribution {shape.distribution!r}; there are {', '.join(DISTRIBUTIONS)}"
    for what in ("loss", "duplicate", "reorder", "corrupt"):
        share = getattr(shape, what)
        if not 0 <= share < 1:
            return f"{what} is {share:g}; it is a share, at least 0 and below 1"
    if shape.reorder and not shape.delay_s:
        return "packets are reordered by being sent before their delay; give it a delay_s"
    if shape.burst_bytes is not None and not FRAME_BYTES <= shape.burst_bytes <= MAX_BURST_BYTES:
        return f"burst_bytes is {shape.burst_bytes}; it must lie between {FRAME_BYTES} (a frame) and {MAX_BURST_BYTES}"
    return ""
