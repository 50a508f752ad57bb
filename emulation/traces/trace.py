"""Bandwidth trace: a link's rate as a step function of time that starts over when it ends.

Rules: times start at 0 and rise strictly. A rate holds until the next row, the last one until ``duration_s``. Then the
trace starts again from its first row. Rates are in bits per second and at least 0 (0 is an outage). A trace cannot be
changed, so a method that alters something returns a new trace.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, cast

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.middleware.errors import TraceError, UsageError

FloatArray = npt.NDArray[np.float64]

CHANGE_WINDOW_S = 10.0  # changes are counted on 10-s averages, as in the data sets' published summaries
CHANGE_SHARE = 0.10  # "significant changes in the bandwidth (>= 10%)", Ranganathan et al., section 4
SINGLE_ROW_DURATION_S = 1.0  # a trace of one row is a constant; its period is without effect
MAX_WINDOWS = 10_000_000  # three years of 10-s windows: longer is a mistaken unit, and would fill the memory


class Rates(Protocol):
    """Rate of a link over time: the rate at a moment, and a time until which it holds at least.

    It also gives the bits that the link can carry between two moments, and the time of bytes alone on the link.
    """

    def rate_at(self, t_s: float, /) -> float: ...

    def until_s(self, t_s: float, /) -> float: ...

    def bits_between(self, start_s: float, stop_s: float, /) -> float: ...

    def transfer_time_s(self, size_bytes: float, start_s: float, /) -> float: ...


class TraceSummary(msgspec.Struct, frozen=True):
    """Figures of a trace. Quantiles and changes are of its 10-s averages. The mean is exact.

    ``changes``: how often the 10-s average has moved by at least 10 % from its value at the change before.
    ``mean_change_s`` and ``median_change_s``: seconds between changes, None without changes. ``zero_share``: share of
    the time at rate 0.
    """

    name: str
    rows: int
    duration_s: float
    mean_bps: float
    median_bps: float
    p5_bps: float
    p95_bps: float
    changes: int
    mean_change_s: float | None
    median_change_s: float | None
    zero_share: float


@dataclass(frozen=True, eq=False)
class BandwidthTrace:
    """Rate of one link over time, in wrap-around.

    ``times_s`` and ``rates_bps``: shape (rows,), made read-only float64. ``duration_s``: the period, by default the
    last time plus the median step. Raises TraceError with the trace's name if the rules above are broken.
    """

    name: str
    times_s: FloatArray
    rates_bps: FloatArray
    duration_s: float = cast(float, None)

    def __post_init__(self) -> None:
        times, rates = _frozen(self.times_s), _frozen(self.rates_bps)
        if times.ndim != 1 or times.shape != rates.shape or not times.size:
            raise TraceError(
                f"trace {self.name!r} needs as many times as rates, at least one;"
                f" it has shapes {times.shape} and {rates.shape}"
            )
        if times[0] != 0.0 or not (np.diff(times) > 0).all() or not np.isfinite(times[-1]):
            raise TraceError(f"trace {self.name!r}: times must start at 0 and rise strictly; sort its rows")
        if not (np.isfinite(rates) & (rates >= 0)).all():
            raise TraceError(f"trace {self.name!r}: rates must be finite and not negative, in bits per second")
        duration = default_duration_s(times) if self.duration_s is None else float(self.duration_s)
        if not times[-1] < duration < math.inf:
            raise TraceError(f"trace {self.name!r} cannot last {duration:g} s: its last row is at {times[-1]:g} s")
        object.__setattr__(self, "times_s", times)
        object.__setattr__(self, "rates_bps", rates)
        object.__setattr__(self, "duration_s", duration)

    @classmethod
    def constant(cls, name: str, rate_bps: float) -> BandwidthTrace:
        """Return a trace with one rate for ever."""
        return cls(name, np.zeros(1), np.array([rate_bps]))

    def __len__(self) -> int:
        return len(self.times_s)

    def __repr__(self) -> str:
        return f"BandwidthTrace({self.name!r}, {len(self)} rows, {self.duration_s:g} s, {self.mean_bps:g} bit/s)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BandwidthTrace):
            return NotImplemented
        return (
            (self.name, self.duration_s) == (other.name, other.duration_s)
            and np.array_equal(self.times_s, other.times_s)
            and np.array_equal(self.rates_bps, other.rates_bps)
        )

    def __hash__(self) -> int:
        return hash((self.name, self.duration_s, len(self)))

    # --- reading --------------------------------------------------------------------------------------

    @cached_property
    def _edges(self) -> array[float]:
        """Time of every row, and the duration: shape (rows + 1,). Arrays box one element at a time, fast."""
        edges = array("d")
        edges.frombytes(self.times_s.data.cast("B"))
        edges.append(self.duration_s)
        return edges

    @cached_property
    def _rates(self) -> array[float]:
        rates = array("d")
        rates.frombytes(self.rates_bps.data.cast("B"))
        return rates

    @cached_property
    def _bits(self) -> array[float]:
        """Bits carried from 0 to each edge: shape (rows + 1,)."""
        with np.errstate(over="ignore"):
            bits = np.diff(np.frombuffer(self._edges))
            np.multiply(self.rates_bps, bits, out=bits)
            np.cumsum(bits, out=bits)
        if not np.isfinite(bits[-1]):
            raise TraceError(f"trace {self.name!r} carries more bits than can be counted; check its units")
        carried = array("d", [0.0])
        carried.frombytes(bits.data.cast("B"))
        return carried

    def _position(self, t_s: float) -> float:
        position = t_s % self.duration_s
        return position if position < self.duration_s else 0.0  # -1e-20 % d == d

    @property
    def mean_bps(self) -> float:
        """Time-weighted mean rate over one period."""
        return self._bits[-1] / self.duration_s

    def rate_at(self, t_s: float) -> float:
        """Return the rate in bits per second at a time. Before 0 and after the end the trace repeats."""
        return self._rates[bisect_right(self._edges, self._position(t_s)) - 1]

    def until_s(self, t_s: float) -> float:
        """Return a time until which the rate at ``t_s`` holds at least."""
        if len(self) == 1:
            return math.inf
        position = self._position(t_s)
        return t_s + (self._edges[bisect_right(self._edges, position)] - position)

    def bits_between(self, start_s: float, stop_s: float) -> float:
        """Return the bits that the link can carry between two times, ``start_s <= stop_s``, exact over wrap-arounds."""
        return self._bits_until(stop_s) - self._bits_until(start_s)

    def _bits_until(self, t_s: float) -> float:
        position = self._position(t_s)
        laps = round((t_s - position) / self.duration_s)
        row = bisect_right(self._edges, position) - 1
        return laps * self._bits[-1] + self._bits[row] + self._rates[row] * (position - self._edges[row])

    def bits_until(self, times_s: FloatArray) -> FloatArray:
        """Return the bits that a link can carry from 0 until each time, shape (times,): for pictures of many links."""
        laps, position = np.divmod(times_s, self.duration_s)
        carried = np.interp(position, np.frombuffer(self._edges), np.frombuffer(self._bits))
        return np.asarray(laps * self._bits[-1] + carried)

    def transfer_time_s(self, size_bytes: float, start_s: float) -> float:
        """Return the seconds that ``size_bytes`` take alone on the link, from ``start_s`` on.

        The steps are integrated exactly, in O(log rows), with all wrap-arounds and outages. Raises TraceError for a
        trace that is zero everywhere, and UsageError for a negative size.
        """
        edges, rates, bits = self._edges, self._rates, self._bits
        per_lap = bits[-1]
        if per_lap <= 0.0:
            raise TraceError(f"trace {self.name!r} is zero everywhere: nothing ever arrives; give it a floor")
        left = size_bits(size_bytes)
        if left == 0.0:
            return 0.0
        position = self._position(start_s)
        row = bisect_right(edges, position) - 1
        waited = edges[row + 1] - position
        room = rates[row] * waited
        if left <= room:
            return left / rates[row]
        target = bits[row + 1] + (left - room)  # counted from this lap's start
        waited -= edges[row + 1]
        if target > per_lap:
            laps = math.ceil(target / per_lap) - 1
            target = min(max(target - laps * per_lap, 0.0), per_lap)
            waited += laps * self.duration_s
        row = max(bisect_left(bits, target) - 1, 0)  # the row in which the last bit arrives
        rest = target - bits[row]
        return waited + edges[row] + (rest / rates[row] if rest > 0.0 else 0.0)

    def steps(self) -> list[tuple[float, float]]:
        """Return (time_s, rate_bps) at 0, and at every change of the rate within one period."""
        changed = np.diff(self.rates_bps, prepend=math.nan) != 0.0
        return list(zip(self.times_s[changed].tolist(), self.rates_bps[changed].tolist(), strict=True))

    def averaged(self) -> FloatArray:
        """Return the mean rate of every whole window of 10 s in one period, or of a shorter period.

        Raises TraceError for a trace that is too long.
        """
        windows = math.floor(self.duration_s / CHANGE_WINDOW_S)
        if windows > MAX_WINDOWS:
            raise TraceError(
                f"trace {self.name!r} lasts {self.duration_s:g} s, too long for windows of {CHANGE_WINDOW_S:g} s;"
                " are its times seconds?"
            )
        if windows == 0:
            return np.array([self.mean_bps])
        grid = np.minimum(np.arange(windows + 1) * CHANGE_WINDOW_S, self.duration_s)
        bits = np.interp(grid, np.frombuffer(self._edges), np.frombuffer(self._bits))
        return cast(FloatArray, np.diff(bits) / np.diff(grid))

    def change_intervals_s(self) -> FloatArray:
        """Return the seconds between changes: moves of the window's average by 10 % since the last change.

        The first interval starts at 0. Source: Ranganathan et al. (1998), section 4, "the expected time between
        significant changes in the bandwidth (>= 10%)".
        """
        averages = self.averaged().tolist()
        reference, since = averages[0], 0
        intervals: list[int] = []
        for window, rate in enumerate(averages):
            if rate != reference and abs(rate - reference) >= CHANGE_SHARE * reference:
                intervals.append(window - since)
                reference, since = rate, window
        return np.array(intervals, dtype=np.float64) * CHANGE_WINDOW_S

    def summary(self) -> TraceSummary:
        """Return the figures of the trace (see ``TraceSummary``)."""
        p5, median, p95 = np.percentile(self.averaged(), [5, 50, 95]).tolist()
        intervals = self.change_intervals_s()
        held = np.diff(np.frombuffer(self._edges))
        return TraceSummary(
            name=self.name,
            rows=len(self),
            duration_s=self.duration_s,
            mean_bps=self.mean_bps,
            median_bps=median,
            p5_bps=p5,
            p95_bps=p95,
            changes=len(intervals),
            mean_change_s=float(intervals.mean()) if intervals.size else None,
            median_change_s=float(np.median(intervals)) if intervals.size else None,
            zero_share=float(held[self.rates_bps == 0.0].sum() / self.duration_s),
        )

    # --- altering -------------------------------------------------------------------------------------

    def scaled(self, factor: float) -> BandwidthTrace:
        """Return the trace with every rate times ``factor`` (above 0). Raises UsageError for another factor."""
        if not 0.0 < factor < math.inf:
            raise UsageError(f"factor is {factor}; it must be finite and above 0")
        return self._with(self.times_s, self.rates_bps * factor, self.duration_s)

    def offset(self, by_s: float) -> BandwidthTrace:
        """Return the trace that starts ``by_s`` later and wraps: the rate at t is that of this trace at t + by_s."""
        position = self._position(by_s)
        if position == 0.0:
            return self
        row = bisect_right(self._edges, position) - 1
        after = self.times_s[row + 1 :] - position
        before = self.times_s[: row + 1] + (self.duration_s - position)
        times = np.concatenate(([0.0], after, before))
        rates = np.concatenate((self.rates_bps[row:], self.rates_bps[: row + 1]))
        held = np.append(np.diff(times), self.duration_s - times[-1]) > 0.0  # a cut on a row leaves an empty row
        return self._with(times[held], rates[held], self.duration_s)

    def _with(self, times: FloatArray, rates: FloatArray, duration_s: float) -> BandwidthTrace:
        times.flags.writeable = rates.flags.writeable = False
        return BandwidthTrace(self.name, times, rates, duration_s)


def size_bits(size_bytes: float) -> float:
    """Return the bits of a transfer. Raises UsageError for a size that is negative or not finite."""
    if not 0.0 <= size_bytes < math.inf:
        raise UsageError(f"cannot transfer {size_bytes} bytes; the size must be finite and not negative")
    return size_bytes * 8.0


def _frozen(values: npt.ArrayLike) -> FloatArray:
    """Return a read-only float64 array. It is shared if no other code can write to it, or else copied."""
    frozen = np.asarray(values, dtype=np.float64)
    if frozen.flags.writeable or frozen.base is not None:
        frozen = frozen.copy()
        frozen.flags.writeable = False
    return frozen


def default_duration_s(times: FloatArray) -> float:
    """Return the default period of rows at these times: the last time plus the median step."""
    return float(times[-1] + np.median(np.diff(times))) if times.size > 1 else SINGLE_ROW_DURATION_S
