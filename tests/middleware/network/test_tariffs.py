"""Prices of links and bytes."""

from __future__ import annotations

import pytest

from thalweg.middleware.network.tariffs import GB, HOUR_S, TARIFFS


def test_a_rented_port_pays_off_from_about_four_gigabytes_an_hour() -> None:
    public, dedicated = TARIFFS["public"], TARIFFS["dedicated"]
    even_gb = dedicated.renting(1e9, HOUR_S) / (public.per_gb - dedicated.per_gb)
    assert even_gb == pytest.approx(4.29, abs=0.01)
    assert public.renting(1e9, HOUR_S) == 0
    assert dedicated.renting(2e6, HOUR_S) == dedicated.renting(1e9, HOUR_S) == pytest.approx(0.30)  # R3
    assert dedicated.renting(1.2e9, HOUR_S / 2) == pytest.approx(0.30)
    assert dedicated.carrying(3 * GB) == pytest.approx(0.06)
