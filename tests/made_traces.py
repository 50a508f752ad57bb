"""Traces for tests, made by hand and by hypothesis."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from thalweg.emulation.traces.trace import BandwidthTrace

held = st.integers(1, 400).map(lambda quarters: quarters / 4)  # exact sums: every order of addition gives the same rows


def steps(*rows: tuple[float, float]) -> BandwidthTrace:
    """Return a trace of rows (seconds held, bit/s)."""
    edges = list(itertools.accumulate((step for step, _ in rows), initial=0.0))
    return BandwidthTrace("t", np.array(edges[:-1]), np.array([rate for _, rate in rows]), edges[-1])


def traces(most_bps: int) -> st.SearchStrategy[BandwidthTrace]:
    """Return a strategy for traces of up to eight rows, outages among them."""
    rates = st.one_of(st.just(0.0), st.integers(1, most_bps).map(float))
    return st.lists(st.tuples(held, rates), min_size=1, max_size=8).map(lambda rows: steps(*rows))
