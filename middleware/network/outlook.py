"""Forecasts of the rates of links in the coming time from past measurements, and the value of a further probe.

The logarithm of a link's rate is modelled as a Gaussian process. Its parts are a level of the link, a part that wanders
and returns with a correlation time, and a part that is new with every transfer. The covariance of two transfers is

    cov(y(s), y(t)) = permanent + wandering · exp(-|s - t| / correlation_s) + passing · [s = t].

All links of a run share one ``Variability``, the most likely for the samples so far. It maximises the marginal
likelihood on a grid, with the variance in closed form (Rasmussen and Williams 2006, sections 2.2 and 5.4.1). The
consequences are:

- *The forecast* of a link is the conditional mean over the next ``horizon_s`` seconds. If links wander slowly, the
  latest sample weighs most. If links jump, the mean of the link's samples does. If samples are few, the mean of all
  links does. No time-out of estimates is necessary.
- *The rate* that planners receive is 1 / E[1 / rate], which gives the mean time of a transfer. Of two links with the
  same mean, the link with less knowledge counts as slower. If links are volatile, both count as slower.
- *The doubt* about a link says how far a probe made now would move the forecast, as a standard deviation of the
  logarithm. It is 0 for a link that was just measured. It is small for every link if a probe says little about the
  coming time.

Figures and decisions are the same, bit by bit, on every processor (see ``middleware.arithmetic``).

A forecast is a conditional mean. So no tree is chosen because of a lucky measurement, which a hysteresis would
otherwise have to prevent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from thalweg.middleware import arithmetic
from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.arrays import exp, factorised, log, whitened
from thalweg.middleware.network.history import FIRST, PlanningHistory, Sample, Samples, Variability
from thalweg.middleware.network.view import Latency, Link, LinkEstimate, NetworkView, links_between

CORRELATION_S = (30.0, 100.0, 300.0, 1000.0, 3000.0)
PASSING = (0.01, 0.1, 0.3)  # passing, as a share of the variance
PERMANENT = (0.1, 0.4, 0.7, 0.95)  # permanent, as a share of the remaining variance
PRIOR_CORRELATION = 0.45  # weight of (ln correlation_s - ln 600)²; a factor of 5 counts as much as one sample or two
PRIOR_S = 600.0
PRIOR_PERMANENT = (6.0, 0.42)  # weight and centre
PRIOR_COUNT = 10.0  # number of samples as which the first guess of the variance counts
LEAST_VARIANCE = 0.05
MOST_LINKS = 60  # links with the most samples, from which the variability is read
MOST_STEPS = 6  # steps over the grid in one call
MOST_RISK = 2.0  # ln; an almost unknown link must not be excluded

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Outlook(NetworkView):
    """View of the network with a forecast for every link between ``hosts``, and the ``doubt`` about each link.

    ``asked``, ``rounds``: the links requested so far and the rounds of requests, so that the requests end.
    """

    def __init__(
        self,
        estimates: Mapping[Link, LinkEstimate],
        doubt: Mapping[Link, float],
        asked: frozenset[Link] = frozenset(),
        rounds: int = 0,
        latencies: Mapping[Link, Latency] = {},
    ) -> None:
        super().__init__(estimates, latencies)
        self.doubt: dict[Any, float] = dict(doubt)  # queried with pairs, which are made faster than links
        self.asked = asked
        self.rounds = rounds

    def with_estimates(self, more: Mapping[Link, LinkEstimate]) -> Outlook:
        doubt = {**self.doubt, **dict.fromkeys(more, 0.0)}
        return Outlook({**self.estimates, **more}, doubt, self.asked, self.rounds, self.latencies)


class _Table:
    """Samples of several links as arrays (links, samples), with a mask for missing samples."""

    def __init__(self, samples: Sequence[Sequence[Sample]]) -> None:
        lengths = np.array([len(of_link) for of_link in samples])
        self.there: Bools = np.arange(lengths.max()) < lengths[:, None]
        figures = np.fromiter(itertools.chain.from_iterable(itertools.chain.from_iterable(samples)), np.float64)
        self.at_s, self.log_rate = np.zeros(self.there.shape), np.zeros(self.there.shape)
        self.number = np.ones(self.there.shape)
        self.at_s[self.there], self.log_rate[self.there], self.number[self.there] = figures.reshape(-1, 3).T
        self._below = np.tril_indices(lengths.max(), -1)
        self._apart_s = np.abs(self.at_s[:, self._below[0]] - self.at_s[:, self._below[1]])
        self._both = self.there[:, :, None] & self.there[:, None, :]
        self._diagonal = np.arange(lengths.max())
        self._fading: dict[float, Floats] = {}

    def covariance(self, permanent: float, wandering: float, passing: float, correlation_s: float) -> Floats:
        """Return the covariances of samples, (links, samples, samples). Values above the diagonal are meaningless."""
        fading = self._fading.get(correlation_s)
        if fading is None:
            fading = self._fading[correlation_s] = np.ones(self._both.shape)
            fading[:, *self._below] = exp(self._apart_s * (-1.0 / correlation_s))
        covariance = np.where(self._both, permanent + wandering * fading, 0.0)
        alone = np.where(self.there, passing / self.number + 1e-9 * permanent, 1.0)
        covariance[:, self._diagonal, self._diagonal] += alone
        return covariance


def read_variability(samples: Samples, before: Variability | None = None) -> Variability | None:
    """Return the most likely variability for these samples, searched from ``before``. None: there are no samples.

    The search moves by single steps over the grid, at most ``MOST_STEPS`` in a call. Equal arguments give an equal
    result.
    """
    if not samples:
        return None
    means = [plain_sum(sample.log_rate for sample in of_link) / len(of_link) for of_link in samples.values()]
    mean = float(np.mean(means))
    guess = max(float(np.var(means)), LEAST_VARIANCE)
    most = sorted(samples, key=lambda link: (-len(samples[link]), link))[:MOST_LINKS]
    table = _Table([samples[link] for link in most])
    residual = np.where(table.there, table.log_rate - mean, 0.0)
    number = int(table.there.sum()) + PRIOR_COUNT
    weight, centre = PRIOR_PERMANENT

    def likelihood(place: tuple[int, int, int]) -> tuple[float, Variability]:
        correlation_s, passing = CORRELATION_S[place[0]], PASSING[place[1]]
        permanent = (1 - passing) * PERMANENT[place[2]]
        wandering = 1 - passing - permanent
        factor = factorised(table.covariance(permanent, wandering, passing, correlation_s))
        white = whitened(factor, residual[:, :, None])
        variance = (float((white**2).sum()) + PRIOR_COUNT * guess) / number
        logs = 2 * float(log(np.diagonal(factor, axis1=1, axis2=2).copy()).sum())
        unlikely = PRIOR_CORRELATION * arithmetic.log(correlation_s / PRIOR_S) ** 2
        unlikely += weight * (PERMANENT[place[2]] - centre) ** 2
        log_likelihood = -0.5 * (logs + number * arithmetic.log(variance)) - unlikely
        parts = (permanent * variance, wandering * variance, passing * variance)
        return log_likelihood, Variability(mean, *parts, correlation_s, place)

    place = FIRST if before is None else before.place
    known = {place: likelihood(place)}
    for _ in range(MOST_STEPS):
        near = [place]
        for axis, values in enumerate((CORRELATION_S, PASSING, PERMANENT)):
            for step in (-1, 1):
                moved = list(place)
                moved[axis] += step
                if 0 <= moved[axis] < len(values):
                    near.append((moved[0], moved[1], moved[2]))
        known |= {candidate: likelihood(candidate) for candidate in near if candidate not in known}
        best = max(near, key=lambda candidate: known[candidate][0])
        if best == place:
            break
        place = best
    return known[place][1]


def look_ahead(past: PlanningHistory, hosts: Iterable[str], horizon_s: float) -> Outlook:
    """Return forecasts for every link between ``hosts`` over the next ``horizon_s`` seconds, which must be above 0.

    ``past.variability`` must be set. Without samples, every link has the same forecast.
    """
    how = past.variability
    assert how is not None
    links = links_between(hosts)
    stays = how.correlation_s / horizon_s
    lasting = stays * (1 - arithmetic.exp(-1 / stays))  # correlation of now with the mean of the horizon
    level = how.permanent + how.wandering
    now_ahead = how.permanent + how.wandering * lasting
    rate_bps = arithmetic.exp(how.mean - min(how.variance / 2, MOST_RISK))
    unknown, unsure = LinkEstimate(rate_bps, 0), now_ahead / math.sqrt(level + how.passing)
    known = [link for link in links if past.samples.get(link)]
    estimates = dict.fromkeys(links, unknown)
    doubt = dict.fromkeys(links, unsure)
    if not known:
        return Outlook(estimates, doubt, past.asked, past.rounds)
    table = _Table([past.samples[link] for link in known])
    covariance = table.covariance(how.permanent, how.wandering, how.passing, how.correlation_s)
    fading = exp(np.maximum(past.now_s - table.at_s, 0.0) * (-1.0 / how.correlation_s))
    with_now = np.where(table.there, how.permanent + how.wandering * fading, 0.0)
    with_ahead = np.where(table.there, how.permanent + how.wandering * lasting * fading, 0.0)
    residual = np.where(table.there, table.log_rate - how.mean, 0.0)
    white = whitened(factorised(covariance), np.stack([residual, with_ahead, with_now], axis=2))
    seen, ahead, present = white[:, :, 0], white[:, :, 1], white[:, :, 2]
    mean = how.mean + (ahead * seen).sum(1)
    variance = np.maximum(how.variance - (ahead * ahead).sum(1), 0.0)
    left = np.maximum(level + how.passing - (present * present).sum(1), 1e-12)
    doubts = np.maximum(now_ahead - (ahead * present).sum(1), 0.0) / np.sqrt(left)
    rates = exp(mean - np.minimum(variance / 2, MOST_RISK))
    for i, link in enumerate(known):
        count = plain_sum(sample.number for sample in past.samples[link])
        spread_bps = float(rates[i] * math.sqrt(variance[i]))
        estimates[link] = LinkEstimate(float(rates[i]), count, spread_bps, past.samples[link][-1].at_s)
        doubt[link] = float(doubts[i])
    return Outlook(estimates, doubt, past.asked, past.rounds)
