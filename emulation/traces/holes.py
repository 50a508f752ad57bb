"""Holes of a trace: steps between rows that are much longer than the usual step.

R1. A hole is a step of more than ``HOLE_STEPS`` median steps, or of more than a given time.
R2. If a hole becomes an outage, the row before holds for one median step. Then the rate is 0, or in a trace without
    rates the loss is 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from thalweg.emulation.links.units import format_time
from thalweg.emulation.traces.columns import LOSS, RATE
from thalweg.emulation.traces.link import LinkTrace
from thalweg.emulation.traces.trace import FloatArray
from thalweg.middleware.errors import TraceError

HOLE_STEPS = 5.0
Become = Literal["hold", "outage", "refuse"]


class Steps(NamedTuple):
    """Steps of a trace. ``longest_at_s``: begin of the longest step. Without a second row, steps are 0."""

    duration_s: float
    median_s: float
    longest_s: float
    longest_at_s: float
    holes: int


def steps(trace: LinkTrace, over_s: float | None = None) -> Steps:
    """Return the steps of a trace. ``over_s``: the longest step that is no hole (R1)."""
    lengths_s = np.diff(trace.times_s)
    if not lengths_s.size:
        return Steps(trace.duration_s, 0.0, 0.0, 0.0, 0)
    median_s, place = float(np.median(lengths_s)), int(np.argmax(lengths_s))
    holes = int((lengths_s > _limit_s(median_s, over_s)).sum())
    return Steps(trace.duration_s, median_s, float(lengths_s[place]), float(trace.times_s[place]), holes)


def filled(trace: LinkTrace, become: Become, over_s: float | None, path: Path) -> LinkTrace:
    """Return the trace of a file with its holes held, or as outages.

    Raises TraceError if holes are refused, or cannot be outages.
    """
    trace_steps = steps(trace, over_s)
    if become == "hold" or not trace_steps.holes:
        return trace
    if become == "refuse":
        counted = "a hole" if trace_steps.holes == 1 else f"{trace_steps.holes} holes"
        raise TraceError(
            f"{path}: {counted}, the longest of {format_time(trace_steps.longest_s)} from"
            f" {format_time(trace_steps.longest_at_s)} on; write --hole outage or hold"
        )
    field = next((name for name in (RATE, LOSS) if name in trace.figures), None)
    if field is None:
        raise TraceError(f"{path}: it has neither rates nor losses, so that no hole is an outage; use --hole hold")
    gaps = np.flatnonzero(np.diff(trace.times_s) > _limit_s(trace_steps.median_s, over_s))
    begins = trace.times_s[gaps] + min(trace_steps.median_s, _limit_s(trace_steps.median_s, over_s))
    figures = {name: _with(values, gaps, values[gaps]) for name, values in trace.figures.items()}
    figures[field] = _with(trace.figures[field], gaps, np.full(len(gaps), 0.0 if field == RATE else 1.0))
    return LinkTrace(trace.name, _with(trace.times_s, gaps, begins), figures, trace.duration_s)


def told(found: Mapping[str, Steps], become: Become) -> str:
    """Return a line with the duration, the median step and the longest hole of traces. ``found``: steps by name."""
    name, longest = max(found.items(), key=lambda item: item[1].longest_s)
    parts = [f"duration {_range([trace_steps.duration_s for trace_steps in found.values()])}"]
    if medians := [trace_steps.median_s for trace_steps in found.values() if trace_steps.median_s]:
        parts.append(f"median step {_range(medians)}")
    size = format_time(longest.longest_s)
    if not any(trace_steps.holes for trace_steps in found.values()):
        return f"{', '.join(parts)}, no hole" + f" (longest step {size})" * (longest.longest_s > 0)
    where = f"from {format_time(longest.longest_at_s)} on{f' in {name}' if len(found) > 1 else ''}"
    became = {"hold": "held", "outage": "an outage", "refuse": "refused"}[become]
    return f"{', '.join(parts)}, longest hole {size} {where}, {became}"


def _range(values: Sequence[float]) -> str:
    least, most = format_time(min(values)), format_time(max(values))
    return least if least == most else f"{least} to {most}"


def _limit_s(median_s: float, over_s: float | None) -> float:
    return HOLE_STEPS * median_s if over_s is None else over_s


def _with(values: FloatArray, after: np.ndarray[tuple[int], np.dtype[np.intp]], more: FloatArray) -> FloatArray:
    """Return ``values`` with a value of ``more`` inserted after each place of ``after``. The result is read-only."""
    result = np.insert(values, after + 1, more)
    result.flags.writeable = False
    return result
