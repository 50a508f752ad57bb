"""Estimates of the network's bandwidth on a host, and the estimates that the host sends to peers."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.core.measuring.monitor import (
    KEPT,
    Monitor,
    as_link_estimate,
    as_message,
    estimate_fields,
)
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import LinkEstimate
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import NEWS_BYTES, S_THRES, T_THRES, MonitorConfig


def sample(monitor: Monitor, target: str, rate_bps: float, now: float, size_bytes: int = 131_072) -> None:
    duration_s = size_bytes * 8 / rate_bps
    assert monitor.measured((monitor.host, target), size_bytes, duration_s, now, "passive") is not None


def told(source: str, target: str, rate_bps: int, *, count: int = 1, age_s: float = 0.0) -> m.Estimate:
    return m.Estimate(source, target, rate_bps, 0, count, round(age_s * 1000))


def rates(news: tuple[m.Estimate, ...]) -> dict[tuple[str, str], int]:
    return {(estimate.source, estimate.target): estimate.rate_bps for estimate in news}


# --- samples ----------------------------------------------------------------------------------------


def test_a_transfer_updates_the_value_count_spread_and_age_of_an_estimate() -> None:
    monitor = Monitor("a", MonitorConfig(forecaster="mean"))
    assert monitor.measured(("a", "b"), 25_000, 1.0, 5.0, "passive") == LinkEstimate(200_000.0, 1, 0.0, 5.0)
    assert monitor.measured(("a", "b"), 50_000, 1.0, 6.0, "passive") == LinkEstimate(300_000.0, 2, 100_000.0, 6.0)
    assert monitor.estimate(("a", "b"), 7.0) == LinkEstimate(300_000.0, 2, 100_000.0, 6.0)
    assert monitor.estimate(("b", "a"), 7.0) is None


def test_a_link_that_stalls_on_an_empty_value_is_estimated_slow() -> None:
    monitor = Monitor("a")
    sample(monitor, "b", 1e6, 1.0)
    slow = monitor.stalled(("a", "b"), 0, 20.0, 21.0)  # of ``NOTHING``
    assert slow is not None
    assert slow.rate_bps < 1
    assert monitor.knows(("a", "b"), 21.0)


@pytest.mark.parametrize(
    ("source", "target", "size_bytes", "duration_s", "how"),
    [
        ("a", "b", S_THRES - 1, 1.0, "passive"),
        ("a", "a", S_THRES, 1.0, "passive"),
        ("a", "b", S_THRES, 0.0, "passive"),
        ("a", "b", S_THRES, -1.0, "probe"),
        ("a", "b", S_THRES, float("inf"), "probe"),
        ("a", "b", S_THRES, float("nan"), "probe"),
        ("a", "b", 0, 1.0, "probe"),
    ],
)
def test_invalid_measurements_are_no_samples(
    source: str, target: str, size_bytes: int, duration_s: float, how: str
) -> None:
    monitor = Monitor("a")
    assert monitor.measured((source, target), size_bytes, duration_s, 0.0, how) is None  # type: ignore[arg-type]
    assert monitor.view(0.0) == {}


def test_a_transfer_at_the_threshold_and_every_probe_are_samples() -> None:
    monitor = Monitor("a")
    assert monitor.measured(("a", "b"), S_THRES, 1.0, 0.0, "passive") is not None
    assert monitor.measured(("a", "c"), 100, 1.0, 0.0, "probe") is not None


def test_an_estimate_expires_after_t_thres() -> None:
    monitor = Monitor("a")
    sample(monitor, "b", 1e5, 0.0)
    sample(monitor, "c", 1e5, 30.0)
    assert set(monitor.view(T_THRES)) == {("a", "b"), ("a", "c")}
    assert set(monitor.view(T_THRES + 0.1)) == {("a", "c")}
    assert set(monitor.view(35.0, max_age_s=5.0)) == {("a", "c")}
    assert monitor.estimate(("a", "b"), T_THRES + 0.1) is None


# --- what others tell -------------------------------------------------------------------------------


def test_the_newer_of_two_estimates_wins() -> None:
    monitor = Monitor("c")
    monitor.handle_estimates([told("a", "b", 100, age_s=5)], 10.0)
    monitor.handle_estimates([told("a", "b", 200, age_s=9)], 10.0)  # older
    assert monitor.estimate(("a", "b"), 10.0) == LinkEstimate(100.0, 1, 0.0, 5.0)
    monitor.handle_estimates([told("a", "b", 300, age_s=1)], 10.0)
    assert monitor.estimate(("a", "b"), 10.0) == LinkEstimate(300.0, 1, 0.0, 9.0)


def test_a_delayed_estimate_does_not_replace_an_estimate_of_more_samples() -> None:
    monitor = Monitor("c")
    monitor.handle_estimates([told("a", "b", 200, count=7, age_s=1)], 10.0)
    monitor.handle_estimates([told("a", "b", 100, count=6, age_s=0)], 30.0)  # its age was taken when it was sent
    assert monitor.estimate(("a", "b"), 30.0) == LinkEstimate(200.0, 7, 0.0, 9.0)


def test_an_estimate_that_circulates_among_hosts_does_not_get_younger() -> None:
    first, second = Monitor("b"), Monitor("c")
    first.handle_estimates([told("a", "x", 100)], 0.0, "a")
    for hop in range(1, 8):
        teller, listener = (first, second) if hop % 2 else (second, first)
        listener.handle_estimates(teller.news_for(listener.host, hop), hop + 3.0, teller.host)
    known = second.estimate(("a", "x"), 20.0)
    assert known is not None
    assert known.measured_at_s == 3.0
    assert first.estimate(("a", "x"), 20.0) == LinkEstimate(100.0, 1, 0.0, 0.0)


def test_an_own_estimate_of_a_link_beats_a_reported_estimate() -> None:
    monitor = Monitor("a")
    sample(monitor, "b", 1e5, 0.0)
    monitor.handle_estimates([told("a", "b", 999, count=50)], 1.0)
    known = monitor.estimate(("a", "b"), 1.0)
    assert known is not None
    assert known.rate_bps == pytest.approx(1e5)


def test_an_estimate_piggybacked_on_a_partition_ages_by_the_transfer_time() -> None:
    monitor = Monitor("c")
    monitor.handle_estimates([told("p", "c", 80_000)], 0.0, "p")
    monitor.handle_estimates([told("p", "b", 100, age_s=1)], 10.0, "p", size_bytes=50_000)
    assert monitor.estimate(("p", "b"), 10.0) == LinkEstimate(100.0, 1, 0.0, 4.0)


def test_expired_estimates_and_estimates_from_a_host_to_the_same_host_are_ignored() -> None:
    monitor = Monitor("c")
    monitor.handle_estimates([told("a", "b", 100, age_s=T_THRES + 1), told("a", "a", 100)], 100.0)
    assert monitor.view(100.0) == {}


# --- news -------------------------------------------------------------------------------------------


def test_a_peer_is_notified_of_every_estimate_once() -> None:
    monitor = Monitor("a")
    sample(monitor, "b", 100_000, 0.0)
    assert rates(monitor.news_for("b", 1.0)) == {("a", "b"): 100_000}
    assert monitor.news_for("b", 1.0) == ()
    sample(monitor, "b", 100_000, 2.0)
    assert monitor.news_for("b", 2.0) == ()
    assert rates(monitor.news_for("c", 2.0)) == {("a", "b"): 100_000}


def test_a_peer_is_notified_again_after_a_change_by_a_tenth_or_half_the_lifetime() -> None:
    monitor = Monitor("a", MonitorConfig(forecaster="last"))
    sample(monitor, "b", 100_000, 0.0)
    monitor.news_for("b", 0.0)
    sample(monitor, "b", 111_000, 4.0)
    assert monitor.news_for("b", 4.0) == ()  # it has been told a moment ago
    sample(monitor, "b", 109_000, 6.0)
    assert rates(monitor.news_for("b", 6.0)) == {("a", "b"): 111_000}  # the faster of two samples
    sample(monitor, "b", 109_000, 12.0)
    assert monitor.news_for("b", 12.0) == ()
    assert monitor.news_for("b", 6.0 + T_THRES / 2 + 0.1) == ()  # nothing was measured since
    sample(monitor, "b", 109_000, 6.0 + T_THRES / 2 + 0.2)
    assert rates(monitor.news_for("b", 6.0 + T_THRES / 2 + 0.2)) == {("a", "b"): 109_000}


def test_passive_samples_are_thinned_out_and_probes_are_all_used() -> None:
    monitor = Monitor("a", MonitorConfig(forecaster="last", best_of=1, sample_interval_s=0.1))
    assert monitor.measured(("a", "b"), 100_000, 1.0, 5.0, "passive") is not None
    assert monitor.measured(("a", "b"), 100_000, 1.0, 5.05, "passive") is None
    assert monitor.measured(("a", "c"), 100_000, 1.0, 5.05, "passive") is not None
    assert monitor.measured(("a", "b"), 16_384, 1.0, 5.06, "probe") is not None
    assert monitor.measured(("a", "b"), 100_000, 1.0, 5.2, "passive") is not None


def test_a_single_slow_sample_does_not_make_the_link_slow() -> None:
    monitor = Monitor("a", MonitorConfig(forecaster="last"))
    for now, rate_bps in ((0.0, 100_000), (10.0, 60_000), (20.0, 60_000)):
        sample(monitor, "b", rate_bps, now)
        estimate = monitor.estimate(("a", "b"), now)
        assert estimate is not None
        assert estimate.rate_bps == pytest.approx(100_000 if now < 20 else 60_000)  # twice is no accident


def test_a_peer_is_not_sent_estimates_that_the_peer_reported_or_measures() -> None:
    monitor = Monitor("a")
    monitor.news_for("b", 0.0)
    monitor.news_for("c", 0.0)
    monitor.handle_estimates([told("b", "a", 100), told("d", "e", 200)], 0.0, "b")
    assert monitor.news_for("b", 0.0) == ()
    assert rates(monitor.news_for("c", 0.0)) == {("b", "a"): 100, ("d", "e"): 200}
    assert rates(monitor.news_for("d", 0.0)) == {("b", "a"): 100}


@given(st.lists(st.tuples(st.text("hé", min_size=1, max_size=64), st.integers(1, 10**12)), max_size=120))
def test_news_fit_into_a_message_and_the_freshest_estimates_go_first(links: list[tuple[str, int]]) -> None:
    monitor = Monitor("a")
    for i, (name, rate_bps) in enumerate(links):
        monitor.handle_estimates([told(f"{name}{i}", "z", rate_bps)], i / 10)
    now, left = 12.0, len(links)
    while news := monitor.news_for("peer", now):
        assert len(msgspec.msgpack.encode(news)) <= NEWS_BYTES
        ages = [estimate.age_ms for estimate in news]
        assert ages == sorted(ages)
        left -= len(news)
    assert left == 0, "what did not fit was not told later"


def test_an_estimate_that_expired_while_waiting_is_not_sent() -> None:
    monitor = Monitor("a")
    monitor.news_for("b", 0.0)
    sample(monitor, "b", 1e5, 0.0)
    assert monitor.news_for("b", T_THRES + 1) == ()


@pytest.mark.parametrize("period_s", [1.0, 4.0, 16.0])
def test_the_news_of_a_steady_monitor_cost_under_a_hundredth_of_the_traffic(period_s: float) -> None:
    """Nine hosts. Every link of a tree carries a partition of 128 KB a period, and news both ways."""
    tree = [(f"h{i}", f"h{(i - 1) // 2}") for i in range(1, 9)]  # producer -> consumer
    monitors = {f"h{i}": Monitor(f"h{i}") for i in range(9)}
    now = 0.0
    for iteration in range(100):
        for place, (producer, consumer) in enumerate(tree):
            now = (iteration + place / len(tree)) * period_s
            sample(monitors[producer], consumer, 1e5 * (1 + 0.02 * (iteration % 3)), now)
            for sender, receiver in ((producer, consumer), (consumer, producer)):
                monitors[receiver].handle_estimates(monitors[sender].news_for(receiver, now), now, sender)
    assert 0 < sum(monitor.news_bytes for monitor in monitors.values()) < 0.01 * 100 * len(tree) * 131_072
    if period_s < T_THRES / 8:  # news needs up to four hops, and goes on after half its lifetime
        assert all(monitor.view(now).keys() == set(tree) for monitor in monitors.values())


def test_a_request_for_news_without_changes_costs_nothing() -> None:
    monitor = Monitor("a")
    for i in range(1000):
        monitor.handle_estimates([told(f"x{i}", "y", 100)], 0.0)
    while monitor.news_for("b", 0.0):
        pass
    cost = monitor.news_bytes
    monitor._cache.clear()  # it does not even look
    assert monitor.news_for("b", 0.0) == ()
    assert monitor.news_bytes == cost


# --- bounds -----------------------------------------------------------------------------------------


def test_memory_is_bounded_for_an_endless_list_of_links() -> None:
    monitor = Monitor("a", MonitorConfig(max_links=50))
    monitor.news_for("evil", 0.0)
    for i in range(200):
        monitor.handle_estimates([told(f"x{i}", "y", 100)], i / 100, "evil")
        sample(monitor, f"t{i}", 1e5, i / 100)
    assert len(monitor.view(2.0)) == 50
    assert len(monitor._series) == 50
    assert len(monitor._changed) == 50
    assert len(monitor._listeners["evil"].told) <= 100


def test_the_last_known_estimate_outlives_t_thres_for_a_bounded_time() -> None:
    monitor = Monitor("a")
    assert monitor.latest(("x", "y")) is None
    monitor.handle_estimates([told("x", "y", 100)], 0.0)
    known = monitor.latest(("x", "y"))
    assert known == LinkEstimate(100.0, 1, 0.0, 0.0)
    late_s = (KEPT - 1) * T_THRES
    sample(monitor, "c", 1e5, late_s)  # which forgets what is too old
    assert monitor.estimate(("x", "y"), late_s) is None
    assert monitor.latest(("x", "y")) == known
    assert set(monitor.view(late_s)) == {("a", "c")}
    assert set(rates(monitor.news_for("b", late_s))) == {("a", "c")}  # nobody is told
    monitor.handle_estimates([told("x", "y", 300)], late_s)  # of as many samples, but of today
    assert monitor.latest(("x", "y")) == LinkEstimate(300.0, 1, 0.0, late_s)
    sample(monitor, "c", 1e5, 3 * KEPT * T_THRES)
    assert monitor.latest(("x", "y")) is None


def test_old_estimates_leave_the_cache_and_silent_peers_are_forgotten() -> None:
    monitor = Monitor("a")
    monitor.news_for("b", 0.0)
    monitor.handle_estimates([told("x", "y", 100)], 0.0)
    sample(monitor, "c", 1e5, 11 * T_THRES)
    assert set(monitor._cache) == {("a", "c")}
    assert monitor._listeners == {}


# --- forms ------------------------------------------------------------------------------------------


def test_an_estimate_is_encoded_in_at_most_22_bytes() -> None:
    message = as_message(("h1", "h2"), LinkEstimate(201_234.4, 57, 20_123.2, 90.0), 100.0)
    assert message == m.Estimate("h1", "h2", 201_234, 20_123, 57, 10_000)
    assert len(msgspec.msgpack.encode(message)) <= 22
    assert as_link_estimate(message, 100.0) == LinkEstimate(201_234.0, 57, 20_123.0, 90.0)


def test_the_record_of_an_estimate_contains_the_sample_and_the_result() -> None:
    fields = estimate_fields(("a", "b"), LinkEstimate(3e5, 2, 1e5, 6.0), 50_000, 2.0, "probe")
    assert fields.pop("detail") == {
        "src": "a", "dst": "b", "rate_bps": 3e5, "sample_bps": 2e5, "count": 2, "spread_bps": 1e5, "how": "probe",
    }  # fmt: skip
    assert fields == {"peer": "b", "value": 3e5, "size_bytes": 50_000, "duration_s": 2.0}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_age_s": 0.0}, "max_age_s of the monitor is 0"),
        ({"max_age_s": float("nan")}, "max_age_s"),
        ({"news_bytes": -1}, "news_bytes of the monitor is -1; give 0 or more"),
        ({"sample_interval_s": float("inf")}, "sample_interval_s"),
        ({"forecaster": "lasst"}, "did you mean 'last'"),
    ],
)
def test_the_error_for_a_bad_configuration_names_the_option(options: dict[str, float], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        MonitorConfig(**options)  # type: ignore[arg-type]


def test_counts_grow_with_every_sample() -> None:
    monitor = Monitor("a")
    counts = []
    for i in range(30):
        sample(monitor, "b", 1e5, i * 100.0)
        known = monitor.estimate(("a", "b"), i * 100.0)
        assert known is not None
        counts.append(known.count)
    assert all(later == earlier + 1 for earlier, later in pairwise(counts))


def test_a_reset_monitor_treats_all_links_as_unmeasured() -> None:
    monitor = Monitor("a")
    sample(monitor, "b", 1e5, 10.0)
    monitor.handle_estimates([told("c", "d", 70_000)], 10.0, "c")
    assert set(rates(monitor.news_for("e", 11.0))) == {("a", "b"), ("c", "d")}
    monitor.forget()
    assert monitor.view(11.0) == {} and monitor.latest(("a", "b")) is None
    assert monitor.news_for("e", 11.0) == monitor.news_for("f", 11.0) == ()
    sample(monitor, "b", 8e5, 12.0)
    assert monitor.estimate(("a", "b"), 12.0) == LinkEstimate(pytest.approx(8e5), 1, 0.0, 12.0)  # of one sample
    assert set(rates(monitor.news_for("e", 13.0))) == {("a", "b")}
