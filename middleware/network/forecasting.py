"""Forecasters of a link's bandwidth, which predict the rate of the next transfer from the samples so far.

They follow the Network Weather Service (NWS). Rules:

- A forecaster takes samples in the order of their times, in bits per second. It forgets samples that are more than
  ``HORIZON_S`` older than the newest, because they say nothing about the present.
- ``best`` runs all other forecasters side by side. It trusts the forecaster whose forecasts have missed the next sample
  by least so far (mean absolute error; MIN_MAE of the NWS). In a tie, this is ``last``.

Source: R. Wolski, Dynamically forecasting network performance using the Network Weather Service, TR-CS96-494, 1996.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import fmean, median
from typing import Protocol

from thalweg.middleware.errors import UsageError, nearest

HORIZON_S = 120.0  # a bandwidth changes by 10 % about every two minutes; Ranganathan et al., section 4
WINDOW = 3  # a longer memory errs more on real links: rates jump, and then stay
GAIN = 0.5


class Forecaster(Protocol):
    """Protocol of a forecaster. ``forecast`` raises UsageError before the first sample."""

    def add(self, value: float, at_s: float) -> None: ...

    def forecast(self) -> float: ...


class Window:
    """Last ``size`` samples that are within ``HORIZON_S`` of the newest sample."""

    def __init__(self, size: int = WINDOW) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=size)

    def add(self, value: float, at_s: float) -> None:
        self._samples.append((value, at_s))
        while self._samples[0][1] < at_s - HORIZON_S:
            self._samples.popleft()

    @property
    def values(self) -> list[float]:
        """Samples, oldest first. Raises UsageError without samples."""
        if not self._samples:
            raise UsageError("there is nothing to forecast from; add a sample first")
        return [value for value, _ in self._samples]

    def spread(self) -> float:
        """Return the standard deviation of the samples, in their unit, or 0 for fewer than two samples."""
        values = self.values
        mean = fmean(values)
        return math.sqrt(fmean([(value - mean) ** 2 for value in values]))


class Last(Window):
    """Forecaster that returns the last sample."""

    def __init__(self) -> None:
        super().__init__(1)

    def forecast(self) -> float:
        return self.values[-1]


class Mean(Window):
    """Forecaster that returns the mean of a sliding window of ``size`` samples."""

    def forecast(self) -> float:
        return fmean(self.values)


class Median(Window):
    """Forecaster that returns the median of a sliding window of ``size`` samples. A single outlier does not count."""

    def forecast(self) -> float:
        return median(self.values)


class Exponential:
    """Forecaster with exponential smoothing.

    Each sample moves the forecast by ``gain`` of the difference (0 < gain <= 1).
    """

    def __init__(self, gain: float = GAIN) -> None:
        self.gain = gain
        self._smooth: float | None = None
        self._at_s = -math.inf

    def add(self, value: float, at_s: float) -> None:
        if self._smooth is None or self._at_s < at_s - HORIZON_S:
            self._smooth = value
        else:
            self._smooth += self.gain * (value - self._smooth)
        self._at_s = at_s

    def forecast(self) -> float:
        if self._smooth is None:
            raise UsageError("there is nothing to forecast from; add a sample first")
        return self._smooth


class Best:
    """Forecaster that asks the forecaster with the smallest error so far."""

    def __init__(self) -> None:
        self._members = {name: kind() for name, kind in FORECASTERS.items() if kind is not Best}
        self._errors = dict.fromkeys(self._members, 0.0)
        self._begun = False

    def add(self, value: float, at_s: float) -> None:
        for name, member in self._members.items():
            if self._begun:
                self._errors[name] += abs(member.forecast() - value)
            member.add(value, at_s)
        self._begun = True

    @property
    def trusted(self) -> str:
        """Name of the forecaster that ``forecast`` asks. In a tie, this is the first of ``FORECASTERS``."""
        return min(self._errors, key=self._errors.__getitem__)

    def forecast(self) -> float:
        return self._members[self.trusted].forecast()


FORECASTERS: Mapping[str, type[Forecaster]] = {
    "last": Last,
    "mean": Mean,
    "median": Median,
    "exponential": Exponential,
    "best": Best,
}


def make_forecaster(name: str) -> Forecaster:
    """Return a new forecaster by name. Raise UsageError with the nearest name for an unknown name."""
    if name not in FORECASTERS:
        raise UsageError(f"unknown forecaster {name!r}; {nearest(name, FORECASTERS)}")
    return FORECASTERS[name]()
