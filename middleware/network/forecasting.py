"""Forecasters of a link's bandwidth: from samples so far to the rate of the next transfer, as in the Network Weather
Service.

Rules:

- Each takes samples in the order of their times, in bits per second, and forgets those that are more than
  ``HORIZON_S`` older than the newest: they say nothing of the present.
- ``best`` runs all others side by side and trusts the one whose forecasts have missed the next sample by least so
  far (mean absolute error; the NWS's MIN_MAE). As long as all are equal, that is ``last``.

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
WINDOW = 3  # of real links, longer memories err more: rates jump, and then stay
GAIN = 0.5


class Forecaster(Protocol):
    """What a forecaster does. ``forecast`` raises UsageError before the first sample."""

    def add(self, value: float, at_s: float) -> None: ...

    def forecast(self) -> float: ...


class Window:
    """The last ``size`` samples that are within ``HORIZON_S`` of the newest."""

    def __init__(self, size: int = WINDOW) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=size)

    def add(self, value: float, at_s: float) -> None:
        self._samples.append((value, at_s))
        while self._samples[0][1] < at_s - HORIZON_S:
            self._samples.popleft()

    @property
    def values(self) -> list[float]:
        """The samples, oldest first; UsageError when there are none."""
        if not self._samples:
            raise UsageError("there is nothing to forecast from; add a sample first")
        return [value for value, _ in self._samples]

    def spread(self) -> float:
        """Standard deviation of the samples, in their unit; 0 for fewer than two."""
        values = self.values
        mean = fmean(values)
        return math.sqrt(fmean([(value - mean) ** 2 for value in values]))


class Last(Window):
    """The next is like the last."""

    def __init__(self) -> None:
        super().__init__(1)

    def forecast(self) -> float:
        return self.values[-1]


class Mean(Window):
    """The mean of a sliding window of ``size`` samples."""

    def forecast(self) -> float:
        return fmean(self.values)


class Median(Window):
    """The median of a sliding window of ``size`` samples: single odd ones do not count."""

    def forecast(self) -> float:
        return median(self.values)


class Exponential:
    """Exponential smoothing: each sample moves the forecast by ``gain`` of the difference (0 < gain <= 1)."""

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
    """The one of all others that has erred least so far."""

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
        """The name of the forecaster that ``forecast`` asks; in a tie the first of ``FORECASTERS``."""
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
    """A new forecaster of that name; UsageError for an unknown one, naming the nearest."""
    if name not in FORECASTERS:
        raise UsageError(f"unknown forecaster {name!r}; {nearest(name, FORECASTERS)}")
    return FORECASTERS[name]()
