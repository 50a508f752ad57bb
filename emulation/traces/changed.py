"""Rate of a link over time with events: a trace in pieces, each under the effect that holds then."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from thalweg.emulation.links.effects import NEUTRAL, Effect
from thalweg.emulation.traces.trace import BandwidthTrace, FloatArray, size_bits
from thalweg.middleware.errors import TraceError


class ChangedRates:
    """Rate of a link in pieces: ``pieces[k]`` holds from ``starts_s[k]`` on. Seconds and bit/s are emulated.

    All pieces have one clock. ``starts_s`` begins with 0. Before 0 the first piece holds, as a trace repeats there.
    """

    def __init__(self, starts_s: Iterable[float], pieces: Iterable[BandwidthTrace]) -> None:
        self.starts_s, self.pieces = tuple(starts_s), tuple(pieces)
        bits = [0.0]  # carried from 0 until each start
        for (start_s, stop_s), piece in zip(pairwise(self.starts_s), self.pieces, strict=False):
            bits.append(bits[-1] + piece.bits_between(start_s, stop_s))
        self._bits = bits

    def _piece(self, t_s: float) -> int:
        return max(0, bisect_right(self.starts_s, t_s) - 1)

    def rate_at(self, t_s: float) -> float:
        return self.pieces[self._piece(t_s)].rate_at(t_s)

    def until_s(self, t_s: float) -> float:
        """Return a time until which the rate at ``t_s`` holds at least."""
        k = self._piece(t_s)
        return min([self.pieces[k].until_s(t_s), *self.starts_s[k + 1 : k + 2]])

    def bits_between(self, start_s: float, stop_s: float) -> float:
        first, last = self._piece(start_s), self._piece(stop_s)
        if first == last:
            return self.pieces[first].bits_between(start_s, stop_s)
        between = self._bits[last] - self._bits[first + 1]
        head = self.pieces[first].bits_between(start_s, self.starts_s[first + 1])
        return head + between + self.pieces[last].bits_between(self.starts_s[last], stop_s)

    def bits_until(self, times_s: FloatArray) -> FloatArray:
        """Return the bits that the link can carry from 0 until each time (at least 0), shape (times,)."""
        numbers = np.searchsorted(self.starts_s, times_s, side="right") - 1
        starts = np.array(self.starts_s)[numbers]
        bits = np.array(self._bits)[numbers]
        held = np.array([id(piece) for piece in self.pieces])[numbers]
        for piece in {id(piece): piece for piece in self.pieces}.values():  # few, even with many changes
            now = held == id(piece)
            bits[now] += piece.bits_until(times_s[now]) - piece.bits_until(starts[now])
        return bits

    def transfer_time_s(self, size_bytes: float, start_s: float) -> float:
        """Return the seconds that ``size_bytes`` take alone on the link, from ``start_s`` on.

        Raises TraceError if the last piece is zero everywhere and the bytes have not passed before. Raises UsageError
        for a negative size.
        """
        left = size_bits(size_bytes)
        if left == 0.0:
            return 0.0
        first, last = self._piece(start_s), len(self.pieces) - 1
        if first < last:
            head = self.pieces[first].bits_between(start_s, self.starts_s[first + 1])
            if left > head:
                target = self._bits[first + 1] + left - head
                k = max(bisect_left(self._bits, target) - 1, first + 1)
                return self._rest(k, target - self._bits[k], self.starts_s[k], start_s)
        return self._rest(first, left, start_s, start_s)

    def _rest(self, k: int, bits: float, at_s: float, start_s: float) -> float:
        if self.pieces[k].mean_bps <= 0.0:
            raise TraceError(f"link {self.pieces[k].name} is cut for good: nothing ever arrives; let the event end")
        return at_s + self.pieces[k].transfer_time_s(bits / 8, at_s) - start_s


def changed(
    trace: BandwidthTrace, effects: Iterable[tuple[float, Effect]], floor_bps: float = 0.0
) -> BandwidthTrace | ChangedRates:
    """Return the rate of ``trace`` under effects. Each effect holds from its time (sorted, at least 0) until the next.

    ``floor_bps``: least rate that a testbed sets. Only cuts and the trace's outages are below.
    """
    known: dict[Effect, BandwidthTrace] = {}

    def under(effect: Effect) -> BandwidthTrace:
        if effect not in known:
            known[effect] = _under(trace, effect, floor_bps)
        return known[effect]

    starts_s, pieces = [0.0], [under(NEUTRAL)]
    for at_s, effect in effects:
        if at_s <= starts_s[-1]:
            pieces[-1] = under(effect)
        else:
            starts_s.append(at_s)
            pieces.append(under(effect))
    return pieces[0] if len(pieces) == 1 else ChangedRates(starts_s, pieces)


def _under(trace: BandwidthTrace, effect: Effect, floor_bps: float) -> BandwidthTrace:
    """Return the whole trace under one effect."""
    if effect.cut:
        return BandwidthTrace.constant(trace.name, 0.0)
    if effect.rate_bps is not None:
        rate_bps = effect.rate(0.0)
        return BandwidthTrace.constant(trace.name, max(rate_bps, floor_bps) if rate_bps else 0.0)
    if effect == NEUTRAL and not ((trace.rates_bps > 0) & (trace.rates_bps < floor_bps)).any():
        return trace
    rates = np.array([effect.rate(rate_bps) for rate_bps in trace.rates_bps.tolist()])
    rates = np.where(rates > 0, np.maximum(rates, floor_bps), 0.0)
    return BandwidthTrace(trace.name, trace.times_s, rates, trace.duration_s)
