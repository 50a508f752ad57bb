from __future__ import annotations

import itertools

import numpy as np
import pytest

from thalweg.emulation.traces.topologies import PRESETS, transit_stub
from thalweg.middleware.errors import UsageError

TRANSIT = 50  # routers of transit domains come first


@pytest.mark.long
@pytest.mark.parametrize("preset", PRESETS)
def test_a_topology_has_the_papers_size_and_diameter_and_routes_add_up(preset: str) -> None:
    topology = transit_stub(preset, 3)
    latency_s = topology.latency_s
    assert latency_s.shape == (1550, 1550)
    assert latency_s.max() == pytest.approx(0.878)
    assert (latency_s[~np.eye(1550, dtype=bool)] > 0).all()
    joined = {frozenset(link) for link in topology.links.tolist()}
    random = np.random.default_rng(0)
    for source, target in random.integers(1550, size=(50, 2)).tolist():
        route = topology.route(source, target)
        assert (route[0], route[-1]) == (source, target)
        hops = list(itertools.pairwise(route))
        assert all(frozenset(hop) in joined for hop in hops)
        assert sum(latency_s[hop] for hop in hops) == pytest.approx(latency_s[source, target])
        assert topology.route(target, source) == route[::-1]
    again = transit_stub(preset, 3)
    assert (again.latency_s == latency_s).all()
    assert (transit_stub(preset, 4).latency_s != latency_s).any()


def test_routes_of_least_weight_go_through_no_stub_domain() -> None:
    topology = transit_stub("gt-itm", 1)

    def domain(router: int) -> int:
        return router if router < TRANSIT else -1 - (router - TRANSIT) // 10

    for source, target in np.random.default_rng(1).integers(1550, size=(200, 2)).tolist():
        between = {domain(router) for router in topology.route(source, target)} - {domain(source), domain(target)}
        assert all(router >= 0 for router in between)


def test_an_unknown_topology_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="'gtitm' is no topology; did you mean 'gt-itm'"):
        transit_stub("gtitm", 1)
