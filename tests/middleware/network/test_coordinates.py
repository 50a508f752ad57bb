from __future__ import annotations

import numpy as np
import pytest

from thalweg.middleware.network.coordinates import START_ERROR, Coordinates, Floats, embedded, together
from thalweg.middleware.network.place import Place, neighbours


def misjudged(found: Coordinates, latency_s: Floats) -> float:
    """Return the median relative error of the distances."""
    pairs = np.triu_indices(len(latency_s), 1)
    distances = found.distances_s(slice(None), slice(None))[pairs]
    return float(np.median(np.abs(distances - latency_s[pairs]) / latency_s[pairs]))


def spread_out(hosts: int, access_s: float, seed: int = 1) -> Floats:
    """Return latencies between hosts near a plane. A host is at most ``access_s`` away from the plane."""
    random = np.random.default_rng(seed)
    places, access = random.random((hosts, 2)) / 10, random.random(hosts) * access_s
    away = np.sqrt(((places[:, None] - places[None]) ** 2).sum(2)) + access[:, None] + access[None]
    np.fill_diagonal(away, 0.0)
    return away


def test_hosts_find_coordinates_that_predict_latencies() -> None:
    flat, behind = spread_out(60, 0.0), spread_out(60, 0.05)
    found = {
        (kind, heights): misjudged(embedded(of, np.random.default_rng(2), rounds=300, heights=heights), of)
        for kind, of in (("flat", flat), ("behind", behind))
        for heights in (False, True)
    }
    assert found["flat", False] < 0.01
    assert found["behind", True] < 0.02 < 0.05 < found["behind", False]  # what a host adds to all is its height


def test_a_host_with_an_uncertain_position_moves_far() -> None:
    own = Coordinates(np.array([[0.0, 0.0]] * 2), np.zeros(2), np.array([1.0, 0.01]))
    other = Coordinates(np.array([[0.1, 0.0]] * 2), np.zeros(2), np.array([0.1, 0.1]))
    moved = own.measured(other, np.array([0.2, 0.2]))
    far, little = (-moved.places[:, 0]).tolist()
    assert far == pytest.approx(0.25 * (1.0 / 1.1) * 0.1)  # c_c times its share of both errors, of what it is off
    assert little == pytest.approx(0.25 * (0.01 / 0.11) * 0.1)
    assert moved.errors[0] == pytest.approx(0.25 / 1.1 * 0.5 + (1 - 0.25 / 1.1) * 1.0)


def test_an_invalid_latency_moves_no_host() -> None:
    own = Coordinates.first(4, np.random.default_rng(1), heights=True)
    other = Coordinates.first(4, np.random.default_rng(2), heights=True)
    moved = own.measured(other, np.array([np.nan, np.inf, 0.0, -1.0]))
    assert (moved.places == own.places).all()
    assert (moved.heights == own.heights).all()
    assert (moved.errors == START_ERROR).all()


def test_coordinates_stay_finite_for_extreme_latencies() -> None:
    random = np.random.default_rng(3)
    found = Coordinates.first(50, random, heights=True)
    for _ in range(200):
        found = found.measured(found.of(random.permutation(50)), 10.0 ** random.uniform(-9, 4, 50))
    assert np.isfinite(found.places).all()
    assert (found.heights > 0).all()
    assert ((found.errors > 0) & (found.errors <= 10)).all()


def test_a_single_host_moves_like_an_array_of_hosts() -> None:
    random = np.random.default_rng(4)
    for _ in range(50):
        one, other = (
            Place(tuple(random.normal(0, 0.1, 3).tolist()), float(random.random() / 10), float(random.uniform(0.01, 2)))
            for _ in range(2)
        )
        latency_s = float(10.0 ** random.uniform(-9, 2))
        moved = one.measured(other, latency_s)
        alike = together([one]).measured(together([other]), np.array([latency_s]))
        assert (moved.at, moved.height_s) == (
            pytest.approx(alike.places[0].tolist()), pytest.approx(float(alike.heights[0])),
        )  # fmt: skip
        assert (moved.error, moved.count) == (pytest.approx(float(alike.errors[0])), 1)
    drawn = neighbours("h1", [f"h{number}" for number in range(9)], 20)
    assert sorted(drawn) == ["h0", *(f"h{number}" for number in range(2, 9))]
