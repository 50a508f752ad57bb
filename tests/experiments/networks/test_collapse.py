"""Scenarios, and the emulator's truth beside what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from thalweg.emulation.links.shape import RATE_FLOOR_BPS
from thalweg.emulation.scenarios.timeline import Timeline
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.experiments.networks.collapse import Collapse, check_collapse, choose_host, collapse_floor_bps
from thalweg.experiments.networks.described import Network
from thalweg.experiments.networks.truth import Rates, Replayed, Truth, add_truth
from thalweg.experiments.run_config import COLLAPSE_AT_S, COLLAPSE_FACTOR, COLLAPSE_FLOOR, COLLAPSE_S
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link, links_between

HOSTS = ["h1", "h2", "h3", "client"]
TRACE = BandwidthTrace("t", np.array([0.0, 10.0, 25.0]), np.array([1e6, 3e6, 5e5]), 40.0)
CONSTANT = BandwidthTrace("c", np.array([0.0]), np.array([1e6]))
WHEN = COLLAPSE_AT_S, COLLAPSE_AT_S + COLLAPSE_S
Links = dict[Link, BandwidthTrace]


def under(one: Collapse, links: Links) -> Mapping[Link, Rates]:
    """Return the links' rates in a run with the collapse."""
    return Network(Timeline.of_traces(links)).befallen(one.changes(links)).timeline.rates(floor_bps=0.0)


def test_the_host_with_most_operators_collapses_and_never_the_client() -> None:
    placement = {"op0": "client", "op1": "h2", "op2": "h3", "op3": "client", "op4": "client", "op5": "h3", "op6": "h2"}
    assert choose_host(placement, HOSTS, "client") == "h2"
    assert choose_host({**placement, "op0": "h3"}, HOSTS, "client") == "h3"
    with pytest.raises(UsageError, match="every operator at the client"):
        choose_host(dict.fromkeys(placement, "client"), HOSTS, "client")


def test_a_collapse_slows_all_links_from_and_to_the_host_and_leaves_the_rest() -> None:
    links = dict.fromkeys(links_between(HOSTS), CONSTANT)
    collapse = Collapse("h2", 5e4, *WHEN)
    assert {change.link for change in collapse.changes(links)} == {(a, b) for a, b in links if "h2" in (a, b)}
    rates = under(collapse, links)
    for (a, b), trace in rates.items():
        low = 1e5 if "h2" in (a, b) else 1e6
        during = (COLLAPSE_AT_S, COLLAPSE_AT_S + COLLAPSE_S - 1)
        outside = (0.0, COLLAPSE_AT_S - 1, COLLAPSE_AT_S + COLLAPSE_S)
        assert [trace.rate_at(t_s) for t_s in during] == pytest.approx([low, low])
        assert [trace.rate_at(t_s) for t_s in outside] == pytest.approx([1e6, 1e6, 1e6])
    assert COLLAPSE_FACTOR == collapse.factor == 0.1


def test_no_link_falls_below_the_floor_and_a_slower_link_keeps_the_rate() -> None:
    ab, ba, ac = Link("a", "b"), Link("b", "a"), Link("a", "c")
    rates = under(Collapse("a", 5e4, *WHEN), {ab: TRACE, ba: TRACE.scaled(0.1), ac: TRACE.scaled(0.05)})
    slowest_s = COLLAPSE_AT_S + 115.0 - COLLAPSE_AT_S % 40.0  # the last row of the trace
    assert [rates[ab].rate_at(slowest_s - back_s) for back_s in (0, 20, 30)] == pytest.approx([5e4, 3e5, 1e5])
    assert [rates[ba].rate_at(slowest_s - back_s) for back_s in (0, 20, 30)] == pytest.approx([5e4, 5e4, 5e4])
    assert [rates[ac].rate_at(slowest_s - back_s) for back_s in (0, 20, 30)] == pytest.approx([2.5e4, 5e4, 5e4])


def test_a_collapse_that_no_testbed_can_set_is_refused() -> None:
    links = {("a", "b"): CONSTANT, ("b", "a"): CONSTANT.scaled(3.0)}
    assert collapse_floor_bps(links) == pytest.approx(2e6 * COLLAPSE_FLOOR)
    check_collapse(links, 1.0)
    with pytest.raises(UsageError, match=r"raise --time-scale or --link-mean"):
        check_collapse(links, 0.99 * RATE_FLOOR_BPS / (2e6 * COLLAPSE_FLOOR))


def test_the_true_rate_is_the_mean_over_the_span_within_a_replay() -> None:
    truth = Truth(time_scale=10.0)
    truth.add(Replayed(1000.0, 1010.0, {("a", "b"): TRACE}))
    truth.add(Replayed(1020.0, 1030.0, {("a", "b"): CONSTANT}))
    link = ("a", "b")
    assert truth.mean_bps(link, 1002.0, 10.0) == pytest.approx(3e6)  # 10 s to 20 s of the trace
    assert truth.mean_bps(link, 1002.0, 15.0) == pytest.approx((5 * 1e6 + 10 * 3e6) / 15)
    assert truth.mean_bps(link, 1002.0, 60.0) == pytest.approx((10 * 1e6 + 10 * 3e6) / 20)  # no time before the start
    assert truth.mean_bps(link, 1003.0, 0.0) == 5e5
    assert truth.mean_bps(link, 1000.0, 3.0) == 1e6
    assert truth.mean_bps(link, 1029.0, 3.0) == pytest.approx(1e6)
    assert truth.mean_bps(link, 1030.3, 5.0) == pytest.approx(1e6)  # its first 2 s were before the end
    for nowhere in (999.9, 1015.0, 1030.3):
        assert truth.mean_bps(link, nowhere, 1.0) is None
    assert truth.mean_bps(("b", "a"), 1002.0, 1.0) is None


def test_the_true_rate_is_added_to_estimates_and_all_other_lines_stay(tmp_path: Path) -> None:
    truth = Truth(time_scale=10.0)
    truth.add(Replayed(1000.0, 1010.0, {("a", "b"): TRACE}))
    row = {"t": 20.0, "wall": 1002.0, "host": "a", "kind": "estimate", "peer": "b", "value": 2e6, "duration_s": 10.0}
    row["detail"] = {"src": "a", "dst": "b", "rate_bps": 2e6}
    lines = [
        json.dumps(row),
        json.dumps({**row, "kind": "transfer"}),
        json.dumps({**row, "wall": 990.0}),
        json.dumps({**row, "detail": {"src": "b", "dst": "a", "rate_bps": 1.0}}),
        json.dumps({**row, "kind": "note", "detail": {"about": "estimate"}}),
        '{"kind": "estimate", "detail": nonsense}',
        json.dumps({**row, "duration_s": None}),
        json.dumps(row)[:-20],  # its writer was killed
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    add_truth(path, truth)
    after = path.read_text().split("\n")
    assert json.loads(after[0]) == {**row, "detail": {**row["detail"], "truth_bps": pytest.approx(3e6)}}  # type: ignore[dict-item]
    assert after[1:6] == lines[1:6]
    assert json.loads(after[6])["detail"]["truth_bps"] == 3e6  # at that moment
    assert after[7:] == lines[7:]
    assert list(tmp_path.iterdir()) == [path]
