"""Forecasts of links and their doubt, compared with samples of the same random process."""

from __future__ import annotations

import math

import numpy as np
import pytest

from thalweg.middleware.network.history import History, PlanningHistory, Samples, Variability
from thalweg.middleware.network.outlook import Outlook, look_ahead, read_variability
from thalweg.middleware.network.view import LinkEstimate

HOSTS = ("a", "b", "c")
AB, AC, BC = ("a", "b"), ("a", "c"), ("b", "c")
SLOW = Variability(math.log(1e6), permanent=0.4, wandering=0.55, passing=0.05, correlation_s=1000.0)
JUMPY = Variability(math.log(1e6), permanent=0.5, wandering=0.1, passing=0.4, correlation_s=30.0)


def samples(**of_links: list[tuple[float, float]]) -> Samples:
    """Return samples of rates in bit/s at given times, for links such as ``ab``."""
    history = History(kept=40)
    for ends, measured in of_links.items():
        for at_s, rate_bps in measured:
            history.add((ends[0], ends[1]), LinkEstimate(rate_bps, 1, 0.0, at_s))
    return history.samples()


def ahead(variability: Variability, known: Samples, now_s: float = 1000.0, horizon_s: float = 300.0) -> Outlook:
    return look_ahead(PlanningHistory(dict(known), now_s, variability=variability), HOSTS, horizon_s)


def walk(variability: Variability, links: int, times: np.ndarray, seed: int) -> np.ndarray:
    """Return logarithms of rates that follow a variability, as an array of links and times."""
    chance = np.random.default_rng(seed)
    apart = np.abs(times[:, None] - times[None, :])
    covariance = variability.permanent + variability.wandering * np.exp(-apart / variability.correlation_s)
    covariance = covariance + variability.passing * np.eye(len(times))
    return variability.mean + chance.standard_normal((links, len(times))) @ np.linalg.cholesky(covariance).T


# --- forecasts --------------------------------------------------------------------------------------


def test_an_unmeasured_link_has_the_mean_rate_of_all_links() -> None:
    view = ahead(SLOW, samples(ab=[(1000.0, 8e6)]))
    assert set(view.estimates) == {(x, y) for x in HOSTS for y in HOSTS if x != y}
    assert view.estimates[BC].rate_bps == pytest.approx(math.exp(SLOW.mean - SLOW.variance / 2))
    assert view.estimates[BC].count == 0 and view.estimates[AB].count == 1


def test_the_last_sample_counts_for_slowly_wandering_links_and_the_mean_for_jumpy_links() -> None:
    known = samples(ab=[(100.0 * i, 4e6) for i in range(10)] + [(999.0, 2.5e5)])
    assert ahead(SLOW, known).estimates[AB].rate_bps < 7e5
    assert ahead(JUMPY, known).estimates[AB].rate_bps > 1e6


def test_a_forecast_returns_to_the_mean_as_the_samples_get_old() -> None:
    known = samples(ab=[(0.0, 1e8)])
    rates = [ahead(SLOW, known, now_s).estimates[AB].rate_bps for now_s in (0.0, 300.0, 1000.0, 10_000.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > ahead(SLOW, known).estimates[BC].rate_bps  # what is the link's own stays


def test_the_less_measured_of_two_links_with_the_same_mean_counts_as_slower() -> None:
    often = samples(ab=[(100.0 * i, 1e6) for i in range(10)], ac=[(0.0, 1e6)])
    view = ahead(SLOW, often, 900.0)
    assert view.estimates[AC].rate_bps < view.estimates[AB].rate_bps < 1e6


@pytest.mark.parametrize("variability", [SLOW, JUMPY])
def test_forecasts_are_right_on_average_and_doubt_predicts_the_effect_of_a_probe(
    variability: Variability,
) -> None:
    times = np.array([0.0, 200.0, 500.0, 700.0, 850.0, 1000.0])  # three that are known, a probe, and what comes
    known, probe, then = times[:3], 3, [3, 4, 5]
    logs = walk(variability, 4000, times, 1)
    hosts = [f"h{i}" for i in range(64)]
    links = [(x, y) for x in hosts for y in hosts if x != y][: len(logs)]
    history, probed = History(), History()
    for link, row in zip(links, logs, strict=True):
        for at_s, value in zip(known, row[: len(known)], strict=True):
            for each in (history, probed):
                each.add(link, LinkEstimate(math.exp(value), 1, 0.0, float(at_s)))
        probed.add(link, LinkEstimate(math.exp(row[probe]), 1, 0.0, 700.0))
    before = look_ahead(PlanningHistory(history.samples(), 700.0, variability=variability), hosts, 300.0)
    after = look_ahead(PlanningHistory(probed.samples(), 700.0, variability=variability), hosts, 300.0)

    def forecast(view: Outlook) -> np.ndarray:
        return np.array([view.estimates[link].rate_bps for link in links])

    takes = np.exp(-logs[:, then[1:]]).mean(1)  # seconds for a bit, a while later
    assert (takes * forecast(before)).mean() == pytest.approx(1.0, abs=0.12)
    moved = np.log(forecast(after)) - np.log(forecast(before))
    doubt = np.array([before.doubt[link] for link in links])
    assert moved.std() == pytest.approx(doubt.mean(), rel=0.1)
    assert (doubt.mean() > 0.3) == (variability is SLOW)


def test_a_recently_measured_link_has_less_doubt_than_an_unmeasured_link() -> None:
    view = ahead(SLOW, samples(ab=[(999.0, 1e6)], ac=[(100.0, 1e6)]))
    assert view.doubt[AB] < view.doubt[AC] < view.doubt[BC]
    told = view.with_estimates({BC: LinkEstimate(1e3, 0)})
    assert told.doubt[BC] == 0.0 and told.rate_bps(*BC) == 1e3 and told.doubt[AC] == view.doubt[AC]


# --- the variability ------------------------------------------------------------------------------------


@pytest.mark.parametrize("truth", [SLOW, JUMPY, Variability(12.0, 1.85, 0.13, 0.02, 300.0)])
def test_the_estimated_variability_is_close_to_the_true_variability(truth: Variability) -> None:
    times = np.arange(0.0, 1800.0, 90.0)
    logs = walk(truth, 60, times, 2)
    history = History(kept=40)
    for i, row in enumerate(logs):
        for at_s, value in zip(times, row, strict=True):
            history.add((f"h{i}", "x"), LinkEstimate(math.exp(value), 1, 0.0, float(at_s)))
    variability = None
    for _ in range(3):
        variability = read_variability(history.samples(), variability)
    assert variability is not None
    assert variability.mean == pytest.approx(truth.mean, abs=0.4)
    assert variability.variance == pytest.approx(truth.variance, rel=0.5)
    fast, slow = variability.passing / variability.variance, variability.permanent / variability.variance
    assert abs(fast - truth.passing / truth.variance) < 0.2
    assert abs(slow - truth.permanent / truth.variance) < 0.35
    assert variability == read_variability(history.samples(), variability)  # it has settled


def test_a_single_sample_per_link_gives_a_first_estimate_of_the_variability() -> None:
    assert read_variability({}) is None
    chance = np.random.default_rng(3)
    one = {(f"h{i}", "x"): [(0.0, float(chance.lognormal(13, 1.0)))] for i in range(30)}
    history = History()
    for link, ((at_s, rate_bps),) in one.items():
        history.add(link, LinkEstimate(rate_bps, 1, 0.0, at_s))
    variability = read_variability(history.samples())
    assert variability is not None
    assert variability.mean == pytest.approx(13, abs=0.5) and variability.variance == pytest.approx(1.0, rel=0.6)
