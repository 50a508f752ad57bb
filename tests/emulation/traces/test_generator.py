from __future__ import annotations

import hashlib
import math
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from patience import patience

from thalweg.emulation.traces.generator import KB_BITS, LinkClass, TraceModel, generate_pool
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import UsageError

DATE_SEED = 19980525  # not tried out beforehand: a date
HOUR_S = 3600.0


def s_per_kb(pool: list[BandwidthTrace]) -> float:
    return float(np.mean([(KB_BITS / trace.rates_bps).mean() for trace in pool]))


def digest(pool: list[BandwidthTrace]) -> str:
    parts = [trace.name.encode() + trace.times_s.tobytes() + trace.rates_bps.tobytes() for trace in pool]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_the_defaults_have_the_published_statistics() -> None:
    pool = generate_pool(TraceModel(), 72, DATE_SEED, 6 * HOUR_S)
    assert s_per_kb(pool) == pytest.approx(0.1235, rel=1e-3)
    intervals = np.concatenate([trace.change_intervals_s() for trace in pool])
    assert 90 < intervals.mean() < 150  # "about 2 minutes"
    assert all(trace.duration_s == 6 * HOUR_S for trace in pool)
    kinds = [trace.name.partition("_")[2] for trace in pool]
    assert [kinds.count(name) for name in ("us", "atlantic", "brazil")] == [27, 27, 18]
    medians = {name: np.median([t.mean_bps for t in pool if t.name.endswith(name)]) for name in set(kinds)}
    assert medians["us"] > medians["atlantic"] > medians["brazil"]


def test_unscaled_levels_match_the_model() -> None:
    # E[1/rate] of log-uniform levels under stretching, times the log-normal factors' E[1/x] = exp(sigma^2 / 2)
    model = TraceModel(mean_s_per_kb=None, big_sigma=0.5)
    expected = 0.0
    for kind in model.classes:
        low, high = kind.low_bps / model.pivot_bps, kind.high_bps / model.pivot_bps
        inverse = (low**-model.stretch - high**-model.stretch) / (model.stretch * math.log(high / low))
        expected += kind.share * inverse * KB_BITS / model.pivot_bps
    expected *= math.exp((model.big_sigma**2 + model.small_sigma**2 + model.jitter**2) / 2)
    assert s_per_kb(generate_pool(model, 2000, DATE_SEED, HOUR_S)) == pytest.approx(expected, rel=0.1)


def test_jumps_are_held_for_exponential_times() -> None:
    model = TraceModel(small_sigma=0.0, jitter=0.0, big_hold_s=300.0, step_s=1.0, mean_s_per_kb=None)
    wide = (LinkClass("wide", 1e9, 1e9, 1.0),)  # rates of nine digits: two jumps are never the same
    pool = generate_pool(msgspec.structs.replace(model, classes=wide), 20, DATE_SEED, 10 * HOUR_S)
    held = np.concatenate([np.diff(np.flatnonzero(np.diff(trace.rates_bps))) for trace in pool])
    assert held.mean() == pytest.approx(300.0, rel=0.1)
    assert held.std() == pytest.approx(300.0, rel=0.15)
    logs = np.concatenate([np.log(np.unique(trace.rates_bps)) for trace in pool])
    assert logs.std() == pytest.approx(1.0, rel=0.1)


def test_the_same_seed_gives_the_same_bytes_in_a_second_process() -> None:
    program = (
        "import hashlib\n"
        "from thalweg.emulation.traces.generator import TraceModel, generate_pool\n"
        f"pool = generate_pool(TraceModel(), 8, {DATE_SEED}, 1234.5)\n"
        "parts = [t.name.encode() + t.times_s.tobytes() + t.rates_bps.tobytes() for t in pool]\n"
        "print(hashlib.sha256(b''.join(parts)).hexdigest())\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=patience(60)
    )
    assert other.stdout.strip() == digest(generate_pool(TraceModel(), 8, DATE_SEED, 1234.5))
    assert other.stdout.strip() != digest(generate_pool(TraceModel(), 8, DATE_SEED + 1, 1234.5))


def test_a_larger_or_longer_pool_begins_with_the_smaller_pool() -> None:
    model = TraceModel(mean_s_per_kb=None)
    small = generate_pool(model, 5, 3, 600.0)
    large = generate_pool(model, 20, 3, 1800.0)
    for before, after in zip(small, large, strict=False):
        assert before.name == after.name
        assert np.array_equal(before.rates_bps, after.rates_bps[:60])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": ()}, "at least one link class"),
        ({"classes": (LinkClass("a", 1, 2, 1), LinkClass("a", 1, 2, 1))}, "different names"),
        ({"classes": (LinkClass("../a", 1, 2, 1),)}, "letters, digits"),
        ({"classes": (LinkClass("a", 3, 2, 1),)}, "0 < low <= high"),
        ({"classes": (LinkClass("a", 1, 2, 0),)}, "share 0"),
        ({"jitter": -0.1}, "jitter is -0.1"),
        ({"big_sigma": math.nan}, "big_sigma is nan"),
        ({"step_s": 0.0}, "step_s is 0.0"),
        ({"small_hold_s": math.inf}, "small_hold_s is inf"),
        ({"mean_s_per_kb": 0.0}, "mean_s_per_kb is 0.0"),
    ],
)
def test_a_parameter_out_of_range_is_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        generate_pool(msgspec.structs.replace(TraceModel(), **changes), 1, 1, 10.0)


@pytest.mark.parametrize(
    ("count", "seed", "duration_s", "words"),
    [
        (0, 1, 10.0, "at least 1"),
        (1, -1, 10.0, "must not be negative"),
        (1, 1, 0.0, "duration is 0.0"),
        (1, 1, math.nan, "duration is nan"),
        (10**6, 1, 1e9, "too many"),
    ],
)
def test_impossible_pools_are_refused(count: int, seed: int, duration_s: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        generate_pool(TraceModel(), count, seed, duration_s)
