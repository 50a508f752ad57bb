"""Figures of several traces together, for lists and descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from thalweg.emulation.traces.trace import BandwidthTrace, FloatArray, TraceSummary


def quantiles(values: FloatArray) -> dict[str, float]:
    """Return mean and quantiles of rows, which are usually at equal distances."""
    p5, middle, p95 = np.percentile(values, [5, 50, 95]).tolist()
    return {"mean": float(values.mean()), "median": middle, "p5": p5, "p95": p95}


def pooled_means(members: Sequence[TraceSummary]) -> dict[str, Any]:
    """Return the figures of several traces that follow from their summaries."""
    changes = sum(member.changes for member in members)
    total_s = sum(member.duration_s for member in members)
    return {
        "traces": len(members),
        "median_duration_s": median(member.duration_s for member in members),
        "mean_bps": fmean(member.mean_bps for member in members),
        "changes": changes,
        "mean_change_s": sum((member.mean_change_s or 0.0) * member.changes for member in members) / changes
        if changes
        else None,
        "zero_share": sum(member.zero_share * member.duration_s for member in members) / total_s,
    }


def pooled_figures(pool: Sequence[BandwidthTrace], summaries: Sequence[TraceSummary]) -> dict[str, Any]:
    """Return the figures of several traces together: every 10-s average and every interval counts the same."""
    p5, middle, p95 = np.percentile(np.concatenate([trace.averaged() for trace in pool]), [5, 50, 95]).tolist()
    intervals = np.concatenate([trace.change_intervals_s() for trace in pool])
    return {
        **pooled_means(summaries),
        "median_bps": middle,
        "p5_bps": p5,
        "p95_bps": p95,
        "median_change_s": float(np.median(intervals)) if intervals.size else None,
    }
