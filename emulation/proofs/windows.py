"""Worst of all windows of a length, to test whether a link ever passes more than asked while its rate changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from thalweg.emulation.proofs.proof import LinkSample
from thalweg.middleware.network.view import Link

WINDOW_S = 0.1


class RateChange(NamedTuple):
    """Rate asked at ``asked_s``, and in force at ``done_s`` at the latest. In between, the old or new rate holds."""

    asked_s: float
    done_s: float
    rate_bps: float


class Window(NamedTuple):
    """Window that ends at ``end_s``: the bits that arrived, the bits asked, and the ratio.

    ``ratio`` leaves out the granularity: (bits - granularity) / asked.
    """

    end_s: float
    bits: float
    asked_bits: float
    ratio: float


def worst_window(
    arrivals_s: Sequence[float] | npt.NDArray[np.float64],
    sizes_bytes: Sequence[float] | npt.NDArray[np.float64],
    changes: Sequence[RateChange],
    *,
    granularity_bytes: float,
    window_s: float = WINDOW_S,
) -> Window:
    """Return the window of ``window_s`` in which packets brought the most bits in relation to the bits asked.

    Every window that ends with a packet is compared, as no other window can be worse. The bits asked are the sum of the
    rates over the window. A rise counts from ``asked_s``, a fall from ``done_s``.

    ``granularity_bytes``: allowed excess, since packets are whole, and a link may pass its burst at once after idling.
    ``changes`` are in order of time, the first before all ``arrivals_s`` minus a window. Times are of one clock. Raise
    ValueError if there is no packet, or no rate for the first packet.
    """
    at_s = np.asarray(arrivals_s, dtype=np.float64)
    order = np.argsort(at_s, kind="stable")
    at_s, sizes = at_s[order], np.asarray(sizes_bytes, dtype=np.float64)[order]
    if not len(at_s) or not changes or changes[0].done_s > at_s[0] - window_s:
        raise ValueError("there must be packets, and a rate in force a window before the first of them")
    brought = np.concatenate(([0.0], np.cumsum(sizes * 8)))
    first = np.searchsorted(at_s, at_s - window_s, side="right")
    bits = brought[1:] - brought[first]
    asked = _asked_bits(at_s, changes) - _asked_bits(at_s - window_s, changes)
    ratios = (bits - granularity_bytes * 8) / asked
    worst = int(np.argmax(ratios))
    return Window(float(at_s[worst]), float(bits[worst]), float(asked[worst]), float(ratios[worst]))


def _asked_bits(at_s: npt.NDArray[np.float64], changes: Sequence[RateChange]) -> npt.NDArray[np.float64]:
    """Return the bits asked from the first change until each moment."""
    rates = np.array([change.rate_bps for change in changes])
    rises = np.concatenate(([True], rates[1:] > rates[:-1]))
    starts = np.where(rises, [change.asked_s for change in changes], [change.done_s for change in changes])
    totals = np.concatenate(([0.0], np.cumsum(rates[:-1] * np.diff(starts))))
    steps = np.clip(np.searchsorted(starts, at_s, side="right") - 1, 0, None)
    bits: npt.NDArray[np.float64] = totals[steps] + rates[steps] * (at_s - starts[steps])
    return bits


def worst_sampled(samples: Iterable[LinkSample], interval_s: float, granularity_bytes: float) -> dict[Link, Window]:
    """Return for every link the sampling interval in which the link passed the most in relation to the rate asked.

    The intervals do not slide, so the result is coarser than from ``worst_window``. The result is only as exact as the
    counters are read on time. But it comes with every run that samples every ``interval_s``. Links of which nothing was
    asked are left out.
    """
    worst: dict[Link, Window] = {}
    for sample in samples:
        if sample.asked_bps <= 0:
            continue
        link, bits, asked_bits = sample.link, sample.delivered_bps * interval_s, sample.asked_bps * interval_s
        window = Window(sample.at_s, bits, asked_bits, (bits - granularity_bytes * 8) / asked_bits)
        if link not in worst or window.ratio > worst[link].ratio:
            worst[link] = window
    return worst
