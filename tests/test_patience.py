"""Time limits of tests: never shorter than asked for, longer on a busy machine, and bounded."""

from __future__ import annotations

import patience as module
import pytest
from patience import LARGEST, crowding, patience, slowness


def test_a_limit_is_never_shorter_than_asked_for_and_never_without_end() -> None:
    assert slowness() >= 1
    assert crowding() >= 1
    assert 20 <= patience(20) <= 20 * LARGEST


@pytest.mark.parametrize(("slow", "crowded", "limit"), [(1, 1, 20), (2, 1, 40), (1, 5, 100), (2, 5, 200), (9, 9, 600)])
def test_a_limit_follows_the_speed_and_the_load(
    monkeypatch: pytest.MonkeyPatch, slow: float, crowded: float, limit: float
) -> None:
    monkeypatch.setattr(module, "slowness", lambda: slow)
    monkeypatch.setattr(module, "crowding", lambda: crowded)
    assert patience(20) == limit
