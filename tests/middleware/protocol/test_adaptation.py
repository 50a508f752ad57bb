"""Options of moves: their ranges, their form in a file, and when a move is worthwhile."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.errors import UsageError
from thalweg.middleware.protocol.adaptation import (
    Adaptation,
    GlobalMoves,
    LocalMoves,
    migration_s,
    worth_moving,
)

seconds = st.floats(0, 1e6)


@pytest.mark.parametrize(
    "options",
    [
        GlobalMoves(300.0, 1.0),
        GlobalMoves(0.001),
        LocalMoves(k=3, gate=False, seed=7),
        LocalMoves(0.001, cost="serialised-critical-path", startup_s=0.05),
    ],
)
def test_options_are_the_same_after_encoding_and_decoding(options: Adaptation) -> None:
    assert msgspec.json.decode(msgspec.json.encode(options), type=Adaptation) == options


def test_the_defaults_are_the_values_of_the_paper() -> None:
    assert GlobalMoves().period_s == LocalMoves().period_s == 600
    assert (LocalMoves().k, LocalMoves().gate, LocalMoves().cost) == (0, True, "critical-path")
    assert GlobalMoves().hysteresis == LocalMoves().hysteresis == 0
    with pytest.raises(msgspec.ValidationError, match="unknown field `peroid_s`"):
        msgspec.json.decode(b'{"type": "global", "peroid_s": 3}', type=Adaptation)


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (GlobalMoves, {"period_s": 0.0}, "period_s is 0.0; it must be at least 0.001 seconds"),
        (GlobalMoves, {"period_s": 0.0009}, "period_s is 0.0009; it must be at least 0.001 seconds"),
        (LocalMoves, {"period_s": 1e-300}, "period_s is 1e-300; it must be at least 0.001 seconds"),
        (LocalMoves, {"period_s": math.inf}, "period_s is inf"),
        (LocalMoves, {"period_s": math.nan}, "period_s is nan"),
        (GlobalMoves, {"hysteresis": -0.5}, "hysteresis is -0.5; it must be finite and at least 0"),
        (LocalMoves, {"hysteresis": math.nan}, "hysteresis is nan"),
        (GlobalMoves, {"looks": 0}, "looks is 0; it must be at least 1"),
        (LocalMoves, {"k": -1}, "k is -1"),
        (LocalMoves, {"startup_s": -0.1}, "startup_s is -0.1; it must be finite and at least 0"),
        (LocalMoves, {"startup_s": math.inf}, "startup_s is inf"),
        (LocalMoves, {"startup_s": math.nan}, "startup_s is nan"),
        (LocalMoves, {"cost": "perod"}, "known are critical-path, serialised-critical-path, period, expected-period"),
    ],
)
def test_options_out_of_range_are_refused(kind: Any, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as error:
        kind(**wrong)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_migration_time_is_the_transfer_time_of_the_state() -> None:
    assert migration_s(1_000_000, 2e6) == 4.0
    assert migration_s(1_000_000, math.inf) == 0.0
    assert migration_s(0, 0.0) == 0.0
    assert migration_s(1, 0.0) == math.inf


@given(seconds, seconds, seconds, seconds)
def test_every_strictly_better_placement_is_worthwhile_without_hysteresis(
    current_s: float, better_s: float, horizon_s: float, moving_s: float
) -> None:
    assert worth_moving(current_s, better_s, horizon_s, moving_s, 0.0) == (better_s < current_s)


def test_a_move_with_hysteresis_has_to_pay_off_within_the_horizon() -> None:
    # 2 s gained on each of 600 / 10 = 60 partitions: 120 s
    assert worth_moving(12.0, 10.0, 600.0, 119.0, 1.0)
    assert not worth_moving(12.0, 10.0, 600.0, 120.0, 1.0)
    assert worth_moving(12.0, 10.0, 600.0, 59.0, 2.0)
    assert not worth_moving(12.0, 10.0, 600.0, 61.0, 2.0)
    assert not worth_moving(10.0, 10.0, 600.0, 0.0, 1.0)
    assert worth_moving(math.inf, 10.0, 600.0, 1e9, 1.0)  # off an unusable link, whatever it costs
    assert not worth_moving(math.inf, 10.0, 600.0, math.inf, 1.0)  # but not over one
    assert not worth_moving(math.inf, math.inf, 600.0, 0.0, 0.0)
    assert worth_moving(1.0, 0.0, 600.0, 1e9, 1.0)  # free: any number of partitions
